"""One cgroup of the unified hierarchy as files (cgroup-v2.rst); nothing here knows about containers or calls.

This module is used on the path of each call: it opens, reads and closes with plain system calls.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from agentcgroup.mountinfo import mounts

#: Reading or writing a file of a cgroup that was removed meanwhile (kernfs, fs/kernfs/file.c).
GONE = (errno.ENOENT, errno.ENODEV)
#: A list (cgroup.procs) is read in pieces of whole lines, a page at most; what is shorter than this is the last one, or
#: one of the other files, which come whole (fs/seq_file.c).
_PIECE = os.sysconf("SC_PAGE_SIZE") // 2


def mount_point() -> Path:
    """Where cgroup2 is mounted (`/sys/fs/cgroup`, or `/sys/fs/cgroup/unified` on a hybrid host)."""
    for mount in mounts("self"):
        if mount.kind == "cgroup2":
            return Path(mount.point)
    raise FileNotFoundError(errno.ENOENT, "no cgroup2 mount on this host", "/proc/self/mountinfo")


def is_gone(error: OSError) -> bool:
    """Whether `error` only says that the cgroup no longer exists."""
    return error.errno in GONE


class Cgroup:
    """A directory of cgroupfs. Methods raise OSError with the path of the file."""

    __slots__ = ("path",)

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)

    def __repr__(self) -> str:
        return f"Cgroup({self.path!r})"

    def child(self, name: str) -> Cgroup:
        """The cgroup `name` below this one; it need not exist."""
        return Cgroup(f"{self.path}/{name}")

    def all(self) -> Iterator[Cgroup]:
        """This cgroup and those below it; none where it is gone."""
        try:
            below = os.stat(self.path).st_nlink - 2  # kernfs counts directories so (fs/kernfs/inode.c)
            names = [entry.name for entry in os.scandir(self.path) if entry.is_dir()] if below else []
        except OSError:
            return
        yield self
        for name in names:
            yield from self.child(name).all()

    def exists(self) -> bool:
        """Whether the directory is there."""
        return os.path.isdir(self.path)

    def read(self, name: str) -> str:
        """The text of one file."""
        path = f"{self.path}/{name}"
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = piece = os.read(fd, 65536)
            while len(piece) >= _PIECE:
                piece = os.read(fd, 65536)
                text += piece
            return text.decode()
        finally:
            os.close(fd)

    def write(self, name: str, value: str | int) -> None:
        """Write one value to one file."""
        path = f"{self.path}/{name}"
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, str(value).encode())
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (writing {value!r})", path) from None
        finally:
            os.close(fd)

    def try_write(self, name: str, value: str | int) -> bool:
        """Write where the file exists and takes the value; False where its controller is missing or the cgroup gone."""
        try:
            self.write(name, value)
        except OSError:
            return False
        return True

    def number(self, name: str) -> int | None:
        """A single number; None for `max` and where the file is missing or the cgroup gone."""
        try:
            text = self.read(name).strip()
        except OSError:
            return None
        return int(text) if text.isdigit() else None

    def keyed(self, name: str) -> dict[str, int]:
        """A flat keyed file (`memory.events`, `cpu.stat`); empty where it is missing or the cgroup gone."""
        try:
            return parse_keyed(self.read(name))
        except OSError:
            return {}

    def lines(self, name: str) -> list[str]:
        """A file's lines; none where it is missing or the cgroup gone."""
        try:
            return self.read(name).splitlines()
        except OSError:
            return []

    def pids(self) -> list[int]:
        """The processes in this cgroup itself, in the reader's pid namespace."""
        fd_path = f"{self.path}/cgroup.procs"
        try:
            with open(fd_path) as procs:
                return [int(line) for line in procs]
        except OSError as error:
            if is_gone(error) or error.errno == errno.EOPNOTSUPP:
                return []
            raise

    def populated(self) -> bool:
        """Whether a process lives here or below."""
        return self.keyed("cgroup.events").get("populated", 0) == 1

    def signal(self, number: signal.Signals) -> int:
        """Send a signal to each process here; returns how many took it."""
        count = 0
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
                count += 1
        return count

    def kill(self) -> None:
        """SIGKILL everything here and below at once (cgroup.kill, Linux 5.14); asynchronous."""
        if not self.try_write("cgroup.kill", 1):
            self.signal(signal.SIGKILL)

    def parents(self, top: Path) -> Iterator[Cgroup]:
        """This cgroup and its ancestors up to, not including, the mount point `top`."""
        path, above = self.path, f"{top}/"
        while path.startswith(above):
            yield Cgroup(path)
            path = path.rpartition("/")[0]

    def level(self, top: Path) -> int:
        """How deep it is in the hierarchy; the root of all, at the mount point `top`, is 0."""
        return sum(1 for _ in self.parents(top))

    def memory_limit(self, top: Path) -> int | None:
        """The lowest memory.max of this cgroup and its ancestors in bytes; None: unlimited."""
        limits = [limit for c in self.parents(top) if (limit := c.number("memory.max")) is not None]
        return min(limits, default=None)

    def cpu_limit(self, top: Path) -> float | None:
        """The lowest cpu.max of this cgroup and its ancestors in CPUs; None: unlimited."""
        limits = [limit for cgroup in self.parents(top) if (limit := cgroup.cpu_quota()) is not None]
        return min(limits, default=None)

    def cpu_quota(self) -> float | None:
        """Its own cpu.max in CPUs; None: unlimited, or no such file."""
        try:
            quota, period = self.read("cpu.max").split()
            return None if quota == "max" else int(quota) / int(period)
        except (OSError, ValueError):
            return None


def parse_keyed(text: str) -> dict[str, int]:
    """`key value` lines as a dict; values that are not numbers are left out."""
    pairs = (line.split(None, 1) for line in text.splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].strip().isdigit()}


def pressure_total(cgroup: Cgroup, name: str, line: str = "some") -> float:
    """Seconds of stall that a PSI file has summed up (accounting/psi.rst); 0.0 where there is none."""
    try:
        text = cgroup.read(name)
    except OSError:
        return 0.0
    for row in text.splitlines():
        if row.startswith(line + " "):
            return int(row.rpartition("total=")[2]) / 1e6
    return 0.0


def remove(cgroup: Cgroup, patience: float = 0.0) -> bool:
    """rmdir, waiting up to `patience` seconds while processes die; True when it is gone."""
    end = time.monotonic() + patience
    while True:
        try:
            os.rmdir(cgroup.path)
            return True
        except OSError as error:
            if is_gone(error):
                return True
            if error.errno != errno.EBUSY or time.monotonic() >= end:
                return False
        time.sleep(0.01)


def total_memory() -> int:
    """This host's memory in bytes (MemTotal of /proc/meminfo)."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
