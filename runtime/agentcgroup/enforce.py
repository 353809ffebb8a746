"""What cgroup files cannot do by themselves (design: section 6): time budgets, stall deadlines, fork storms, orphans.

Everything here starts from an event (an admission, a changed counter, the shell's end); an idle container costs no
wake-ups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentcgroup.admission import PRIORITIES
from agentcgroup.cgroup import pressure_total

if TYPE_CHECKING:
    from agentcgroup.call import Call
    from agentcgroup.container import Container
    from agentcgroup.loop import Timer

#: Seconds between looks at a container that is under pressure or has a young call; calm ones are looked at ever more
#: seldom, up to CALM_TICK, so that a shell that stays open costs next to nothing.
TICK = 0.5
CALM_TICK = 16.0
#: The share of a tick that a call must have been stalled for the tick to count, and the calm ticks that end a stall.
STALLED_SHARE = 0.2
CALM_TICKS = 4


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
        self.restore()

    def _schedule(self, interval: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._interval = interval
        self._timer = self._container.loop.after(interval, self._tick)

    def _tick(self) -> None:
        self._timer = None
        calls = [c for c in self._container.calls.values() if c.relocated is False]
        if not calls:
            self.restore()
            return
        if self._container.policy.mode == "enforce":
            calm = all([self._look(call) for call in calls])
            self._ladder(calls)
        else:
            calm = True
        self._schedule(min(self._interval * 2, CALM_TICK) if calm else TICK)

    def _look(self, call: Call) -> bool:
        """Take in what a call did since the last look; whether it was calm."""
        calm = self._forks(call)
        stalled = pressure_total(call.cgroup, "memory.pressure")
        gained, call.stall_seen = stalled - call.stall_seen, stalled
        if call.held_since is not None:
            return False
        if gained >= self._interval * STALLED_SHARE and under_limit_pressure(call):
            call.stall_run += gained
            call.calm = 0
            return False
        call.calm += 1
        if call.calm >= CALM_TICKS:
            call.stall_run = 0.0
        return calm and call.stall_run == 0.0

    def _forks(self, call: Call) -> bool:
        """A storm gains processes, or is refused them at pids.max, faster than the policy allows (claude-code#57)."""
        rate = self._container.policy.call.fork_rate
        now = call.cgroup.number("pids.current") or 0
        denied = call.cgroup.keyed("pids.events").get("max", 0)
        gained = max(now - call.pids_seen, 0) + max(denied - call.denied_seen, 0)
        call.pids_seen, call.denied_seen = now, denied
        if rate is not None and gained > rate * self._interval:
            call.terminate("fork storm")
        return gained < 16

    def _ladder(self, calls: list[Call]) -> None:
        """Throttle (the kernel does) -> hold the largest so that the others can finish -> end it at the stall
        deadline.
        """
        policy = self._container.policy.call
        held = [c for c in calls if c.held_since is not None]
        running = [c for c in calls if c.held_since is None and c.ended is None]
        for call in held:
            if not running or call.held_s + call.stall_run >= policy.stall_deadline:
                call.release()
                self.restore()
        stalled = [c for c in running if c.stall_run > 0]
        if not stalled:
            return
        largest = max(running, key=_burden)
        worst = max(stalled, key=lambda c: c.stall_run + c.held_s)
        if worst.stall_run + worst.held_s >= policy.stall_deadline and "end" in policy.on_pressure:
            largest.note_neighbours()
            largest.terminate("stall")
        elif "hold" in policy.on_pressure and len(running) > 1 and worst.stall_run >= policy.stall_deadline / 10:
            self._hold(largest)

    def _hold(self, call: Call) -> None:
        """A held call grows no further, so the others may use what is left up to the hard limit."""
        if call.hold_count < 3:
            call.hold()
            self._lifted = self._container.tree.child("calls").try_write("memory.high", "max")

    def restore(self) -> None:
        """Put memory.high back where the policy wants it."""
        if self._lifted:
            self._lifted = False
            self._container.reapply()


def _burden(call: Call) -> tuple[int, int]:
    """Who gives way first: the lowest priority, and among equals the largest."""
    return PRIORITIES.index(call.grant.priority), call.cgroup.number("memory.current") or 0


def under_limit_pressure(call: Call) -> bool:
    """Whether a limit of ours is what the call stalls on: its own or that of all calls was reached since the
    last look.
    """
    events = call.cgroup.keyed("memory.events")
    calls = call.container.tree.child("calls").keyed("memory.events.local")
    now = events.get("high", 0) + events.get("max", 0) + calls.get("high", 0) + calls.get("max", 0)
    reached, call.limit_hits = now > call.limit_hits, now
    return reached
