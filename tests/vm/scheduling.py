"""The scheduler as the tests and bench/sched.py treat it: switched, asked, and given work."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from podman import Background, Container, run, set_policy, wait_for

CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")
STATE, OWNER = Path("/sys/kernel/sched_ext/state"), Path("/sys/kernel/sched_ext/root/ops")
EXT = 7  # SCHED_EXT


def configure(mode: str) -> None:
    """Ask for a mode; whether it is to be had is another matter."""
    CONFIG.write_text(f"ack_ms: 2000\nscheduler: {mode}\n")
    run("systemctl", "reload", "agentcgroupd")


def status() -> tuple[str, str]:
    """The mode in which it is at work, and what keeps it from that."""
    found = json.loads(run("agentcgroup", "bpf", "status", "--json").stdout)["scheduler"]
    return found["mode"], found["why"]


def switch(mode: str) -> None:
    """Have it in that mode."""
    configure(mode)
    wait_for(lambda: status()[0] == mode, 10, lambda: f"{mode}, but it is {status()}")


def owner() -> str:
    """The kernel's word for whose scheduler it has; one that is on its way out has no name any more."""
    try:
        return OWNER.read_text().strip() if STATE.read_text().strip() != "disabled" else ""
    except OSError:  # no such file, or ENODEV while it goes
        return ""


def policies() -> None:
    """`sched-PRIORITY` and `sched-heavy`, which is batch with three times the weight; no limit that others need."""
    for priority in ("interactive", "normal", "batch"):
        set_policy(f"sched-{priority}", json.dumps({"priority": priority, "memory": {"agent_min": 0}}))
    heavy = {"priority": "batch", "memory": {"agent_min": 0}, "cpu": {"weight": 300}}
    set_policy("sched-heavy", json.dumps(heavy))


def burn(box: Container, threads: int, seconds: float) -> Background:
    """A call that computes on so many processes for so long."""
    one = f"import time; e = time.monotonic() + {seconds}\nwhile time.monotonic() < e: pass"
    return box.background(f"for i in $(seq {threads}); do python3 -c '{one}' & done; wait")


def cpu_s(box: Container) -> float:
    """CPU seconds of a container so far."""
    lines = dict(line.split() for line in (box.tree / "cpu.stat").read_text().splitlines())
    return int(lines["usage_usec"]) / 1e6


def shares(boxes: Sequence[Container], seconds: float) -> list[float]:
    """CPU seconds of each during the next while."""
    before = [cpu_s(box) for box in boxes]
    time.sleep(seconds)
    return [cpu_s(box) - was for box, was in zip(boxes, before, strict=True)]


def policy_of(pid: int) -> int:
    """Of a process."""
    return os.sched_getscheduler(pid)
