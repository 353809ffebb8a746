"""Runtimes that size themselves by what they find see the call's limits, not the host's (evener#301, P072)."""

from __future__ import annotations

import json
import os

import pytest
from podman import Container, Engine

MIB = 1 << 20
HINT = "AGENT_RESOURCE_HINT=memory:384m,cpu:0.5 "


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.start()


def test_java_sees_the_calls_memory_and_cpu(box: Container) -> None:
    shown = box.call(f"{HINT} java -XshowSettings:system -version 2>&1").out
    settings = dict(line.strip().split(": ", 1) for line in shown.splitlines() if ": " in line)
    assert settings["Provider"] == "cgroupv2"
    assert (settings["Memory Limit"], settings["CPU Quota"], settings["CPU Period"]) == (
        "384.00M",
        "50000us",
        "100000us",
    )
    assert settings["Effective CPU Count"] == "1"


def test_node_sees_the_calls_memory(box: Container) -> None:
    """V8's heap is sized by it; a larger one ends as an OOM instead of an exception."""
    script = "console.log(JSON.stringify([process.constrainedMemory(), v8.getHeapStatistics().heap_size_limit]))"
    constrained, heap = json.loads(box.call(f"{HINT} node -e '{script}'").out)
    assert constrained == 384 * MIB
    assert heap < 384 * MIB


def test_go_takes_as_many_threads_as_the_call_has_cpus(box: Container) -> None:
    """GOMAXPROCS is at least 2 where the host has as many (Go 1.25)."""
    assert box.call(f"{HINT} runtime-limits").out == f"GOMAXPROCS {min(2, os.cpu_count() or 1)}\n"
