#!/usr/bin/env python3
"""Three containers whose calls together need more than their slice has (tests/vm/fleet.py): who is killed or stuck.

Runs in the test VM, as root, with `bpf: true` for the mode `governed`:

    python3 bench/fleet.py [-n 5] [--scheduler partial] [MODE...]

Modes: `governed` by agentcgroup; `plain`, MemoryMax alone; `high`, with MemoryHigh at 15/16 of it; `freeze`, where the
batch containers are frozen at 15/16 and thawed when the interactive call has ended. With the scheduler, who crosses is
parked by the kernel until the daemon has decided.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "vm"))

import fleet
import scheduling
from bpftool import counter
from podman import Background, Engine
from stats import summary

PATIENCE = 180  # seconds, some six times what a run takes with room for all
LOAD = fleet.LARGE
LAGS: list[float] = []
PARKED: list[float] = []
ALMOST = LOAD.budget * 15 // 16


@contextmanager
def freezing(three: fleet.Fleet, calls: list[Background]) -> Iterator[None]:
    """A watcher that knows no reserves: at ALMOST both batch containers stop until the interactive call has ended."""
    groups = [fleet.cgroup_of(box) / "cgroup.freeze" for box in three.containers[1:]]
    over = threading.Event()

    def watch() -> None:
        while calls[0].running and not over.is_set():
            if int((fleet.GROUP / "memory.current").read_text()) > ALMOST * fleet.MIB:
                for group in groups:
                    group.write_text("1")
            time.sleep(0.002)
        for group in groups:
            group.write_text("0")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def one(mode: str) -> str:
    """A run of three calls, in words."""
    engine = Engine()
    limits = {"MemoryHigh": f"{ALMOST}M"} if mode == "high" else {}
    with fleet.budget(LOAD.budget, **limits):
        try:
            three = fleet.start(engine, LOAD, governed=mode == "governed")
            began = time.monotonic()
            calls = three.all_at_once()
            if mode == "freeze":
                with freezing(three, calls):
                    wait(calls, began)
            else:
                wait(calls, began)
            if mode == "governed":
                LAGS.extend(lags(three))
                PARKED.extend(counter(box, "park_lag_ns") / 1e6 for box in three.containers if counter(box, "parks"))
            stuck = [call for call in calls if call.running]
            done = [call.result() for call in calls if not call.running]
            ok = sum(result.rc == 0 for result in done)
            return f"{ok} finished, {len(stuck)} stuck, {fleet.oom_kills()} OOM kills, {time.monotonic() - began:.0f} s"
        finally:
            engine.clean()


def lags(three: fleet.Fleet) -> list[float]:
    """Milliseconds from the charge that crossed to the hold, in the records of its calls."""
    steps = [step for box in three.containers for step in box.settled(1)[-1]["steps"]]
    return [step["lag_s"] * 1000 for step in steps if step["step"] == "hold" and step["lag_s"] is not None]


def wakeups(count: int = 200) -> list[float]:
    """Milliseconds until a process that waits for a byte has been woken, read the clock and been read."""
    (theirs, ours), (back, forth) = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        while os.read(theirs, 1) == b"x":
            os.write(forth, struct.pack("d", time.monotonic()))
        os._exit(0)
    found = []
    for _ in range(count):
        time.sleep(0.01)
        sent = time.monotonic()
        os.write(ours, b"x")
        found.append((struct.unpack("d", os.read(back, 8))[0] - sent) * 1000)
    os.write(ours, b".")
    os.waitpid(child, 0)
    return found


def wait(calls: list[Background], began: float) -> None:
    """Until all have ended, or for PATIENCE."""
    while any(call.running for call in calls) and time.monotonic() - began < PATIENCE:
        time.sleep(0.2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=5, help="runs of each mode")
    parser.add_argument("modes", nargs="*", default=["governed", "plain", "high", "freeze"])
    parser.add_argument("--scheduler", default="off", choices=["off", "partial", "full"])
    options = parser.parse_args()
    fleet.policies(LOAD)
    scheduling.switch(options.scheduler)
    for mode in options.modes:
        for number in range(1, options.n + 1):
            print(f"{mode:8}  run {number}: {one(mode)}", flush=True)
    if PARKED:
        print(f"from the charge to the park  {summary(PARKED, 'ms')}, most {max(PARKED):.1f} ms")
    if LAGS:
        print(f"from the charge to the hold  {summary(LAGS, 'ms')}, most {max(LAGS):.1f} ms")
        print(f"a plain wake-up              {summary(wakeups(), 'ms')}")


if __name__ == "__main__":
    main()
