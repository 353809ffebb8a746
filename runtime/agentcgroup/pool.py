"""Ready directories for calls to come, and the FIFO from which shims take their numbers (docs/architecture.md,
"A call starts").

An isolated mkdir with its limits costs more than a call's whole start may, so it is done ahead.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import struct
import termios
import time
from collections.abc import Callable
from pathlib import Path

from agentcgroup import cgroup, selinux
from agentcgroup.cgroup import Cgroup, parse_keyed
from agentcgroup.subtree import UNLIMITED

_TICKET = struct.Struct("<I")
#: A ticket that was taken and neither used nor announced for so long belongs to a shim that died in between (seconds).
LOST_AFTER = 10.0
#: Directories that wait for their taker's word, in units of the pool's size: a container that drains the FIFO gets no
#: more than these.
OUTSTANDING = 8

Writes = tuple[tuple[str, str], ...]
_AS_MADE = frozenset((name, str(value)) for name, value in UNLIMITED.items())


class Slot:
    """The directory `calls/N` and open files on its event counters; they wake the loop when a counter changes."""

    __slots__ = ("cgid", "cgroup", "events_fd", "memory_fd", "number", "pids_fd", "taken")

    def __init__(self, number: int, group: Cgroup) -> None:
        self.number = number
        self.cgroup = group
        self.cgid = os.stat(group.path).st_ino
        self.taken: float | None = None  # when its ticket was first seen to be gone from the FIFO
        self.events_fd = self.memory_fd = self.pids_fd = -1
        try:
            self.events_fd = os.open(f"{group.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
            self.memory_fd = _open_if_there(f"{group.path}/memory.events")
            self.pids_fd = _open_if_there(f"{group.path}/pids.events")
        except OSError:
            self.close()
            raise
        for fd in (self.events_fd, self.memory_fd, self.pids_fd):
            if fd >= 0:
                os.pread(fd, 1, 0)  # a kernfs file must be read once before it can be polled (fs/kernfs/file.c)

    def populated(self) -> bool:
        """Whether a process lives here; False when the directory is gone."""
        try:
            return b"populated 1" in os.pread(self.events_fd, 4096, 0)
        except OSError:
            return False

    def memory_events(self) -> dict[str, int]:
        """memory.events, descendants included; empty when it is gone."""
        return _reread(self.memory_fd) if self.memory_fd >= 0 else {}

    def pids_events(self) -> dict[str, int]:
        """pids.events; empty when it is gone."""
        return _reread(self.pids_fd) if self.pids_fd >= 0 else {}

    def used(self) -> bool:
        """Whether a process lives here or did."""
        return self.populated() or self.cgroup.keyed("cpu.stat").get("usage_usec", 0) > 0

    def retire(self) -> None:
        """The reaper is to have it. It may take a while, and a later daemon shall not record its call once more."""
        with contextlib.suppress(OSError):
            os.chmod(f"{self.cgroup.path}/cgroup.procs", 0o644)

    def retired(self) -> bool:
        """Whether it is only waiting for its removal, or gone."""
        try:
            return not os.stat(f"{self.cgroup.path}/cgroup.procs").st_mode & 0o002
        except FileNotFoundError:
            return True

    def close(self) -> None:
        """Close the files."""
        for fd in (self.events_fd, self.memory_fd, self.pids_fd):
            if fd >= 0:
                os.close(fd)
        self.events_fd = self.memory_fd = self.pids_fd = -1


def _open_if_there(path: str) -> int:
    """-1 without the controller (rootless)."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1


def _reread(fd: int) -> dict[str, int]:
    try:
        return parse_keyed(os.pread(fd, 4096, 0).decode())
    except OSError:
        return {}


class Pool:
    """Keeps `size` numbers in the FIFO. Without a FIFO (cooperative containers) `take` hands them out alone.

    reserve: told the next number, it makes sure that no later daemon gives those below the number that it returns.
    """

    def __init__(
        self,
        calls: Cgroup,
        fifo: Path | None,
        size: int,
        first: int,
        limits: Callable[[], Writes],
        reserve: Callable[[int], int],
    ) -> None:
        self._calls = calls
        self._size = size
        self._next = self._reserved = first
        self._reserve = reserve
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
        if self._unclaimed() >= self._size or len(self._ready) >= self._size * OUTSTANDING:
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

    def holds(self, number: int) -> bool:
        """Whether the directory `number` is of this pool and not claimed."""
        return number in self._ready

    def expect(self, slot: Slot) -> bool:
        """An empty directory of an earlier daemon: the shim that took its ticket may be about to use it."""
        if self._fifo < 0:
            return False
        slot.taken = time.monotonic()
        self._ready = {slot.number: slot, **self._ready}
        return True

    def taken(self) -> list[Slot]:
        """Directories whose ticket was taken and not announced yet, the eldest first."""
        slots = list(self._ready.values())
        gone = slots[: max(0, len(slots) - self._unread())] if self._fifo >= 0 else []
        now = time.monotonic()
        for slot in gone:
            slot.taken = slot.taken or now
        return gone

    def lost(self) -> list[Slot]:
        """Directories whose ticket was taken more than LOST_AFTER ago and never announced; they leave the pool."""
        now = time.monotonic()
        old = [slot for slot in self.taken() if slot.taken is not None and now - slot.taken >= LOST_AFTER]
        return [self._ready.pop(slot.number) for slot in old]

    def rewrite(self, write: Callable[[Cgroup, Writes], None]) -> None:
        """Write changed limits to the directories that wait, by `write`: a process may be in one already."""
        for slot in self._ready.values():
            write(slot.cgroup, self._limits())

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
        try:
            group = self._make_directory()
        except OSError:  # the container is going, or its cgroup limits forbid it: the shim falls back
            return None
        number = self._next - 1
        for name, value in self._limits():
            if (name, value) not in _AS_MADE:
                group.try_write(name, value)
        try:
            os.chmod(f"{group.path}/cgroup.procs", 0o666)
            selinux.open_door(group)
            slot = Slot(number, group)
        except OSError:
            cgroup.remove(group)
            return None
        self._ready[number] = slot
        self.on_slot(slot)
        return slot

    def _make_directory(self) -> Cgroup:
        while True:
            if self._next >= self._reserved:
                self._reserved = self._reserve(self._next)
            group = self._calls.child(str(self._next))
            self._next += 1
            with contextlib.suppress(FileExistsError):
                os.mkdir(group.path, 0o755)
                return group


def _open_fifo(path: Path) -> int:
    """A fresh FIFO: a new inode, so that numbers of an earlier daemon cannot be read from it."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    os.mkfifo(temporary, 0o644)
    os.chmod(temporary, 0o644)
    os.rename(temporary, path)
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)


#: Wake-ups for a kernfs file whose counters changed (kernfs_notify; EPOLLERR also when it is removed).
CHANGED = select.EPOLLPRI | select.EPOLLERR
