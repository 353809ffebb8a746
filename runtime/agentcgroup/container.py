"""One governed container: its socket, its pool, its calls, and the decision who is a call (design: section 4)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentcgroup import admission, commandline, judge, subtree
from agentcgroup import hint as hints
from agentcgroup.call import Call, kernel_path
from agentcgroup.callsocket import Caller, CallSocket
from agentcgroup.cgroup import Cgroup
from agentcgroup.enforce import Watch
from agentcgroup.loop import Group, Timer
from agentcgroup.network import Network
from agentcgroup.peer import Peer, eldest, identify, strings
from agentcgroup.policy.model import Policy
from agentcgroup.pool import CHANGED, LOST_AFTER, Pool, Slot, Writes
from agentcgroup.record import Record
from agentcgroup.request import Request
from agentcgroup.weights import Weights

if TYPE_CHECKING:
    from agentcgroup.bpf.model import Event
    from agentcgroup.budget import Budget
    from agentcgroup.governor import Governor
    from agentcgroup.worker import Worker

T = TypeVar("T")
FEEDBACK_KEPT = 64
EARLY = 64
LIMITS_FRESH = 1.0  # seconds between two readings of the limits above us, however many calls come
#: What one call may cost the daemon before its container's others wait (seconds of CPU): with call_rate and call_burst
#: this is the container's share of the daemon's time.
CALL_COST = 0.0025
#: After a change of a counter the next look is so far off (seconds): a thrashing call changes them all the time.
EVENTS_REST = 0.1


class Container:
    """State of one container; all methods run on the loop's thread."""

    def __init__(self, governor: Governor, record: Record, policy: Policy, top: Path) -> None:
        self.governor = governor
        self.loop = governor.loop
        self.record = record
        self.policy = policy
        self.top = top
        self.tree = Cgroup(record.tree)
        self.cgid = os.stat(record.tree).st_ino
        self.base = Cgroup(record.base)
        self.proc_path = kernel_path(record.tree, str(top))
        self.run_dir = governor.run_dir / "c" / record.id
        self._set_limits(subtree.compute(policy, self.base, top))
        self.calls: dict[int, Call] = {}
        self.next_hint: hints.Hint | None = None
        self.failures: dict[str, int] = {}
        self.told = deque(sorted(int(p.stem) for p in self.run_dir.glob("feedback/*.json") if p.stem.isdecimal()))
        self._refreshed = float("-inf")
        self._stale = False
        self.complained = float("-inf")
        self.closed = False
        self.watch = Watch(self)
        self.weights = Weights(self.base, record.id)
        self.network = Network(self)
        self.budgets: dict[str, Budget] = {}
        self._early: dict[int, Event] = {}
        self._movers: dict[int, list[tuple[Caller, Peer]]] = {}
        self._end_fd = -1
        self._lost_timer: Timer | None = None
        fifo = None if record.cooperative else self.run_dir / "tickets"
        config = governor.config
        with contextlib.ExitStack() as undo:
            self.io = Group(self.loop, min(1.0, config.call_rate * CALL_COST), config.call_burst * CALL_COST)
            undo.callback(self.io.close)
            self.socket = CallSocket(
                self.run_dir / "sock", self.loop, self.io, lambda: governor.config, self._request, self._hung_up,
                lambda text: governor.complain(self, text),
            )  # fmt: skip
            undo.callback(self.socket.close)
            self.pool = Pool(
                self.tree.child("calls"), fifo, config.pool, record.next_call, lambda: self.directory_files,
                lambda number: governor.reserve(record, number),
            )  # fmt: skip
            undo.pop_all()
        self.pool.on_slot = self._watch_slot

    def govern(self) -> list[str]:
        """Write the limits and publish them. Returns what could not be written, in words. The pool is filled when the
        hook, which waits for us, has its answer: a call that comes before that asks.
        """
        missed = _apply(self.policy, self.limits, self.tree, self.directory_files)
        self.publish()
        self._weigh()
        self.governor.refill(self)
        return missed

    def _weigh(self) -> None:
        """Have the policy's weights and rates set. The hook does not wait for systemd: they are needed when CPUs are
        busy, not at the first instruction.
        """
        self.network.apply()
        if self.weights.due(self.policy):
            self.slowly(lambda: self.weights.set(self.policy), self._weighed)

    def _weighed(self, missed: list[str]) -> None:
        if missed and not self.closed:
            self.governor.complain(self, f"not written, for the engine has set it or it is not to be had: {missed[0]}")

    def publish(self) -> None:
        """The limits in force as JSON, for what runs inside (`/dev/agentcgroup/limits`)."""
        default = admission.default_grant(self.policy, self.limits)
        text = json.dumps({
            "policy": self.policy.name,
            "mode": self.policy.mode,
            "memory_max": self.limits.memory_max,
            "calls_memory_max": self.limits.calls_max,
            "call_memory_default": default.memory,
            "call_memory_most": self.limits.call(self.policy.call.memory.max),
            "call_pids_max": default.pids,
            "call_time_max_s": default.time,
            "cpus": self.limits.cpu,
        })  # fmt: skip
        (self.run_dir / "limits.new").write_text(text + "\n")
        os.replace(self.run_dir / "limits.new", self.run_dir / "limits")

    def freshen(self) -> None:
        """Have the limits above us read again, for a call has come; a moment later if they were read just now, since
        they may have moved in between.
        """
        if not self._stale:
            self._stale = True
            wait = self._refreshed + LIMITS_FRESH - time.monotonic()
            if wait > 0:
                self.loop.after(wait, self._refresh)
            else:
                self.loop.when_idle(self._refresh)

    def _refresh(self) -> None:
        """Read them; `podman update` moves them."""
        if self.closed:
            return
        self._stale, self._refreshed = False, time.monotonic()
        limits = subtree.compute(self.policy, self.base, self.top)
        if limits != self.limits:
            self._set_limits(limits)
            self.reapply()
            self.pool.rewrite(self.limit)
            self.publish()
        else:
            self.governor.rearm(self)

    def change_policy(self, policy: Policy) -> None:
        """Govern by another policy from now on; running calls keep their grants."""
        self.policy = policy
        self._set_limits(subtree.compute(policy, self.base, self.top))
        self.reapply()
        self.pool.rewrite(self.limit)
        self.publish()
        if policy.mode != "enforce":
            for call in self.calls.values():
                call.let_be()

    def limit(self, group: Cgroup, writes: Writes) -> None:
        """Write limits of a call. A memory.max below what is in use reclaims and kills inside the write
        (memory_max_write in mm/memcontrol.c), which this thread does not wait for.
        """
        for name, value in writes:
            if name == "memory.max" and value != "max" and (group.number("memory.current") or 0) > int(value):
                self.slowly(lambda value=value: group.try_write("memory.max", value), lambda _: None)  # type: ignore[misc]
            else:
                group.try_write(name, value)

    @property
    def reserve(self) -> int:
        """Bytes that containers of a lower priority leave free for this one while it works."""
        reserve = self.policy.memory.reserve
        return 0 if reserve is None else reserve.of(self.limits.total)

    @property
    def crowded(self) -> bool:
        """Whether further calls get no cgroup of their own: a look at all must not take our time from others. What
        calls have left in the background counts, which has no connection.
        """
        return len(self.calls) >= 2 * self.governor.config.max_connections

    def _set_limits(self, limits: subtree.Limits) -> None:
        self.limits = limits
        self.directory_files = admission.directory_files(self.policy, limits)

    def reapply(self) -> None:
        """Have the container-wide limits written once more; lowering one may take a while."""
        policy, limits, files = self.policy, self.limits, self.directory_files
        self.slowly(lambda: _apply(policy, limits, self.tree, files), lambda _: self.governor.changed(self))
        self._weigh()

    def slowly(self, work: Callable[[], T], done: Callable[[T], object]) -> None:
        """Have limits written, which may wait in the kernel; `done` gets the result on the loop's thread."""
        self._submit(self.governor.worker, work, done)

    def moving(self, work: Callable[[], T], done: Callable[[T], object]) -> None:
        """As `slowly`, for moves of processes: they wait for no limit to be written."""
        self._submit(self.governor.mover, work, done)

    def _submit(self, worker: Worker, work: Callable[[], T], done: Callable[[T], object]) -> None:
        if not worker.submit(self.record.id, work, done):
            self.governor.complain(self, "too many writes to its cgroups wait")

    def watch_end(self) -> None:
        """From now on nothing alive in the subtree is the container's end."""
        self._end_fd = os.open(f"{self.tree.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        self.io.add(self._end_fd, CHANGED, lambda _e: self.check_end())
        self.check_end()

    def check_end(self) -> None:
        """Whether nothing lives here any more; then the governor is told."""
        try:
            alive = b"populated 1" in os.pread(self._end_fd, 256, 0)
        except OSError:
            alive = False
        if not alive:
            self.governor.ended(self.record.id)

    def close(self) -> None:
        """Stop governing a container that has ended; its directories are the engine's to remove."""
        for call in list(self.calls.values()):
            self.governor.settle(call)
        self.detach()

    def detach(self) -> None:
        """Give back every descriptor and hold nothing; calls go on under their limits."""
        self.closed = True
        self._movers.clear()
        self.socket.close()
        self.io.close()
        if self._end_fd >= 0:
            os.close(self._end_fd)
            self._end_fd = -1
        if self._lost_timer is not None:
            self._lost_timer.cancel()
        self.watch.stop()
        self.network.stop()
        for call in self.calls.values():
            call.cancel_timers()
            self._forget_shim(call)
            if call.held_since is not None:
                call.release()
            call.slot.close()
        for slot in self.pool.close():
            slot.close()

    def brief(self) -> dict[str, Any]:
        """What is known of it without a look at its cgroups; `tree` is where they are."""
        return {
            "id": self.record.id,
            "name": self.record.name,
            "policy": self.policy.name,
            "tree": self.record.tree,
            "memory_max": self.limits.memory_max,
        }

    def row(self) -> dict[str, Any]:
        """The container as a row for `agentcgroup ps`; memory in bytes."""
        return {
            "id": self.record.id,
            "name": self.record.name,
            "policy": self.policy.name,
            "mode": self.policy.mode,
            "priority": self.policy.priority,
            "engine": self.record.engine,
            "memory": self.tree.number("memory.current"),
            "memory_max": self.limits.memory_max,
            "agent_memory": self.tree.child("agent").number("memory.current"),
            "cooperative": self.record.cooperative,
            "injected": self.record.injected,
            "notes": self.record.notes,
            "network": self.network.why,
            "calls": len(self.calls),
        }

    def discard(self, slot: Slot) -> None:
        """Remove a directory that is empty or of no more use."""
        slot.retire()
        self._forget_slot(slot)
        self.governor.reaper.remove(slot.cgroup.path)

    def note_early(self, event: Event) -> None:
        """The kernel's account of a call of which its shim has not told us yet; the latest EARLY are kept."""
        self._early[event.cgid] = event
        if len(self._early) > EARLY:
            del self._early[next(iter(self._early))]

    def admit(
        self,
        slot: Slot,
        command: commandline.Command,
        kind: admission.Kind,
        hint: hints.Hint,
        origin: str,
        since: float | None = None,
    ) -> Call:
        """Make `slot` the domain of a call, with the limits that its kind and hint give. A call that has been running
        since that moment (monotonic) keeps the memory limit that it has, up to the policy's largest: somebody may have
        raised it.
        """
        grant = admission.grant(self.policy, self.limits, kind, hint, origin)
        if since is not None:
            found = slot.cgroup.number("memory.max") or grant.memory
            grant = replace(grant, memory=min(found, self.limits.call(self.policy.call.memory.max)))
        elif self.policy.mode == "enforce":
            self.limit(slot.cgroup, tuple(write for write in grant.writes() if write not in self.directory_files))
        call = Call(self, slot, grant, command, hint)
        call.used = self._early.pop(slot.cgid, None)
        if since is not None:
            call.started -= call.began - since
            call.began = since
            call.strain.adopt(call)
        self.calls[slot.number] = call
        self.governor.begin(call)
        return call

    def adopt_calls(self) -> None:
        """After the daemon's start: watch what runs, and what may yet come into an earlier daemon's directories."""
        calls = self.tree.child("calls")
        for number in sorted(int(name) for name in os.listdir(calls.path) if name.isdecimal()):
            if not self.pool.holds(number):
                with contextlib.suppress(FileNotFoundError):
                    self._adopt_slot(Slot(number, calls.child(str(number))))

    def _adopt_slot(self, slot: Slot) -> None:
        self._watch_slot(slot)
        slot.cgroup.try_write("cgroup.freeze", 0)
        if slot.retired() and not slot.populated():
            self.discard(slot)
        elif slot.used():
            self.take_in(slot)
        elif self.pool.expect(slot):
            self.expect_word()
        else:
            self.discard(slot)

    def take_in(self, slot: Slot) -> None:
        """A call runs, or ran, of which nobody told us: /proc says what it is. It keeps its limits."""
        shell = eldest(slot.cgroup.pids())
        argv = strings(shell.pid, "cmdline") if shell else []
        command = commandline.analyse(argv, truncated=False)
        environment = dict(text.partition("=")[::2] for text in strings(shell.pid, "environ")) if shell else {}
        hint, origin = self._hint(Request(hint=environment.get(commandline.HINT_NAME, "")), command)
        kind = admission.kind_of(command, self.policy.rule_for(command.text))
        call = self.admit(slot, command, kind, hint, origin, shell.since() if shell else time.monotonic())
        call.release()  # an earlier daemon may have held it
        judge.place(call)
        self._enlist(call)
        if shell is None:
            self.governor.emptied(call)
        elif kind in ("call", "shell"):
            self._watch_shim(call, shell)

    def _watch_shim(self, call: Call, shell: Peer) -> None:
        """It has no connection whose hang-up is its shim's end."""
        if self.policy.takes_exec(shell.comm):
            call.driver = shell
        shim = judge.shim_of(shell, self)
        call.shim_fd = shim.pidfd() if shim is not None else -1
        if call.shim_fd >= 0:
            self.io.add(call.shim_fd, select.EPOLLIN, lambda _e: self._shim_ended(call))
        else:
            self.governor.shim_gone(call)

    def _shim_ended(self, call: Call) -> None:
        self._forget_shim(call)
        self.governor.shim_gone(call)

    def _forget_shim(self, call: Call) -> None:
        if call.shim_fd >= 0:
            self.io.remove(call.shim_fd)
            os.close(call.shim_fd)
            call.shim_fd = -1

    # --- requests ---------------------------------------------------------------------------------------------

    def _request(self, caller: Caller, request: Request) -> None:
        if caller.call is not None:
            self._about_call(caller, caller.call, request)
        elif request.ask_hint is not None:
            caller.send(self._next_hint(request.ask_hint))
        elif request.move >= 0:
            self._move(caller, request.move)
        else:
            began = time.monotonic()
            self._start(caller, request)
            if self.governor.counts is not None:
                self.governor.counts.setup.add(time.monotonic() - began)

    def _start(self, caller: Caller, request: Request) -> None:
        peer = identify(caller.socket)
        verdict = judge.judge(peer, self)
        slot = self.pool.claim(request.ticket) if request.ticket > 0 else None
        if slot is None and request.ticket > 0:  # no number of ours: it runs where its clone3 put it, under calls/
            if peer is not None and verdict == "call":
                self._join(caller, peer, request.ticket)
            return
        if peer is None and slot is not None and slot.used():
            verdict = "call"  # over before we came to it; nobody else can have run there
        if verdict == "stranger":
            self._release(slot)
            self.socket.hang_up(caller)
            return
        asked = slot is None
        if asked:
            self.expect_word()  # perhaps somebody has emptied the FIFO
        if asked and caller.gave_up():
            self.governor.complain(self, "a call did not wait for the daemon and runs in calls/fallback")
            self.socket.hang_up(caller)
            return
        if asked and verdict == "call" and self.crowded:
            self.governor.complain(self, f"{len(self.calls)} calls run: further ones run in calls/fallback")
        elif asked and verdict == "call":
            slot = self.pool.take()
        if slot is None:
            if verdict == "call":
                self.socket.hang_up(caller)  # it runs in calls/fallback
            else:
                caller.send("exec")
            return
        self._begin(caller, request, peer, slot, verdict, asked)

    def _begin(
        self, caller: Caller, request: Request, peer: Peer | None, slot: Slot, verdict: judge.Verdict, asked: bool
    ) -> None:
        command = commandline.analyse(request.argv, request.truncated)
        hint, origin = self._hint(request, command)
        rule = self.policy.rule_for(command.text)
        kind = verdict if verdict == "agent" or verdict == "helper" else admission.kind_of(command, rule)
        self.freshen()
        call = self.admit(slot, command, kind, hint, origin)
        call.shim_pid = peer.pid if peer else 0
        call.caller, caller.call = caller, call
        if asked:
            caller.send(f"{'move' if self.record.cooperative else 'run'} {slot.number}")
        judge.place(call, peer)
        self._move_waiting(call.number)
        self._enlist(call)
        self.governor.refill(self)

    def _join(self, caller: Caller, peer: Peer, number: int) -> None:
        """The shim of a call that was taken in without its word speaks up after all."""
        call = self.calls.get(number)
        if call is not None and call.caller is None and not call.shim_pid:
            call.shim_pid, call.caller, caller.call = peer.pid, caller, call
            self._enlist(call)

    def _enlist(self, call: Call) -> None:
        if self.governor.scheduling is not None:
            self.governor.scheduling.enlist_call(call)

    def _hint(self, request: Request, command: commandline.Command) -> tuple[hints.Hint, str]:
        """First found wins: the command text, the environment, agentcgroup-hint, a rule."""
        found = [(hints.parse(text), "hint") for text in (command.hint, request.hint) if text]
        if self.next_hint is not None:
            found.append((self.next_hint, "hint"))
            self.next_hint = None
        rule = self.policy.rule_for(command.text)
        if rule is not None and rule.hint is not None:
            found.append((hints.parse(rule.hint), "rule"))
        merged = hints.merge(hints.Hint(problems=command.problems), *(h for h, _ in found))
        return merged, next((origin for h, origin in found if h.memory is not None), "hint")

    def _next_hint(self, text: str) -> str:
        self.next_hint = hints.parse(text)
        grant = admission.grant(self.policy, self.limits, "call", self.next_hint, "hint")
        problems = "; ".join(self.next_hint.problems)
        if not self.next_hint:
            return f"[agentcgroup] nothing to set: {problems or 'write for example memory:2g'}"
        return (
            f"[agentcgroup] the next call gets {hints.render_size(grant.memory)} of memory, {grant.pids} processes"
            + (f"; {problems}" if problems else "")
        )

    def _about_call(self, caller: Caller, call: Call, request: Request) -> None:
        if request.end >= 0 and request.quiet:
            self.governor.shell_gone(call, request.end)
        elif request.end >= 0:
            caller.send(self.governor.shell_ended(call, request.end))
        elif request.signal >= 0:
            self.governor.signalled(call)

    def _move(self, caller: Caller, number: int) -> None:
        """A forked child that could not be cloned into place asks for itself (its parent holds the call)."""
        peer = identify(caller.socket)
        if peer is None or judge.judge(peer, self) != "call":
            caller.send("exec")
        elif number in self.calls:
            self._move_into(caller, peer, number)
        else:  # its parent's word came before, but on another connection: that may be heard later
            self._movers.setdefault(number, []).append((caller, peer))
            self.loop.after(self.governor.config.ack_ms / 2000, lambda: self._move_waiting(number))

    def _move_waiting(self, number: int) -> None:
        """Those who asked to be moved before their call was known: now it is, or they have waited long enough."""
        for caller, peer in self._movers.pop(number, ()):
            self._move_into(caller, peer, number)

    def _move_into(self, caller: Caller, peer: Peer, number: int) -> None:
        call = self.calls.get(number)
        ours = call is not None and peer.ppid == call.shim_pid
        target = call.cgroup if call is not None and ours else self.tree.child("calls/fallback")
        self.moving(
            lambda: peer.lives() and target.try_write("cgroup.procs", peer.pid),
            lambda moved: caller.send("moved" if moved else "exec"),
        )

    def _hung_up(self, call: Call) -> None:
        call.caller = None
        self.governor.shim_gone(call)

    def hang_up(self, call: Call) -> None:
        """The call is over: close its shim's connection."""
        self._forget_shim(call)
        caller, call.caller = call.caller, None
        if caller is not None:
            caller.call = None
            self.socket.hang_up(caller)

    # --- the directories --------------------------------------------------------------------------------------

    def _watch_slot(self, slot: Slot) -> None:
        self.io.add(slot.events_fd, CHANGED, lambda _e: self._slot_changed(slot))
        self._watch_counter(slot.memory_fd, lambda: self._memory_changed(slot))
        self._watch_counter(slot.pids_fd, lambda: self._pids_changed(slot))

    def _watch_counter(self, fd: int, changed: Callable[[], None]) -> None:
        if fd >= 0 and not self.closed:
            self.io.add(fd, CHANGED, lambda _e: changed())

    def _slot_changed(self, slot: Slot) -> None:
        populated = slot.populated()
        call = self.calls.get(slot.number)
        if call is not None:
            if populated:
                judge.place(call)
                self._enlist(call)
            else:
                self.governor.emptied(call)
        elif slot.used():
            slot.taken = slot.taken or time.monotonic()
            self.expect_word()
        elif not slot.cgroup.exists() and self.pool.claim(slot.number):
            self._forget_slot(slot)  # the engine is removing the container

    def expect_word(self) -> None:
        """A ticket was taken: if nobody says so in time, look who it was."""
        if self._lost_timer is None and not self.closed:
            self._lost_timer = self.loop.after(LOST_AFTER / 2, self._look_for_lost)

    def _look_for_lost(self) -> None:
        self._lost_timer = None
        lost = self.pool.lost()
        for slot in lost:
            if slot.used():
                self.take_in(slot)
            else:
                self.discard(slot)
        self.governor.refill(self)
        if lost or self.pool.taken():  # whoever took those may take what is made in their place
            self.expect_word()

    def _memory_changed(self, slot: Slot) -> None:
        self.io.remove(slot.memory_fd)
        if not slot.memory_events():
            return
        self.loop.after(EVENTS_REST, lambda: self._watch_counter(slot.memory_fd, lambda: self._memory_changed(slot)))
        call = self.calls.get(slot.number)
        if call is not None:
            self.governor.memory_event(call)

    def _pids_changed(self, slot: Slot) -> None:
        self.io.remove(slot.pids_fd)
        if not slot.pids_events():
            return
        self.loop.after(EVENTS_REST, lambda: self._watch_counter(slot.pids_fd, lambda: self._pids_changed(slot)))
        call = self.calls.get(slot.number)
        if call is not None:
            self.governor.pids_event(call)

    def _forget_slot(self, slot: Slot) -> None:
        for fd in (slot.events_fd, slot.memory_fd, slot.pids_fd):
            self.io.forget(fd)
        slot.close()

    def _release(self, slot: Slot | None) -> None:
        if slot is not None:
            self.discard(slot)
            self.governor.refill(self)


def _apply(policy: Policy, limits: subtree.Limits, tree: Cgroup, fallback: Writes) -> list[str]:
    """Write all limits but those of the calls; returns what could not be written, in words."""
    missed = subtree.apply(policy, limits, tree)
    for name, value in fallback:
        tree.child("calls/fallback").try_write(name, value)
    return missed
