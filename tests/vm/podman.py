"""podman as the tests use it: containers that are governed, whose agent can be told to make calls."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CGROUPFS = Path("/sys/fs/cgroup")
SLOW = float(os.environ.get("AGENTCGROUP_SLOW", "10"))  # how many times slower than real hardware this machine is


@dataclass
class Result:
    """What one call of the agent gave."""

    rc: int | None
    out: str
    err: str
    pid: int
    seconds: float

    @property
    def feedback(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.startswith("[agentcgroup]")]


def run(*argv: str, check: bool = True, timeout: float = 120, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A command on the VM, its output as text; a failure shows both streams."""
    done = subprocess.run(argv, text=True, capture_output=True, timeout=timeout, **kwargs)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


@dataclass
class Container:
    """A running container; `agent` is the directory that the test shares with the agent inside."""

    id: str
    agent: Path
    engine: tuple[str, ...]
    streams: list[socket.socket] = field(default_factory=list)

    def call(self, text: str, shell: str = "bash", **request: Any) -> Result:
        """The agent runs `bash -c TEXT` and waits."""
        return self.spawn([shell, "-c", text], **request)

    def spawn(self, argv: list[str], **request: Any) -> Result:
        """The agent runs a command and waits."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(300)
            connection.connect(str(self.agent / "agent.sock"))
            with connection.makefile("rw") as stream:
                print(json.dumps({"argv": argv, **request}), file=stream, flush=True)
                return Result(**json.loads(stream.readline()))

    def background(self, text: str, **request: Any) -> Background:
        """Like `call`, in a thread; `.result()` waits."""
        return Background(lambda: self.call(text, **request))

    def podman(self, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """podman with this container's global options."""
        return run(*self.engine, *argv, **kwargs)

    @property
    def pid(self) -> int:
        return int(self.podman("inspect", "--format", "{{.State.Pid}}", self.id).stdout)

    @property
    def record(self) -> dict[str, Any]:
        return json.loads(Path(f"/run/agentcgroup/containers/{self.id}.json").read_text())

    @property
    def tree(self) -> Path:
        return Path(self.record["base"]) / "agentcgroup"

    def ledger(self) -> list[dict[str, Any]]:
        """The records of this container's calls, oldest first."""
        path = Path("/var/log/agentcgroup/calls.jsonl")
        lines = path.read_text().splitlines() if path.exists() else []
        return [entry for line in lines if (entry := json.loads(line))["container"] == self.id]

    def settled(self, count: int, timeout: float = 10) -> list[dict[str, Any]]:
        """The records once there are `count` of them."""
        wait_for(lambda: len(self.ledger()) >= count, timeout, f"{count} records")
        return self.ledger()


class Background:
    """A call under way."""

    def __init__(self, action: Any) -> None:
        self._result: list[Result] = []
        self._thread = threading.Thread(target=lambda: self._result.append(action()), daemon=True)
        self._thread.start()

    def result(self, timeout: float = 300) -> Result:
        self._thread.join(timeout)
        assert self._result, "the call has not ended"
        return self._result[0]

    @property
    def running(self) -> bool:
        return self._thread.is_alive()


def wait_for(condition: Any, timeout: float, what: str) -> None:
    """Until `condition()` is true; the time limit is stretched for slow machines."""
    end = time.monotonic() + timeout * SLOW
    while not condition():
        assert time.monotonic() < end, f"waited {timeout * SLOW:.0f} s for {what}"
        time.sleep(0.1)


class Engine:
    """Starts containers with one runtime and cgroup manager, and removes them at the end of the test."""

    def __init__(self, runtime: str = "crun", manager: str = "systemd") -> None:
        self.command = ("podman", f"--runtime={runtime}", f"--cgroup-manager={manager}")
        self._containers: list[Container] = []
        self._directories: list[Path] = []

    def start(
        self, *options: str, policy: str | None = "test", image: str = "localhost/debian", user: str = ""
    ) -> Container:
        """A container whose PID 1 is the agent."""
        shared = Path(tempfile.mkdtemp(prefix="agent-"))
        self._directories.append(shared)
        shared.chmod(0o777)
        shutil.copy(HERE / "agent.py", shared)
        annotation = [] if policy is None else [f"--annotation=agentcgroup.policy={policy}"]
        done = run(
            *self.command, "run", "-d", "--network=none", *annotation, *options, f"--volume={shared}:/agent", image,
            "python3", "/agent/agent.py", "/agent/agent.sock",
        )  # fmt: skip
        container = Container(done.stdout.strip(), shared, self.command)
        self._containers.append(container)
        wait_for((shared / "agent.sock").exists, 10, "the agent")
        return container

    def podman(self, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return run(*self.command, *argv, **kwargs)

    def clean(self) -> None:
        for container in self._containers:
            self.podman("rm", "-f", "-t", "0", container.id, check=False)
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
