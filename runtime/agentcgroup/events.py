"""What happened, as events: those of a call from its record in the ledger, the others from the daemon's and the hook's
entries in the journal.

A call's events come together when it has ended, for then there is a record; each has its own time all the same. Names
and commands come from inside containers, records and entries may be damaged: no control character gets through.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from agentcgroup import records
from agentcgroup.hint import clean
from agentcgroup.units import format_seconds
from agentcgroup.why import (
    NOTABLE_S,
    command_words,
    hint_words,
    list_of,
    memory_words,
    number_of,
    result_words,
    slowed_words,
    step_words,
    steps_of,
    text_of,
)

MAX_TEXT = 500
FEEDBACK = 6  # lines at most, as feedback has them


@dataclass(frozen=True, slots=True)
class Event:
    """time: Unix time. kind: `call` (ended), `hint`, `hold`, `release`, `enomem`, `end` (told to), `slowed`, `feedback`
    of a call; `start`, `stop`, `escape`, `odd` of a container, and what the hook says where it did not get its way:
    `refused`, `failed`, `rootless`, `not-injected`, `unregistered`; `note` for the rest. call: its number or None.
    """

    time: float
    kind: str
    container: str
    name: str
    call: int | None
    text: str

    def line(self) -> str:
        """For people."""
        who = self.name or self.container[:12] or "-"
        where = who if self.call is None else f"{who}/{self.call}"
        return f"{stamp(self.time)}  {where}  {self.kind}: {self.text}"

    def json(self) -> dict[str, Any]:
        """For programs; time in seconds since 1970."""
        return {name: getattr(self, name) for name in self.__slots__}


def stamp(time: float) -> str:
    """Local time to the millisecond."""
    try:
        return datetime.fromtimestamp(time).astimezone().isoformat(" ", "milliseconds")
    except (ValueError, OverflowError, OSError):
        return "?"


def ended(record: records.Record) -> float:
    """When the call of a record ended, Unix time."""
    return number_of(record, "started") + number_of(record, "duration_s")


def of_record(record: records.Record) -> list[Event]:
    """The events of a call, from its beginning to what the agent was told."""
    identity, name, number = text_of(record, "container"), text_of(record, "name"), int(number_of(record, "number"))

    def event(time: float, kind: str, text: str) -> Event:
        return Event(time, kind, identity, name, number, clean(text, MAX_TEXT))

    began, end = number_of(record, "started"), ended(record)
    found = []
    if hint := hint_words(record):
        found.append(event(began, "hint", hint))
    for step in steps_of(record):
        found.append(event(began + number_of(step, "at_s"), text_of(step, "step") or "?", step_words(step)))
    if any(number_of(record, key) > NOTABLE_S for key in ("held_s", "throttled_s", "queued_s", "cpu_throttled_s")):
        found.append(event(end, "slowed", slowed_words(record)))
    whole = (command_words(record), result_words(record), memory_words(record), f"after {_duration(record)}")
    found.append(event(end, "call", ", ".join(filter(None, whole))))
    told = (str(line) for line in list_of(record, "feedback")[:FEEDBACK])
    return found + [event(end, "feedback", line) for line in told]


def _duration(record: records.Record) -> str:
    return format_seconds(max(number_of(record, "duration_s"), 0))


def of_entry(entry: Mapping[str, Any]) -> Event | None:
    """The event of a journal entry (`journalctl --output=json`); None for one that tells of no container, or of what
    another event or a record tells.
    """
    identity = _field(entry, "AGENTCGROUP_CONTAINER")
    micros = _field(entry, "__REALTIME_TIMESTAMP")
    result = _field(entry, "AGENTCGROUP_RESULT")
    known = _field(entry, "AGENTCGROUP_CALL") or result in ("governed", "stopped")
    if not identity or known or not (micros.isascii() and micros.isdecimal()):
        return None
    kind = _field(entry, "AGENTCGROUP_EVENT") or result or "note"
    name, text = _field(entry, "AGENTCGROUP_NAME"), _field(entry, "MESSAGE")
    return Event(int(micros[:18]) / 1e6, clean(kind, 32), clean(identity, 128), clean(name, 128), None, text)


def _field(entry: Mapping[str, Any], name: str) -> str:
    """A field as text: journald gives bytes that are no printable text as a list of numbers, several values as one."""
    value = entry.get(name)
    if isinstance(value, list) and value and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        value = bytes(value).decode("utf-8", "replace")
    elif isinstance(value, list) and value:
        value = value[0]
    return clean(value, MAX_TEXT) if isinstance(value, str) else ""


class Filter:
    """Which events are of a container; it learns names from events, for the hook's entries have none."""

    def __init__(self, container: str | None, names: Mapping[str, str]) -> None:
        self._container = container
        self._names = dict(names)

    def pick(self, events: Iterator[Event]) -> Iterator[Event]:
        """Those that are wanted, with names."""
        for event in events:
            if event.name:
                self._names[event.container] = event.name
            name = event.name or self._names.get(event.container, "")
            if records.about({"container": event.container, "name": name}, self._container):
                yield Event(event.time, event.kind, event.container, name, event.call, event.text)
