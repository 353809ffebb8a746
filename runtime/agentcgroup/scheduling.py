"""When the scheduler in the kernel is at work, for whom, and what is done when it comes to an end."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentcgroup import journal, paths
from agentcgroup.bpf import scheduler
from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.errors import UserError

if TYPE_CHECKING:
    from agentcgroup.call import Call
    from agentcgroup.container import Container
    from agentcgroup.loop import Loop, Timer
    from agentcgroup.worker import Worker

_OTHER, _EXT = os.SCHED_OTHER, 7  # SCHED_EXT (include/uapi/linux/sched.h)
#: Seconds until it is tried again after the kernel took it out, doubled each time, and how long one has to last for
#: that to be forgotten.
RETRY, RETRY_MOST, LASTING = 60.0, 3600.0, 600.0
#: Seconds until it is loaded again after a CPU came or went: more may follow.
SETTLE = 5.0
#: Seconds between looks at whether the kernel is rid of it.
SOON = 0.05
INSTEAD = "CPUs are shared by cpu.weight alone"


class Scheduling:
    """What `scheduler` in agentcgroup.yaml asks for, as far as this host allows it. The way back is the kernel's own
    scheduler with cpu.weight, which needs nothing of us.
    """

    def __init__(self, lib: Libbpf, loop: Loop, top: Path, worker: Worker, containers: Mapping[str, Container]) -> None:
        self._lib = lib
        self._loop = loop
        self._top = top
        self._worker = worker
        self._containers = containers
        self._wanted: scheduler.Mode = "off"
        self._retry = RETRY
        self._timer: Timer | None = None
        self._since = 0.0
        self._told = ""
        self.mode: scheduler.Mode = "off"

    def use(self, wanted: scheduler.Mode) -> None:
        """Have it at work in that mode soon, or `off`; why that cannot be is said in the journal."""
        if self._timer is not None:
            self._timer.cancel()
        self._wanted, self._retry = wanted, RETRY
        self._attach()

    def _attach(self) -> None:
        wanted, self._timer = self._wanted, None
        self._worker.submit("", lambda: self._change(wanted), lambda found: self._changed(wanted, *found))

    def _change(self, wanted: scheduler.Mode) -> tuple[scheduler.Mode, str]:
        """On the worker's thread, for the kernel looks at programs for a while: the mode before, and a refusal."""
        before = scheduler.loaded()
        try:
            if before != wanted:
                scheduler.detach()
            if wanted not in ("off", before):
                scheduler.attach(self._lib, paths.BPF_DIR, wanted, self._top)
        except UserError as error:
            return before, str(error)
        return before, ""

    def _changed(self, wanted: scheduler.Mode, before: scheduler.Mode, why: str) -> None:
        self.mode, self._since, self._told = scheduler.loaded(), time.monotonic(), ""
        scheduler.note(why)
        if why:
            journal.send(f"scheduler: {wanted}: {INSTEAD}: {why}", 4)
        if "partial" in (before, self.mode):
            for container in self._containers.values():
                self._enlist(container)

    def ejected(self) -> None:
        """The kernel says that it is out: by us, by an administrator, or for a fault of its own."""
        end = scheduler.ejection(self._lib)
        if end.kind in scheduler.UNREGISTERED:
            return
        if scheduler.leaves():  # its last word comes before its end
            self._loop.after(SOON, self.ejected)
            return
        if scheduler.owner() == scheduler.NAME:
            return
        self.mode = "off"
        why = f"the kernel took it out: {scheduler.in_short(end)}"
        scheduler.detach()
        if end.kind == scheduler.SYSRQ:
            again = "it stays out until the next reload"
        else:
            wait = SETTLE if end.code & scheduler.RESTART else self._back_off()
            again = f"it is tried again in {wait:.0f} s"
            self._timer = self._loop.after(wait, self._attach)
        scheduler.note(f"{why}; {again}")
        journal.send(f"scheduler: {self._wanted}: {INSTEAD}: {why}; {again}", 3)

    def _back_off(self) -> float:
        if time.monotonic() - self._since > LASTING:
            self._retry = RETRY
        wait, self._retry = self._retry, min(2 * self._retry, RETRY_MOST)
        return wait

    def limited(self) -> None:
        """The kernel says that a cgroup has got a cpu.max, which `full` does not keep."""
        if self.mode == "full":
            self._worker.submit("", self._give_back, self._given_back)

    def _give_back(self) -> str:
        path = scheduler.bandwidth(self._top)
        if path:
            scheduler.detach()
        return path

    def _given_back(self, path: str) -> None:
        if path:
            self.mode = "off"
            scheduler.note(scheduler.ignored(path))
            journal.send(f"scheduler: full: {INSTEAD}: {scheduler.ignored(path)}", 4)

    def enlist(self, container: Container) -> None:
        """Under `partial`: who is nobody's foreground is scheduled by us, below all others. A container with a cpu.max
        is not, for that would not be kept.
        """
        if self.mode == "partial":
            self._enlist(container)

    def _enlist(self, container: Container) -> None:
        policy = _EXT if self.mode == "partial" and self._takes(container) else _OTHER
        for group in container.tree.all():
            for thread in group.lines("cgroup.threads"):
                self._set_policy(int(thread), policy)

    def enlist_call(self, call: Call) -> None:
        """Under `partial`: all of it. Most calls inherit what their agent is; who came by an engine's exec does not."""
        if self.mode == "partial":
            wanted = _EXT if self._takes(call.container) and call.grant.cpu is None else _OTHER
            for _ in range(2):  # who was forked while the first ones were told
                for thread in (call.shim_pid, *(int(text) for text in call.cgroup.lines("cgroup.threads"))):
                    self._set_policy(thread, wanted)

    def _takes(self, container: Container) -> bool:
        policy = container.policy
        return policy.mode == "enforce" and policy.priority != "interactive" and container.limits.cpu is None

    def _set_policy(self, thread: int, policy: int) -> None:
        try:
            if thread and os.sched_getscheduler(thread) == (_OTHER if policy == _EXT else _EXT):
                os.sched_setscheduler(thread, policy, os.sched_param(0))
        except ProcessLookupError:
            return  # it has ended
        except OSError as error:
            self._refused(error)

    def _refused(self, error: OSError) -> None:
        why = (
            f"the kernel refuses SCHED_EXT to a container's threads: {error.strerror}; has the unit RestrictRealtime=?"
        )
        if self._told != why:
            self._told = why
            scheduler.note(why)
            journal.send(f"scheduler: partial: {INSTEAD}: {why}", 3)
