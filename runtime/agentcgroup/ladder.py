"""Who gives way when calls wait for memory: who is held, let go on, or ended (design: section 6). Pure decisions.

The kernel throttles at memory.high and reclaims at memory.max by itself, without an end: where nothing can be
reclaimed, calls have stood still there for hours (oh-my-pi#12769, kubernetes/enhancements#4243). So the largest call
of the lowest priority is held, that the others may finish; it goes on when they have, or when none of them is at work
(they may wait for a lock that it has); and when one has waited for the stall deadline, the largest is ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentcgroup.policy.model import Rung

Step = Literal["release", "hold", "end"]

#: The share of its stall deadline that a call waits before another is held.
HOLD_AFTER = 0.1


@dataclass(frozen=True, slots=True)
class Standing:
    """One call of those that a limit makes wait, or that share it. Seconds.

    burden: the greatest gives way first. waited: slowed and held in this episode. stalled: no progress since the last
    look. idle: neither charging nor running for a while. spared: handling a signal. ending: told to end.
    """

    burden: tuple[int, int]
    deadline: float
    rungs: Sequence[Rung]
    waited: float = 0.0
    stalled: bool = False
    idle: bool = False
    held: bool = False
    spared: bool = False
    ending: bool = False

    @property
    def late(self) -> bool:
        """Whether it has waited as long as it may."""
        return self.waited >= self.deadline


def decide(calls: Sequence[Standing]) -> list[tuple[int, Step]]:
    """What to do now, by index: any number of releases, and one hold or one end at most."""
    running = [n for n, call in enumerate(calls) if not call.held and not call.ending]
    at_work = any(not calls[n].idle for n in running)
    steps: list[tuple[int, Step]] = [
        (n, "release") for n, call in enumerate(calls) if call.held and (call.late or not at_work)
    ]
    if not any(call.ending for call in calls):  # else wait for what that one gives back
        steps += _give_way(calls, running)
    return steps


def _give_way(calls: Sequence[Standing], running: list[int]) -> Iterator[tuple[int, Step]]:
    stalled = [calls[n] for n in running if calls[n].stalled]
    if any(call.late for call in stalled):
        last = [n for n, call in enumerate(calls) if "end" in call.rungs]
        if last:
            yield max(last, key=lambda n: calls[n].burden), "end"
    elif any(call.waited >= call.deadline * HOLD_AFTER for call in stalled):
        able = [n for n in running if "hold" in calls[n].rungs and not calls[n].spared and not calls[n].late]
        largest = max(able, key=lambda n: calls[n].burden, default=None)
        if any(n != largest and not calls[n].idle for n in running) and largest is not None:
            yield largest, "hold"
