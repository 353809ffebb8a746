"""By hand, `make soak`: a hundred thousand tiny calls that nobody asked for, beside a container that works."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import service
from bpftool import counter, dumped
from podman import Background, Container, Engine, wait_for

pytestmark = pytest.mark.timeout(2 * 3600)
TINY = 100_000
FLOOD = Path(__file__).resolve().parents[1] / "vm/attacks/flood.py"
TIMED_OUT = 124  # timeout(1)


def start_flood(attacker: Container) -> Background:
    """Four minutes of it: an answer of the agent is waited for five minutes long."""
    return Background(lambda: attacker.spawn(["timeout", "240", "python3", "/agent/flood.py", "tiny", "/agent/stop"]))


def test_tiny_calls_fill_no_map_and_starve_nobody(engine: Engine) -> None:
    attacker, bystander = engine.start("--security-opt=apparmor=unconfined"), engine.start()
    (attacker.agent / "flood.py").write_text(FLOOD.read_text())
    before, began = service.resident_kib(), time.monotonic()
    flood = start_flood(attacker)
    most = calls = 0
    while (ended := counter(attacker, "ended")) < TINY:
        if not flood.running:
            assert flood.result().rc == TIMED_OUT, (ended, flood.result())
            flood = start_flood(attacker)
        assert bystander.call("/bin/true; exit 3").rc == 3
        calls += 1
        most = max(most, len(dumped("calls")))
        time.sleep(2)
    (attacker.agent / "stop").touch()
    assert flood.result().rc in (0, TIMED_OUT)
    records = bystander.settled(calls)
    whole = sum(record["processes"] == 2 for record in records)
    dropped = counter(attacker, "dropped"), counter(bystander, "dropped")
    print(
        f"\n{ended} tiny calls in {time.monotonic() - began:.0f} s; at most {most} entries in `calls`; dropped events:"
        f" {dropped[0]}, of the other container {dropped[1]}; {whole} of its {calls} calls whole in the records;"
        f" the daemon {before} -> {service.resident_kib()} KiB"
    )
    assert most <= 8 and dropped[1] == 0 and whole >= 0.95 * calls
    wait_for(lambda: dumped("calls") == [], 10, "nothing of a call to be in the kernel's maps")
