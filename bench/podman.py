#!/usr/bin/env python3
"""What a policy adds to `podman run --rm IMAGE true`: pairs, one with and one without the annotation, in random order.

Runs where podman and the product are installed, as root; `make bench` runs it in the VM, where only the ratio means
something.

    python3 bench/podman.py [-n 20] [--image localhost/debian] [--policy coding-agent]
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import time

from stats import interval, summary


def run(image: str, policy: str | None) -> float:
    """Seconds of one whole `podman run`."""
    annotation = [f"--annotation=agentcgroup.policy={policy}"] if policy else []
    began = time.perf_counter()
    subprocess.run(["podman", "run", "--rm", "--network=none", *annotation, image, "true"], check=True)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=20, help="pairs")
    parser.add_argument("--image", default="localhost/debian")
    parser.add_argument("--policy", default="coding-agent")
    options = parser.parse_args()
    run(options.image, None)
    run(options.image, options.policy)
    ratios, plain, governed = [], [], []
    for _ in range(options.n):
        kinds = [None, options.policy]
        random.shuffle(kinds)
        spent = {kind: run(options.image, kind) for kind in kinds}
        plain.append(spent[None])
        governed.append(spent[options.policy])
        ratios.append(governed[-1] / plain[-1])
    low, high = interval(ratios)
    print(f"without   {summary(plain, 's')}")
    print(f"governed  {summary(governed, 's')}")
    print(f"ratio     p50 {statistics.median(ratios):.3f} [{low:.3f}, {high:.3f}] of {options.n} pairs")


if __name__ == "__main__":
    main()
