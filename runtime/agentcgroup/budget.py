"""Limits that several calls share, and who gives way at one (design: sections 6 and 8).

Two kinds are watched in the kernel, so that somebody is held before memory runs out: calls/ of each container, between
its calls, and the lowest limited cgroup above containers (agentcgroup.slice where it was given a MemoryMax), between
theirs. bpf/memwatch.bpf.c tells who charges while more than `stop_at` is in use; that is set here, so high that a calm
fleet is silent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from agentcgroup import ladder
from agentcgroup.admission import PRIORITIES
from agentcgroup.cgroup import Cgroup
from agentcgroup.outcome import Step

if TYPE_CHECKING:
    from agentcgroup.bpf.kernel import Kernel
    from agentcgroup.call import Call
    from agentcgroup.container import Container
    from agentcgroup.loop import Loop

#: What is kept free, as a share of the limit and at most (bytes): room for what is charged until the daemon has acted.
MARGIN_SHARE = 1 / 16
MARGIN_MOST = 1 << 30
#: Who may go on in a short budget is looked at again when such a share of the margin more is in use.
STRIDE = 1 / 8
#: Seconds between decisions for one budget, and the most of the daemon's time that they take: for one container's own
#: little, that it cannot hold up the others.
REST = 0.005
TIME_SHARE, OWN_TIME_SHARE = 0.5, 0.1
#: A call's figures are read anew for a decision when they are older (seconds).
STALE = 0.5


class Budget:
    """A cgroup whose limit is shared: by containers, and then `level` is its depth in the hierarchy; or by the calls
    of one container, and then that is 0.
    """

    def __init__(self, group: Cgroup, level: int = 0) -> None:
        self.group = group
        self.level = level
        self.containers: dict[str, Container] = {}
        self.raised = False
        self.crossed_at: float | None = None
        self.decided = 0.0
        self._not_before = 0.0
        self._waiting: set[Callable[[Kernel], None]] = set()

    @property
    def inside(self) -> bool:
        """Whether calls of one container share it."""
        return self.level == 0

    @property
    def name(self) -> str:
        """What records and messages call it: the slice, or "" for a container's own."""
        return "" if self.inside else self.group.path.rpartition("/")[2]

    def room(self) -> ladder.Room | None:
        """How full it is; None without a limit."""
        used, limit = self.group.number("memory.current"), self._limit()
        if used is None or limit is None:
            return None
        claims = [0] * len(PRIORITIES)
        for priority, claim in self._claims():
            claims[priority] += max(claim, 0)
        return ladder.Room(used, limit, int(min(limit * MARGIN_SHARE, MARGIN_MOST)), tuple(claims))

    def _limit(self) -> int | None:
        limits = [limit for name in ("memory.max", "memory.high") if (limit := self.group.number(name)) is not None]
        return self.group.number("memory.max") if self.inside else min(limits, default=None)

    def _claims(self) -> Iterator[tuple[int, int]]:
        """Priority, and what is left of its reserve, of each who is at work."""
        for container in self.containers.values():
            at_work = [call for call in container.calls.values() if call.strain.at_work]
            if self.inside:
                for call in at_work:
                    if call.grant.declared:
                        used = call.cgroup.number("memory.current") or 0
                        yield PRIORITIES.index(call.grant.priority), call.grant.declared - used
            elif at_work and container.reserve:
                used = container.tree.number("memory.current") or 0
                yield PRIORITIES.index(container.policy.priority), container.reserve - used

    def reserved(self, call: Call) -> bool:
        """Whether the call, or its container, is within what it was promised."""
        if self.inside:
            return call.strain.size < call.grant.declared
        reserve = call.container.reserve
        return reserve > 0 and (call.container.tree.number("memory.current") or 0) < reserve

    def crossed(self, at: float, loop: Loop, kernel: Kernel) -> None:
        """The kernel says that more is in use than `stop_at`, since that moment (monotonic clock)."""
        if self.crossed_at is None:
            self.crossed_at = at
            self._soon(self._look, loop, kernel)

    def changed(self, loop: Loop, kernel: Kernel) -> None:
        """A claim has come or gone, or what was in use may be free."""
        self._soon(self.arm, loop, kernel)

    def _soon(self, work: Callable[[Kernel], None], loop: Loop, kernel: Kernel) -> None:
        """Do it, once, when this budget has not had more than its share of our time."""
        if work not in self._waiting:
            self._waiting.add(work)
            loop.after(max(0.0, self._not_before - time.monotonic()), lambda: self._do(work, kernel))

    def _do(self, work: Callable[[Kernel], None], kernel: Kernel) -> None:
        self._waiting.discard(work)
        began = time.monotonic()
        try:
            work(kernel)
        finally:
            now = time.monotonic()
            share = OWN_TIME_SHARE if self.inside else TIME_SHARE
            self._not_before = now + max(REST, (now - began) / share)

    def _look(self, kernel: Kernel) -> None:
        began = time.monotonic()
        calls = [call for one in self.containers.values() for call in one.calls.values() if call.enforced]
        try:
            for call in calls:
                if began - call.strain.looked > STALE:
                    call.strain.look(call, began)
                elif call.held_since is None:
                    call.strain.weigh(call)
            give_way(self.group.path, calls, began, self)
            self._note_observed()
        finally:
            self.crossed_at = None  # whatever went wrong, the next crossing is looked at
        self.arm(kernel)

    def _note_observed(self) -> None:
        """Where a policy only observes: who would have had to give way."""
        observed = [one for one in self.containers.values() if one.policy.mode == "observe"]
        room = self.room() if observed else None
        for call in [call for one in observed for call in one.calls.values()]:
            if room is not None and call.crowded is None and room.short(PRIORITIES.index(call.grant.priority)):
                call.crowded = self.step("hold", call, room)

    def step(self, name: ladder.Step, call: Call, room: ladder.Room) -> Step:
        """What is done to a call now, with this budget's figures."""
        lag = None if self.crossed_at is None else time.monotonic() - self.crossed_at
        claimed = room.claimed(PRIORITIES.index(call.grant.priority))
        return Step(name, call.age_s, self.name, room.used, room.limit, claimed, lag)

    def arm(self, kernel: Kernel) -> None:
        """Tell the kernel at what use a container is to be looked at."""
        room, first = self.room(), self._first()
        self.raised = False
        for container in self.containers.values():
            stop = 0
            if room is not None:
                lowest = len(PRIORITIES) - 1
                priority = lowest if self.inside else PRIORITIES.index(container.policy.priority)
                base = room.limit - room.margin - room.claimed(priority)
                stop = max(base, int(room.used + room.margin * STRIDE))
                self.raised |= stop > base
            park = first is not None and self._may_park(container, first)
            kernel.watch(container.cgid, stop, self.level, park, first.slot.cgid if first is not None else 0)

    def _first(self) -> Call | None:
        """Who goes on whatever happens: the call at work that gives way last, and where several containers share this
        the others of its own with it.
        """
        at_work = [call for container in self.containers.values() for call in container.calls.values() if _goes(call)]
        return min(at_work, key=lambda call: call.strain.standing(call, 0.0, "").burden, default=None)

    def _may_park(self, container: Container, first: Call) -> bool:
        """Whether who takes too much here can wait for the decision: it would be to hold it."""
        policy = container.policy
        if policy.mode != "enforce" or "hold" not in policy.call.on_pressure:
            return False
        if self.inside:
            return not any(call.grant.declared for call in container.calls.values())
        within = container.reserve > 0 and (container.tree.number("memory.current") or 0) < container.reserve
        return container is not first.container and not within


class Budgets:
    """The budgets of all containers that the kernel knows."""

    def __init__(self, kernel: Kernel, loop: Loop) -> None:
        self._kernel = kernel
        self._loop = loop
        self._shared: dict[str, Budget] = {}

    @property
    def shared(self) -> list[Budget]:
        """Those that containers share."""
        return list(self._shared.values())

    def join(self, container: Container) -> None:
        """Watch a container's budgets from now on, or those that it has now."""
        self.leave(container)
        budgets = [Budget(container.tree.child("calls"))]
        group = shared(container.base, container.top)
        if group is not None:
            budgets.append(self._shared.setdefault(group.path, Budget(group, group.level(container.top))))
        container.budgets = {budget.group.path: budget for budget in budgets}
        for budget in budgets:
            budget.containers[container.record.id] = container
            budget.arm(self._kernel)

    def leave(self, container: Container) -> None:
        """The container has ended."""
        for budget in container.budgets.values():
            budget.containers.pop(container.record.id, None)
            if not budget.containers:
                self._shared.pop(budget.group.path, None)
        container.budgets = {}

    def crossed(self, container: Container, inside: bool, at: float) -> None:
        """The kernel says that a container charged where little is left, at that moment (monotonic clock)."""
        for budget in container.budgets.values():
            if budget.inside == inside:
                budget.crossed(at, self._loop, self._kernel)

    def changed(self, call: Call) -> None:
        """A call has begun or ended: claims come and go with it, and what was in use may be free."""
        for budget in call.container.budgets.values():
            claims = call.grant.declared if budget.inside else call.container.reserve
            if claims or budget.raised:
                budget.changed(self._loop, self._kernel)


def shared(base: Cgroup, top: Path) -> Cgroup | None:
    """The lowest limited cgroup above a container's own; a scope is one container's (systemd.scope(5))."""
    above = [group for group in base.parents(top) if group.path != base.path and not group.path.endswith(".scope")]
    return next((group for group in above if group.number("memory.max") is not None), None)


def _goes(call: Call) -> bool:
    return call.strain.at_work and call.held_since is None and call.ended is None and not call.relocated


def give_way(level: str, calls: list[Call], now: float, budget: Budget | None) -> None:
    """Decide for the calls that share the limit of the cgroup `level`, and act."""
    calls = [call for call in calls if call.held_since is None or call.held_at == level]
    room = None
    if budget is not None:
        room, budget.decided = budget.room(), now
    standings = [call.strain.standing(call, now, level, budget is not None and budget.reserved(call)) for call in calls]
    steps = ladder.decide(standings, room)
    for index, step in steps:
        call = calls[index]
        short = room is not None and room.short(PRIORITIES.index(call.grant.priority))
        _carry_out(call, step, level, short)
        told = budget and room and (short or (step == "release" and call.crowded_out))
        call.note(budget.step(step, call, room) if budget and room and told else Step(step, call.age_s))
    for index, step in steps:
        if step == "hold":  # after all have been stopped, for time counts
            calls[index].offer()
    if any(step in ("enomem", "end") for _, step in steps):
        for call in calls:  # a throttled task may sleep on for 2 s: the others' time begins anew
            call.strain.waited.pop(level, None)


def _carry_out(call: Call, step: ladder.Step, level: str, short: bool) -> None:
    if step == "release":
        call.release()
    elif step == "hold":
        call.hold(level, crowded_out=short)
        call.container.watch.arm()
    elif step == "enomem":
        call.refused = True
        call.refuse(call.cgroup.number("memory.current") or 0)
        call.release()
    else:
        call.note_neighbours()
        call.terminate("stall")
