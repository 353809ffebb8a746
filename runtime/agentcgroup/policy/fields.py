"""The table of a policy's fields: how each is read, and in which direction a container may tighten it.

The keys are the leaves of policy.schema.json (a test compares the two); `extends` is used up by load.py.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Any

from agentcgroup import hint as hints
from agentcgroup.errors import UserError
from agentcgroup.policy.leaves import Field
from agentcgroup.policy.model import LADDER, MIB, IoLimit, Rule, Rung, Size
from agentcgroup.policy.patterns import compiled
from agentcgroup.units import format_bytes, format_seconds, parse_duration, parse_size

PERCENT = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%")
DAY = 86400.0
SECONDS = ("call.time_max", "call.grace", "call.stall_deadline")
RATES = ("network.egress", "network.ingress")  # bytes a second


def shown(key: str, value: Any) -> str:
    """A value of the model for people, with its unit."""
    if value is None:
        return "none"
    if key in SECONDS:
        return format_seconds(value)
    if key in RATES:
        return f"{format_bytes(value)}/s"
    if isinstance(value, tuple):
        return ", ".join(item.pattern if isinstance(item, re.Pattern) else str(item) for item in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def read_size(value: str | int, least: int = MIB) -> Size:
    """A percentage from 0 to 100, or bytes: at least `least`, or 0 if that is 0. Raises UserError."""
    match = PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if match and float(match[1]) > 100:
        raise UserError(f"{value} is more than there is: write 100% or less")
    if match:
        return Size(percent=float(match[1]))
    count = parse_size(value)
    if count < MIB and not count == least == 0:
        raise UserError(f"{format_bytes(count)} is less than 1 MiB: write {count or 512}M if MiB are meant")
    return Size(count)


def or_none(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A reader that also takes `none`."""
    return lambda value: None if value == "none" else read(value)


def duration(least: float, most: float) -> Callable[[Any], float]:
    """A reader of seconds between two bounds; it raises UserError outside."""

    def read(value: str | float) -> float:
        seconds = parse_duration(value)
        if not least <= seconds <= most:
            limits = f"{format_seconds(least)} to {format_seconds(most)}"
            raise UserError(f"{format_seconds(seconds)} is out of range: write {limits}")
        return seconds

    return read


def _io(value: dict[str, dict[str, str | int]]) -> tuple[IoLimit, ...]:
    return tuple(
        IoLimit(device, {name: parse_size(rate) for name, rate in limits.items()}) for device, limits in value.items()
    )


def _rate(value: str | int) -> int:
    """Bytes a second. The most is what fits into 32 bits (struct tc_ratespec). At the least, what sch_tbf lets pass at
    once, which is 4.3 s of the rate at most, is the largest packet.
    """
    count = parse_size(value)
    if not 16 << 10 <= count < 4 << 30:
        raise UserError(f"{format_bytes(count)}/s is out of range: write 16K or more and less than 4G")
    return count


def _rungs(value: list[Rung]) -> tuple[Rung, ...]:
    ordered = sorted(value, key=LADDER.index)
    if value != ordered:
        raise UserError(f"out of order: write [{', '.join(ordered)}]")
    return tuple(value)


def _rule(value: dict[str, str]) -> Rule:
    if "hint" not in value and "as" not in value:
        raise UserError("says neither hint nor as: add one, or drop the rule")
    if problems := hints.parse(value.get("hint", "")).problems:
        raise UserError(f"hint: {'; '.join(problems)}")
    return Rule(compiled(value["match"]), value.get("hint"), value.get("as"))  # type: ignore[arg-type]


_SIZE = or_none(read_size)
_SIZE_OR_ZERO = or_none(partial(read_size, least=0))
_COUNT = or_none(int)

#: Read and checked, and nothing acts on them yet.
WITHOUT_EFFECT = ("tenant",)

FIELDS: dict[str, Field] = {
    "description": Field(str, single=False),
    "mode": Field(str, ("enforce", "observe")),
    "required": Field(bool, single=False),
    "delegate": Field(bool, (False, True)),
    "priority": Field(str, ("batch", "normal", "interactive")),
    "memory.max": Field(_SIZE, "lower"),
    "memory.high": Field(_SIZE, "lower"),
    "memory.agent_min": Field(_SIZE_OR_ZERO, "claim"),
    "memory.agent_max": Field(_SIZE, "lower"),
    "memory.reserve": Field(_SIZE_OR_ZERO, "claim"),
    "memory.swap_max": Field(_SIZE_OR_ZERO, "lower"),
    "cpu.weight": Field(_COUNT, "weight"),
    "cpu.max": Field(or_none(float), "lower"),
    "pids_max": Field(_COUNT, "lower"),
    "io.weight": Field(_COUNT, "weight"),
    "io.max": Field(_io, single=False),
    "network.egress": Field(or_none(_rate), "lower"),
    "network.ingress": Field(or_none(_rate), "lower"),
    "shells": Field(tuple, single=False),
    "exec_match": Field(compiled, single=False, each=True),
    "call.memory.default": Field(read_size, "lower"),
    "call.memory.low": Field(read_size, "lower"),
    "call.memory.medium": Field(read_size, "lower"),
    "call.memory.high": Field(read_size, "lower"),
    "call.memory.max": Field(read_size, "lower"),
    "call.pids_max": Field(int, "lower"),
    "call.time_max": Field(or_none(duration(1, 366 * DAY)), "lower"),
    "call.grace": Field(duration(0, 300), "lower"),
    "call.stall_deadline": Field(duration(1, 3600), "lower"),
    "call.fork_rate": Field(_COUNT, "lower"),
    "call.orphans": Field(str, ("kill", "report", "keep")),
    "call.on_pressure": Field(_rungs, "more"),
    "call.cpu_low": Field(int, "lower"),
    "call.cpu_normal": Field(int, "lower"),
    "call.cpu_high": Field(int, "lower"),
    "rules": Field(_rule, single=False, each=True),
    "records.command": Field(str),
    "tenant": Field(or_none(str)),
}
