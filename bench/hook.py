#!/usr/bin/env python3
"""What the hook adds to a container's start, on this machine: whole processes, one after the other in each round.

    true      a static program that does nothing: what any hook would cost
    start     the hook before a container's first instruction: cgroups, plan, register, mounts (a container a round)
    poststop  the hook after its end
    migrate   one isolated write to cgroup.procs, which waits for an RCU grace period; `start` cannot be without it

The hook's own cost is `start` less `true` less `migrate`. Needs root and a cgroup2 mount; the daemon is a stand-in that
answers at once. `--hooks-dir` and engines are not involved: bench/podman.py has the whole `podman run`.

    python3 bench/hook.py [-n 100]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

import hook_harness as harness  # noqa: E402
from stats import summary  # noqa: E402


def timed(argv: list[str], text: str, cwd: Path) -> float:
    """Milliseconds from spawn to exit of a process that is fed `text`."""
    with tempfile.TemporaryFile() as stdin:
        stdin.write(text.encode())
        stdin.seek(0)
        began = time.perf_counter()
        done = subprocess.run(argv, stdin=stdin, cwd=cwd, env={}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        spent = time.perf_counter() - began
    assert done.returncode == 0, done.stderr
    return spent * 1e3


def migration(top: Path) -> float:
    """Milliseconds of one write that moves a sleeping process."""
    target = top / "migration"
    target.mkdir(exist_ok=True)
    with subprocess.Popen(["sleep", "60"]) as child:
        time.sleep(0.1)
        began = time.perf_counter()
        (target / "cgroup.procs").write_text(str(child.pid))
        spent = time.perf_counter() - began
        child.kill()
    return spent * 1e3


def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each kind, a round after the other."""
    top = harness.cgroup_top()
    if top is None:
        sys.exit("bench/hook.py: needs root and a cgroup2 mount where cgroups can be made")
    top = top / f"agentcgroup-bench-{os.getpid()}"
    top.mkdir()
    hook = harness.build_hook(folder)
    true = harness.compile_c(folder / "true", [_source(folder)])
    harness.make_rootfs(folder / "rootfs", harness.build_shells(folder))
    host = harness.Host(folder, top, hook, harness.Journal(folder / "journal"))
    host.serve()
    found: dict[str, list[float]] = {"true": [], "start": [], "poststop": [], "migrate": []}
    try:
        for _ in range(rounds):
            container = harness.start_container(host, folder / "rootfs")
            state = container.write()
            found["true"].append(timed([str(true)], state, container.bundle))
            time.sleep(0.05)  # so that the start meets an idle RCU, as a container's start does
            found["start"].append(timed([str(hook)], state, container.bundle))
            container.end()
            stopped = json.dumps(container.state | {"pid": 0, "status": "stopped"})
            found["poststop"].append(timed([str(hook)], stopped, container.bundle))
            time.sleep(0.05)
            found["migrate"].append(migration(top))
    finally:
        host.close()
    return found


def _source(folder: Path) -> Path:
    source = folder / "true.c"
    source.write_text("int main(void) { return 0; }\n")
    return source


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=100, help="rounds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="agcb-") as folder:
        found = measure(Path(folder), options.n)
    for name, values in found.items():
        print(f"{name:10} {summary(values, 'ms')}")
    own = [s - t - m for s, t, m in zip(found["start"], found["true"], found["migrate"], strict=True)]
    print(f"{'own cost':10} {summary(own, 'ms')}")
    print(f"fastest: true {min(found['true']):.2f} ms, start {min(found['start']):.2f} ms")
    print(f"median of start / true: {statistics.median(found['start']) / statistics.median(found['true']):.1f}")


if __name__ == "__main__":
    main()
