"""What an agent's memory does over time: from recorded runs, or drawn from what is known of many of them.

A trace is one JSON object a line (.jsonl, .jsonl.gz): `samples`, `[seconds, MB of the whole container, ...]` about once
a second, and `calls`, `{start_s, end_s, tool, ...}`. MB are 10^6 bytes.
"""

from __future__ import annotations

import bisect
import gzip
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from agentcgroup.errors import UserError

MB, MIB = 10**6, 1 << 20
#: The experiment of the AgentCgroup paper (arXiv 2602.09345) takes a printed "320.9MB" for MiB and "4.06GB" for GiB,
#: and adds a base: `--paper-units`.
PAPER_BASE_MIB, PAPER_GB = 100, 1.024
#: The process of an agent that only waits, and a bash: part of what was recorded.
OWN_BYTES = 2 * MIB


@dataclass(frozen=True)
class Call:
    """A tool call: seconds from the agent's start, and what it has from when on, in bytes."""

    start_s: float
    end_s: float
    steps: tuple[tuple[float, int], ...] = ()


@dataclass(frozen=True)
class Trace:
    """An agent: what it has itself from when on (seconds, bytes), and its calls by their start."""

    name: str
    own: tuple[tuple[float, int], ...]
    calls: tuple[Call, ...]
    role: str = ""

    @property
    def peak(self) -> int:
        """The most that it and its calls have at a time, in bytes."""
        moments = sorted(
            {at for at, _ in self.own} | {call.start_s + at for call in self.calls for at, _ in call.steps}
        )
        return max((self.at(moment) for moment in moments), default=0)

    @property
    def length(self) -> float:
        """Seconds."""
        return max([at for at, _ in self.own] + [call.end_s for call in self.calls], default=0.0)

    def at(self, seconds: float) -> int:
        """Bytes at that time, as planned."""
        running = [call for call in self.calls if call.start_s <= seconds < call.end_s]
        return _level(self.own, seconds) + sum(_level(call.steps, seconds - call.start_s) for call in running)

    def plan(self, speed: float, offset_s: float = 0.0) -> str:
        """For agentcgroup-load (runtime/load/load.c): the same, so many times faster, that much later."""

        def ms(seconds: float) -> int:
            return round(seconds * 1000 / speed)

        lines = [(ms(at + offset_s * speed), 0, f"own {ms(at + offset_s * speed)} {size}") for at, size in self.own]
        for number, call in enumerate(self.calls, 1):
            start = ms(call.start_s + offset_s * speed)
            lines.append((start, 1, f"call {start} {number} {start + ms(call.end_s - call.start_s)}"))
            steps = [*call.steps, (call.end_s - call.start_s, 0)]  # it goes on until then
            lines += [(start, 2, f"step {number} {ms(at)} {size}") for at, size in steps]
        return "".join(f"{line}\n" for _, _, line in sorted(lines, key=lambda entry: entry[:2]))


def _level(steps: Sequence[tuple[float, int]], seconds: float) -> int:
    index = bisect.bisect_right(steps, (seconds, math.inf))
    return steps[index - 1][1] if index else 0


def load(path: Path, paper_units: bool = False) -> list[Trace]:
    """The runs in a file. Raises UserError with the file and the line."""
    found = []
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    found.append(parse(json.loads(line), paper_units))
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise UserError(f"{path}:{number}: not a trace: {type(error).__name__}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    if not found:
        raise UserError(f"{path}: no trace in it: a JSON object a line is expected")
    return found


def _open(path: Path) -> TextIO:
    return gzip.open(path, "rt") if path.suffix == ".gz" else open(path)


def parse(data: dict[str, Any], paper_units: bool = False) -> Trace:
    """One run. What is more than before while Bash calls run is the latest one's; all else is the agent's own. Raises
    ValueError, KeyError, TypeError, IndexError.
    """
    shells = sorted(
        (float(call["start_s"]), max(float(call["end_s"]), float(call["start_s"])))
        for call in data["calls"]
        if call["tool"] == "Bash" and not call.get("background")
    )
    own: list[tuple[float, int]] = []
    steps: list[list[tuple[float, int]]] = [[] for _ in shells]
    for sample in data["samples"]:
        at, size = float(sample[0]), max(_bytes(float(sample[1]), paper_units) - OWN_BYTES, 0)
        running = [n for n, (start, end) in enumerate(shells) if start <= at < end]
        if running and own:
            latest = running[-1]
            others = sum(steps[n][-1][1] for n in running[:-1] if steps[n])
            steps[latest].append((at - shells[latest][0], max(size - own[-1][1] - others, 0)))
        else:
            own.append((at, size))
    calls = [Call(start, end, tuple(has)) for (start, end), has in zip(shells, steps, strict=True)]
    return Trace(str(data["task"]), tuple(own), tuple(calls), str(data.get("role", "")))


def _bytes(mb: float, paper_units: bool) -> int:
    if not paper_units:
        return round(mb * MB)
    return round((mb if mb < 1000 else mb * PAPER_GB) + PAPER_BASE_MIB) * MIB


# --- drawn from distributions ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantiles:
    """A distribution by points of it, `(probability, value)`; between them it is a straight line in the logarithm."""

    points: tuple[tuple[float, float], ...]

    def draw(self, dice: random.Random) -> float:
        """A value of it."""
        return self.at(dice.random())

    def at(self, probability: float) -> float:
        """The value below which that share of all lies."""
        points = self.points
        index = min(max(bisect.bisect_right(points, (probability, math.inf)), 1), len(points) - 1)
        (p, low), (q, high) = points[index - 1], points[index]
        share = min(max((probability - p) / (q - p), 0.0), 1.0)
        return math.exp(math.log(low) + share * (math.log(high) - math.log(low)))


def _quantiles(*points: tuple[float, float]) -> Quantiles:
    return Quantiles(points)


@dataclass(frozen=True)
class Kind:
    """Commands of one class: how often, seconds, and MB that a call has at most."""

    share: float
    duration: Quantiles
    growth: Quantiles


#: 167 runs of a coding agent (Claude Haiku and GLM-4.7-Flash on SWE-rebench tasks), the raw data of arXiv 2602.09345
#: read anew; shares of each class, and some quantiles, from 114 of them. `other`, mostly commands that look at files,
#: grows as `git` does: too little to be told from noise.
KINDS = {
    "pytest": Kind(
        0.26,
        _quantiles((0, 0.3), (0.5, 1.2), (0.9, 7.9), (0.99, 121)),
        _quantiles((0, 1), (0.5, 28), (0.95, 126), (0.99, 461), (1, 3858)),
    ),
    "pip": Kind(
        0.075,
        _quantiles((0, 0.5), (0.5, 1.5), (0.9, 4.2), (0.99, 66)),
        _quantiles((0, 1), (0.5, 31), (0.95, 115), (0.99, 329), (1, 635)),
    ),
    "python": Kind(
        0.3,
        _quantiles((0, 0.1), (0.5, 0.66), (0.9, 1.5), (0.99, 2.3)),
        _quantiles((0, 0.1), (0.5, 0.6), (0.95, 37), (0.99, 76), (1, 285)),
    ),
    "git": Kind(
        0.155,
        _quantiles((0, 0.01), (0.5, 0.09), (0.9, 1.05), (0.99, 2.6)),
        _quantiles((0, 0.1), (0.5, 0.3), (0.95, 8), (0.99, 50), (1, 66)),
    ),
    "other": Kind(
        0.21,
        _quantiles((0, 0.04), (0.5, 0.1), (0.9, 1.02), (0.99, 2.4)),
        _quantiles((0, 0.1), (0.5, 0.3), (0.95, 8), (0.99, 50), (1, 66)),
    ),
}
CALLS = _quantiles((0, 12), (0.5, 48), (0.9, 95), (1, 160))
BASH_SHARE = 0.51
BETWEEN = _quantiles((0, 0.8), (0.5, 4.8), (0.9, 27), (1, 120))
BASELINE_MB = (190.0, 208.0)
RISE = _quantiles((0, 5), (0.5, 20), (0.99, 68), (0.999, 285), (1, 1710))  # MB a second
OVERLAP, AT_ONCE = 0.25, 7


def draw(dice: random.Random, name: str, scale: float = 1.0, calls: int | None = None) -> Trace:
    """An agent such as those were; `scale`: of all sizes. `calls`: of Bash, else as many as such agents made."""
    now, found = 2.0, _Calls()
    own = (0.0, round(dice.uniform(*BASELINE_MB) * MB * scale))
    for _ in range(calls or max(1, round(CALLS.draw(dice) * BASH_SHARE))):
        kind = dice.choices(list(KINDS.values()), [kind.share for kind in KINDS.values()])[0]
        length, size = kind.duration.draw(dice), kind.growth.draw(dice) * MB * scale
        if found.all and dice.random() < OVERLAP and found.running(now) < AT_ONCE:
            start = now
        else:
            start = max(now, found.over) + BETWEEN.draw(dice)
        found.add(_call(start, length, size, RISE.draw(dice) * MB * scale))
        now = start + min(0.2, length / 2)
    return Trace(name, (own,), tuple(found.all))


@dataclass
class _Calls:
    all: list[Call] = field(default_factory=list)

    @property
    def over(self) -> float:
        return max((call.end_s for call in self.all), default=0.0)

    def running(self, at: float) -> int:
        return sum(call.start_s <= at < call.end_s for call in self.all)

    def add(self, call: Call) -> None:
        self.all.append(call)


def _call(start: float, length: float, size: float, rise: float) -> Call:
    """It comes to its size at that rate, or in four fifths of its time, and keeps that."""
    ramp = min(size / rise, 0.8 * length)
    pieces = max(1, min(20, round(ramp / 0.1)))
    steps = tuple((ramp * n / pieces, round(size * n / pieces)) for n in range(1, pieces + 1))
    return Call(start, start + length, steps)


def drawn(count: int, seed: int, scale: float = 1.0, calls: int | None = None) -> Iterator[Trace]:
    """So many agents; the same ones for the same seed."""
    dice = random.Random(seed)
    return (draw(dice, f"agent-{n}", scale, calls) for n in range(1, count + 1))
