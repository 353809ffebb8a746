"""One tool call from its admission to its record: what runs where, under which grant, and what became of it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from agentcgroup.admission import Grant
from agentcgroup.cgroup import Cgroup, pressure_total
from agentcgroup.commandline import Command
from agentcgroup.hint import Hint
from agentcgroup.outcome import Ended, Neighbour, OrphanAction, Outcome
from agentcgroup.peer import read_proc
from agentcgroup.pool import Slot

if TYPE_CHECKING:
    from agentcgroup.callsocket import Caller
    from agentcgroup.container import Container
    from agentcgroup.kmsg import OomLog
    from agentcgroup.loop import Timer


class Call:
    """A call's state. Times ending in `_s` are seconds; `began` is the monotonic clock, `started` the wall clock."""

    def __init__(self, container: Container, slot: Slot, grant: Grant, command: Command, hint: Hint) -> None:
        self.container = container
        self.slot = slot
        self.grant = grant
        self.command = command
        self.hint = hint
        self.caller: Caller | None = None
        self.shim_pid = 0
        self.began = time.monotonic()
        self.started = time.time()
        self.shell_ended: float | None = None
        self.status: int | None = None
        self.ended: Ended | None = None
        self.held_since: float | None = None
        self.held_total = 0.0
        self.hold_count = 0
        self.queued_s = 0.0
        self.stall_seen = 0.0
        self.stall_run = 0.0
        self.pids_seen = 0
        self.denied_seen = 0
        self.orphans: list[str] = []
        self.orphan_action: OrphanAction | None = None
        self.fallback = False
        self.relocated = False
        self.counted = False
        self.calm = 0
        self.limit_hits = 0
        self.last_events: dict[str, int] = {}
        self.last_peak = 0
        self.timers: list[Timer] = []
        self.others: dict[int, tuple[str, int]] = {}
        self.oom_victims: list[str] = []

    @property
    def number(self) -> int:
        """N of calls/N."""
        return self.slot.number

    @property
    def cgroup(self) -> Cgroup:
        """The call's own cgroup."""
        return self.slot.cgroup

    @property
    def held_s(self) -> float:
        """Seconds frozen so far."""
        return self.held_total + (time.monotonic() - self.held_since if self.held_since is not None else 0.0)

    def row(self) -> dict[str, object]:
        """The call as a row for `agentcgroup calls`."""
        return {
            "call": self.number,
            "kind": self.grant.kind,
            "command": self.command.first_word,
            "seconds": round(time.monotonic() - self.began, 3),
            "memory": self.cgroup.number("memory.current"),
            "limit": self.grant.memory,
            "limit_source": self.grant.source,
            "pids": self.cgroup.number("pids.current"),
            "held": self.held_since is not None,
            "ended": self.ended,
        }

    def was_moved(self, moved: bool) -> None:
        """Its processes have been moved to where they belong, for this is no call."""
        self.relocated |= moved

    def ran(self) -> bool:
        """Whether any process was ever in it; a number can be given and not used."""
        return self.last_peak > 0 or self.cgroup.keyed("cpu.stat").get("usage_usec", 0) > 0

    def hold(self) -> None:
        """Freeze it. It keeps its memory and grows no further."""
        if self.held_since is None and self.cgroup.try_write("cgroup.freeze", 1):
            self.held_since = time.monotonic()
            self.hold_count += 1

    def release(self) -> None:
        """Thaw it."""
        if self.held_since is not None:
            self.held_total = self.held_s
            self.held_since = None
        self.cgroup.try_write("cgroup.freeze", 0)

    def terminate(self, reason: Ended) -> None:
        """End it: TERM to every process, and after the policy's grace SIGKILL to what is left. The first reason
        stays.
        """
        if self.ended is not None:
            return
        self.ended = reason
        self.sample()
        self.cgroup.signal(signal.SIGTERM)
        self.release()
        self.timers.append(self.container.loop.after(self.container.policy.call.grace, self.cgroup.kill))

    def sample(self) -> None:
        """Remember counters now, for the engine may remove the directory before the end is seen (podman#25990)."""
        events = self.slot.memory_events()
        self.last_events = events or self.last_events
        self.last_peak = max(self.last_peak, self.cgroup.number("memory.peak") or 0)

    def names(self) -> list[str]:
        """The comm of each process that lives in it, the shim's own excluded; at most 16."""
        return [read_proc(pid, "comm").decode(errors="replace").strip() or "?" for pid in self.cgroup.pids()[:16]]

    def note_neighbours(self) -> None:
        """Who ran at the same time, for the text of an OOM; the last figures seen are kept."""
        for other in self.container.calls.values():
            if other is not self:
                usage = other.cgroup.number("memory.current")
                if usage is not None:
                    self.others[other.number] = (other.command.first_word, usage)

    def cancel_timers(self) -> None:
        """Nothing more is to happen to it."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def outcome(self, oom: OomLog) -> Outcome:
        """Everything that is known of it now."""
        self.sample()
        for kill in oom.take(self.container.proc_path + f"/calls/{self.number}"):
            self.oom_victims.append(kill.task)
            if not kill.at.startswith(self.container.proc_path + "/calls"):
                self.ended = self.ended or "container limit"
        policy, record = self.container.policy, self.container.record
        cpu, pids_events, group = self.cgroup.keyed("cpu.stat"), self.cgroup.keyed("pids.events"), self.cgroup
        events = self.last_events
        return Outcome(
            container=record.id,
            name=record.name,
            number=self.number,
            policy=policy.name,
            mode=policy.mode,
            kind=self.grant.kind,
            command=self.command,
            command_class=self.command.command_class,
            started=self.started,
            duration_s=(self.shell_ended or time.monotonic()) - self.began,
            status=self.status,
            peak_bytes=self.last_peak,
            limit_bytes=self.grant.memory,
            limit_source=self.grant.source,
            container_limit_bytes=self.container.limits.calls_max,
            cpu_s=cpu.get("usage_usec", 0) / 1e6,
            cpu_throttled_s=cpu.get("throttled_usec", 0) / 1e6,
            io_bytes=_io_bytes(group),
            pids_peak=group.number("pids.peak"),
            pids_limit=self.grant.pids,
            pids_denied=pids_events.get("max", 0),
            zombies=self._zombies() if pids_events.get("max") else 0,
            oom_kills=events.get("oom_kill", 0),
            oom_victims=tuple(self.oom_victims),
            high_events=events.get("high", 0),
            throttled_s=pressure_total(group, "memory.pressure"),
            held_s=self.held_s,
            queued_s=self.queued_s,
            ended=self.ended,
            time_limit_s=self.grant.time,
            stall_deadline_s=policy.call.stall_deadline,
            orphans=len(self.orphans),
            orphan_names=tuple(self.orphans),
            orphan_action=self.orphan_action,
            others=tuple(Neighbour(n, word, size) for n, (word, size) in sorted(self.others.items())),
            hint=self.hint,
            clamps=self.grant.clamps,
            fallback=self.fallback,
            cooperative=bool(record.cooperative),
        )

    def _zombies(self) -> int:
        states = (read_proc(pid, "stat").rpartition(b")")[2][1:2] for pid in self.cgroup.pids())
        return sum(state == b"Z" for state in states)


def _io_bytes(group: Cgroup) -> int:
    try:
        text = group.read("io.stat")
    except OSError:
        return 0
    fields = (item.partition("=") for item in text.split())
    return sum(int(value) for key, _, value in fields if key in ("rbytes", "wbytes") and value.isdigit())


def kernel_path(path: str, top: str) -> str:
    """A cgroup's path as /proc/PID/cgroup and the kernel log give it."""
    return os.path.normpath("/" + path.removeprefix(top).lstrip("/"))
