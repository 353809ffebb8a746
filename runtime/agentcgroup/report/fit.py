"""Policy numbers that would fit what was recorded (docs/policy.md, "Choosing numbers from a report")."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentcgroup.report.gather import Figures, Gathered

MIB, GIB = 1 << 20, 1 << 30
SHARE = 0.95  # of the calls of a class that shall fit
HEADROOM = 1.25  # above that, for the next run is not the last one
FEW = 5  # calls; a class with fewer gets no rule
RULES = 20  # at most, the largest first
LEAST = 128 * MIB
_CLASS = re.compile(r"[A-Za-z0-9._+:@-]{1,48}( [A-Za-z0-9._+:@-]{1,48}){0,3}")


@dataclass(frozen=True)
class Fit:
    """memory: bytes of call.memory.default; most: of call.memory.max; rules: class and bytes."""

    memory: int
    most: int
    pids: int
    minutes: int
    rules: tuple[tuple[str, int], ...]


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all is not above (nearest rank); 0 of none."""
    ordered = sorted(values)
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)] if ordered else 0.0


def size_for(figures: Figures) -> int:
    """Bytes of a limit for these calls: steps of 64 MiB, from 1 GiB on of 256 MiB."""
    wanted = max(quantile(figures.needs, SHARE) * HEADROOM, LEAST)
    step = 64 * MIB if wanted <= GIB else 256 * MIB
    return math.ceil(wanted / step) * step


def fit(found: Gathered) -> Fit:
    """For all that was gathered."""
    default = size_for(found.whole)
    sizes = (
        (name, size_for(one)) for name, one in found.classes.items() if one.count >= FEW and _CLASS.fullmatch(name)
    )
    larger = sorted(((name, size) for name, size in sizes if size > default), key=lambda rule: -rule[1])[:RULES]
    biggest = max(found.whole.needs, default=0.0) * HEADROOM
    most = max(default, *(size for _, size in larger), math.ceil(biggest / (256 * MIB)) * 256 * MIB)
    minutes = max(math.ceil(2 * quantile(found.whole.seconds, 0.99) / 60), 1)
    return Fit(default, most, max(math.ceil(2 * found.whole.pids / 64) * 64, 64), minutes, tuple(larger))


def policy(fitting: Fit, extends: str) -> str:
    """It as a policy file."""
    lines = [
        f"extends: {extends}",
        "call:",
        "  memory:",
        f"    default: {_size(fitting.memory)}",
        f"    max: {_size(fitting.most)}",
        f"  pids_max: {fitting.pids}",
        f"  time_max: {fitting.minutes}min",
    ]
    if fitting.rules:
        lines.append("rules:")
    for name, size in fitting.rules:
        lines += [f"  - match: '{pattern(name)}'", f"    hint: memory:{_size(size).lower()}"]
    return "\n".join(lines) + "\n"


def pattern(name: str) -> str:
    """A rule's pattern for a command class: its program, and behind that what else names it (commandclass.py)."""
    program, _, rest = name.partition(" ")
    first = r"\bpython[0-9.]{0,6}" if program == "python" else rf"\b{_literal(program)}"
    words = _literal(rest)
    return rf"{first}\b.{{0,99}}{words}(\s|$)" if words else rf"{first}(\s|$)"


def _literal(words: str) -> str:
    """Words of _CLASS: of its characters only these mean something in a pattern."""
    return words.replace(".", r"\.").replace("+", r"\+")


def _size(size: int) -> str:
    return f"{size // GIB}G" if size % GIB == 0 else f"{size // MIB}M"
