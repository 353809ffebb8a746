"""Ready directories for calls to come, and the FIFO from which shims take their numbers (docs/architecture.md,
"A call starts").

An isolated mkdir with its limits costs more than a call's whole start may, so it is done ahead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import stat
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

from agentcgroup.cgroup import Cgroup, parse_keyed

_TICKET = struct.Struct("<I")
#: A ticket that was taken and neither used nor announced for so long belongs to a shim that died in between (seconds).
LOST_AFTER = 10.0

Writes = tuple[tuple[str, str], ...]


class Slot:
    """The directory `calls/N` and open files on its event counters; they wake the loop when a counter changes."""

    __slots__ = ("cgroup", "events_fd", "made", "memory_fd", "number")

    def __init__(self, number: int, cgroup: Cgroup) -> None:
        self.number = number
        self.cgroup = cgroup
        self.made = time.monotonic()
        self.events_fd = os.open(f"{cgroup.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        self.memory_fd = -1
        with contextlib.suppress(OSError):  # no memory controller (rootless)
            self.memory_fd = os.open(f"{cgroup.path}/memory.events", os.O_RDONLY | os.O_CLOEXEC)
        self.populated()  # a kernfs file must be read once before it can be polled (fs/kernfs/file.c)
        self.memory_events()

    def populated(self) -> bool:
        """Whether a process lives here; False when the directory is gone."""
        return _reread(self.events_fd).get("populated", 0) == 1

    def memory_events(self) -> dict[str, int]:
        """memory.events, descendants included; empty when it is gone."""
        return _reread(self.memory_fd) if self.memory_fd >= 0 else {}

    def close(self) -> None:
        """Close the two files."""
        os.close(self.events_fd)
        if self.memory_fd >= 0:
            os.close(self.memory_fd)


def _reread(fd: int) -> dict[str, int]:
    try:
        return parse_keyed(os.pread(fd, 4096, 0).decode())
    except OSError:
        return {}


class Pool:
    """Keeps `size` numbers in the FIFO. Without a FIFO (cooperative containers) `take` hands them out alone."""

    def __init__(self, calls: Cgroup, fifo: Path | None, size: int, first: int, limits: Callable[[], Writes]) -> None:
        self._calls = calls
        self._size = size
        self._next = first
        self._limits = limits
        self._ready: dict[int, Slot] = {}
        self._fifo = _open_fifo(fifo) if fifo else -1
        self.on_slot: Callable[[Slot], None] = lambda _slot: None

    @property
    def next_number(self) -> int:
        """The number that the next directory gets."""
        return self._next

    def fill(self) -> bool:
        """Make one directory if one is missing. False when the pool is full or none can be made."""
        if self._unclaimed() >= self._size:
            return False
        slot = self._make()
        if slot is None:
            return False
        if self._fifo >= 0:
            with contextlib.suppress(BlockingIOError):  # somebody in the container filled the FIFO: its own loss
                os.write(self._fifo, _TICKET.pack(slot.number))
        return True

    def claim(self, number: int) -> Slot | None:
        """The ready directory that a shim says it took; None if it is not ours to give."""
        return self._ready.pop(number, None)

    def take(self) -> Slot | None:
        """A directory for a shim that found no ticket; it is made anew, for those in the FIFO are spoken for."""
        if self._fifo < 0 and self._ready:
            return self._ready.pop(next(iter(self._ready)))
        slot = self._make()
        return self._ready.pop(slot.number) if slot else None

    def ready(self, number: int) -> Slot | None:
        """The directory `number`, if it waits to be claimed."""
        return self._ready.get(number)

    def lost(self) -> list[Slot]:
        """Directories whose ticket was taken more than LOST_AFTER ago and never announced; they leave the pool."""
        numbers = list(self._ready)
        taken = numbers[: max(0, len(numbers) - self._unread())] if self._fifo >= 0 else []
        old = [n for n in taken if time.monotonic() - self._ready[n].made > LOST_AFTER]
        return [self._ready.pop(n) for n in old]

    def rewrite(self) -> None:
        """Write changed limits to the directories that wait."""
        writes = self._limits()
        for slot in self._ready.values():
            _write_all(slot.cgroup, writes)

    def close(self) -> list[Slot]:
        """Close the FIFO and give back what was never used."""
        if self._fifo >= 0:
            os.close(self._fifo)
        self._fifo = -1
        left, self._ready = list(self._ready.values()), {}
        return left

    def _unread(self) -> int:
        count = fcntl.ioctl(self._fifo, termios.FIONREAD, b"\0\0\0\0")
        return int(struct.unpack("i", count)[0]) // _TICKET.size

    def _unclaimed(self) -> int:
        return self._unread() if self._fifo >= 0 else len(self._ready)

    def _make(self) -> Slot | None:
        number, self._next = self._next, self._next + 1
        group = self._calls.child(str(number))
        try:
            os.mkdir(group.path, 0o755)
        except FileExistsError:
            return self._make()
        except OSError:  # the container is going, or pids/cgroup limits forbid it: the shim falls back
            return None
        _write_all(group, self._limits())
        try:
            os.chmod(f"{group.path}/cgroup.procs", 0o666)
            slot = Slot(number, group)
        except OSError:
            return None
        self._ready[number] = slot
        self.on_slot(slot)
        return slot


def _write_all(group: Cgroup, writes: Writes) -> None:
    for name, value in writes:
        group.try_write(name, value)


def _open_fifo(path: Path) -> int:
    """A fresh FIFO: a new inode, so that numbers of an earlier daemon cannot be read from it."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    os.mkfifo(temporary, 0o644)
    os.chmod(temporary, 0o644)
    os.rename(temporary, path)
    fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        raise OSError(f"{path} is not a FIFO")
    return fd


#: Wake-ups for a kernfs file whose counters changed (kernfs_notify; EPOLLERR also when it is removed).
CHANGED = select.EPOLLPRI | select.EPOLLERR
