"""Many calls, with and without random kills, and what must be left afterwards: nothing. For CI and for tests/soak."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import service
from podman import CGROUPFS, Container, wait_for

POOL = 8
AGENT = ("python3", "podman-init")
#: What the calls do; %d is the exit status. Some only start, some wait, some have children or leave some.
TEXTS = (
    ("sh", "exit %d"), ("bash", "exit %d"), ("bash", "exit %d"), ("bash", "read -t 0.4 _ <>/agent/quiet; exit %d"),
    ("bash", "trap 'exit %d' TERM; read -t 0.8 _ <>/agent/quiet; exit %d"), ("sh", "(sleep 0.2) & wait; exit %d"),
    ("bash", "bash -c 'exit 3'; exit %d"), ("sh", "setsid sleep 0.2 & exit %d"),
)  # fmt: skip


@dataclass
class Churn:
    """What happened: `spoiled` are calls that did not end as their text says, `kills` how many of each were killed."""

    spoiled: list[Any] = field(default_factory=list)
    kills: dict[str, int] = field(default_factory=lambda: {"shim": 0, "shell": 0, "daemon": 0})


class Many:
    """Calls under way, [argv, status] each, `workers` at a time; started by podman exec, for it takes long."""

    def __init__(self, container: Container, calls: list[tuple[list[str], int]], workers: int) -> None:
        listed = container.agent / "calls.json"
        listed.write_text(json.dumps(calls))
        self._done = container.agent / "calls.json.done"
        self._done.unlink(missing_ok=True)
        shutil.copy(Path(__file__).parent / "many_calls.py", container.agent)
        argv = ["exec", container.id, "python3", "/agent/many_calls.py", "/agent/calls.json", str(workers)]
        self._process = subprocess.Popen([*container.engine, *argv], stdout=subprocess.PIPE, text=True)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def ended(self) -> int:
        """How many calls have ended."""
        return self._done.stat().st_size if self._done.exists() else 0

    def spoiled(self) -> list[Any]:
        """Wait for all; those that ended otherwise than they should."""
        out, _ = self._process.communicate()
        assert self._process.returncode == 0
        return json.loads(out)


def churn(container: Container, calls: int, seed: int, workers: int, daemon_kills: int) -> Churn:
    """So many calls, `workers` at a time, while shims, shells and the daemon are killed at random."""
    done, order, listed = Churn(), random.Random(seed), []
    for _ in range(calls):
        (shell, text), status = order.choice(TEXTS), order.randrange(1, 100)
        listed.append(([shell, "-c", text.replace("%d", str(status))], status))
    at = sorted(order.sample(range(1, calls), daemon_kills))
    os.mkfifo(container.agent / "quiet")
    running = Many(container, listed, workers)
    while running.running:
        if at and running.ended >= at[0]:
            at.pop(0)
            _kill_daemon(done)
        elif order.random() < 0.5:
            _kill_one(container, order, done)
        time.sleep(order.uniform(0.2, 1))
    done.spoiled = running.spoiled()
    return done


def _kill_daemon(done: Churn) -> None:
    """Not waited for: the calls go on while the next one starts."""
    pid = service.pid()
    if pid and _killed(pid):
        done.kills["daemon"] += 1


def _kill_one(container: Container, order: random.Random, done: Churn) -> None:
    what = order.choice(["shim", "shell"])
    places = [container.tree / "agent"] if what == "shim" else list((container.tree / "calls").glob("[0-9]*"))
    found = [pid for place in places for pid in _pids(place) if _comm(pid) in ("bash", "sh")]
    if found and _killed(order.choice(found)):
        done.kills[what] += 1


def _killed(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:  # it has ended by itself
        return False
    return True


def _pids(cgroup: Path) -> list[int]:
    try:
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def dying(group: Path) -> int:
    """Cgroups below this one that were removed and cannot go."""
    return _keyed(group / "cgroup.stat", "nr_dying_descendants")


def _fresh_dying(container: Container) -> int:
    """With each cgroup that goes the kernel looks at the earlier ones again (wb_memcg_offline in mm/backing-dev.c)."""
    (CGROUPFS / "agentcgroup-test-churn").mkdir()
    (CGROUPFS / "agentcgroup-test-churn").rmdir()
    return dying(container.tree)


def percpu(container: Container) -> int:
    """Bytes of per-CPU memory, which is what cgroups are made of, charged to the container's subtree."""
    return _keyed(container.tree / "memory.stat", "percpu")


def _keyed(path: Path, key: str) -> int:
    found = re.search(rf"^{key} (\d+)$", path.read_text(), re.MULTILINE)
    assert found, path
    return int(found[1])


def left(container: Container) -> list[str]:
    """What is there besides the agent and the directories for calls to come."""
    found = [f"{_comm(pid)} in agent" for pid in _pids(container.tree / "agent") if _comm(pid) not in AGENT]
    found += [f"{_comm(pid)} in fallback" for pid in _pids(container.tree / "calls/fallback")]
    directories = sorted(path.name for path in (container.tree / "calls").iterdir() if path.is_dir())
    if len(directories) != POOL + 1 or "fallback" not in directories:
        found.append(f"calls/{{{','.join(directories)}}}")
    if not service.answers():
        return [*found, "no daemon"]
    return found + [f"call {row['call']}" for row in service.calls(container.id)]


def come_to_rest(container: Container, timeout: float = 30) -> None:
    """Wait until nothing is left of the calls."""
    wait_for(lambda: not left(container), timeout, lambda: f"the end of {left(container)}")


@contextmanager
def nothing_is_left(container: Container) -> Iterator[None]:
    """Afterwards everything is as it was: directories, processes, the daemon's open files, mounts, dying cgroups."""
    _one_recorded_call(container)
    files, mounts, sockets, before = service.descriptors(), _mounts(), _sockets(), dying(container.tree)
    yield
    come_to_rest(container, 60)
    _one_recorded_call(container)
    wait_for(lambda: not service.differences(files), 10, lambda: f"open files to go: {service.differences(files)}")
    assert _mounts() == mounts
    assert _sockets() == sockets
    os.sync()  # what is dirty keeps its cgroup until it is written, for 30 s or now
    wait_for(lambda: _fresh_dying(container) <= before + 3, 60, f"no more dying cgroups than the {before} before")


def _one_recorded_call(container: Container) -> None:
    """A daemon opens the ledger with its first record."""
    recorded = len(container.ledger())
    container.call("true")
    container.settled(recorded + 1)
    come_to_rest(container)


def _mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "agentcgroup" in line]


def _sockets() -> list[str]:
    return sorted(str(path) for path in Path("/run/agentcgroup").rglob("*") if path.is_socket())
