"""`agentcgroup run`: what the command is given, and what its time limit does. A cgroup stands for the scope."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup.cgroup import Cgroup, mount_point, remove
from agentcgroup.cli.run import _Domain
from agentcgroup.policy.model import Call, Mode, Policy

Make = Callable[..., _Domain]


@pytest.fixture
def make() -> Iterator[Make]:
    group = Cgroup(mount_point() / f"agentcgroup-run-{os.getpid()}")
    try:
        os.mkdir(group.path)
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")

    def domain(script: str, mode: Mode = "enforce", seconds: float | None = None) -> _Domain:
        made = object.__new__(_Domain)
        made.call, made.command, made.ended_by_time = group, ["sh", "-c", script], False
        made.policy = Policy("p", mode=mode, call=replace(Call(), grace=0.0))
        made.grant = SimpleNamespace(time=seconds)  # type: ignore[assignment]
        return made

    yield domain
    group.kill()
    assert remove(group, patience=5)


def test_no_signal_is_ignored_that_a_shell_would_not_ignore(make: Make, tmp_path: Path) -> None:
    make(f"grep SigIgn /proc/self/status >{tmp_path}/ignored").run()
    ignored = int((tmp_path / "ignored").read_text().split()[1], 16)
    assert not ignored & (1 << signal.SIGPIPE - 1 | 1 << signal.SIGXFSZ - 1)


def test_without_a_grace_the_kill_follows_at_once(make: Make) -> None:
    began = time.monotonic()
    assert make("trap '' TERM; sleep 20", seconds=0.3).run() == signal.SIGKILL
    assert time.monotonic() - began < 10


def test_observe_ends_no_command(make: Make) -> None:
    domain = make("sleep 0.6; exit 3", mode="observe", seconds=0.1)
    assert os.waitstatus_to_exitcode(domain.run()) == 3 and not domain.ended_by_time
