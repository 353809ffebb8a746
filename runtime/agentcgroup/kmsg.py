"""Who was killed: the kernel's own words on OOM kills, read from /dev/kmsg as they come
(Documentation/ABI/testing/dev-kmsg).

memory.events counts kills and does not name them; the line `oom-kill:...,task_memcg=PATH,task=COMM,pid=N` does
(mm/oom_kill.c, dump_oom_summary, since Linux 5.0). Where memory.oom.group is set, `Tasks in PATH are going to be
killed` and a line for each follow in one piece, the first victim's once more.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from dataclasses import dataclass

_SUMMARY = re.compile(
    rb"oom-kill:constraint=(\w+).*?(?:,oom_memcg=([^,]*))?,task_memcg=([^,]*),task=(.*),pid=(\d+),uid=\d+"
)
_GROUP = re.compile(rb"Tasks in (\S+) are going to be killed due to memory\.oom\.group set")
_MEMBER = re.compile(rb"ut of memory: Killed process (\d+) \((.*)\) total-vm:")
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
        self._at = ""  # of the newest kill
        self._group = ""  # whose members are being named
        self._member = -1  # the sequence number of the next of them
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
        if found := _SUMMARY.search(line):
            _, at, cgroup, task, pid = (part.decode(errors="replace") if part else "" for part in found.groups())
            self._at = at
            self._note(Kill(task, int(pid), cgroup, at))
        elif found := _GROUP.search(line):
            self._group, self._member = found[1].decode(errors="replace"), _sequence(line) + 1
        elif (found := _MEMBER.search(line)) and _sequence(line) == self._member:
            self._member += 1
            self._note(Kill(found[2].decode(errors="replace"), int(found[1]), self._group, self._at))

    def _note(self, kill: Kill) -> None:
        kills = self._kills.setdefault(kill.cgroup, [])
        if all(kill.pid != other.pid for other in kills) and len(kills) < _KEEP:
            kills.append(kill)
        while len(self._kills) > _KEEP:
            self._kills.popitem(last=False)

    def take(self, cgroup: str) -> list[Kill]:
        """The kills in one cgroup; they are forgotten."""
        self.read()
        return self._kills.pop(cgroup, [])


def _sequence(line: bytes) -> int:
    """The second field of a record's head, `priority,sequence,microseconds,flags;`."""
    number = line.split(b",", 2)[1:2]
    return int(number[0]) if number and number[0].isdigit() else -1
