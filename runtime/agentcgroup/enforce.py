"""What cgroup files cannot do by themselves (design: section 6): fork storms, and an end to waiting for memory.

Everything here starts from an event (an admission, a changed counter); an idle container costs no wake-ups, and one
whose calls are calm is looked at ever more seldom.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from agentcgroup import ladder, subtree
from agentcgroup.admission import PRIORITIES
from agentcgroup.budget import give_way
from agentcgroup.cgroup import Cgroup, pressure_total
from agentcgroup.memoryprofile import Profile

if TYPE_CHECKING:
    from agentcgroup.call import Call
    from agentcgroup.container import Container
    from agentcgroup.loop import Timer

#: Seconds between looks at a container that is under pressure or has a young call. Calm ones are looked at ever more
#: seldom, up to CALM_TICK or this share of the stall deadline, so that a shell that stays open costs next to nothing.
TICK = 0.5
CALM_TICK = 16.0
CALM_SHARE = 0.25
#: Seconds between looks for each call that is looked at: a container of many calls takes no more of our time.
EACH = 0.004
#: The share of a look's time that all of a call's tasks at once must have waited for memory to count as no progress,
#: and the looks without that which end an episode.
STALLED_SHARE = 0.5
CALM_LOOKS = 4
#: The share of its limit at which a cgroup makes those in it wait.
FULL_SHARE = 0.97
#: A call that has grown by less than IDLE_BYTES and used less than IDLE_SHARE of a CPU for IDLE_AFTER is not at work.
IDLE_AFTER = 2.0
IDLE_SHARE = 0.01
IDLE_BYTES = 256 << 10
#: The fork rate is of the last two looks, over no less than this (seconds): a JVM may start its threads at once.
FORK_WINDOW = 1.0
#: Refusals at pids.max that make a storm, however slow: as many as there are processes allowed, but never fewer.
STORM_REFUSALS = 128


class Strain:
    """How a call fares: counters as of the last look, and what has become of them since. Seconds and bytes.

    level: the cgroup whose limit makes it wait. waited: slowed and held in this episode, for each such cgroup.
    size: its memory when it was last weighed, which is more often than it is looked at; profile: what it was then.
    """

    def __init__(self) -> None:
        self.looked = time.monotonic()
        self.stall_seen = self.held_seen = self.cpu_seen = 0.0
        self.size = self.memory_seen = self.pids_seen = self.denied_seen = 0
        self.host_stalls_seen: int | None = None
        self.burst = (0, 0.0)
        self.waited: dict[str, float] = {}
        self.idle = 0.0
        self.calm = 0
        self.stalled = False
        self.level = ""
        self.fork_rate = 0.0
        self.looks = 0
        self.profile = Profile()

    def adopt(self, call: Call) -> None:
        """It has been running for a while: what it did until now is not counted."""
        self.stall_seen = pressure_total(call.cgroup, "memory.pressure", "full")
        self.pids_seen = call.cgroup.number("pids.current") or 0
        self.denied_seen = call.cgroup.keyed("pids.events").get("max", 0)

    def look(self, call: Call, now: float) -> bool:
        """Take in what it did since the last look; whether it was calm."""
        elapsed, self.looked = max(now - self.looked, 0.001), now
        stall, held = pressure_total(call.cgroup, "memory.pressure", "full"), call.held_s
        gained, self.stall_seen = stall - self.stall_seen, stall
        waited, self.held_seen = held - self.held_seen, held
        self.stalled = gained >= STALLED_SHARE * elapsed
        if self.stalled:
            self.level = self._level(call)
            self._add(self.level, gained)
        else:
            self.host_stalls_seen = None
        if waited > 0:
            self._add(call.held_at, waited)
        self.calm = 0 if self.stalled or waited > 0 else self.calm + 1
        if self.calm >= CALM_LOOKS:
            self.waited.clear()
            self.level = ""
        self._work(call, elapsed)
        if not self.looks:
            call.raise_oom_scores()
        self.looks += 1
        return self._forks(call, elapsed) and not self.waited

    def _add(self, level: str, seconds: float) -> None:
        self.waited[level] = self.waited.get(level, 0.0) + seconds

    def _level(self, call: Call) -> str:
        """The cgroup whose limit makes it wait: from the call upwards the first that is at one; the root of all where
        the host itself is short. Otherwise the one of before, for a throttled task sleeps on for up to 2 s, or the call
        itself: what cannot be laid to others is its own.
        """
        for group in call.cgroup.parents(call.container.top):
            if _full(group):
                return group.path
        before, self.host_stalls_seen = self.host_stalls_seen, _host_stalls()
        if before is not None and self.host_stalls_seen > before:
            return str(call.container.top)
        return self.level or call.cgroup.path

    def _work(self, call: Call, elapsed: float) -> None:
        memory = self.weigh(call)
        cpu = call.cgroup.keyed("cpu.stat").get("usage_usec", 0) / 1e6
        working = memory - self.memory_seen >= IDLE_BYTES or cpu - self.cpu_seen >= IDLE_SHARE * elapsed
        self.idle = 0.0 if working or self.stalled else self.idle + elapsed
        self.memory_seen, self.cpu_seen = memory, cpu

    def weigh(self, call: Call) -> int:
        """Its memory now."""
        self.size = call.cgroup.number("memory.current") or 0
        self.profile.add(call.age_s, self.size, self.stall_seen)
        return self.size

    def _forks(self, call: Call, elapsed: float) -> bool:
        now = call.cgroup.number("pids.current") or 0
        denied = call.cgroup.keyed("pids.events").get("max", 0)
        gained = max(now - self.pids_seen, 0) + denied - self.denied_seen
        if now * 2 > call.grant.pids or denied > self.denied_seen:
            call.note_zombies()
        self.pids_seen, self.denied_seen = now, denied
        before, over = self.burst
        self.fork_rate = (gained + before) / max(elapsed + over, FORK_WINDOW)
        self.burst = (gained, elapsed)
        return gained < 16

    @property
    def at_work(self) -> bool:
        """Whether it has charged memory, run or stood still lately."""
        return self.idle < IDLE_AFTER

    def standing(self, call: Call, now: float, level: str, reserved: bool = False) -> ladder.Standing:
        """The call as the ladder sees it that decides for the limit of the cgroup `level`."""
        policy = call.container.policy.call
        return ladder.Standing(
            burden=(PRIORITIES.index(call.grant.priority), self.size),
            deadline=policy.stall_deadline,
            rungs=policy.on_pressure,
            waited=self.waited.get(level, 0.0),
            stalled=self.stalled and self.level == level,
            idle=not self.at_work,
            reserved=reserved,
            held=call.held_since is not None,
            crowded_out=call.crowded_out,
            spared=now < call.spared_until,
            ending=call.ended is not None,
            refused=call.refused or not call.can_be_refused,
        )


class Watch:
    """The looks at one container's calls, every TICK seconds while it has calls that have lasted so long."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._timer: Timer | None = None
        self._interval = TICK
        self._lifted = False

    def arm(self) -> None:
        """Something happened: look at the calls in a while, and go on while there are any."""
        if self._timer is None or self._interval > TICK:
            self._schedule(TICK)

    def stop(self) -> None:
        """Look no more, and put back what was changed for the time being."""
        if self._timer is not None:
            self._timer.cancel()
        self._lift(False)

    def _schedule(self, interval: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._interval = interval
        self._timer = self._container.loop.after(interval, self._tick)

    def _tick(self) -> None:
        self._timer = None
        container, now = self._container, time.monotonic()
        calls = [call for call in container.calls.values() if not call.relocated]
        calm = all([call.strain.look(call, now) for call in calls])
        if container.policy.mode == "enforce":
            for call in calls:
                call.recheck()
            self._storms(calls)
            self._ladder(calls, now)
            self._lift(any(self._needs_room(call, now) for call in calls))
        else:
            self._observe(calls)
        if calls:
            longest = min(CALM_TICK, max(TICK, CALM_SHARE * container.policy.call.stall_deadline))
            self._schedule(max(min(self._interval * 2, longest) if calm else TICK, EACH * len(calls)))

    def _storms(self, calls: list[Call]) -> None:
        """A storm gains processes, or is refused them, faster than the policy allows (claude-code#57, #85457); or it
        has been refused more than it may have, which on a slow machine comes first.
        """
        allowed = self._container.policy.call.fork_rate
        for call in calls:
            refused = call.strain.denied_seen >= max(call.grant.pids, STORM_REFUSALS)
            if allowed is not None and (call.strain.fork_rate > allowed or refused):
                call.terminate("fork storm")

    def _observe(self, calls: list[Call]) -> None:
        together = self._container.tree.child("calls").number("memory.current") or 0
        for call in calls:
            call.most_together = max(call.most_together, together)
            call.most_forks = max(call.most_forks, call.strain.fork_rate)

    def _ladder(self, calls: list[Call], now: float) -> None:
        """One decision for each limit that makes calls wait or for which one is held, over all calls that share it:
        those of other containers too where the limit is above this one.
        """
        holding = {call.held_at for call in calls if call.held_since is not None}
        for level in sorted(holding | {call.strain.level for call in calls if call.strain.stalled}):
            budget = self._container.budgets.get(level)
            if budget is None or now - budget.decided >= TICK / 2:  # else another container that shares it did just now
                give_way(level, [call for call in self._peers(level) if call.enforced], now, budget)

    def _peers(self, level: str) -> list[Call]:
        """The calls at and below a cgroup."""
        container = self._container
        containers = [container] if _within(level, container.tree) else container.governor.containers.values()
        found = (call for one in containers for call in one.calls.values())
        return [call for call in found if f"{call.cgroup.path}/".startswith(f"{level}/")]

    def _needs_room(self, call: Call, now: float) -> bool:
        """Held, handling a signal after that, or told to end: throttled it would not come to that."""
        ours = _within(call.held_at, self._container.tree)
        return (ours and (call.held_since is not None or now < call.spared_until)) or call.ended == "stall"

    def _lift(self, lift: bool) -> None:
        """While a call is held the others may use what is left up to the hard limit, almost."""
        if lift != self._lifted:
            self._lifted = lift
            container = self._container
            policy, limits, tree = container.policy, container.limits, container.tree
            container.slowly(lambda: subtree.soften(policy, limits, tree, lift), lambda _: None)


def _full(group: Cgroup) -> bool:
    """Whether it holds about as much as a limit of its own allows; charges are made in batches of 64 pages a CPU."""
    limits = [limit for name in ("memory.high", "memory.max") if (limit := group.number(name)) is not None]
    return bool(limits) and (group.number("memory.current") or 0) >= min(limits) * FULL_SHARE


def _host_stalls() -> int:
    """How often a task had to reclaim because the host was short; what cgroups make it reclaim is not counted there
    (mm/vmscan.c, do_try_to_free_pages).
    """
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("allocstall_"))


def _within(path: str, group: Cgroup) -> bool:
    return f"{path}/".startswith(f"{group.path}/")
