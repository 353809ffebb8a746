#!/usr/bin/env python3
"""What a tool call costs more through the shim: interleaved pairs on this host, against a small epoll daemon.

Run by hand as root where a cgroup2 is writable: `python3 bench/shim.py -n 500`. Times are microseconds from spawn to
the end of the wait in the caller; only differences within one run mean anything on a shared machine.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import random
import select
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "unit"))

from shim_harness import BASH, Box, build_shim, cgroup_top, short_folder  # noqa: E402
from stats import interval  # noqa: E402

TRACE_FD = 99
POOL = 8
COMMAND = ["bash", "-c", "true"]
STEPS = [
    "spawn and exec, shim",
    "place and claim",
    "clone3 to exec",
    "the shell itself",
    "what happened",
    "exit to caller",
]


class Daemon:
    """One thread over epoll: tickets go back into the FIFO when their connection ends; t=0 is answered at once."""

    def __init__(self, box: Box) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(box.folder / "sock"))
        self.listener.listen(4096)
        os.mkfifo(box.folder / "tickets")
        self.fifo = os.open(box.folder / "tickets", os.O_RDWR | os.O_NONBLOCK)
        self.free = list(range(POOL // 2 + 1, POOL + 1))
        for number in range(1, POOL // 2 + 1):
            self.issue(number)

    def issue(self, number: int) -> None:
        os.write(self.fifo, struct.pack("<I", number))

    def serve(self) -> None:
        epoll = select.epoll()
        epoll.register(self.listener, select.EPOLLIN)
        calls: dict[int, tuple[socket.socket, list[int]]] = {}
        while True:
            for fd, _ in epoll.poll():
                if fd == self.listener.fileno():
                    connection, _ = self.listener.accept()
                    calls[connection.fileno()] = connection, []
                    epoll.register(connection, select.EPOLLIN)
                    continue
                connection, asked = calls[fd]
                message = connection.recv(16384)
                if message:
                    self.answer(connection, asked, message)
                    continue
                epoll.unregister(fd)
                connection.close()
                del calls[fd]
                for number in asked:
                    (self.issue if number > 0 else self.free.append)(abs(number))

    def answer(self, connection: socket.socket, asked: list[int], message: bytes) -> None:
        key, _, value = message.split(b"\0")[1].partition(b"=")
        if key == b"t" and value != b"0":
            asked.append(int(value))
        elif key == b"t":
            number = self.free.pop()
            asked.append(-number)
            connection.send(b"run %d" % number)
        elif key == b"e" and b"q=1" not in message.split(b"\0"):
            connection.send(b"")


@contextlib.contextmanager
def in_child(work: Callable[[], None]) -> Iterator[int]:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)


def spawn(program: Path | str, environment: dict[str, str], actions: list[tuple[int, ...]] | None = None) -> float:
    """Microseconds of one call."""
    began = time.perf_counter_ns()
    pid = os.posix_spawn(program, COMMAND, environment, file_actions=actions or [])
    _, status = os.waitpid(pid, 0)
    took = (time.perf_counter_ns() - began) / 1000
    if status:
        raise RuntimeError(f"{program}: wait status {status}")
    return took


def median(values: list[float]) -> str:
    """The median and its 95 % interval."""
    low, high = interval(values)
    return f"{statistics.median(values):7.0f}  [{low:.0f} .. {high:.0f}]"


def compare(ways: dict[str, Callable[[], float]], rounds: int, gap: float) -> dict[str, list[float]]:
    """Every way once a round, in random order, gap seconds apart."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name in random.sample(list(ways), len(ways)):
            time.sleep(gap)
            times[name].append(ways[name]())
    return times


def report(title: str, times: dict[str, list[float]]) -> None:
    base, *others = times
    print(f"{title}, n={len(times[base])}, us: p50 [95 % of it]; p25, p75; paired difference to {base}")
    for name, values in times.items():
        quarters = statistics.quantiles(values, n=4)
        print(f"  {name:<22}{median(values)}  {quarters[0]:6.0f} {quarters[2]:6.0f}", end="")
        if name in others:
            print(f"   {median([a - b for a, b in zip(values, times[base], strict=True)])}", end="")
        print()


def breakdown(shim: Path, rounds: int, gap: float) -> None:
    """From the stamps that a shim built with AGC_TRACE writes: the child's one, then the parent's five."""
    reader, writer = os.pipe()
    actions = [(os.POSIX_SPAWN_DUP2, writer, TRACE_FD)]
    steps: list[list[float]] = [[] for _ in STEPS]
    for _ in range(rounds):
        time.sleep(gap)
        began = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        spawn(shim, dict(os.environ), actions)
        ended = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        at_exec, main, told, _, reaped, end = struct.unpack("<6Q", os.read(reader, 48))
        stamps = [began, main, told, at_exec, reaped, end, ended]
        for step, (start, stop) in zip(steps, zip(stamps, stamps[1:], strict=False), strict=True):
            step.append((stop - start) / 1000)
    print(f"Where it goes, n={rounds}, us")
    for name, values in zip(STEPS, steps, strict=True):
        print(f"  {name:<22}{median(values)}")


def nested(box: Box, rounds: int, gap: float) -> None:
    """A shell in a call execs in place; measured from a process that sits in one."""

    def work() -> None:
        (box.calls / "fallback" / "cgroup.procs").write_text(str(os.getpid()))
        ways = {"plain": lambda: spawn(BASH, dict(os.environ)), "nested": lambda: spawn(box.shim, dict(os.environ))}
        report("A shell inside a call", compare(ways, rounds, gap))
        sys.stdout.flush()

    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("-n", type=int, default=500, help="rounds (at least 300 for a useful interval)")
    parser.add_argument("--gap", type=float, default=3.0, help="ms between calls")
    parser.add_argument("--no-batch", action="store_true", help="the daemon in SCHED_OTHER instead of SCHED_BATCH")
    options = parser.parse_args()
    gap, top = options.gap / 1000, cgroup_top()
    if top is None:
        sys.exit("bench/shim.py: needs a writable cgroup2")
    gc.disable()
    with short_folder() as base:
        box = Box(base / "dev", build_shim(base / "shim", base / "dev"), top)
        traced = build_shim(base / "traced", base / "dev", f"-DAGC_TRACE={TRACE_FD}")

        def serve() -> None:
            if not options.no_batch:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            Daemon(box).serve()

        with in_child(serve):
            time.sleep(0.5)
            plain, hinted = dict(os.environ), {**os.environ, "AGENT_RESOURCE_HINT": "memory:low"}
            ways = {
                "plain": lambda: spawn(BASH, plain),
                "through a ticket": lambda: spawn(box.shim, plain),
                "asked for (t=0)": lambda: spawn(box.shim, hinted),
            }
            report("bash -c true", compare(ways, options.n, gap))
            breakdown(traced, options.n, gap)
            nested(box, options.n, gap)
        box.remove()


if __name__ == "__main__":
    main()
