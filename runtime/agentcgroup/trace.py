"""What the processes of calls spend their time on: page faults, waiting off the CPU, syscalls. The kernel adds it up in
maps of bounded size, while it is asked to and no longer.

The time of a page fault or a syscall includes what was waited in it. A wait or a syscall that is under way when the
tracing begins or ends counts for its part in between. Syscalls of 32-bit programs get the names of the 64-bit table.
"""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcgroup.cgroup import Cgroup, mount_point
from agentcgroup.errors import UserError
from agentcgroup.traceprogram import PROGRAM


@dataclass(frozen=True, slots=True)
class Syscall:
    """One kind of syscall of a call, those under way included."""

    name: str
    count: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Call:
    """`name` is the number of the call, or fallback, or "" where its directory was gone before it was seen. `blocked_s`
    are seconds asleep, `runnable_s` those for want of a CPU, from each thread's first run on. The syscalls are in the
    order of their time, longest first.
    """

    name: str
    faults: int
    fault_s: float
    blocked_s: float
    runnable_s: float
    syscalls: tuple[Syscall, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """What was seen in so many seconds; `lost` counts events that the maps had no room for."""

    seconds: float
    lost: int
    calls: tuple[Call, ...]


Sums = dict[int, list[int]]
"""For each cgroup id faults, and nanoseconds of faults, blocked and runnable."""
Spent = dict[int, dict[int, list[int]]]
"""For each cgroup id and syscall number how many, and nanoseconds."""


class Tracer:
    """At work from its making to `end`, on one call or on all in `calls`, those that begin meanwhile included.

    Raises UserError when bcc or the kernel's headers are missing or the kernel refuses, OSError without the cgroup.
    """

    def __init__(self, calls: Cgroup, number: int | None = None, debug: bool = False) -> None:
        compiled = _compiler()
        self._calls = calls
        self._names: dict[int, str] = {}
        root = Path(calls.path if number is None else calls.child(str(number)).path)
        depth = len(root.relative_to(mount_point()).parts)
        flags = (f"-DROOT={root.stat().st_ino}", f"-DLEVEL={depth}")
        try:
            with nullcontext() if debug else _silenced():
                self._bpf = compiled(text=PROGRAM, cflags=flags)
        except Exception as error:  # bcc has no kinds of its own
            raise UserError(refusal(os.uname().release, _headers().exists())) from error
        self._began = time.monotonic_ns()
        self.look()
        for call, name in self._names.items():
            if number is None or name == str(number):
                self._take_up(call, calls.child(name))

    def look(self) -> None:
        """Learn the names of the calls; to be done often, for a directory goes with its call. Raises OSError."""
        with os.scandir(self._calls.path) as entries:
            self._names |= {entry.inode(): entry.name for entry in entries if entry.is_dir()}

    def end(self) -> Trace:
        """Take everything out of the kernel; what was seen."""
        with suppress(OSError):  # the container has ended
            self.look()
        try:
            _detach(self._bpf)
            now = time.monotonic_ns()
            sums, spent = _read(self._bpf, now)
            lost = self._bpf["lost"][0].value
        finally:
            self._bpf.cleanup()
        calls = summary(sums, spent, self._names, syscall_names())
        return Trace((now - self._began) / 1e9, lost, calls)

    def _take_up(self, call: int, group: Cgroup) -> None:
        """Tell of the threads that wait already: a call that hangs would show nothing else."""
        waiting, inside = self._bpf["waiting"], self._bpf["inside"]
        for thread in group.lines("cgroup.threads"):
            key = ctypes.c_uint32(int(thread))
            with suppress(Exception):  # the thread is gone, or bcc's word for a table that is full
                state = Path(f"/proc/{thread}/stat").read_bytes().rpartition(b")")[2].split()[0]
                number = int(Path(f"/proc/{thread}/syscall").read_bytes().split()[0])
                if state not in (b"R", b"Z", b"X") and key not in waiting:
                    waiting[key] = waiting.Leaf(self._began, call, 1)
                if number >= 0 and key not in inside:
                    inside[key] = inside.Leaf(self._began, call, number)


def summary(sums: Sums, spent: Spent, names: Mapping[int, str], syscalls: Mapping[int, str]) -> tuple[Call, ...]:
    """The calls by number, those without one last. `names` and `syscalls` say what a cgroup and a syscall is called."""

    def place(call: int) -> tuple[bool, int]:
        name = names.get(call, "")
        return not name.isdecimal(), int(name) if name.isdecimal() else call

    def rows(call: int) -> Iterator[Syscall]:
        for number, (count, ns) in sorted(spent.get(call, {}).items(), key=lambda item: -item[1][1]):
            yield Syscall(syscalls.get(number, f"syscall {number}"), count, ns / 1e9)

    found = []
    for call in sorted({*sums, *spent}, key=place):
        faults, fault, blocked, runnable = sums.get(call, (0, 0, 0, 0))
        found.append(Call(names.get(call, ""), faults, fault / 1e9, blocked / 1e9, runnable / 1e9, tuple(rows(call))))
    return tuple(found)


def syscall_names(build: Path | None = None) -> dict[int, str]:
    """The names of syscalls by number, from the headers that the programs were compiled with."""
    names = {}
    for header in (build or _headers()).glob("arch/*/include/generated/uapi/asm/unistd_64.h"):
        for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", header.read_text(), re.MULTILINE):
            names[int(number)] = name
    return names


def refusal(release: str, headers: bool) -> str:
    """Why the programs are not in the kernel of that release, and what to do."""
    if not headers:
        packages = f"linux-headers-{release} (Debian) or kernel-devel-{release} (Fedora, RHEL)"
        return f"the headers of the running kernel are missing: install {packages}"
    return f"bcc could not put the programs into kernel {release}: agentcgroup --debug trace ... shows why"


def _headers() -> Path:
    return Path("/lib/modules", os.uname().release, "build")


def _compiler() -> Any:
    try:
        from bcc import BPF  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except (ImportError, OSError):
        raise UserError("there is no bcc: install python3-bpfcc (Debian) or python3-bcc (Fedora, RHEL)") from None
    return BPF


@contextmanager
def _silenced() -> Iterator[None]:
    """clang and libbpf write to the files 1 and 2 themselves, bcc through the C library's buffers."""
    kept, nowhere = {fd: os.dup(fd) for fd in (1, 2)}, os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    for fd in kept:
        os.dup2(nowhere, fd)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        for fd, copy in kept.items():
            os.dup2(copy, fd)
            os.close(copy)
        os.close(nowhere)


def _detach(bpf: Any) -> None:
    """Off the kernel's paths, so that the maps stand still."""
    for attached, detach in (
        (bpf.tracepoint_fds, bpf.detach_tracepoint),
        (bpf.raw_tracepoint_fds, bpf.detach_raw_tracepoint),
        (bpf.kfunc_entry_fds, bpf.detach_kfunc),
        (bpf.kfunc_exit_fds, bpf.detach_kretfunc),
    ):
        for name in list(attached):
            detach(name)


def _read(bpf: Any, now: int) -> tuple[Sums, Spent]:
    """What the maps have, and what is under way until `now`, in nanoseconds of CLOCK_MONOTONIC."""
    sums: Sums = defaultdict(lambda: [0, 0, 0, 0])
    spent: Spent = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    for key, sum_ in bpf["calls"].items():
        sums[key.value] = [sum_.faults, sum_.fault_ns, sum_.blocked_ns, sum_.runnable_ns]
    for key, one in bpf["syscalls"].items():
        spent[key.call][key.number] = [one.count, one.ns]
    for fault in bpf["faulting"].values():
        sums[fault.call][0] += 1
        sums[fault.call][1] += now - fault.since
    for wait in bpf["waiting"].values():
        sums[wait.call][2 if wait.blocked else 3] += now - wait.since
    for entry in bpf["inside"].values():
        spent[entry.call][entry.number][0] += 1
        spent[entry.call][entry.number][1] += now - entry.since
    return sums, spent
