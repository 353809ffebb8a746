"""What an agent says a command needs: `memory:2g,cpu:high` and the like, read with forgiveness and never evaluated.

The text comes from inside a container. Whatever it holds, reading it raises nothing, takes linear time over at most
MAX_TEXT characters, and never yields a limit of zero: what is not understood is left out and said in `problems`.
Grammar: docs/feedback.md.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from fractions import Fraction
from typing import Any, Literal, cast

MAX_TEXT = 1024
MAX_PROBLEMS = 4
MIN_MEMORY = 1024**2  # less is a forgotten unit, and no process starts in it
MAX_MEMORY = 1024**5  # 1 PiB
MAX_CORES = 4096.0
MAX_PIDS = 4194304  # PID_MAX_LIMIT of the kernel on 64 bit
MAX_SECONDS = 30 * 86400.0

MemoryClass = Literal["low", "medium", "high", "max"]
CpuClass = Literal["low", "normal", "high"]
Priority = Literal["interactive", "normal", "batch"]

_MEMORY_CLASSES = ("low", "medium", "high", "max")
_CPU_CLASSES = ("low", "normal", "high")
_PRIORITIES = ("interactive", "normal", "batch")

_ITEM = re.compile(r"([^\s,;:=]+)\s{0,8}[:=]\s{0,8}([^\s,;]+)|([^\s,;]+)")
_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,9})?)"
_SIZE = re.compile(_NUMBER + r"([kmgtp]i?b?|b)?")
_PERCENT = re.compile(_NUMBER + "%")
_TIME_PART = re.compile(_NUMBER + r"(ms|s|sec|m|min|h|d)?(?![a-z])")
_POWER = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SECONDS = {"ms": 0.001, "s": 1.0, "sec": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Percent:
    """Percent of the memory that all calls of the container may have together, from 1 to 100."""

    value: float


@dataclass(frozen=True)
class Hint:
    """One request. A key that is None was not asked for.

    memory: a class, bytes, or a share; cpu: a class, or cores; pids: processes and threads; time: seconds.
    problems: what was ignored and why, each a short printable phrase.
    """

    memory: MemoryClass | int | Percent | None = None
    cpu: CpuClass | float | None = None
    pids: int | None = None
    time: float | None = None
    priority: Priority | None = None
    problems: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        """Whether anything at all is asked for; problems do not count."""
        return any(getattr(self, key) is not None for key in KEYS)


KEYS = tuple(item.name for item in fields(Hint) if item.name != "problems")


def parse(text: str) -> Hint:
    """The request in `text`; never raises. Of a key given twice the last usable value holds."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    if len(text) > MAX_TEXT:
        return Hint(problems=(f"longer than {MAX_TEXT} characters, ignored",))
    for key, value, bare in _ITEM.findall(text):
        problem = _bare(bare) if bare else _read(key.lower(), value, values)
        if problem:
            problems.append(problem)
    if len(problems) > MAX_PROBLEMS:
        problems[MAX_PROBLEMS:] = [f"and {len(problems) - MAX_PROBLEMS} more"]
    return Hint(**values, problems=tuple(problems))


def merge(*hints: Hint) -> Hint:
    """Key by key the first hint that has it; the problems of all, in order, none twice."""
    merged = Hint(problems=tuple(dict.fromkeys(problem for hint in hints for problem in hint.problems)))
    for hint in reversed(hints):
        merged = replace(merged, **{key: getattr(hint, key) for key in KEYS if getattr(hint, key) is not None})
    return merged


def render(hint: Hint) -> str:
    """The text that parse() reads back as `hint` (without problems): `memory:1.5g,cpu:high`; empty for no request."""
    shown = {"memory": _render_memory, "time": lambda seconds: f"{_plain(seconds)}s", "cpu": _plain}
    asked = [(key, getattr(hint, key)) for key in KEYS if getattr(hint, key) is not None]
    return ",".join(f"{key}:{shown.get(key, str)(value)}" for key, value in asked)


def render_size(count: int) -> str:
    """`count` bytes as the shortest exact SIZE: `512m`, `1.5g`, `1000000b`."""
    for letter, power in (("t", 4), ("g", 3), ("m", 2), ("k", 1)):
        scaled = Fraction(count, 1024**power)
        if scaled >= 1 and (scaled * 4).denominator == 1:
            return f"{_plain(float(scaled))}{letter}"
    return f"{count}b"


def clean(text: str, limit: int) -> str:
    """`text` cut to `limit` characters, on one line, with ? for whatever a terminal or a log might act on."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(char if char.isprintable() else "?" for char in cut)


def _read(key: str, value: str, values: dict[str, Any]) -> str | None:
    """Puts the value of `key` into `values`, or returns why not."""
    reader = _READERS.get(key)
    shown = f'"{clean(key, 24)}:{clean(value, 40)}"'
    if reader is None:
        near = get_close_matches(key[:24], KEYS, n=1, cutoff=0.5)
        return f"{shown}: there is no such key, " + (f"did you mean {near[0]}?" if near else f"only {', '.join(KEYS)}")
    read = reader(value.lower())
    if isinstance(read, _Problem):
        return f"{shown}: {read}"
    duplicate = key in values and values[key] != read
    values[key] = read
    return f"{key} is given more than once, {shown} holds" if duplicate else None


class _Problem(str):
    """Why a value is not usable."""


def _memory(value: str) -> MemoryClass | int | Percent | _Problem:
    if value in _MEMORY_CLASSES:
        return cast(MemoryClass, value)
    if share := _PERCENT.fullmatch(value):
        percent = float(share[1])
        return Percent(percent) if 1 <= percent <= 100 else _Problem("a share is from 1% to 100%")
    size = _SIZE.fullmatch(value)
    if size is None:
        return _Problem("write low, medium, high, max, a size such as 512m or 2g, or a share such as 50%")
    count = int(Fraction(size[1]) * 1024 ** _POWER[(size[2] or "b")[0]])
    if count < MIN_MEMORY:
        return _Problem("less than 1 MiB, write a unit such as 512m")
    return count if count <= MAX_MEMORY else _Problem("more than 1 PiB")


def _cpu(value: str) -> CpuClass | float | _Problem:
    if value in _CPU_CLASSES:
        return cast(CpuClass, value)
    if not re.fullmatch(_NUMBER, value):
        return _Problem("write low, normal, high, or a number of cores such as 1.5")
    cores = float(value)
    return cores if 0.01 <= cores <= MAX_CORES else _Problem(f"cores are between 0.01 and {MAX_CORES:.0f}")


def _pids(value: str) -> int | _Problem:
    count = int(value) if re.fullmatch("[0-9]{1,20}", value) else 0
    return count if 0 < count <= MAX_PIDS else _Problem(f"write a whole number from 1 to {MAX_PIDS}")


def _time(value: str) -> float | _Problem:
    total, at = 0.0, 0
    while part := _TIME_PART.match(value, at):
        if part[2] is None and part.span() != (0, len(value)):
            break
        total, at = total + float(part[1]) * _SECONDS[part[2] or "s"], part.end()
    if at != len(value):
        return _Problem("write a duration such as 90s, 5m or 1h30m")
    return total if 0.001 <= total <= MAX_SECONDS else _Problem("a duration is between 1 ms and 30 days")


def _priority(value: str) -> Priority | _Problem:
    return cast(Priority, value) if value in _PRIORITIES else _Problem(f"write {', '.join(_PRIORITIES)}")


_READERS: dict[str, Callable[[str], Any]] = {
    "memory": _memory, "cpu": _cpu, "pids": _pids, "time": _time, "priority": _priority,
}  # fmt: skip


def _bare(word: str) -> str:
    if not word.strip(":="):
        return "a key without a value"
    key = word.rstrip(":=").lower()
    return f"{key} has no value" if key in KEYS else f'"{clean(word, 40)}" is not key:value, write memory:2g'


def _render_memory(value: MemoryClass | int | Percent) -> str:
    if isinstance(value, Percent):
        return f"{_plain(value.value)}%"
    return render_size(value) if isinstance(value, int) else value


def _plain(value: object) -> str:
    """A number without exponent or trailing zeros; words stay as they are."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
