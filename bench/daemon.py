#!/usr/bin/env python3
"""What calls cost agentcgroupd, and what it costs to have it.

The real daemon, the real shim and real cgroups, no engine: a container is a cgroup with a sleeping process in it, and
the shim is compiled for a folder of its own and starts a program that ends at once, so that the daemon, not the shell,
is the load. Needs root and a cgroup2 mount (a hybrid host's without controllers will do; then memory and pid files are
absent and the figures are a lower bound of the cost).

    python3 bench/daemon.py rate [--seconds 10] [--workers 1 2 4]     calls as fast as they go
    python3 bench/daemon.py registered [1 10 100 1000] [-n 10]        a call, with so many containers known
    python3 bench/daemon.py agents [0 1 10 50] [--minutes 2]          agents at 4 calls a minute: the daemon's CPU, RSS
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "runtime"))
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from agentcgroup.cgroup import Cgroup, mount_point  # noqa: E402
from shim_harness import build_shim, patch  # noqa: E402
from stats import interval, summary  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
CALLS_PER_MINUTE = 4  # of an agent: between Bash starts of recorded runs p50 4.8 s, p90 27


class Box:
    """A container that is only cgroups, a process that sleeps and the folder that its shim knows."""

    def __init__(self, number: int, top: Cgroup, run: Path) -> None:
        self.id = f"bench{number}"
        self.base = top.child(self.id)
        self.tree = self.base.child("agentcgroup")
        self.folder = run / "c" / self.id
        for name in ("agent", "helpers", "calls/fallback"):
            os.makedirs(f"{self.tree.path}/{name}")
        for controller in ("cpu", "memory", "pids", "io"):
            for group in (self.base, self.tree, self.tree.child("calls")):
                group.try_write("cgroup.subtree_control", f"+{controller}")
        (self.folder / "real").mkdir(parents=True)
        (self.folder / "calls").symlink_to(f"{self.tree.path}/calls")
        self.agent = subprocess.Popen(["sleep", "100000"])
        self.tree.child("agent").write("cgroup.procs", self.agent.pid)
        record = {"v": 1, "id": self.id, "pid": self.agent.pid, "base": self.base.path, "engine": "podman"}
        record["annotations"] = {"agentcgroup.policy": "coding-agent"}
        (run / "containers" / f"{self.id}.json").write_text(json.dumps(record))

    def make_shim(self, work: Path) -> None:
        """Compile the shim for this container's folder, with a program in the place of the shell."""
        true = work / "true.c"
        true.write_text("int main(void) { return 0; }\n")
        subprocess.run(["cc", "-static", "-O2", "-o", str(self.folder / "real" / "bash"), str(true)], check=True)
        shim = build_shim(work / f"shim-{self.id}", self.folder)
        self.shim = patch(shim, work / f"bash-{self.id}", None, ack_ms=2000)

    def call(self) -> None:
        """One tool call, from inside the agent's cgroup if the caller is there."""
        os.waitpid(os.posix_spawn(self.shim, ["bash", "-c", "true"], {"PATH": os.defpath}), 0)

    def enter(self) -> None:
        """Put this process where the agent is."""
        self.tree.child("agent").write("cgroup.procs", os.getpid())


class Bench:
    """A daemon of our own, and the containers that it governs."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.run = work / "run"
        (self.run / "containers").mkdir(parents=True)
        self.top = Cgroup(f"{mount_point()}/agentcgroup-bench-{os.getpid()}")
        os.mkdir(self.top.path)
        for controller in ("cpu", "memory", "pids", "io"):
            self.top.try_write("cgroup.subtree_control", f"+{controller}")
        self.boxes: list[Box] = []
        self.daemon = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        config = self.work / "config.yaml"
        config.write_text(f"call_rate: 100000\ncall_burst: 100000\nbpf: false\nrecords:\n  dir: {self.work}/log\n")
        command = [sys.executable, "-m", "agentcgroup.daemon", f"--run-dir={self.run}", f"--config={config}"]
        command += [f"--state-dir={self.work}/state", f"--policies={ROOT}/oci-config/policies.d"]
        with open(self.work / "daemon.log", "wb") as log:
            daemon = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "runtime")}, stderr=log)
        while not (self.run / "hook.sock").exists():
            assert daemon.poll() is None, (self.work / "daemon.log").read_text()
            time.sleep(0.05)
        return daemon

    def add(self, count: int, shims: int = 0) -> None:
        """Register containers until there are so many; so many of them can call."""
        for number in range(len(self.boxes), count):
            box = Box(number, self.top, self.run)
            self.boxes.append(box)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
                hook.connect(str(self.run / "hook.sock"))
                hook.send(json.dumps({"v": 1, "op": "register", "id": box.id}).encode())
                answer = json.loads(hook.recv(65536))
                assert answer.get("ok"), answer
            if number < shims:
                box.make_shim(self.work)

    def cpu_seconds(self) -> float:
        """User and system time of the daemon so far."""
        fields = Path(f"/proc/{self.daemon.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def rss_mib(self) -> float:
        """Resident memory of the daemon, in MiB."""
        fields = Path(f"/proc/{self.daemon.pid}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def records(self) -> int:
        """Lines of the ledger so far, rotated files included."""
        return sum(path.read_bytes().count(b"\n") for path in (self.work / "log").glob("calls.jsonl*"))

    def close(self) -> None:
        """End what was started, remove what was made."""
        self.daemon.terminate()
        self.daemon.wait(60)
        for box in self.boxes:
            box.agent.kill()
            box.agent.wait()
        for folder, _, _ in os.walk(self.top.path, topdown=False):
            os.rmdir(folder)


@contextlib.contextmanager
def prepared() -> Iterator[Bench]:
    """A bench, and nothing left of it afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="agcb-"))
    bench = Bench(folder)
    try:
        yield bench
    finally:
        bench.close()
        shutil.rmtree(folder)


def calling(box: Box, seconds: float, pause: float = 0.0) -> tuple[int, int]:
    """A child that calls until the time is over: its pid, and where it writes how many calls there were."""
    reader, writer = os.pipe()
    if pid := os.fork():
        os.close(writer)
        return pid, reader
    box.enter()
    dice = random.Random(box.id)
    now = time.monotonic()
    end, count = now + seconds, 0
    while (now := now + dice.uniform(0, 2 * pause)) < end and time.monotonic() < end:
        time.sleep(max(0.0, now - time.monotonic()))
        box.call()
        count += 1
    os.write(writer, str(count).encode())
    os._exit(0)


def count_of(children: list[tuple[int, int]]) -> int:
    """Waits for callers: how many calls they made."""
    total = 0
    for pid, reader in children:
        os.waitpid(pid, 0)
        total += int(os.read(reader, 32))
        os.close(reader)
    return total


def rate(bench: Bench, options: argparse.Namespace) -> None:
    """Calls one after the other, by so many callers at once."""
    bench.add(1, shims=1)
    for workers in options.workers:
        records, began, cpu = bench.records(), time.monotonic(), bench.cpu_seconds()
        calls = count_of([calling(bench.boxes[0], options.seconds) for _ in range(workers)])
        elapsed = time.monotonic() - began
        time.sleep(2)
        spent, recorded = bench.cpu_seconds() - cpu, bench.records() - records
        print(
            f"{workers} callers: {calls / elapsed:.0f} calls/s, {spent / calls * 1e3:.2f} ms of the daemon's CPU a call"
            f" ({calls / spent:.0f} in a second of it), {recorded / calls:.1%} recorded",
            flush=True,
        )


def registered(bench: Bench, options: argparse.Namespace) -> None:
    """A call of one container, timed by its caller, while so many are registered. Numbers grow: none can leave."""
    first: list[float] = []
    for count in sorted(options.counts):
        bench.add(count, shims=1)
        time.sleep(3)  # pools are filled when nothing else is to be done
        calls, costs = [], []
        for _ in range(options.n):
            cpu = bench.cpu_seconds()
            calls += timed(bench.boxes[0], options.calls)
            time.sleep(1)
            costs.append((bench.cpu_seconds() - cpu) / options.calls * 1e3)
        first = first or costs
        ratio = statistics.median(costs) / statistics.median(first)
        print(
            f"{count:4} containers: call {summary(calls, 'ms')}; daemon {summary(costs, 'ms')} ({ratio:.2f}x);"
            f" RSS {bench.rss_mib():.1f} MiB",
            flush=True,
        )


def timed(box: Box, calls: int) -> list[float]:
    """Milliseconds of calls a hundredth of a second apart."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        box.enter()
        spent = []
        for _ in range(calls):
            time.sleep(0.01)
            began = time.perf_counter()
            box.call()
            spent.append((time.perf_counter() - began) * 1e3)
        os.write(writer, json.dumps(spent).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        spent = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return spent


def agents(bench: Bench, options: argparse.Namespace) -> None:
    """So many agents that call now and then, and what the daemon takes meanwhile."""
    for count in sorted(options.counts):
        bench.add(count, shims=count)
        time.sleep(5)
        shares, total = [], 0
        for _ in range(options.n):
            cpu, began = bench.cpu_seconds(), time.monotonic()
            span = options.minutes * 60 / options.n
            total += count_of([calling(box, span, 60 / CALLS_PER_MINUTE) for box in bench.boxes])
            time.sleep(max(0.0, began + span - time.monotonic()))
            shares.append((bench.cpu_seconds() - cpu) / (time.monotonic() - began) * 100)
        low, high = interval(shares)
        print(
            f"{count:3} agents, {total} calls: {statistics.mean(shares):.3f} % of a core [{low:.3f}, {high:.3f}],"
            f" RSS {bench.rss_mib():.1f} MiB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    part = parts.add_parser("rate")
    part.set_defaults(run=rate)
    part.add_argument("--seconds", type=float, default=10)
    part.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    part = parts.add_parser("registered")
    part.set_defaults(run=registered)
    part.add_argument("counts", type=int, nargs="*", default=[1, 10, 100, 1000])
    part.add_argument("-n", type=int, default=10, help="spans of each")
    part.add_argument("--calls", type=int, default=100, help="in a span")
    part = parts.add_parser("agents")
    part.set_defaults(run=agents)
    part.add_argument("counts", type=int, nargs="*", default=[0, 1, 10, 50])
    part.add_argument("-n", type=int, default=6, help="spans of each")
    part.add_argument("--minutes", type=float, default=2)
    options = parser.parse_args()
    with prepared() as bench:
        options.run(bench, options)


if __name__ == "__main__":
    main()
