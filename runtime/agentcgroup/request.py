"""The shim's messages (docs/architecture.md, "Call protocol"): bytes from inside a container, so nothing here is
believed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_MESSAGE = 16 << 10
MAGIC = b"AGC1"
_MAX_ARGS = 4096


@dataclass(slots=True)
class Request:
    """One message. Numbers are -1 where the field is absent."""

    ticket: int = -1
    move: int = -1
    end: int = -1
    signal: int = -1
    hint: str = ""
    ask_hint: str | None = None
    argv: list[str] = field(default_factory=list)
    truncated: bool = False
    quiet: bool = False


def parse(message: bytes) -> Request | None:
    """The request in a message; None when it is not one of ours or too large."""
    parts = message.split(b"\0")
    if parts[0] != MAGIC or len(message) > MAX_MESSAGE or len(parts) > _MAX_ARGS + 8:
        return None
    request = Request()
    for part in parts[1:]:
        key, equals, raw = part.partition(b"=")
        if not equals:
            continue
        if key == b"a":
            request.argv.append(raw.decode(errors="surrogateescape"))
        elif key == b"h":
            request.hint = raw.decode(errors="replace")
        elif key == b"n":
            request.ask_hint = raw.decode(errors="replace")
        elif key == b"x":
            request.truncated = True
        elif key == b"q":
            request.quiet = True
        elif key in _NUMBERS:
            setattr(request, _NUMBERS[key], _number(raw))
    return request


_NUMBERS = {b"t": "ticket", b"m": "move", b"e": "end", b"s": "signal"}


def _number(raw: bytes) -> int:
    return int(raw) if raw.isdigit() and len(raw) < 11 else -1
