"""What to do next, computed: the exact next hint where the policy leaves room for one, else a narrower command."""

from dataclasses import replace
from typing import Any

from agentcgroup.commandline import HINT_NAME
from agentcgroup.hint import Hint, clean, render
from agentcgroup.outcome import Neighbour, Outcome
from agentcgroup.units import format_bytes

MAX_SHOWN = 120  # characters of a command that is repeated in the text
FACTORS = {1: 1.5, 2: 2.0}  # of the peak, by the number of failures in a row; from the third on, all that is allowed
MIB = 1024**2
HINT_COMMAND = "/dev/agentcgroup/agentcgroup-hint"

_PARTS = {
    "pytest": "one test file (pytest -x FILE)",
    "unittest": "one test module (python -m unittest MODULE)",
    "jest": "one test file (npx jest --runInBand FILE)",
    "vitest": "one test file (npx vitest run FILE)",
    "test": "one test file or package",
    "make": "one target without parallel jobs (make -j1 TARGET)",
    "ninja": "one target without parallel jobs (ninja -j1 TARGET)",
    "build": "one package or target, without parallel jobs",
    "install": "one package at a time",
    "grep": "it on a narrower path",
    "rg": "it on a narrower path",
    "find": "it on a narrower path",
    "git": "it on a narrower path or range",
}
_FEWER = {
    "make": "make -j2",
    "ninja": "ninja -j2",
    "cargo": "cargo with -j 2",
    "pytest": "pytest -n 2",
    "go": "go -p 2",
}


def more(outcome: Outcome, max_hint: int) -> str:
    """More memory, if there is any to be had, or a part of the work."""
    wanted = _next_memory(outcome, max_hint)
    if wanted is not None:
        return _with_hint(outcome, memory=wanted)
    if outcome.limit_bytes is not None and max_hint <= outcome.limit_bytes:
        return f"{format_bytes(max_hint)} is the most a call may have here; run {_part(outcome)}."
    return f"run {_part(outcome)}."


def less(outcome: Outcome) -> str:
    """For a call that waited: ask for what it used, if that is less than it was given."""
    if outcome.peak_bytes and outcome.limit_bytes:
        enough = round_up(max(int(outcome.peak_bytes * 1.5), 16 * MIB))
        if enough * 1.2 < outcome.limit_bytes:
            return _with_hint(outcome, memory=enough)
    return "run heavy commands one after another."


def alone(outcome: Outcome, largest: Neighbour | None) -> str:
    """For a call that had company: wait for the largest other one."""
    if largest is None:
        return f"run {_part(outcome)}."
    return f"run it again when call {largest.number} has ended."


def shorter(outcome: Outcome) -> str:
    """For a call out of time: its own hint, if that was the limit, or a part of the work."""
    asked = outcome.hint.time if outcome.hint else None
    if asked is not None and outcome.time_limit_s == asked:
        return "run it without time in the hint."
    return f"run {_part(outcome)}."


def fewer(outcome: Outcome) -> str:
    """Less at the same time."""
    tool = next((_FEWER[word] for word in outcome.command_class.split() if word in _FEWER), None)
    return "start fewer processes at once" + (f", for example {tool}." if tool else ".")


def granted(outcome: Outcome) -> str:
    """The clamped keys as a hint that would be granted whole."""
    values: dict[str, Any] = {clamp.key: clamp.granted for clamp in outcome.clamps}
    return render(replace(Hint(), **values))


def round_up(count: int) -> int:
    """The next of 1, 1.25, 1.5, 1.75 times a power of two MiB, in bytes: `768m`, `1.25g`; at least 1 MiB."""
    mib = max(-(-count // MIB), 1)
    step = 1 << max((mib - 1).bit_length() - 3, 0)
    return -(-mib // step) * step * MIB


def _next_memory(outcome: Outcome, max_hint: int) -> int | None:
    """Bytes to ask for next; None if the policy gives no more than there was, or nothing is known."""
    had = max(outcome.peak_bytes or 0, outcome.limit_bytes or 0)
    most = max_hint // MIB * MIB
    if not had or most <= had * 1.02:
        return None
    factor = FACTORS.get(max(outcome.repeat_failures, 1))
    return most if factor is None else min(round_up(int(had * factor)), most)


def _with_hint(outcome: Outcome, memory: int) -> str:
    """The command again under a hint for `memory` bytes; the hint's other keys stay, as far as they were granted."""
    kept: dict[str, Any] = {clamp.key: clamp.granted for clamp in outcome.clamps} | {"memory": memory, "problems": ()}
    value = render(replace(outcome.hint or Hint(), **kept))
    command = outcome.command
    if command.kind == "shell":
        return f"run {HINT_COMMAND} {value}, then the command again."
    if command.kind == "script":
        return f"run it again with {HINT_NAME}={value} in its environment."
    shown = command.with_hint(value)
    if command.text.strip() and len(shown) <= MAX_SHOWN and clean(shown, MAX_SHOWN) == shown:
        return shown
    return f"run it again with {HINT_NAME}={value} before everything else in the command."


def _part(outcome: Outcome) -> str:
    words = reversed(outcome.command_class.split())
    return next((_PARTS[word] for word in words if word in _PARTS), "a smaller part of it")
