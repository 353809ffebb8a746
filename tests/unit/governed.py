"""A container governed by a Governor, on a real cgroup2 and without an engine, a hook or a daemon around it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from agentcgroup.cgroup import Cgroup, mount_point, remove
from agentcgroup.config import Config
from agentcgroup.container import Container
from agentcgroup.governor import Governor, prepare_run_dir
from agentcgroup.loop import Loop
from agentcgroup.outcome import Outcome
from agentcgroup.peer import look
from agentcgroup.policy.model import Call, Policy

ID = "c0ffee"


class Box:
    """BASE with its subtree, an init in agent/, and one daemon's governor at a time. `records` is the ledger."""

    def __init__(self) -> None:
        self.top = mount_point()
        self.base = Cgroup(self.top / f"agentcgroup-box-{os.getpid()}")
        self.tree = self.base.child("agentcgroup")
        try:
            for name in ("agent", "helpers", "calls/fallback"):
                os.makedirs(f"{self.tree.path}/{name}")
        except OSError as error:
            pytest.skip(f"no cgroup can be made here: {error}")
        self.run_dir = Path(tempfile.mkdtemp(prefix="agc"))  # a socket's path is short
        prepare_run_dir(self.run_dir)
        (self.run_dir / "c" / ID).mkdir()
        self.policy = Policy("p", call=replace(Call(), orphans="kill", grace=0.2))
        self.records: list[Outcome] = []
        self.faults: list[BaseException] = []
        self.governor: Governor | None = None
        self.children: list[subprocess.Popen[str]] = []
        self.init = self.start("agent", "echo; exec sleep 300")
        found = look(self.init.pid)
        assert found is not None
        record = {"v": 1, "id": ID, "pid": found.pid, "start_time": found.start_time, "base": self.base.path}
        (self.run_dir / "containers" / f"{ID}.json").write_text(json.dumps(record))

    def write(self, outcome: Outcome, _command: str) -> None:
        self.records.append(outcome)

    def close(self) -> None:
        """As a ledger."""

    def start(self, cgroup: str, script: str) -> subprocess.Popen[str]:
        """A shell in that cgroup of the tree; returns when it has written a line."""
        argv = ["sh", "-c", f"echo $$ >{self.tree.path}/{cgroup}/cgroup.procs; {script}"]
        child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.children.append(child)
        assert child.stdout and child.stdout.readline() == "\n"
        return child

    def call(self, number: int, script: str = "echo; read _") -> subprocess.Popen[str]:
        """A shim whose shell runs in calls/NUMBER until its stdin is closed."""
        group = self.directory(number)
        return self.start("agent", f"sh -c 'echo $$ >{group.path}/cgroup.procs; {script}'; true")

    def directory(self, number: int) -> Cgroup:
        """calls/NUMBER as a pool leaves it."""
        group = self.tree.child(f"calls/{number}")
        if not group.exists():
            os.mkdir(group.path)
            os.chmod(f"{group.path}/cgroup.procs", 0o666)
        return group

    def daemon(self) -> Container:
        """The next daemon, which adopts what there is."""
        self.end_daemon()
        self.loop = Loop(self.faults.append)
        self.governor = Governor(
            self.loop, Config(), lambda _notes, _engine: self.policy, self, self.run_dir, self.top  # type: ignore[arg-type]
        )  # fmt: skip
        self.governor.adopt()
        return self.governor.containers[ID]

    def end_daemon(self) -> None:
        if self.governor is not None:
            self.governor.close()
            self.loop.close()
            self.governor = None

    def until(self, done: Callable[[], object], seconds: float = 20.0) -> None:
        """Serve until something has come about."""
        end = time.monotonic() + seconds
        while not done():
            assert time.monotonic() < end and not self.faults, self.faults
            self.loop.turn(0.05)

    def remove(self) -> None:
        self.end_daemon()
        self.base.kill()
        for child in self.children:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                assert stream is not None
                stream.close()
        for folder, _, _ in os.walk(self.base.path, topdown=False):
            remove(Cgroup(folder), patience=5)
        shutil.rmtree(self.run_dir)
        assert not self.faults
