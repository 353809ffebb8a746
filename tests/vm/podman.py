"""podman as the tests use it: containers that are governed, whose agent can be told to make calls."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentcgroup.paths import POLICY_DIRS
from agentcgroup.policy.load import load_file

HERE = Path(__file__).parent
CGROUPFS = Path("/sys/fs/cgroup")
AGENT = ("python3", "/agent/agent.py", "/agent/agent.sock")
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

    @property
    def number(self) -> int:
        """The number of the call, as its feedback has it."""
        found = re.search(r"^\[agentcgroup\] Call (\d+) ", self.err, re.MULTILINE)
        assert found, self
        return int(found[1])


def run(*argv: str, check: bool = True, timeout: float = 120, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """A command on the VM, its output as text; a failure shows both streams."""
    done = subprocess.run(argv, text=True, capture_output=True, timeout=timeout, **kwargs)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


@dataclass
class Held:
    """A call under way that waits for `finish`; `directory` is its cgroup on the host."""

    directory: Path
    call: Background
    gate: int

    def limit(self) -> int:
        return int((self.directory / "memory.max").read_text())

    def finish(self) -> Result:
        """Let it go on: it exits with 7."""
        os.close(self.gate)
        return self.call.result()


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

    def background_spawn(self, argv: list[str], **request: Any) -> Background:
        """Like `spawn`, in a thread."""
        return Background(lambda: self.spawn(argv, **request))

    def hold(self, shell: str = "bash") -> Held:
        """A call that has begun and waits; it must have a cgroup of its own."""
        gate = Path(tempfile.mktemp(prefix="gate-", dir=self.agent))
        os.mkfifo(gate)
        gate.chmod(0o666)
        inside = f"/agent/{gate.name}"
        call = self.background(f"cat /proc/self/cgroup >{inside}.cgroup; read _ <{inside}; exit 7", shell=shell)
        opened: list[int] = []

        def reached() -> bool:
            with contextlib.suppress(OSError):  # ENXIO: it does not read yet
                opened.append(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
            assert opened or call.running, call.result()
            return bool(opened)

        wait_for(reached, 10, "the call")
        cgroup = gate.with_name(gate.name + ".cgroup").read_text()
        found = re.search(r"/agentcgroup/(calls/\d+)$", cgroup.strip())
        assert found, f"the call is in {cgroup}"
        return Held(self.tree / found[1], call, opened[0])

    def podman(self, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """podman with this container's global options."""
        return run(*self.engine, *argv, **kwargs)

    def exec(self, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        """`podman exec`; a status that is not 0 is no failure."""
        options = ["-i"] if "input" in kwargs else []
        return self.podman("exec", *options, self.id, *argv, check=False, **kwargs)

    def answers(self) -> bool:
        """Whether the agent takes requests."""
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(self.agent / "agent.sock"))
            return True
        return False

    def wrapped(self) -> list[str]:
        """Where the shim is mounted in the container, one entry for each mount."""
        rows = [line.split() for line in Path(f"/proc/{self.record['pid']}/mountinfo").read_text().splitlines()]
        return sorted(row[4] for row in rows if "/agentcgroup/shims/" in row[3])

    @property
    def pid(self) -> int:
        return int(self.podman("inspect", "--format", "{{.State.Pid}}", self.id).stdout)

    @property
    def record(self) -> dict[str, Any]:
        return json.loads(Path(f"/run/agentcgroup/containers/{self.id}.json").read_text())

    @property
    def tree(self) -> Path:
        return Path(self.record["base"]) / "agentcgroup"

    def group(self, number: int) -> Path:
        """The cgroup of call `number`."""
        return self.tree / "calls" / str(number)

    def record_of(self, number: int) -> dict[str, Any]:
        """The ledger's record of call `number`, once it is there."""

        def found() -> list[dict[str, Any]]:
            return [entry for entry in self.ledger() if entry["number"] == number]

        wait_for(found, 10, f"the record of call {number}")
        return found()[0]

    def ledger(self) -> list[dict[str, Any]]:
        """The records of this container's calls, oldest first; a line that is being written is none yet."""
        path = Path("/var/log/agentcgroup/calls.jsonl")
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [entry for line in lines if (entry := json.loads(line))["container"] == self.id]

    def settled(self, count: int, timeout: float = 10) -> list[dict[str, Any]]:
        """The records once there are `count` of them."""
        wait_for(lambda: len(self.ledger()) >= count, timeout, f"{count} records")
        return self.ledger()


class Background:
    """A call under way."""

    def __init__(self, action: Any) -> None:
        self._result: list[Result] = []
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, args=(action,), daemon=True)
        self._thread.start()

    def _run(self, action: Any) -> None:
        try:
            self._result.append(action())
        except (OSError, ValueError) as error:  # the container has ended
            self._error = error

    def result(self, timeout: float = 300) -> Result:
        self._thread.join(timeout)
        assert self._result, f"the call has not ended: {self._error}"
        return self._result[0]

    @property
    def running(self) -> bool:
        return self._thread.is_alive()


def governed(container: Container, limit: int = 256 << 20, shell: str = "bash") -> None:
    """A call of the agent has a cgroup of its own with its limit in force, and its status arrives."""
    call = container.hold(shell)
    assert call.limit() == limit
    result = call.finish()
    assert (result.rc, result.feedback) == (7, []), result.err


POLICIES = Path("/etc/agentcgroup/policies.d")


def set_policy(name: str, text: str) -> None:
    """A policy of the tests, in force at once also for the containers that run under it."""
    POLICIES.mkdir(parents=True, exist_ok=True)
    (POLICIES / f"{name}.yaml").write_text(text)
    load_file(POLICIES / f"{name}.yaml", POLICY_DIRS)  # the daemon would keep the old one and tell the journal
    run("systemctl", "reload", "agentcgroupd")


def fill(size: int, seconds: float = 0) -> str:
    """The command text of a program that holds so many MiB for so long and then says so."""
    return f'python3 -c "import time; b = bytearray({size} << 20); time.sleep({seconds}); print(len(b) >> 20)"'


def nothing_left(container_id: str) -> None:
    """No cgroup, mount or file of a container that has ended stays."""

    def left() -> list[str]:
        run_dir = Path("/run/agentcgroup")
        files = [path for path in (run_dir / "c" / container_id, run_dir / f"containers/{container_id}.json")]
        groups = CGROUPFS.rglob(f"*{container_id}*")
        mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "agentcgroup" in line]
        return [str(path) for path in (*files, *groups) if path.exists() and "conmon" not in path.name] + mounts

    wait_for(lambda: not left(), 10, f"the end of {container_id[:12]}")


def wait_for(condition: Any, timeout: float, what: Any) -> None:
    """Until `condition()` is true; the time limit is stretched for slow machines. what: a text, or what gives one."""
    end = time.monotonic() + timeout * SLOW
    while not condition():
        assert time.monotonic() < end, f"waited {timeout * SLOW:.0f} s for {what() if callable(what) else what}"
        time.sleep(0.1)


alive: set[str] = set()  # ids of containers that some engine will still remove


class Engine:
    """Starts containers with one runtime and cgroup manager, and removes them at the end of the test."""

    def __init__(self, runtime: str = "crun", manager: str = "systemd") -> None:
        self.command = ("podman", f"--runtime={runtime}", f"--cgroup-manager={manager}")
        self._containers: list[Container] = []
        self._directories: list[Path] = []

    def start(
        self,
        *options: str,
        policy: str | None = "test",
        image: str = "localhost/debian",
        user: str = "",
        command: Sequence[str] = AGENT,
    ) -> Container:
        """A container whose PID 1 is the agent, unless `command` says otherwise."""
        shared = self.shared_directory()
        container = self.run(f"--volume={shared}:/agent", *options, policy=policy, image=image, command=command)
        container.agent = shared
        wait_for(container.answers, 10, "the agent")
        return container

    def run(
        self, *options: str, policy: str | None = "test", image: str = "localhost/debian", command: Sequence[str] = ()
    ) -> Container:
        """A container without an agent."""
        annotation = [] if policy is None else [f"--annotation=agentcgroup.policy={policy}"]
        network = [] if any(option.startswith("--network") for option in options) else ["--network=none"]
        done = self.podman("run", "-d", *network, *annotation, *options, image, *command)
        return self.adopt(done.stdout.strip(), Path())

    def adopt(self, container_id: str, shared: Path) -> Container:
        """A container that something else has started; it is removed like the others."""
        alive.add(container_id)
        self._containers.append(Container(container_id, shared, self.command))
        return self._containers[-1]

    def shared_directory(self) -> Path:
        """A directory with the agent's program, for a container's /agent."""
        shared = Path(tempfile.mkdtemp(prefix="agent-"))
        self._directories.append(shared)
        shared.chmod(0o777)
        shutil.copy(HERE / "agent.py", shared)
        return shared

    def podman(self, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return run(*self.command, *argv, **kwargs)

    def clean(self) -> None:
        ids = [container.id for container in self._containers]
        if ids:
            self.podman("rm", "-f", "-t", "0", "--ignore", *ids, check=False)
        alive.difference_update(ids)
        self._containers.clear()
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)
