"""One run: agents in real containers under one slice with a memory limit, each doing as its trace says."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from agentcgroup import paths, records
from agentcgroup.bench.arms import Arm, Watcher
from agentcgroup.bench.traces import MIB, Trace
from agentcgroup.cgroup import Cgroup, mount_point
from agentcgroup.errors import UserError
from agentcgroup.peer import read_proc, unified

SLICE = "agentcgroup-bench.slice"
_UNIT = Path("/run/systemd/system") / SLICE
SAMPLE = 0.05  # seconds between looks at each agent's memory
NS = 1e9


@dataclass
class Agent:
    """What became of one. Times in seconds; `steps`: milliseconds that it took to have how many more bytes.

    survived: it came to the end of its plan. lost: calls that ended otherwise than by themselves. ended: those of them
    that agentcgroup ended or its limit killed; told: pieces of feedback. oom_kills: of its own cgroup's counter.
    moments: when what was done to its calls. lags: milliseconds from the charge that the kernel told of to a hold.
    """

    name: str
    role: str
    planned_s: float
    calls: int
    survived: bool = False
    makespan_s: float | None = None
    lost: int = 0
    done: int = 0
    stall_s: float = 0.0
    ended: int = 0
    told: int = 0
    oom_kills: int = 0
    peak: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)
    moments: list[tuple[float, str]] = field(default_factory=list)
    lags: list[float] = field(default_factory=list)


@dataclass
class Run:
    """One run of one arm. `memory`: seconds, and bytes of each agent then."""

    arm: str
    budget_mib: int
    speed: float
    agents: list[Agent]
    oom_kills: int
    seconds: float
    memory: list[list[float]]

    def as_json(self) -> dict[str, Any]:
        """For the result file."""
        return asdict(self)


@dataclass(frozen=True)
class Setting:
    """What all runs of a cell have in common. offsets_s: of each agent's beginning. patience_s: a run that takes so
    much longer than planned is over.
    """

    image: str
    speed: float
    offsets_s: tuple[float, ...]
    patience_s: float = 120.0


def podman(*argv: str) -> str:
    """Its output. Raises UserError with its message."""
    done = subprocess.run(["podman", *argv], text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"podman {argv[0]}: {done.stderr.strip() or f'exit {done.returncode}'}")
    return (done.stdout if argv[0] != "logs" else done.stderr).strip()


@contextmanager
def limited_slice(budget: int) -> Iterator[Cgroup]:
    """The slice, which may have so many bytes of memory and no swap."""
    if _UNIT.exists():
        raise UserError(
            f"{_UNIT} exists: another bench is running, or was killed; then: systemctl stop {SLICE}; rm {_UNIT}"
        )
    _UNIT.write_text(f"[Slice]\nMemoryMax={budget}\nMemorySwapMax=0\n")
    try:
        _systemctl("daemon-reload")
        _systemctl("start", SLICE)
        yield Cgroup(mount_point() / "agentcgroup.slice" / SLICE)
    finally:
        _systemctl("stop", SLICE)
        _UNIT.unlink()
        _systemctl("daemon-reload")


def _systemctl(*argv: str) -> None:
    done = subprocess.run(["systemctl", *argv], text=True, capture_output=True, check=False)
    if done.returncode:
        raise UserError(f"systemctl {argv[0]}: {done.stderr.strip()}")


class Daemon:
    """agentcgroupd with the kernel's programs or without; at the end as it was."""

    def __init__(self) -> None:
        self._old = paths.CONFIG_FILE.read_text() if paths.CONFIG_FILE.exists() else None
        self._bpf: bool | None = None

    def use(self, arm: Arm) -> None:
        """Have it from now on as that arm wants it, if it needs one. Raises UserError."""
        if arm.governed and arm.bpf != self._bpf:
            lines = [line for line in (self._old or "").splitlines() if not line.startswith("bpf:")]
            self._bpf = arm.bpf  # first: whatever fails, the old file comes back
            paths.CONFIG_FILE.write_text("\n".join([*lines, f"bpf: {str(arm.bpf).lower()}", ""]))
            _systemctl("restart", "agentcgroupd")

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bpf is None:
            return
        if self._old is None:
            paths.CONFIG_FILE.unlink(missing_ok=True)
        else:
            paths.CONFIG_FILE.write_text(self._old)
        _systemctl("restart", "agentcgroupd")


class _Box:
    """The container of one agent."""

    def __init__(self, trace: Trace, setting: Setting, offset_s: float) -> None:
        self.trace = trace
        self.folder = Path(tempfile.mkdtemp(prefix="agentcgroup-bench-"))
        self.id = ""
        os.chmod(self.folder, 0o755)
        (self.folder / "plan").write_text(trace.plan(setting.speed, offset_s))
        (self.folder / "log").touch()
        os.mkfifo(self.folder / "go")
        self.agent = Agent(trace.name, trace.role, trace.length / setting.speed + offset_s, len(trace.calls))
        self.pid = 0
        self.group = Cgroup("")

    def start(self, options: Sequence[str], image: str) -> None:
        """It waits for `go`. Raises UserError."""
        self.id = podman(
            "run", "-d", "--network=none", "--log-driver=k8s-file", f"--cgroup-parent={SLICE}",
            f"--volume={self.folder}:/bench", f"--volume={_load().parent}:/load:ro",
            *options, image, "/load/agentcgroup-load", "agent", "/bench",
        )  # fmt: skip
        self.pid = int(podman("inspect", "--format={{.State.Pid}}", self.id))
        path = unified(read_proc(self.pid, "cgroup").decode()).removesuffix("/agentcgroup/agent")
        self.group = Cgroup(f"{mount_point()}{path}")

    def go(self) -> None:
        """It begins. Raises UserError if it never came to wait for that."""
        for _ in range(1000):
            try:
                os.close(os.open(self.folder / "go", os.O_WRONLY | os.O_NONBLOCK))
                return
            except OSError:
                time.sleep(0.01)
        raise UserError(f"agent {self.trace.name} did not start: {podman('logs', self.id)[-300:]}")

    def over(self) -> bool:
        """Whether it has come to its end, or to an end."""
        with open(self.folder / "log", "rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 64))
            return b"\nend " in log.read() or not os.path.exists(f"/proc/{self.pid}")

    def read(self) -> Agent:
        """What became of it."""
        agent, began = self.agent, 0
        for line in (self.folder / "log").read_text().splitlines():
            kind, *words = line.split()
            numbers = [int(word) for word in words]
            if kind == "begin":
                began = numbers[0]
            elif kind == "step" and numbers[3] > 0:
                agent.steps.append(((numbers[2] - numbers[1]) / 1e6, numbers[3]))
            elif kind == "ended":
                agent.done += 1
                agent.lost += numbers[2] != 0
                if numbers[2]:
                    agent.moments.append(((numbers[1] - began) / NS, "lost"))
            elif kind == "end":
                agent.survived, agent.makespan_s = True, (numbers[0] - began) / NS
        agent.stall_s = sum(ms for ms, _ in agent.steps) / 1000
        agent.oom_kills = self.group.keyed("memory.events").get("oom_kill", 0)
        agent.peak = self.group.number("memory.peak") or 0
        self._read_records(began / NS)
        return agent

    def _read_records(self, began: float) -> None:
        began += time.time() - time.monotonic()  # records have Unix time
        self.agent.told = podman("logs", self.id).count("[agentcgroup]")
        with suppress(OSError):
            for record in records.read(paths.LOG_DIR, self.id):
                self.agent.ended += bool(record["ended"] or record["oom_kills"])
                at = record["started"] - began
                self.agent.moments += [(round(at + step["at_s"], 3), step["step"]) for step in record["steps"]]
                holds = [step["lag_s"] for step in record["steps"] if step["step"] == "hold"]
                self.agent.lags += [lag * 1000 for lag in holds if lag is not None]

    def remove(self) -> None:
        """The container and what belongs to it."""
        if self.id:
            podman("rm", "--force", "--time=0", "--volumes", self.id)
        shutil.rmtree(self.folder)


def _load() -> Path:
    path = paths.LIBEXEC_DIR / "agentcgroup-load"
    if not path.exists():
        raise UserError(f"{path} is missing: install agentcgroup whole")
    return path


def run(arm: Arm, traces: Sequence[Trace], budget: int, setting: Setting) -> Run:
    """All agents at once, until each has come to its end. budget: of the slice, in bytes. Raises UserError."""
    with ExitStack() as stack:
        slice_ = stack.enter_context(limited_slice(budget))
        boxes: list[_Box] = []
        for trace, offset in zip(traces, setting.offsets_s, strict=True):
            box = _Box(trace, setting, offset)
            stack.callback(box.remove)
            box.start(arm.options(trace, budget, len(traces)), setting.image)
            boxes.append(box)
        low = [box.group for box in boxes if box.trace.role.startswith("LOW")]
        with arm.during(slice_, low) as watcher:
            for box in boxes:
                box.go()
            began = time.monotonic()
            memory = _watch(boxes, watcher, began, setting.patience_s + max(box.agent.planned_s for box in boxes))
        seconds = time.monotonic() - began
        if arm.governed:
            time.sleep(0.5)  # the last records
        agents = [box.read() for box in boxes]
        kills = slice_.keyed("memory.events").get("oom_kill", 0)
        return Run(arm.name, budget // MIB, setting.speed, agents, kills, seconds, memory)


def _watch(boxes: list[_Box], watcher: Watcher, began: float, most: float) -> list[list[float]]:
    found = []
    while (now := time.monotonic() - began) < most:
        found.append([round(now, 3), *(box.group.number("memory.current") or 0 for box in boxes)])
        over = [box.over() for box in boxes]
        if all(done for box, done in zip(boxes, over, strict=True) if not box.trace.role.startswith("LOW")):
            watcher.high_ended.set()
        if all(over):
            break
        time.sleep(SAMPLE)
    return found
