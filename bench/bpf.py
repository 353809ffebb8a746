#!/usr/bin/env python3
"""What our programs in the kernel cost.

`many`: nanoseconds of each run, by the kernel's own statistics (kernel.bpf_stats_enabled), for the same work in one
container beside 10 and beside 1,000 others. `charge`: how long a call takes to touch its memory with our programs
attached and without, by turns.

Runs in the test VM, as root and without a daemon:

    python3 bench/bpf.py [many] [-n 10] [--containers 1000]
    python3 bench/bpf.py charge [-n 10]
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcgroup.bpf import loader
from agentcgroup.bpf.kernel import Kernel
from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.cgroup import Cgroup
from agentcgroup.paths import BPF_DIR
from stats import interval, summary

TOP = Path("/sys/fs/cgroup")
BENCH = TOP / "agentcgroup-bench"
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
FORKS, PAGES = 300, 64 * 256
MADV_POPULATE_WRITE = 23  # include/uapi/asm-generic/mman-common.h, Linux 5.14; Python has no name for it


def make(number: int) -> Path:
    """The subtree of a container that is only cgroups."""
    tree = BENCH / str(number) / "agentcgroup"
    (tree / "calls" / "1").mkdir(parents=True)
    return tree


@contextmanager
def known(kernel: Kernel, trees: list[Path]) -> Iterator[None]:
    """The kernel accounts for these containers."""
    for tree in trees:
        kernel.register(Cgroup(tree), TOP)
        kernel.watch(tree.stat().st_ino, 1 << 40, 0)
        kernel.watch(tree.stat().st_ino, 1 << 40, 1)
    try:
        yield
    finally:
        for tree in trees:
            kernel.forget(tree.stat().st_ino)


def counters() -> dict[str, tuple[int, int]]:
    """Runs and nanoseconds of each program so far."""
    shown = json.loads(subprocess.run(["bpftool", "-j", "prog", "show"], check=True, capture_output=True).stdout)
    names = {path.name.partition("_")[2] for path in loader.PINS.glob("*_*")}
    return {p["name"]: (p.get("run_cnt", 0), p.get("run_time_ns", 0)) for p in shown if p.get("name") in names}


def work(group: Path) -> None:
    """Some forks, exits and memory charges in a call."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    (group / "cgroup.procs").write_text(str(os.getpid()))
    for _ in range(FORKS):
        grandchild = os.fork()
        if not grandchild:
            os._exit(0)
        os.waitpid(grandchild, 0)
    memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range(PAGES):
        memory[page * mmap.PAGESIZE] = 1
    os._exit(0)


def measured(group: Path) -> dict[str, float]:
    """Nanoseconds of one run of each program that the work made run."""
    before = counters()
    work(group)
    after = counters()
    spent = {name: (after[name][0] - runs, after[name][1] - ns) for name, (runs, ns) in before.items()}
    return {name: ns / runs for name, (runs, ns) in spent.items() if runs > 10}


def touched(group: Path) -> float:
    """Milliseconds until a process in a call has touched its pages."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        (group / "cgroup.procs").write_text(str(os.getpid()))
        memory = mmap.mmap(-1, PAGES * mmap.PAGESIZE)
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        began = time.perf_counter()
        memory.madvise(MADV_POPULATE_WRITE)
        os.write(writer, str((time.perf_counter() - began) * 1e3).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return float(pipe.read())


@contextmanager
def cgroups(containers: int) -> Iterator[list[Path]]:
    """So many subtrees of containers; the first has the memory controller."""
    BENCH.mkdir()
    try:
        (BENCH / "cgroup.subtree_control").write_text("+memory")
        trees = [make(number) for number in range(containers)]
        for path in (trees[0].parent, trees[0], trees[0] / "calls"):
            (path / "cgroup.subtree_control").write_text("+memory")
        yield trees
    finally:
        for folder, _, _ in os.walk(BENCH, topdown=False):
            os.rmdir(folder)


def charge(lib: Libbpf, rounds: int) -> None:
    """Programs attached, and a container that is watched, against none at all."""
    without, attached = [], []
    with cgroups(1) as trees:
        for _ in range(rounds):
            for on in random.sample([False, True], 2):
                if not on:
                    without += [touched(trees[0] / "calls" / "1") for _ in range(5)]
                    continue
                loader.attach(lib, BPF_DIR)
                kernel = Kernel(lib, lambda _event: None)
                try:
                    with known(kernel, trees):
                        attached += [touched(trees[0] / "calls" / "1") for _ in range(5)]
                finally:
                    kernel.close()
                    loader.detach()
    print(f"{PAGES} pages, none attached  {summary(without, 'ms')}")
    print(f"{PAGES} pages, attached       {summary(attached, 'ms')}")
    print(f"ratio of the medians      {statistics.median(attached) / statistics.median(without):.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["many", "charge"], default="many")
    parser.add_argument("-n", type=int, default=10, help="rounds, each with both")
    parser.add_argument("--containers", type=int, default=1000)
    options = parser.parse_args()
    lib = Libbpf()
    if options.part == "charge":
        charge(lib, options.n)
    else:
        with cgroups(options.containers) as trees:
            many(lib, trees, options.n)


def many(lib: Libbpf, trees: list[Path], rounds: int) -> None:
    """The same work beside 10 containers and beside all."""
    loader.attach(lib, BPF_DIR)
    kernel = Kernel(lib, lambda _event: None)
    STATS.write_text("1")
    few, lots = defaultdict(list), defaultdict(list)
    try:
        for _ in range(rounds):
            for count, found in random.sample([(10, few), (len(trees), lots)], 2):
                with known(kernel, trees[:count]):
                    for name, ns in measured(trees[0] / "calls" / "1").items():
                        found[name].append(ns)
    finally:
        STATS.write_text("0")
        kernel.close()
        loader.detach()
    for name in sorted(lots):
        ratios = [b / a for a, b in zip(few[name], lots[name], strict=True)]
        low, high = interval(ratios)
        print(
            f"{name:10}  beside 10: {statistics.median(few[name]):6.0f} ns  beside {len(trees)}:"
            f" {statistics.median(lots[name]):6.0f} ns  ratio {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}]"
            f" n {len(ratios)}"
        )


if __name__ == "__main__":
    main()
