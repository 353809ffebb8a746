"""Who is at the other end of a socket: host pids and the host's /proc, never what the peer says (design: section 4)."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from dataclasses import dataclass
from functools import cached_property

#: SO_PEERPIDFD, Linux 6.5 (commit 7b26952a91cf, include/uapi/asm-generic/socket.h).
SO_PEERPIDFD = 77
_UCRED = struct.Struct("3i")


@dataclass(frozen=True)
class Peer:
    """A process as the host sees it: `cgroup` is the path after `0::` in /proc/PID/cgroup."""

    pid: int
    ppid: int
    comm: str
    start_time: int
    cgroup: str

    @cached_property
    def parent(self) -> Peer | None:
        """Its parent, as of the first time that somebody asks."""
        return look(self.ppid)

    def lives(self) -> bool:
        """Whether this pid is still this process."""
        now = look(self.pid)
        return now is not None and now.start_time == self.start_time

    def pidfd(self) -> int:
        """A descriptor that is readable once it has ended, the caller's to close; -1: it has. Raises OSError."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return -1
        if self.lives():
            return fd
        os.close(fd)
        return -1

    def since(self) -> float:
        """The moment of its start on the monotonic clock."""
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - self.start_time / os.sysconf("SC_CLK_TCK")
        return time.monotonic() - age


def read_proc(pid: int, name: str) -> bytes:
    """/proc/PID/NAME; b"" when the process is gone or may not be read."""
    try:
        fd = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)


def write_proc(pid: int, name: str, value: int) -> None:
    """Write /proc/PID/NAME, if the process still is."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "w") as file:
        file.write(str(value))


def look(pid: int) -> Peer | None:
    """What /proc says of `pid`; None when it is gone, or has ended and waits for its parent."""
    stat = read_proc(pid, "stat").decode(errors="replace")
    head, paren, tail = stat.rpartition(")")
    if not paren:
        return None
    fields = tail.split()
    if fields[0] in ("Z", "X"):
        return None
    cgroup = unified(read_proc(pid, "cgroup").decode(errors="replace"))
    return Peer(pid, int(fields[1]), head.partition("(")[2], int(fields[19]), cgroup)


def eldest(pids: list[int]) -> Peer | None:
    """Who of these was started first: in a call's cgroup, its shell."""
    found = [peer for pid in pids if (peer := look(pid)) is not None]
    return min(found, key=lambda peer: (peer.start_time, peer.pid), default=None)


def strings(pid: int, name: str) -> list[str]:
    """The NUL-terminated strings of /proc/PID/cmdline or environ."""
    return [part.decode(errors="surrogateescape") for part in read_proc(pid, name).split(b"\0")[:-1]]


def unified(text: str) -> str:
    """The cgroup2 path of a /proc/PID/cgroup text; "" without one."""
    for line in text.split("\n"):  # splitlines() would split a name at U+2028 and others
        if line.startswith("0::"):
            return line[3:]
    return ""


def identify(connection: socket.socket) -> Peer | None:
    """The peer, proved alive after its /proc was read, so that a reused pid cannot be mistaken for it; None: it
    is gone.
    """
    pid, _uid, _gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    pidfd = _pidfd(connection, pid)
    if pidfd < 0:
        return None
    try:
        peer = look(pid)
        gone = select.poll()
        gone.register(pidfd, select.POLLIN)
        return None if gone.poll(0) else peer
    finally:
        os.close(pidfd)


def _pidfd(connection: socket.socket, pid: int) -> int:
    try:
        return connection.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD)
    except OSError:  # before Linux 6.5, or the peer is gone
        try:
            return os.pidfd_open(pid)
        except OSError:
            return -1
