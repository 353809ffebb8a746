"""The record of a container: `/run/agentcgroup/containers/ID.json`, first written by the hook
(docs/architecture.md).
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentcgroup.errors import UserError

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
#: Call numbers set aside in the record at a time: a restarted daemon begins behind them, so that none is given twice.
RESERVED = 1000
_MAX_BYTES = 1 << 20


@dataclass
class Record:
    """What must survive the daemon. `base` is the engine's cgroup, `start_time` field 22 of init's /proc/PID/stat,
    `called` the name that the engine's users know, `rated` whether its network has ever been limited.
    """

    id: str
    pid: int
    base: str
    start_time: int = 0
    bundle: str = ""
    annotations: dict[str, str] = field(default_factory=dict)
    cooperative: list[str] = field(default_factory=list)
    policy: str = ""
    uid: int = 0
    gid: int = 0
    engine: str = "other"
    called: str = ""
    registered: bool = False
    injected: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    next_call: int = 1
    rated: bool = False

    @property
    def tree(self) -> str:
        """The directory of our subtree."""
        return self.base + "/agentcgroup"

    def same_start(self, other: Record) -> bool:
        """Whether the other record is of the same start of the container."""
        return (self.pid, self.start_time, self.base) == (other.pid, other.start_time, other.base)

    @property
    def name(self) -> str:
        """A name for people: the engine's, else the first 12 characters of the id."""
        for key in ("io.kubernetes.container.name", "io.podman.annotations.name", "agentcgroup.name"):
            if self.annotations.get(key):
                return self.annotations[key]
        return self.called or self.id[:12]

    def answers_to(self, name: str) -> bool:
        """Whether a person may mean this container: by the beginning of its id or one of its names."""
        return bool(name) and (self.id.startswith(name) or name in (self.name, self.called))


def parse(text: str | bytes, origin: str) -> Record:
    """A record from JSON. Raises UserError that names `origin` and what is wrong."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UserError(f"{origin}: not JSON: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{origin}: a JSON object is expected, not {type(data).__name__}")
    known = {name: kind for name, kind in _FIELDS.items() if name in data or kind[1]}
    return Record(**{name: _value(data, name, kind, origin) for name, kind in known.items()})


_FIELDS: dict[str, tuple[type, bool]] = {  # field: type, is it needed
    "id": (str, True), "pid": (int, True), "base": (str, True), "start_time": (int, False), "bundle": (str, False),
    "annotations": (dict, False), "cooperative": (list, False), "policy": (str, False), "uid": (int, False),
    "gid": (int, False), "engine": (str, False), "called": (str, False), "registered": (bool, False),
    "injected": (list, False), "notes": (list, False), "next_call": (int, False),
    "rated": (bool, False),
}  # fmt: skip


def _value(data: dict[str, Any], name: str, kind: tuple[type, bool], origin: str) -> Any:
    if name not in data:
        raise UserError(f'{origin}: "{name}" is missing')
    value, expected = data[name], kind[0]
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is int):
        raise UserError(f'{origin}: "{name}" is {json.dumps(value)[:60]}, expected {expected.__name__}')
    if name == "id" and not ID.fullmatch(str(value)):
        raise UserError(f"{origin}: {json.dumps(value)[:60]} is no container id")
    if isinstance(value, list):
        return [str(item) for item in value]
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else value


def load(path: Path) -> Record:
    """The record in a file. Raises UserError (content) or OSError (file)."""
    with open(path, "rb") as file:
        return parse(file.read(_MAX_BYTES), str(path))


def store(record: Record, path: Path) -> None:
    """Write a record so that a reader, or a crash, meets the old or the new one and never half of it."""
    temporary = path.with_suffix(".tmp")
    data = {"v": 1, **record.__dict__}
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w") as file:
        file.write(json.dumps(data))  # dump() writes piece by piece, from Python
    os.rename(temporary, path)
