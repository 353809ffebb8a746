"""What a check yields."""

from __future__ import annotations

import enum
from dataclasses import dataclass

#: What puts back what is missing of agentcgroup itself.
AGAIN = "dnf reinstall 'agentcgroup*', or apt-get install --reinstall agentcgroup, or make install"


class Level(enum.StrEnum):
    """How bad it is."""

    ERROR = "error"  # containers do not start, or are not governed
    WARNING = "warning"  # something that was asked for does not act
    NOTE = "note"  # something that this host does not have; nobody has asked for it


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing: what it is, why it matters, and the command that mends it, as a shell takes it where there is one.
    `check` is the name of who found it.
    """

    level: Level
    what: str
    why: str
    fix: str
    check: str = ""


def error(what: str, why: str, fix: str) -> Finding:
    """Something is broken."""
    return Finding(Level.ERROR, what, why, fix)


def warning(what: str, why: str, fix: str) -> Finding:
    """Something does not act as it was meant to."""
    return Finding(Level.WARNING, what, why, fix)


def note(what: str, why: str = "", fix: str = "") -> Finding:
    """Something that is good to know."""
    return Finding(Level.NOTE, what, why, fix)
