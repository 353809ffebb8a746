#!/usr/bin/env python3
"""What the scheduler gives and costs, beside the kernel's own with cpu.weight, by turns in one boot.

Runs in a test VM with two CPUs (tests/vm/run.py up NAME --smp 2), as root and with the daemon:

    python3 bench/sched.py [-n 2]

Each round has four parts: off, partial, off, full; so that a boot of two rounds loads the scheduler four times, which
is about what an emulated machine bears. A host's own load falls on all modes alike; CPU time is given as a share of the
time that the CPUs had by the same clock, and is not that of the machine below.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "vm"))

import scheduling
from podman import Container, Engine
from stats import interval

WAKEUPS, ROUND_TRIPS, FORKS, SPAN = 40, 400, 20, 10.0
CPUS = os.cpu_count() or 1

#: Milliseconds beyond the 10 that it asked to sleep for.
SLEEPER = f"""
import time
for _ in range({WAKEUPS}):
    began = time.monotonic()
    time.sleep(0.01)
    print((time.monotonic() - began) * 1000 - 10)
"""
#: Microseconds of a round trip between two processes.
PING = f"""
import os, time
(a, b), (c, d) = os.pipe(), os.pipe()
if os.fork() == 0:
    while os.read(a, 1) == b"x":
        os.write(d, b"y")
    os._exit(0)
for _ in range(10):
    began = time.monotonic()
    for _ in range({ROUND_TRIPS} // 10):
        os.write(b, b"x"); os.read(c, 1)
    print((time.monotonic() - began) * 1e6 / ({ROUND_TRIPS} // 10))
os.write(b, b".")
"""
#: Milliseconds of a fork, an exec and a wait.
FORK = f"""
import subprocess, time
for _ in range({FORKS}):
    began = time.monotonic()
    subprocess.run(["/bin/true"])
    print((time.monotonic() - began) * 1000)
"""


def printed(box: Container, program: str) -> list[float]:
    """What a Python program prints in a call of the container."""
    result = box.call(f"python3 - <<'EOF'\n{program}\nEOF")
    assert result.rc == 0, result
    return [float(line) for line in result.out.split()]


def host_work() -> float:
    """Seconds for a fixed piece of work on the host, outside of all containers."""
    began = time.monotonic()
    for _ in range(300_000):
        pass
    return time.monotonic() - began


Found = dict[tuple[str, str], list[float]]


def small(mode: str, boxes: dict[str, Container], found: Found) -> None:
    """What switches and forks cost, and the host's own work."""
    found["pipe round trip, us", mode] += printed(boxes["batch"], PING)
    found["fork, exec, wait, ms", mode] += printed(boxes["batch"], FORK)
    found["host work alone, ms", mode] += [host_work() * 1000 for _ in range(10)]


def hogs(mode: str, boxes: dict[str, Container], found: Found) -> None:
    """Who is urgent, beside four who are not."""
    work = scheduling.burn(boxes["batch"], 4, 60)
    time.sleep(6)
    found["wake-up of an interactive agent beside 4 hogs, ms late", mode] += printed(boxes["interactive"], SLEEPER)
    found["host work beside 4 hogs, ms", mode] += [host_work() * 1000 for _ in range(10)]
    for _ in range(2):
        began = time.monotonic()
        [used] = scheduling.shares([boxes["batch"]], SPAN)
        found["CPU time of 4 hogs, share of all", mode].append(used / (time.monotonic() - began) / CPUS)
    work.result()


def weights(mode: str, boxes: dict[str, Container], found: Found) -> None:
    """Both have used nothing before, and come to each level of credit at the same time: after some 4 and 20 s."""
    heavy, light = scheduling.burn(boxes["heavy"], 2, 50), scheduling.burn(boxes["light"], 6, 50)
    for rest in (8, 8):
        time.sleep(rest)
        three, one = scheduling.shares([boxes["heavy"], boxes["light"]], SPAN)
        found["weights 300 (2 threads) : 100 (6 threads)", mode].append(three / one)
    heavy.result(), light.result()
    time.sleep(60 - time.monotonic() % 60)  # credit is given anew


PARTS = {"small": small, "hogs": hogs, "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=2, help="rounds")
    parser.add_argument("--parts", nargs="*", default=[*PARTS], choices=[*PARTS])
    parser.add_argument("--modes", nargs="*", default=["off", "partial", "off", "full"])
    options = parser.parse_args()
    engine = Engine()
    found: Found = defaultdict(list)
    scheduling.policies()
    try:
        names = {"interactive": "interactive", "batch": "batch", "heavy": "heavy", "light": "batch"}
        boxes = {name: engine.start(policy=f"sched-{policy}") for name, policy in names.items()}
        for number in range(options.n):
            for mode in options.modes:
                began = time.monotonic()
                scheduling.switch(mode)
                for part in options.parts:
                    PARTS[part](mode, boxes, found)
                print(f"round {number + 1}, {mode}: {time.monotonic() - began:.0f} s", flush=True)
    finally:
        scheduling.configure("off")
        engine.clean()
    for what in dict.fromkeys(what for what, _ in found):
        print(what)
        plain = found[what, "off"]
        for mode in dict.fromkeys(options.modes):
            values = found[what, mode]
            low, high = interval(values)
            ratio = statistics.median(values) / statistics.median(plain)
            print(f"  {mode:8} {statistics.median(values):9.3f} [{low:.3f}, {high:.3f}] n {len(values)}  x {ratio:.3f}")


if __name__ == "__main__":
    main()
