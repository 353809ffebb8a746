"""All governed containers: registration, the life of their calls, adoption after a restart (design: sections 3,
4 and 9).
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcgroup import conmon, docker, feedback, journal, observe, subtree
from agentcgroup import record as records
from agentcgroup.admission import PRIORITIES
from agentcgroup.bpf.model import BANDWIDTH, CALLS_CROSSED, EJECTED, ESCAPED, SHARED_CROSSED, Event
from agentcgroup.budget import Budgets
from agentcgroup.call import Call
from agentcgroup.cgroup import Cgroup
from agentcgroup.config import Config
from agentcgroup.container import FEEDBACK_KEPT, Container
from agentcgroup.errors import UserError
from agentcgroup.kmsg import OomLog
from agentcgroup.loop import Loop
from agentcgroup.outcome import Outcome, result
from agentcgroup.policy.model import Policy
from agentcgroup.reaper import Reaper
from agentcgroup.records import Ledger
from agentcgroup.worker import Worker

if TYPE_CHECKING:
    from agentcgroup.bpf.kernel import Kernel
    from agentcgroup.bpf.scheduler import Mode
    from agentcgroup.metrics.counts import Counts
    from agentcgroup.scheduling import Scheduling

SHIMS_KEPT = 64
#: Seconds after which what has no record is nobody's: the hook's deadline is 3 s.
SWEEP_AFTER = 10.0


class Governor:
    """Containers by id. Everything but the reaper and the ledger's disk runs on the loop's thread."""

    def __init__(
        self,
        loop: Loop,
        config: Config,
        policy_for: Callable[[dict[str, str], str], Policy],
        ledger: Ledger,
        run_dir: Path,
        top: Path,
    ) -> None:
        self.loop = loop
        self.config = config
        self.policy_for = policy_for
        self.ledger = ledger
        self.run_dir = run_dir
        self.top = top
        self.containers: dict[str, Container] = {}
        self._by_cgid: dict[int, Container] = {}
        self.reaper = Reaper()
        self.worker = Worker(loop)
        self.mover = Worker(loop)
        self.oom = OomLog()
        self.kernel: Kernel | None = None
        self.budgets: Budgets | None = None
        self.scheduling: Scheduling | None = None
        self.counts: Counts | None = None
        self._filling: set[str] = set()

    # --- containers -------------------------------------------------------------------------------------------

    def register(self, container_id: str) -> list[str]:
        """Govern the container of which the hook has written the record. Raises UserError. Returns notes."""
        if not records.ID.fullmatch(container_id):
            raise UserError("that is no container id")
        record = records.load(self._record_path(container_id))
        known = self.containers.get(container_id)
        if known is not None and known.record.same_start(record):
            known.record.injected, known.record.notes = record.injected, record.notes
            self.save(known)  # the hook ran twice, or did not wait for us: its record lacks what ours has
            return []
        policy = self.policy_for(record.annotations, record.engine)
        self.forget(container_id)
        if len(self.containers) >= self.config.max_containers:
            raise UserError(
                f"{len(self.containers)} containers are governed, max_containers in agentcgroup.yaml is reached"
            )
        if not Cgroup(record.tree).exists():
            raise UserError(f"{record.tree} does not exist: the hook has not made the subtree")
        begins = not record.registered
        record.policy, record.registered, record.called = policy.name, True, _name(record)
        container = self.containers[container_id] = Container(self, record, policy, self.top)
        self._by_cgid[container.cgid] = container
        try:
            notes = self._govern(container)
        except BaseException:
            self.forget(container_id)
            raise
        if begins:
            _report(record, "start", f"container {record.name} is governed, policy {policy.name}")
        return notes

    def _govern(self, container: Container) -> list[str]:
        notes = [f"not written: {knob}" for knob in container.govern()]
        if container.policy.delegate:
            notes += self._delegate(container)
        if container.record.cooperative:
            notes.append(f"limits are cooperative here: {', '.join(container.record.cooperative)}")
        try:
            if self.kernel is not None and self.budgets is not None:
                self.kernel.register(container.tree, self.top)
                self.loop.when_idle(lambda: self._attach(container))
                self.changed(container)
        except OSError as error:
            notes.append(f"calls are accounted for by cgroup files alone: {error.strerror}")
        self.save(container)
        container.watch_end()
        return notes

    def _attach(self, container: Container) -> None:
        if self.kernel is not None and not container.closed:
            try:
                self.kernel.attach(container.tree)
            except OSError as error:
                self.complain(container, f"its packets are not counted: {error.strerror}")

    def _delegate(self, container: Container) -> list[str]:
        record = container.record
        if record.uid == 0:
            return ["delegate: only for containers in a user namespace (podman run --userns=auto)"]
        subtree.delegate(container.tree, record.uid, record.gid)
        return []

    def forget(self, container_id: str) -> None:
        """The container has ended: settle its calls, drop its socket. Its directories are the engine's to remove."""
        container = self.containers.pop(container_id, None)
        if container is not None:
            container.close()
            self._by_cgid.pop(container.cgid, None)
            if self.kernel is not None and self.budgets is not None:
                self.budgets.leave(container)
                self.kernel.forget(container.cgid)

    def ended(self, container_id: str) -> None:
        """Forget a container and everything of it under /run, unless it has been started again meanwhile."""
        container = self.containers.get(container_id)
        self.forget(container_id)
        if container is not None:
            _report(container.record, "stop", f"container {container.record.name} has ended")
        if self._started_again(container_id):
            return
        shutil.rmtree(self.run_dir / "c" / container_id, ignore_errors=True)
        self._record_path(container_id).unlink(missing_ok=True)
        self._sweep_shims()

    def _sweep_shims(self) -> None:
        """Each image has a shim of its own, on a tmpfs; what is still mounted outlives the removal of its name."""
        shims = list((self.run_dir / "shims").glob("[!.]*"))
        if len(shims) > SHIMS_KEPT:  # to look at each costs as much as all else here
            for old in sorted(shims, key=lambda path: path.stat().st_mtime, reverse=True)[SHIMS_KEPT:]:
                old.unlink(missing_ok=True)

    def look_for_end(self, container_id: str) -> None:
        """A container of this id is about to start: what is left of an earlier start goes now, not later."""
        container = self.containers.get(container_id)
        if container is not None:
            container.check_end()

    def stopped(self, container_id: str) -> None:
        """The engine's poststop: it only speeds up what `cgroup.events` says as well."""
        container = self.containers.get(container_id)
        gone = container is None and not self._record_path(container_id).exists()
        if not gone and (container is None or not container.tree.populated()):
            self.ended(container_id)

    def _started_again(self, container_id: str) -> bool:
        try:
            return Cgroup(records.load(self._record_path(container_id)).tree).populated()
        except (UserError, OSError):
            return False

    def adopt(self) -> None:
        """After a start: govern what lives, sweep what is dead (the hook's records say what there was)."""
        folder = self.run_dir / "containers"
        for path in sorted(folder.glob("[!.]*.json")):
            try:
                self._adopt_one(path)
            except Exception as error:  # whatever is wrong with one, the others are governed
                journal.send(f"{path}: not adopted: {error}", 4, AGENTCGROUP_CONTAINER=path.stem)
        if self.kernel is not None:
            self.kernel.keep({container.cgid for container in self.containers.values()})
        self.sweep()

    def sweep(self) -> None:
        """Remove what belongs to no record. A hook makes its directory a moment before it writes the record."""
        known = {path.stem for path in (self.run_dir / "containers").glob("[!.]*.json")}
        leftovers = [path for path in (self.run_dir / "c").iterdir() if path.name not in known]
        leftovers += [*(self.run_dir / "containers").glob("*.tmp"), *(self.run_dir / "containers").glob(".*")]
        for path in leftovers:
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime < SWEEP_AFTER:
                    self.loop.after(SWEEP_AFTER, self.sweep)
                elif path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)

    def _adopt_one(self, path: Path) -> None:
        record = records.load(path)
        if not Cgroup(record.tree).populated():
            _report(record, "stop", f"container {record.name} has ended while no daemon was there")
            self.ended(path.stem)
            return
        for note in self.register(record.id):
            journal.send(note, 5, AGENTCGROUP_CONTAINER=record.id)
        container = self.containers.get(record.id)
        if container is None:  # it ended while we looked
            return
        container.adopt_calls()
        journal.send(
            f"container {record.name} adopted, {len(container.calls)} calls running", 6, AGENTCGROUP_CONTAINER=record.id
        )

    def _record_path(self, container_id: str) -> Path:
        return self.run_dir / "containers" / f"{container_id}.json"

    def save(self, container: Container) -> None:
        """Write its record anew."""
        records.store(container.record, self._record_path(container.record.id))

    def reserve(self, record: records.Record, number: int) -> int:
        """Numbers are never given twice, so blocks of them are set aside in the record ahead of use. Raises OSError."""
        record.next_call = number + records.RESERVED
        records.store(record, self._record_path(record.id))
        return record.next_call

    def ready(self, container_id: str, injected: list[str], notes: list[str], hook_s: float) -> None:
        """The hook's last word: what it put where, and the seconds that it took."""
        if self.counts is not None:
            self.counts.hook.add(hook_s)
        container = self.containers.get(container_id)
        if container is not None:
            container.record.injected = injected
            container.record.notes += notes
            self.save(container)

    # --- the kernel's own account -----------------------------------------------------------------------------

    def know(self, kernel: Kernel, scheduling: Scheduling) -> None:
        """Have the kernel account for all containers from now on."""
        self.kernel, self.budgets, self.scheduling = kernel, Budgets(kernel, self.loop), scheduling
        self.loop.add(kernel.fd, select.EPOLLIN, lambda _e: kernel.read())

    def schedule(self, mode: Mode) -> None:
        """Have the CPUs shared by the kernel's scheduler, or by ours."""
        if self.scheduling is not None:
            self.scheduling.use(mode)

    def changed(self, container: Container) -> None:
        """The policy of a container, or a limit in force for it, is another than the kernel was told."""
        if self.kernel is not None and not container.closed:
            self.kernel.classify(container.cgid, PRIORITIES.index(container.policy.priority), container.reserve)
            if self.scheduling is not None:
                self.scheduling.enlist(container)
        self.rearm(container)

    def rearm(self, container: Container) -> None:
        """The limits of a container, or those above it, may have moved."""
        if self.budgets is not None and not container.closed:
            self.budgets.join(container)

    def kernel_event(self, event: Event) -> None:
        """A call has ended, a process has left its container's subtree, memory is short, or the scheduler is out."""
        if event.type == EJECTED and self.scheduling is not None:
            self.scheduling.ejected()
        if event.type == BANDWIDTH and self.scheduling is not None:
            self.scheduling.limited()
        container = self._by_cgid.get(event.root)
        if container is None:
            return
        if event.type in (CALLS_CROSSED, SHARED_CROSSED) and self.budgets is not None:
            self.budgets.crossed(container, event.type == CALLS_CROSSED, event.time_ns / 1e9)
            return
        if event.type == ESCAPED:
            comm = event.comm.decode(errors="replace")
            text = f"process {event.pid} ({comm}) has left for the cgroup with the inode {event.cgid}"
            self.complain(container, text, "escape")
            return
        call = next((call for call in container.calls.values() if call.slot.cgid == event.cgid), None)
        if call is not None:
            call.used = event
        else:
            container.note_early(event)

    # --- calls ------------------------------------------------------------------------------------------------

    def begin(self, call: Call) -> None:
        """A call was admitted."""
        container = call.container
        if call.grant.time is not None and container.policy.mode == "enforce":
            left = max(0.0, call.began + call.grant.time - time.monotonic())
            call.timers.append(self.loop.after(left, lambda: call.terminate("time")))
        container.watch.arm()
        call.refuse(call.grant.memory)
        if self.budgets is not None:
            self.budgets.changed(call)

    def refill(self, container: Container) -> None:
        """Make ready what calls have taken, when there is nothing else to do."""
        if container.record.id not in self._filling:
            self._filling.add(container.record.id)
            self.loop.when_idle(lambda: self._fill(container))

    def _fill(self, container: Container) -> None:
        self._filling.discard(container.record.id)
        if not container.closed and not container.crowded and container.pool.fill():
            self.refill(container)

    def memory_event(self, call: Call) -> None:
        """A counter of memory.events changed: keep the figures, for they may be gone a moment later."""
        call.sample()
        call.container.watch.arm()

    def pids_event(self, call: Call) -> None:
        """A process was refused: look now what fills the limit, for the call may give up at once."""
        call.note_zombies()
        call.container.watch.arm()

    def signalled(self, call: Call) -> None:
        """The shim passed a signal on: a held call gets its grace to handle it."""
        call.spare()

    def shell_gone(self, call: Call, status: int) -> bool:
        """The shell has ended with that status, and the call with it unless a driver goes on in it."""
        if call.driven():
            return False
        call.status, call.shell_ended = status, time.monotonic()
        return True

    def shell_ended(self, call: Call, status: int) -> str:
        """The shell is gone: deal with what it left, and say what happened. Returns the text for stderr."""
        if not self.shell_gone(call, status):
            return ""
        if call.slot.populated():
            self._orphans(call)
        outcome = self._judge(call)
        lines = feedback.compose(outcome, call.container.limits.call(call.container.policy.call.memory.max))
        if lines:
            call.feedback = tuple(lines)
            self._publish(call, outcome, lines)
        return "".join(line + "\n" for line in lines)

    def _judge(self, call: Call) -> Outcome:
        outcome = call.outcome(self.oom)
        failures = call.container.failures
        key = outcome.command.bare or outcome.command_class
        if outcome.oom_kills or outcome.ended == "stall":
            failures[key] = failures.get(key, 0) + (0 if call.counted else 1)
            call.counted = True
            outcome.repeat_failures = failures[key]
        elif outcome.status == 0:
            failures.pop(key, None)
        if len(failures) > 256:
            failures.pop(next(iter(failures)))
        outcome.would = observe.would(outcome, call) if call.container.policy.mode == "observe" else ()
        return outcome

    def _orphans(self, call: Call) -> None:
        """The policy for processes that outlive their shell (claude-code#82433, #84647)."""
        call.sample()
        if call.ended is not None or call.last_events.get("oom_group_kill"):
            return  # all of it is being ended
        call.note_orphans()
        call.orphan_action = call.container.policy.call.orphans
        if call.container.policy.mode == "observe":
            call.orphan_action = "keep"
        if call.orphan_action == "kill" and call.orphans:
            call.terminate("orphans")

    def shim_gone(self, call: Call) -> None:
        """The shim hung up: it is over when the cgroup is empty too."""
        if call.slot.populated():
            if call.orphan_action is None and not call.driven():
                call.shell_ended = call.shell_ended or time.monotonic()
                self._orphans(call)
            return
        self.settle(call)

    def emptied(self, call: Call) -> None:
        """Nothing lives in the cgroup: it is over when the shim has hung up too."""
        if call.caller is None:
            self.settle(call)
        else:
            call.sample()

    def settle(self, call: Call) -> None:
        """The end: write the record, forget the call, remove its directory."""
        container = call.container
        if self.kernel is not None:
            self.kernel.read()
        if container.calls.pop(call.number, None) is None:
            return
        call.cancel_timers()
        if not call.relocated and call.ran():
            outcome = self._judge(call)
            self.ledger.write(outcome, container.policy.records.command)
            if self.counts is not None:
                self.counts.finished(outcome)
            self._tell_journal(outcome)
        container.hang_up(call)
        container.discard(call.slot)
        if self.budgets is not None:
            self.budgets.changed(call)

    def _publish(self, call: Call, outcome: Outcome, lines: list[str]) -> None:
        """The JSON twin of what the agent was told, beside the socket; the newest FEEDBACK_KEPT stay."""
        directory = call.container.run_dir / "feedback"
        with contextlib.suppress(OSError):
            directory.mkdir(mode=0o755, exist_ok=True)
            temporary = directory / f".{call.number}"
            temporary.write_text(feedback.twin(outcome, lines))
            temporary.rename(directory / f"{call.number}.json")
            call.container.told.append(call.number)
            if len(call.container.told) > FEEDBACK_KEPT:
                (directory / f"{call.container.told.popleft()}.json").unlink(missing_ok=True)

    def _tell_journal(self, outcome: Outcome) -> None:
        """One journal entry for a call that something happened to; the ledger has them all."""
        word = result(outcome)
        if outcome.ended or outcome.oom_kills or outcome.pids_denied or outcome.held_s:
            journal.send(
                f"call {outcome.number} of {outcome.name} ({outcome.command.first_word}): {word}",
                5,
                AGENTCGROUP_CONTAINER=outcome.container,
                AGENTCGROUP_CALL=str(outcome.number),
                AGENTCGROUP_RESULT=word,
                AGENTCGROUP_PEAK=str(outcome.peak_bytes),
            )

    def complain(self, container: Container, text: str, kind: str = "odd") -> None:
        """Something odd from inside a container: at most one line a minute each."""
        now = time.monotonic()
        if self.counts is not None:
            self.counts.complaints += 1
        if now - container.complained > 60:
            container.complained = now
            _report(container.record, kind, f"{container.record.name}: {text}", 4)

    # --- the CLI's view ---------------------------------------------------------------------------------------

    def overview(self) -> list[dict[str, Any]]:
        """One row a container for `agentcgroup ps`."""
        return [container.row() for container in self.containers.values()]

    def close(self) -> None:
        """Stop governing; limits stay as they are and shims fall back."""
        for container in list(self.containers.values()):
            container.detach()
        self.worker.close()
        self.mover.close()
        self.reaper.close()
        self.ledger.close()
        if self.kernel is not None:
            self.loop.remove(self.kernel.fd)
            self.kernel.close()


def _report(record: records.Record, kind: str, text: str, priority: int = 6) -> None:
    """An entry of the journal that `agentcgroup events` shows as this kind of event."""
    fields = {"AGENTCGROUP_CONTAINER": record.id, "AGENTCGROUP_NAME": record.name, "AGENTCGROUP_EVENT": kind}
    journal.send(text, priority, **fields)


def prepare_run_dir(run_dir: Path) -> None:
    """The directories below /run/agentcgroup with their modes: containers see only their own c/ID."""
    for name, mode in (("", 0o755), ("c", 0o711), ("shims", 0o711), ("containers", 0o700)):
        path = run_dir / name
        path.mkdir(parents=True, exist_ok=True)
        os.chmod(path, mode)


def _name(record: records.Record) -> str:
    """What the engine calls the container; empty if it does not say."""
    if record.engine == "docker":
        return docker.container_name(record.bundle, record.id)
    return conmon.container_name(record.pid)
