"""What is mounted where, as a process sees it (proc_pid_mountinfo(5)). The names are anybody's: any bytes but NUL."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_ESCAPE = re.compile(rb"\\([0-3][0-7]{2})")


class Mount(NamedTuple):
    """`root`: what of the file system is mounted; `point`: where; `kind`: the file system's type; `flags` are the
    mount's own (`ro`, `nosuid`), `options` the file system's, which all of its mounts share.
    """

    root: str
    point: str
    kind: str
    flags: tuple[str, ...]
    options: tuple[str, ...]


def mounts(pid: int | str) -> Iterator[Mount]:
    """The mounts in the namespace of `pid`. Raises OSError when the process is gone."""
    for line in Path(f"/proc/{pid}/mountinfo").read_bytes().split(b"\n")[:-1]:
        fields, _, rest = line.partition(b" - ")
        root, point, flags = fields.split(b" ")[3:6]
        kind, *_, options = rest.split(b" ")
        yield Mount(_name(root), _name(point), _name(kind), _list(flags), _list(options))


def _list(joined: bytes) -> tuple[str, ...]:
    return tuple(os.fsdecode(joined).split(","))


def _name(escaped: bytes) -> str:
    """Blanks, newlines and backslashes are three octal digits."""
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), escaped))
