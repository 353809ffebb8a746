"""Sizes and durations as people write them, and back. Strict on purpose: hints from agents are read elsewhere.

Sizes follow systemd.syntax(7): K, M, G, T, P are powers of 1024, a fraction is allowed; `B` and `iB` may follow.
Durations follow systemd.time(7): a number alone is seconds.
"""

import contextlib
import re
from datetime import datetime
from fractions import Fraction

from agentcgroup.errors import UserError

MAX_BYTES = 2**63 - 1  # what the kernel's page counters and u64 parsers take without wrapping
MAX_SECONDS = 366 * 86400.0
MAX_TEXT = 64  # longer is not a quantity; it also bounds the digits that int() sees

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGTP])(?:i?B)?|B)?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.ASCII)
_POWER = {"K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SECONDS = {
    "": Fraction(1), "us": Fraction(1, 10**6), "usec": Fraction(1, 10**6), "ms": Fraction(1, 1000),
    "msec": Fraction(1, 1000), "s": Fraction(1), "sec": Fraction(1), "second": Fraction(1), "seconds": Fraction(1),
    "m": Fraction(60), "min": Fraction(60), "minute": Fraction(60), "minutes": Fraction(60),
    "h": Fraction(3600), "hr": Fraction(3600), "hour": Fraction(3600), "hours": Fraction(3600),
    "d": Fraction(86400), "day": Fraction(86400), "days": Fraction(86400),
}  # fmt: skip


def parse_size(text: str | int) -> int:
    """Bytes of `512M`, `1.5 GiB`, `2GB` (binary too), `4096`. A fraction of a byte is dropped.

    Raises UserError for anything else, a negative number, or 2^63 bytes and more.
    """
    if isinstance(text, bool) or (isinstance(text, int) and text < 0):
        raise UserError(f"{text!r} is not a size: write one such as 512M or 2GiB")
    if isinstance(text, int):
        return _bounded(text, text)
    match = _SIZE.fullmatch(text.strip()) if len(text) <= MAX_TEXT else None
    if match is None:
        raise UserError(f"{quoted(text)} is not a size: {_size_advice(text)}")
    number, prefix = match.groups()
    return _bounded(int(Fraction(number) * 1024 ** _POWER.get(prefix or "", 0)), text)


def parse_duration(text: str | int | float) -> float:
    """Seconds of `90s`, `5min`, `1h30m`, `250ms`, or of a number alone. Units may repeat and are added up.

    Raises UserError for anything else, a negative number, or more than a year.
    """
    if isinstance(text, bool):
        raise UserError(f"{text!r} is not a duration: write one such as 90s, 5min or 1h30m")
    if isinstance(text, int | float):
        text = str(text)
    seconds = _seconds(text.strip()) if len(text) <= MAX_TEXT else None
    if seconds is None:
        raise UserError(f"{quoted(text)} is not a duration: write one such as 90s, 5min or 1h30m")
    if seconds > MAX_SECONDS:
        raise UserError(f"{quoted(text)} is longer than a year: write a shorter duration")
    return float(seconds)


def parse_since(text: str, now: float) -> float:
    """Unix time of `2h` (ago), or of a date with or without a time of day, local unless it says otherwise:
    `2026-11-30 17:30`. Raises UserError for anything else.
    """
    with contextlib.suppress(UserError):
        return now - parse_duration(text)
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise UserError(f'{quoted(text)} is no time: write 30min, 2h or "2026-11-30 17:30"') from None


def format_bytes(count: int) -> str:
    """`256 MiB`, `3.9 GiB`: the largest unit that leaves at least 1, one decimal at most."""
    scaled, unit = Fraction(abs(count)), 0
    while unit < len(_UNITS) - 1 and round(scaled, 1) >= 1024:
        scaled, unit = scaled / 1024, unit + 1
    return f"{'-' if count < 0 else ''}{_decimal(float(scaled))} {_UNITS[unit]}"


def format_seconds(seconds: float) -> str:
    """`250 ms`, `12.3 s`, `5 min`, `1 h 30 min`: two units at most, milliseconds only below one second."""
    if seconds < 0:
        return "-" + format_seconds(-seconds)
    if 0 < seconds < 0.9995:
        return f"{round(seconds * 1000)} ms"
    if seconds < 119.95:
        return f"{_decimal(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return _two(whole // 60, "min", whole % 60, "s")
    minutes = round(seconds / 60)
    if minutes < 48 * 60:
        return _two(minutes // 60, "h", minutes % 60, "min")
    hours = round(seconds / 3600)
    return _two(hours // 24, "d", hours % 24, "h")


def quoted(text: str | int) -> str:
    """What somebody wrote, as a message repeats it: in quotes, printable, cut at 64 characters."""
    whole = "".join(letter if letter.isprintable() else "?" for letter in str(text))
    return f'"{whole}"' if len(whole) <= MAX_TEXT else f'"{whole[: MAX_TEXT - 3]}..."'


def _bounded(count: int, text: str | int) -> int:
    if count > MAX_BYTES:
        raise UserError(f"{quoted(text)} is larger than any memory: write a smaller size")
    return count


def _size_advice(text: str) -> str:
    """What to write instead, for the spellings that other tools take."""
    upper = text.strip().upper().replace("IB", "iB")
    if len(text) <= MAX_TEXT and _SIZE.fullmatch(upper):
        return f"write {upper}"
    if text.strip().lower() in ("max", "infinity", "unlimited", "-1"):
        return "write none where no limit is wanted"
    return "write one such as 512M or 2GiB"


def _seconds(text: str) -> Fraction | None:
    total, at = Fraction(0), 0
    while part := _PART.match(text, at):
        number, unit = part.groups()
        bare = unit == "" and part.span() != (0, len(text))
        if bare or unit not in _SECONDS:
            return None
        total, at = total + Fraction(number) * _SECONDS[unit], part.end()
    return total if text and at == len(text) else None


def _decimal(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big} {big_unit} {small} {small_unit}" if small else f"{big} {big_unit}"
