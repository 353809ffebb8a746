"""What is done when the kernel takes the scheduler out, or it may not be loaded: said, and tried again ever later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup import journal
from agentcgroup.bpf import scheduler
from agentcgroup.bpf.model import Ejection
from agentcgroup.errors import UserError
from agentcgroup.scheduling import RETRY, RETRY_MOST, SETTLE, Scheduling


class Loop:
    """Keeps what is to be done later."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], object]]] = []

    def after(self, seconds: float, action: Callable[[], object]) -> SimpleNamespace:
        self.later.append((seconds, action))
        return SimpleNamespace(cancel=self.later.clear)


class Host:
    """A kernel as far as `Scheduling` sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mode, self.why, self.refusal, self.end, self.said = "off", "", "", Ejection(), []
        self.leaving = False
        for name in ("attach", "detach", "note", "loaded", "owner", "ejection", "leaves"):
            monkeypatch.setattr(scheduler, name, getattr(self, name))
        monkeypatch.setattr(journal, "send", lambda text, *_a, **_k: self.said.append(text))

    def attach(self, _lib: object, _folder: Path, mode: str, _top: Path) -> None:
        if self.refusal:
            raise UserError(self.refusal)
        self.mode = mode

    def detach(self) -> None:
        self.mode = "off"

    def note(self, why: str) -> None:
        self.why = why

    def loaded(self) -> str:
        return self.mode

    def owner(self) -> str:
        return scheduler.NAME if self.mode != "off" else ""

    def leaves(self) -> bool:
        return self.leaving

    def ejection(self, _lib: object) -> Ejection:
        return self.end

    def take_out(self, kind: int, reason: bytes = b"", message: bytes = b"", code: int = 0) -> None:
        self.mode, self.end = "off", Ejection(kind=kind, reason=reason, message=message, code=code)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


def scheduling(loop: Loop, wanted: scheduler.Mode = "partial") -> Scheduling:
    worker = SimpleNamespace(submit=lambda _owner, work, done: done(work()))
    found = Scheduling(None, loop, Path("/none"), worker, {})  # type: ignore[arg-type]
    found.use(wanted)
    return found


def test_a_refusal_is_said_and_nothing_is_loaded(host: Host) -> None:
    host.refusal = 'the scheduler "other" has the CPUs'
    found = scheduling(Loop())
    assert (found.mode, host.why) == ("off", host.refusal)
    assert host.said == [f"scheduler: partial: CPUs are shared by cpu.weight alone: {host.refusal}"]


def test_a_fault_is_told_in_the_kernels_words_and_tried_again_ever_later(host: Host) -> None:
    loop = Loop()
    found, waits = scheduling(loop), []
    for _ in range(8):
        host.take_out(1026, b"runnable task stall", b"bash[7] failed to run for 30.0s")
        found.ejected()
        assert "runnable task stall: bash[7] failed to run for 30.0s; it is tried again in" in host.why
        assert host.said[-1].endswith(host.why)
        seconds, action = loop.later.pop()
        waits.append(seconds)
        action()
        assert (found.mode, host.why) == ("partial", "")
    assert waits[:3] == [RETRY, 2 * RETRY, 4 * RETRY] and waits[-1] == RETRY_MOST


def test_an_administrators_word_stands_until_the_next_reload(host: Host) -> None:
    loop = Loop()
    found = scheduling(loop, "full")
    host.take_out(scheduler.SYSRQ, b"disabled by sysrq-S")
    found.ejected()
    assert loop.later == [] and found.mode == "off"
    assert host.why == "the kernel took it out: disabled by sysrq-S; it stays out until the next reload"
    found.use("full")
    assert (found.mode, host.why) == ("full", "")


def test_what_we_did_ourselves_is_no_fault(host: Host) -> None:
    loop = Loop()
    found = scheduling(loop)
    found.use("off")
    host.take_out(64)
    found.ejected()
    assert (loop.later, host.said, host.why) == ([], [], "")


def test_a_cpu_that_comes_or_goes_is_no_fault_of_the_scheduler(host: Host) -> None:
    loop = Loop()
    found = scheduling(loop, "full")
    for _ in range(3):
        host.take_out(66, b"unregistered from the main kernel", b"cpu 1 going offline", 1 << 48 | 1 << 32)
        found.ejected()
        [(seconds, action)] = loop.later
        assert seconds == SETTLE and host.why.endswith("cpu 1 going offline; it is tried again in 5 s")
        loop.later.clear()
        action()
        assert (found.mode, host.why) == ("full", "")


def test_its_last_word_is_heard_before_the_kernel_is_rid_of_it(host: Host) -> None:
    """In the kernel's file it is still the one at work then."""
    loop = Loop()
    found = scheduling(loop, "full")
    host.take_out(1026, b"runnable task stall")
    host.mode, host.leaving = "full", True
    found.ejected()
    [(_, again)] = loop.later
    assert (host.why, host.said) == ("", [])
    host.mode, host.leaving = "off", False
    again()
    assert "runnable task stall" in host.why and found.mode == "off"


def test_a_refused_policy_is_said_once(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit with RestrictRealtime= left containers with the kernel's own scheduler, and nobody was told."""

    def refuse(*_args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.sched_setscheduler", refuse)
    group = SimpleNamespace(lines=lambda _name: [str(threading.get_native_id())] * 2)
    policy = SimpleNamespace(mode="enforce", priority="batch")
    box = SimpleNamespace(policy=policy, limits=SimpleNamespace(cpu=None), tree=SimpleNamespace(all=lambda: [group]))
    found = scheduling(Loop())
    for _ in range(2):
        found.enlist(box)  # type: ignore[arg-type]
    assert host.said == [f"scheduler: partial: CPUs are shared by cpu.weight alone: {host.why}"]
    assert "refuses SCHED_EXT to a container's threads: Operation not permitted" in host.why
