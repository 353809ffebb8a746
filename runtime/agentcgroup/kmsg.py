"""Who was killed: the kernel's own words on OOM kills, read from /dev/kmsg as they come
(Documentation/ABI/testing/dev-kmsg).

memory.events counts kills and does not name them; the line `oom-kill:...,task_memcg=PATH,task=COMM,pid=N` does
(mm/oom_kill.c, dump_oom_summary, since Linux 5.0).
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass

_SUMMARY = re.compile(
    rb"oom-kill:constraint=(\w+).*?(?:,oom_memcg=([^,]*))?,task_memcg=([^,]*),task=(.*),pid=(\d+),uid=\d+"
)
_KEEP = 256


@dataclass(frozen=True, slots=True)
class Kill:
    """One victim. `at` is the cgroup whose limit was hit, "" for the whole host; paths as in /proc/PID/cgroup."""

    task: str
    pid: int
    cgroup: str
    at: str


class OomLog:
    """The newest kills by victim's cgroup; bounded."""

    def __init__(self) -> None:
        self._kills: OrderedDict[str, list[Kill]] = OrderedDict()
        self.fd = -1
        try:
            self.fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self.fd, 0, os.SEEK_END)
        except OSError:  # a container or a locked-down host: victims stay unnamed
            self.fd = -1

    def read(self) -> None:
        """Take in what the kernel has said since."""
        while self.fd >= 0:
            try:
                self.feed(os.read(self.fd, 8192))
            except BlockingIOError:
                return
            except BrokenPipeError:  # the ring buffer overtook us: read on from its oldest record
                continue
            except OSError:
                return

    def feed(self, line: bytes) -> None:
        """Take in one record."""
        found = _SUMMARY.search(line)
        if not found:
            return
        _constraint, at, cgroup, task, pid = (part.decode(errors="replace") if part else "" for part in found.groups())
        self._kills.setdefault(cgroup, []).append(Kill(task, int(pid), cgroup, at))
        while len(self._kills) > _KEEP:
            self._kills.popitem(last=False)

    def take(self, cgroup: str) -> list[Kill]:
        """The kills in one cgroup; they are forgotten."""
        self.read()
        return self._kills.pop(cgroup, [])
