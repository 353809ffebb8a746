"""One governed container: its socket, its pool, its calls, and the decision who is a call (design: section 4)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentcgroup import admission, commandline, judge, subtree
from agentcgroup import hint as hints
from agentcgroup.call import Call, kernel_path
from agentcgroup.cgroup import Cgroup
from agentcgroup.enforce import Watch
from agentcgroup.peer import Peer, identify
from agentcgroup.policy.model import Policy
from agentcgroup.pool import CHANGED, Pool, Slot
from agentcgroup.record import Record
from agentcgroup.request import MAX_MESSAGE, Request, parse

if TYPE_CHECKING:
    from agentcgroup.governor import Governor

FEEDBACK_KEPT = 64
LIMITS_FRESH = 1.0  # seconds for which the limits above us are trusted before they are read again
NOTHING = commandline.analyse([], False)
BACKLOG = 512


class Container:
    """State of one container; all methods run on the loop's thread."""

    def __init__(self, governor: Governor, record: Record, policy: Policy, top: Path) -> None:
        self.governor = governor
        self.loop = governor.loop
        self.record = record
        self.policy = policy
        self.top = top
        self.tree = Cgroup(record.tree)
        self.base = Cgroup(record.base)
        self.proc_path = kernel_path(record.tree, str(top))
        self.run_dir = governor.run_dir / "c" / record.id
        self.limits = subtree.compute(policy, self.base, top)
        self.calls: dict[int, Call] = {}
        self.next_hint: hints.Hint | None = None
        self.failures: dict[str, int] = {}
        self.waiting: dict[int, socket.socket] = {}
        self.told: deque[int] = deque()
        self.refreshed = 0.0
        self.complained = float("-inf")
        self.closed = False
        self._tokens, self._paced = float(governor.config.call_burst), time.monotonic()
        self.watch = Watch(self)
        self._end_fd = -1
        fifo = None if record.cooperative else self.run_dir / "tickets"
        self.pool = Pool(self.tree.child("calls"), fifo, governor.config.pool, record.next_call, self._directory_files)
        self.pool.on_slot = self._watch_slot
        self._listener = _listen(self.run_dir / "sock")
        self.loop.add(self._listener.fileno(), select.EPOLLIN, lambda _e: self._accept())

    def govern(self) -> list[str]:
        """Write the limits, fill the pool, publish the limits. Returns what could not be written, in words."""
        missed = subtree.apply(self.policy, self.limits, self.tree)
        fallback = self.tree.child("calls/fallback")
        for name, value in self._directory_files():
            fallback.try_write(name, value)
        self.publish()
        while self.pool.fill():
            pass
        return missed

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

    def refresh(self) -> None:
        """Read the limits above us again; `podman update` moves them."""
        limits = subtree.compute(self.policy, self.base, self.top)
        if limits != self.limits:
            self.limits = limits
            subtree.apply(self.policy, limits, self.tree)
            self.pool.rewrite()
            self.publish()

    def change_policy(self, policy: Policy) -> None:
        """Govern by another policy from now on; running calls keep their grants."""
        self.policy = policy
        self.limits = subtree.compute(policy, self.base, self.top)
        self.reapply()
        self.pool.rewrite()
        self.publish()

    def reapply(self) -> None:
        """Write the container-wide limits once more."""
        subtree.apply(self.policy, self.limits, self.tree)

    def watch_end(self) -> None:
        """Have the governor told when nothing lives in the subtree any more: that is the container's end."""
        self._end_fd = os.open(f"{self.tree.path}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
        self.loop.add(self._end_fd, CHANGED, lambda _e: self._check_end())
        self._check_end()

    def _check_end(self) -> None:
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
        self.loop.remove(self._listener.fileno())
        self._listener.close()
        if self._end_fd >= 0:
            self.loop.remove(self._end_fd)
            os.close(self._end_fd)
            self._end_fd = -1
        self.watch.stop()
        for call in self.calls.values():
            self._let_go(call)
        for connection in list(self.waiting.values()):
            self._drop(connection)
        for slot in self.pool.close():
            self._forget_slot(slot)

    def _let_go(self, call: Call) -> None:
        call.cancel_timers()
        if call.held_since is not None:
            call.release()
        if call.connection is not None:
            self.loop.remove(call.connection.fileno())
            call.connection.close()
        self._forget_slot(call.slot)

    def row(self) -> dict[str, Any]:
        """The container as one row for `agentcgroup ps` and its calls; memory in bytes, times in seconds."""
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
            "calls": [call.row() for call in self.calls.values()],
        }

    def discard(self, slot: Slot) -> None:
        """Remove a directory that is empty or of no more use."""
        self._forget_slot(slot)
        self.governor.reaper.remove(slot.cgroup.path)

    def admit(
        self, slot: Slot, command: commandline.Command, kind: admission.Kind, hint: hints.Hint, origin: str
    ) -> Call:
        """Make `slot` the domain of a call, with the limits that its kind and hint give."""
        grant = admission.grant(self.policy, self.limits, kind, hint, origin)
        if self.policy.mode == "enforce":
            ready = admission.default_grant(self.policy, self.limits).writes()
            for name, value in grant.writes():
                if (name, value) not in ready:
                    slot.cgroup.try_write(name, value)
        call = Call(self, slot, grant, command, hint)
        self.calls[slot.number] = call
        self.governor.begin(call)
        return call

    def _directory_files(self) -> tuple[tuple[str, str], ...]:
        return admission.directory_files(self.policy, self.limits)

    # --- the socket -------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        connection.setblocking(False)
        fd = connection.fileno()
        if len(self.waiting) >= self.governor.config.max_connections:
            connection.close()
            return
        self._pace()
        self.waiting[fd] = connection
        self.loop.add(fd, select.EPOLLIN | select.EPOLLRDHUP, lambda _e: self._receive(connection, None))
        self._receive(connection, None)  # usually the message is here already: saves a turn

    def _pace(self) -> None:
        """A container that asks too fast waits in its own backlog: its shims fall back, nobody else is slowed."""
        now, config = time.monotonic(), self.governor.config
        self._tokens = min(config.call_burst, self._tokens + (now - self._paced) * config.call_rate) - 1
        self._paced = now
        if self._tokens < 1 and not self.closed:
            self.governor.complain(self, f"more than {config.call_rate} calls a second, they are slowed down")
            self.loop.remove(self._listener.fileno())
            self.loop.after(1 / config.call_rate, self._listen_again)

    def _listen_again(self) -> None:
        if not self.closed:
            self.loop.add(self._listener.fileno(), select.EPOLLIN, lambda _e: self._accept())

    def _receive(self, connection: socket.socket, call: Call | None) -> None:
        try:
            message = connection.recv(MAX_MESSAGE + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._hung_up(connection, call)
            return
        request = parse(message)
        if request is None:
            self.governor.complain(self, "a message on the call socket is not of this protocol, connection closed")
            self._hung_up(connection, call)
        elif call is not None:
            self._about_call(call, request, connection)
        elif request.ask_hint is not None:
            _send(connection, self._next_hint(request.ask_hint))
        elif request.move >= 0:
            self._move(connection, request.move)
        else:
            self._start(connection, request)

    def _start(self, connection: socket.socket, request: Request) -> None:
        peer = identify(connection)
        verdict = judge.judge(peer, self)
        slot = self.pool.claim(request.ticket) if request.ticket > 0 else None
        if peer is None or verdict == "stranger":
            self._release(slot)
            self._hung_up(connection, None)
            return
        if slot is None and request.ticket > 0:
            return  # no number of ours: it runs where its clone3 put it, under calls/
        asked = slot is None
        if asked and verdict == "call":
            slot = self.pool.take()
        if slot is None:
            _send(connection, "exec")
            return
        self._begin(connection, request, peer, slot, verdict, asked)

    def _begin(
        self, connection: socket.socket, request: Request, peer: Peer, slot: Slot, verdict: judge.Verdict, asked: bool
    ) -> None:
        command = commandline.analyse(request.argv, request.truncated)
        hint, origin = self._hint(request, command)
        rule = self.policy.rule_for(command.text)
        kind: admission.Kind = "agent" if verdict == "agent" else admission.kind_of(command, rule)
        self.governor.freshen(self)
        call = self.admit(slot, command, kind, hint, origin)
        call.shim_pid = peer.pid
        fd = connection.fileno()
        self.waiting.pop(fd, None)
        self.loop.remove(fd)
        call.connection = connection
        self.loop.add(fd, select.EPOLLIN | select.EPOLLRDHUP, lambda _e: self._receive(connection, call))
        if asked:
            _send(connection, f"{'move' if self.record.cooperative else 'run'} {slot.number}")
        judge.place(call, peer)
        self.governor.refill(self)

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

    def _about_call(self, call: Call, request: Request, connection: socket.socket) -> None:
        if request.end >= 0:
            call.status = request.end
            _send(connection, self.governor.shell_ended(call))
        elif request.signal >= 0:
            self.governor.signalled(call)

    def _move(self, connection: socket.socket, number: int) -> None:
        """A forked child that could not be cloned into place asks for itself (its parent holds the call)."""
        peer = identify(connection)
        call = self.calls.get(number)
        if peer is None or call is None or peer.ppid != call.shim_pid or judge.judge(peer, self) != "call":
            _send(connection, "exec")
            return
        moved = call.cgroup.try_write("cgroup.procs", peer.pid)
        _send(connection, "moved" if moved else "exec")

    def _hung_up(self, connection: socket.socket, call: Call | None) -> None:
        if call is None:
            self._drop(connection)
            return
        self.loop.remove(connection.fileno())
        connection.close()
        call.connection = None
        self.governor.shim_gone(call)

    def _drop(self, connection: socket.socket) -> None:
        self.waiting.pop(connection.fileno(), None)
        self.loop.remove(connection.fileno())
        connection.close()

    # --- the directories --------------------------------------------------------------------------------------

    def _watch_slot(self, slot: Slot) -> None:
        self.loop.add(slot.events_fd, CHANGED, lambda _e: self._slot_changed(slot))
        if slot.memory_fd >= 0:
            self.loop.add(slot.memory_fd, CHANGED, lambda _e: self._memory_changed(slot))

    def adopt_slot(self, number: int) -> Slot:
        """Watch a directory that an earlier daemon made."""
        slot = Slot(number, self.tree.child(f"calls/{number}"))
        self._watch_slot(slot)
        return slot

    def _slot_changed(self, slot: Slot) -> None:
        populated = slot.populated()
        call = self.calls.get(slot.number)
        if call is not None:
            if populated:
                judge.place(call)
            else:
                self.governor.emptied(call)
        elif not populated and not slot.cgroup.exists() and self.pool.claim(slot.number):
            self._forget_slot(slot)  # the engine is removing the container

    def _memory_changed(self, slot: Slot) -> None:
        events = slot.memory_events()
        call = self.calls.get(slot.number)
        if call is not None and events:
            self.governor.memory_event(call, events)
        elif not events:
            self.loop.remove(slot.memory_fd)

    def _forget_slot(self, slot: Slot) -> None:
        self.loop.remove(slot.events_fd)
        self.loop.remove(slot.memory_fd)
        slot.close()

    def _release(self, slot: Slot | None) -> None:
        if slot is not None:
            self.discard(slot)
            self.governor.refill(self)


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    path.unlink(missing_ok=True)
    with contextlib.ExitStack() as undo:
        undo.callback(listener.close)
        listener.bind(str(path))
        os.chmod(path, 0o666)
        listener.listen(BACKLOG)
        undo.pop_all()
    return listener


def _send(connection: socket.socket, text: str) -> None:
    """Answer; a peer that is gone or does not read is its own loss."""
    with contextlib.suppress(OSError):
        connection.send(text.encode(errors="replace"), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
