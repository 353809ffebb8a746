#!/usr/bin/env python3
"""How many calls a second agentcgroupd sustains on this machine, and what bounds it.

The real daemon, the real shim and real cgroups, no container: the shim is compiled for a folder of its own and starts
a program that ends at once, so that the daemon, not the shell, is the load. Needs root and a cgroup2 mount (a hybrid
host's without controllers will do; then memory and pid files are absent and the figures are a lower bound of the cost).

    python3 bench/daemon.py [--seconds 10] [--workers 1 2 4]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import socket
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

ID = "bench"
TICKS = os.sysconf("SC_CLK_TCK")


class Bench:
    """A daemon that governs this process's own cgroup as if it were a container's."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.base = Cgroup(mount_point() / f"agentcgroup-bench-{os.getpid()}")
        self.tree = self.base.child("agentcgroup")
        self.run = work / "run"
        self.folder = self.run / "c" / ID
        self._make()

    def _make(self) -> None:
        for name in ("agent", "helpers", "calls/fallback"):
            os.makedirs(f"{self.tree.path}/{name}")
        for controller in ("cpu", "memory", "pids", "io"):
            for group in (self.base, self.tree, self.tree.child("calls")):
                group.try_write("cgroup.subtree_control", f"+{controller}")
        (self.folder / "real").mkdir(parents=True)
        (self.folder / "calls").symlink_to(f"{self.tree.path}/calls")
        (self.run / "containers").mkdir()
        true = self.work / "true.c"
        true.write_text("int main(void) { return 0; }\n")
        subprocess.run(["cc", "-static", "-O2", "-o", str(self.folder / "real" / "bash"), str(true)], check=True)
        shim = build_shim(self.work / "shim", self.folder)
        self.shim = patch(shim, self.work / "bash", None, ack_ms=2000)
        record = {"v": 1, "id": ID, "pid": os.getpid(), "base": self.base.path}
        record["annotations"] = {"agentcgroup.policy": "coding-agent"}
        record["engine"] = "podman"
        (self.run / "containers" / f"{ID}.json").write_text(json.dumps(record))
        (self.work / "config.yaml").write_text(
            f"call_rate: 100000\ncall_burst: 100000\nbpf: false\nrecords:\n  dir: {self.work}/log\n"
        )
        self.agent = subprocess.Popen(["sleep", "100000"])
        self.tree.child("agent").write("cgroup.procs", self.agent.pid)

    def start(self) -> int:
        """Start the daemon and have it govern us; its pid."""
        command = [
            sys.executable,
            "-m",
            "agentcgroup.daemon",
            f"--run-dir={self.run}",
            f"--state-dir={self.work}/state",
        ]
        command += [f"--config={self.work}/config.yaml", f"--policies={ROOT}/oci-config/policies.d"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "runtime")}
        self.daemon = subprocess.Popen(command, env=environment)
        while not (self.folder / "sock").exists():
            assert self.daemon.poll() is None, "the daemon has ended"
            time.sleep(0.05)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hook:
            hook.connect(str(self.run / "hook.sock"))
            hook.send(json.dumps({"v": 1, "op": "register", "id": ID}).encode())
            answer = json.loads(hook.recv(65536))
            assert answer.get("ok"), answer
        return self.daemon.pid

    def close(self) -> None:
        """End what was started, remove what was made."""
        with contextlib.suppress(AttributeError):
            self.daemon.terminate()
            self.daemon.wait(20)
        self.agent.kill()
        self.agent.wait()
        for path in sorted(Path(self.base.path).rglob("*"), key=lambda p: -len(p.parts)):
            if path.is_dir():
                path.rmdir()
        os.rmdir(self.base.path)


def work(bench: Bench, seconds: float) -> int:
    """Calls one after the other from inside the agent's cgroup; how many there were."""
    bench.tree.child("agent").write("cgroup.procs", os.getpid())
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        pid = os.posix_spawn(bench.shim, ["bash", "-c", "true"], {"PATH": os.defpath})
        os.waitpid(pid, 0)
        count += 1
    return count


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def load(bench: Bench, daemon: int, workers: int, seconds: float) -> dict[str, float]:
    """One measurement with so many callers."""
    records = records_of(bench)
    began, cpu = time.monotonic(), cpu_seconds(daemon)
    children = []
    for _ in range(workers):
        reader, writer = os.pipe()
        if (pid := os.fork()) == 0:
            os.write(writer, str(work(bench, seconds)).encode())
            os._exit(0)
        os.close(writer)
        children.append((pid, reader))
    calls = sum(int(os.read(reader, 32)) for _, reader in children if os.waitpid(_, 0))
    elapsed = time.monotonic() - began
    time.sleep(2)
    spent = cpu_seconds(daemon) - cpu
    return {
        "workers": workers,
        "calls": calls,
        "calls_per_second": calls / elapsed,
        "daemon_cpu_ms_per_call": spent / calls * 1e3,
        "calls_per_daemon_cpu_second": calls / spent,
        "recorded_share": (records_of(bench) - records) / calls,
    }


def records_of(bench: Bench) -> int:
    """Lines of the ledger so far, rotated files included."""
    return sum(path.read_bytes().count(b"\n") for path in (bench.work / "log").glob("calls.jsonl*"))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options = parser.parse_args()
    with prepared() as bench:
        daemon = bench.start()
        for workers in options.workers:
            print(json.dumps({k: round(v, 3) for k, v in load(bench, daemon, workers, options.seconds).items()}))


if __name__ == "__main__":
    main()
