"""Who gives way when calls share too little memory: who is held, let go on, or ended (design: section 6). Pure
decisions.

The kernel throttles at memory.high and reclaims at memory.max by itself, without an end: where nothing can be
reclaimed, calls have stood still there for hours (oh-my-pi#12769, kubernetes/enhancements#4243). So the largest call
of the lowest priority is held, that the others may finish; it goes on when they have, or when none of them is at work
(they may wait for a lock that it has); and when one has waited for the stall deadline, the largest is ended.

Where the kernel tells when a budget becomes short (bpf/memwatch.bpf.c) nobody needs to stall before: all are held but
those for whom there is room beside what higher priorities may still claim of their reserves, and the first of the rest.
Should even that one come to the end of the room, it changes places with the largest that is held, who keeps most from
the others and gives most back: what is stopped half way up is of no use to anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentcgroup.policy.model import Rung

Step = Literal["release", "hold", "enomem", "end"]

#: The share of its stall deadline that a call waits before another is held.
HOLD_AFTER = 0.1
#: Who is held goes on when there is room for so many margins; one margin less, and he is held.
MARGINS = 2
#: The share of a margin that is left when the only one at work changes places with one that is held.
BRINK = 0.5


@dataclass(frozen=True, slots=True)
class Room:
    """A budget, in bytes. `claims`: for each priority, the highest first, what is left of its reserves."""

    used: int
    limit: int
    margin: int
    claims: tuple[int, ...] = (0, 0, 0)

    def claimed(self, priority: int) -> int:
        """What those of higher priorities may still take."""
        return sum(self.claims[:priority])

    def short(self, priority: int, margins: float = 1) -> bool:
        """Whether one of that priority is to take no more."""
        return self.used + self.claimed(priority) + margins * self.margin > self.limit


@dataclass(frozen=True, slots=True)
class Standing:
    """One call of those that a limit makes wait, or that share it. Seconds.

    burden: the priority, 0 the highest, and the size; the greatest gives way first. waited: slowed and held in this
    episode. stalled: no progress since the last look. idle: neither charging nor running for a while. reserved: uses
    no more than what it was promised. crowded_out: held for want of room, before anybody stood still. spared: handling
    a signal. ending: told to end. refused: told ENOMEM if it asks for more, or cannot be.
    """

    burden: tuple[int, int]
    deadline: float
    rungs: Sequence[Rung]
    waited: float = 0.0
    stalled: bool = False
    idle: bool = False
    reserved: bool = False
    held: bool = False
    crowded_out: bool = False
    spared: bool = False
    ending: bool = False
    refused: bool = True

    @property
    def late(self) -> bool:
        """Whether it has waited as long as it may."""
        return self.waited >= self.deadline

    @property
    def can_be_held(self) -> bool:
        """Whether it may be stopped for a while."""
        return "hold" in self.rungs and not (self.held or self.ending or self.spared or self.late)


def decide(calls: Sequence[Standing], room: Room | None = None) -> list[tuple[int, Step]]:
    """What to do now, by index: any number of releases and holds, and one end at most. Without `room` only calls that
    stand still count.
    """
    running = [n for n, call in enumerate(calls) if not call.held and not call.ending]
    steps: list[tuple[int, Step]] = [(n, "release") for n in _released(calls, running, room)]
    if room is not None:
        steps += [(n, "hold") for n in _crowded_out(calls, running, room)]
        steps += _hand_over(calls, running, room)
    if not any(call.ending for call in calls):  # else wait for what that one gives back
        taken = {n for n, _ in steps}
        steps += [(n, step) for n, step in _give_way(calls, running) if step in ("enomem", "end") or n not in taken]
    return steps


def _released(calls: Sequence[Standing], running: list[int], room: Room | None) -> list[int]:
    """Who has waited long enough or has room; or the first of all, where nobody else is at work."""
    held = [n for n, call in enumerate(calls) if call.held]
    roomy = [n for n in held if calls[n].crowded_out and room and not room.short(calls[n].burden[0], MARGINS)]
    free = [n for n in held if calls[n].late or n in roomy]
    if free or not held or any(not calls[n].idle for n in running):
        return free
    return [min(held, key=lambda n: calls[n].burden)]


def _crowded_out(calls: Sequence[Standing], running: list[int], room: Room) -> Iterator[int]:
    """Who is to take no more while somebody before him is at work."""
    first = min((calls[n].burden for n in running if not calls[n].idle), default=None)
    for n in running:
        call = calls[n]
        last = first is not None and call.burden > first and room.short(call.burden[0])
        if last and call.can_be_held and not call.reserved:
            yield n


def _hand_over(calls: Sequence[Standing], running: list[int], room: Room) -> list[tuple[int, Step]]:
    """Whether the only one at work makes way for the largest of those that wait for it."""
    at_work = [n for n in running if not calls[n].idle]
    if len(at_work) != 1:
        return []
    first = calls[at_work[0]]
    if not first.can_be_held or first.reserved or not room.short(first.burden[0], BRINK):
        return []
    waiting = [n for n, call in enumerate(calls) if call.held and call.crowded_out and not call.late]
    larger = [n for n in waiting if calls[n].burden[0] == first.burden[0] and calls[n].burden > first.burden]
    if not larger:
        return []
    return [(at_work[0], "hold"), (max(larger, key=lambda n: calls[n].burden), "release")]


def _give_way(calls: Sequence[Standing], running: list[int]) -> Iterator[tuple[int, Step]]:
    stalled = [calls[n] for n in running if calls[n].stalled]
    if any(call.late for call in stalled):
        last = [n for n, call in enumerate(calls) if "end" in call.rungs]
        if last:
            largest = max(last, key=lambda n: calls[n].burden)
            yield largest, "end" if calls[largest].refused or "enomem" not in calls[largest].rungs else "enomem"
    elif any(call.waited >= call.deadline * HOLD_AFTER for call in stalled):
        able = [n for n in running if calls[n].can_be_held]
        heaviest = max(able, key=lambda n: calls[n].burden, default=None)
        if any(n != heaviest and not calls[n].idle for n in running) and heaviest is not None:
            yield heaviest, "hold"
