"""One tool call from its admission to its record: what runs where, under which grant, and what became of it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

from agentcgroup.admission import Grant
from agentcgroup.cgroup import Cgroup, pressure_total
from agentcgroup.commandline import Command
from agentcgroup.enforce import Strain
from agentcgroup.hint import Hint
from agentcgroup.outcome import Ended, Neighbour, OrphanAction, Outcome, Step
from agentcgroup.peer import Peer, read_proc, write_proc
from agentcgroup.pool import Slot

if TYPE_CHECKING:
    from agentcgroup.bpf.model import Event
    from agentcgroup.callsocket import Caller
    from agentcgroup.container import Container
    from agentcgroup.kmsg import OomLog
    from agentcgroup.loop import Timer

#: As OOM_RAISE of the shim.
OOM_SCORE = 500
HELD_OOM_SCORE = 750
NAMED = 16  # orphans of which the name is recorded
NEIGHBOURS = 8  # recorded at most
STEPS = 8  # holds, releases and ends recorded, from the first and from the latest


class Call:
    """A call's state. Times ending in `_s` are seconds; `began` is the monotonic clock, `started` the wall clock.

    shim_fd: a pidfd of its shim where it was taken in without a word. held_at: the cgroup whose limit it was held for.
    driver: a program that the agent started without a shell and whose shells share this call. can_be_refused: it gets
    ENOMEM at its limit; refused: at what it had when the ladder came to that. most_together, most_forks, crowded: what
    `observe` saw of all calls' bytes, of processes a second, and when it would have been held first.
    """

    def __init__(self, container: Container, slot: Slot, grant: Grant, command: Command, hint: Hint) -> None:
        self.container = container
        self.slot = slot
        self.grant = grant
        self.command = command
        self.hint = hint
        self.caller: Caller | None = None
        self.shim_pid = 0
        self.shim_fd = -1
        self.began = time.monotonic()
        self.started = time.time()
        self.shell_ended: float | None = None
        self.status: int | None = None
        self.ended: Ended | None = None
        self.held_since: float | None = None
        self.held_total = 0.0
        self.held_at = ""
        self.crowded_out = False
        self.spared_until = float("-inf")
        self.queued_s = 0.0
        self.strain = Strain()
        self.zombies = 0
        self.most_together = 0
        self.most_forks = 0.0
        self.orphans = 0
        self.orphan_names: list[str] = []
        self.orphan_action: OrphanAction | None = None
        self.relocated = False
        self.counted = False
        self.driver: Peer | None = None
        self.limited = container.policy.mode == "enforce"
        self.changed: set[str] = set()
        self.last_events: dict[str, int] = {}
        self.last_peak = 0
        self.used: Event | None = None
        self.timers: list[Timer] = []
        self.others: dict[int, Neighbour] = {}
        self.steps: list[Step] = []
        self.crowded: Step | None = None
        self.can_be_refused: bool = False
        self.refused: bool = False
        self.refusals = 0
        self.oom_victims: list[str] = []
        self.feedback: tuple[str, ...] = ()

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

    @property
    def age_s(self) -> float:
        """Seconds since it began, to the millisecond."""
        return round(time.monotonic() - self.began, 3)

    @property
    def enforced(self) -> bool:
        """Whether it can be made to give way."""
        return not self.relocated and self.container.policy.mode == "enforce"

    def note(self, step: Step) -> None:
        """What is done to it, for the record; the first and the latest STEPS."""
        if len(self.steps) == 2 * STEPS:
            del self.steps[STEPS]
        self.steps.append(step)

    def brief(self) -> dict[str, object]:
        """What is known of it without a look at its cgroup."""
        return {
            "call": self.number,
            "kind": self.grant.kind,
            "command": self.command.first_word,
            "seconds": self.age_s,
            "limit": self.grant.memory,
            "limit_source": self.grant.source,
            "held": self.held_since is not None,
            "ended": self.ended,
        }

    def row(self) -> dict[str, object]:
        """The call as a row for `agentcgroup calls`."""
        group = self.cgroup
        return self.brief() | {"memory": group.number("memory.current"), "pids": group.number("pids.current")}

    def was_moved(self, moved: bool) -> None:
        """Its processes have been moved to where they belong, for this is no call."""
        self.relocated |= moved

    def ran(self) -> bool:
        """Whether any process was ever in it, as far as was seen before the engine removed the directory; a number can
        be given and not used.
        """
        told = self.status is not None or self.orphan_action is not None
        return told or self.last_peak > 0 or self.strain.cpu_seen > 0 or self.slot.used()

    def hold(self, level: str, crowded_out: bool = False) -> None:
        """Freeze it, that others get on at the limit of the cgroup `level`. It keeps its memory and does not grow.
        `crowded_out`: for want of room, and until there is some.
        """
        self.crowded_out = crowded_out
        if self.held_since is None and self.cgroup.try_write("cgroup.freeze", 1):
            self.held_since, self.held_at = time.monotonic(), level

    def offer(self) -> None:
        """While it is held: where memory runs out all the same, the kernel is to take it, not one that it waits for."""
        self.raise_oom_scores(HELD_OOM_SCORE)

    def release(self) -> None:
        """Thaw it."""
        if self.held_since is not None:
            self.held_total = self.held_s
            self.held_since = None
        for pid in self.cgroup.pids():
            if read_proc(pid, "oom_score_adj").strip() == str(HELD_OOM_SCORE).encode():
                write_proc(pid, "oom_score_adj", OOM_SCORE)
        self.cgroup.try_write("cgroup.freeze", 0)

    def let_be(self) -> None:
        """Nothing more is done to it, but for an end that it was told of."""
        if self.held_since is not None:
            self.release()
        if self.ended is None:
            self.cancel_timers()

    def refuse(self, limit: int) -> None:
        """From now on it is told ENOMEM where it would come to more bytes, if its policy and the kernel allow that."""
        kernel, rungs = self.container.governor.kernel, self.container.policy.call.on_pressure
        if kernel is not None and "enomem" in rungs and self.limited:
            self.can_be_refused = kernel.refuse(self.slot.cgid, limit)

    def spare(self) -> None:
        """It has been sent a signal: let it go on, and hold it no more until it has had its grace."""
        if self.held_since is not None:
            self.release()
            self.spared_until = time.monotonic() + self.container.policy.call.grace

    def terminate(self, reason: Ended) -> None:
        """End it: TERM to every process, and after the policy's grace SIGKILL to what is left; a storm, which forks on
        while it is told, at once. The first reason stays.
        """
        if self.ended is not None:
            return
        self.ended = reason
        self.sample()
        if reason == "fork storm":
            self.release()
            self.cgroup.kill()
            return
        self.cgroup.signal(signal.SIGTERM)
        self.release()
        self.timers.append(self.container.loop.after(self.container.policy.call.grace, self.cgroup.kill))

    def driven(self) -> bool:
        """Whether a program that was started without a shell goes on in it."""
        return self.driver is not None and self.driver.lives()

    def drive(self, driver: Peer, moved: bool) -> None:
        """A program that was started without a shell has joined it, if it could be moved."""
        if moved:
            self.driver = driver

    def raise_oom_scores(self, least: int = OOM_SCORE) -> None:
        """An OOM above us takes a call, not the agent. The shim sees to it, but where /proc is read-only."""
        for pid in self.cgroup.pids():
            score = read_proc(pid, "oom_score_adj").strip()
            if score and int(score) < least:
                write_proc(pid, "oom_score_adj", least)

    def sample(self) -> None:
        """Remember counters now, for the engine may remove the directory before the end is seen (podman#25990)."""
        events = self.slot.memory_events()
        if any(events.get(key, 0) > self.last_events.get(key, 0) for key in ("oom", "oom_kill")):
            self.note_neighbours()
        self.last_events = events or self.last_events
        self.last_peak = max(self.last_peak, self.cgroup.number("memory.peak") or 0)

    def recheck(self) -> None:
        """Keep its figures, and put back its limits. Root in a container may mount its own leaf in new namespaces and
        write it, where neither an LSM nor nsdelegate keeps it from that; what is above the call it cannot reach.
        """
        self.sample()
        if not self.limited:
            return
        for name, wanted in (("memory.max", self.grant.memory), ("pids.max", self.grant.pids), ("memory.oom.group", 1)):
            found = self.cgroup.number(name)
            kept = found == 1 if name == "memory.oom.group" else found is not None and found <= wanted
            if not kept and self.slot.populated():
                self.container.limit(self.cgroup, ((name, str(wanted)),))
                self.changed.add(name)

    def note_orphans(self) -> None:
        """How many processes live in it without their shell, and the names of some."""
        pids = self.cgroup.pids()
        self.orphans = len(pids)
        self.orphan_names = [read_proc(pid, "comm").decode(errors="replace").strip() or "?" for pid in pids[:NAMED]]

    def note_neighbours(self) -> None:
        """Who ran at the same time, for the text of an OOM; the last figures seen of the largest are kept."""
        for other in self.container.calls.values():
            if other is not self:
                usage = other.cgroup.number("memory.current")
                if usage is not None:
                    self.others[other.number] = Neighbour(other.number, other.command.first_word, usage)
        largest = sorted(self.others.values(), key=lambda other: other.bytes)[-NEIGHBOURS:]
        self.others = {other.number: other for other in largest}

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
        cpu, pids_events, group = self.cgroup.keyed("cpu.stat"), self.slot.pids_events(), self.cgroup
        events, seen, used = self.last_events, self.strain, self.used
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
            peak_bytes=max(self.last_peak, seen.size, used.memory_bytes if used else 0),
            limit_bytes=self.grant.memory,
            limit_source=self.grant.source,
            container_limit_bytes=self.container.limits.calls_max,
            cpu_s=max(cpu.get("usage_usec", 0) / 1e6, seen.cpu_seen),
            cpu_throttled_s=cpu.get("throttled_usec", 0) / 1e6,
            io_bytes=_io_bytes(group),
            egress_bytes=used.usage.egress_bytes if used else None,
            ingress_bytes=used.usage.ingress_bytes if used else None,
            processes=used.usage.processes if used else None,
            pids_peak=group.number("pids.peak"),
            pids_limit=self.grant.pids,
            pids_denied=max(pids_events.get("max", 0), seen.denied_seen),
            zombies=self.zombies if self.zombies * 10 >= self.grant.pids else 0,
            oom_kills=max(events.get("oom_kill", 0) - events.get("oom_group_kill", 0), len(self.oom_victims)),
            oom_victims=tuple(self.oom_victims),
            high_events=events.get("high", 0),
            throttled_s=pressure_total(group, "memory.pressure"),
            held_s=self.held_s,
            queued_s=self.queued_s,
            ended=self.ended,
            time_limit_s=self.grant.time,
            stall_deadline_s=policy.call.stall_deadline,
            orphans=self.orphans,
            orphan_names=tuple(self.orphan_names),
            orphan_action=self.orphan_action,
            steps=tuple(self.steps),
            refusals=self._refusals(),
            others=tuple(self.others[number] for number in sorted(self.others)),
            hint=self.hint,
            clamps=self.grant.clamps,
            cooperative=bool(record.cooperative),
            changed=tuple(sorted(self.changed)),
            feedback=self.feedback,
            profile=tuple(seen.profile.points),
        )

    def _refusals(self) -> int:
        kernel = self.container.governor.kernel
        if kernel is not None and self.can_be_refused:
            self.refusals = max(self.refusals, kernel.refusals(self.slot.cgid))
        return self.refusals

    def note_zombies(self) -> None:
        """Processes that have ended and are not waited for count in pids.current and are not listed (cgroup-v2.rst,
        cgroup.procs). The most that were seen at once are kept.
        """
        count = self.cgroup.number("pids.current") or 0
        self.zombies = max(self.zombies, count - len(self.cgroup.lines("cgroup.threads")))


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
