"""Runtimes that size themselves by their cgroup see the limits of the call they run in (P022, P072)."""

from collections.abc import Iterator

import pytest
from podman import Container, Engine

MIB = 1 << 20


@pytest.fixture(scope="module")
def container(file_engine: Engine) -> Iterator[Container]:
    yield file_engine.start()


def test_a_jvm_sees_the_memory_limit_of_its_call(container: Container) -> None:
    result = container.call("AGENT_RESOURCE_HINT=memory:384m java -Xint -XshowSettings:system -version 2>&1")
    assert result.rc == 0, result.out
    assert f"Memory Limit: {384:.2f}M" in result.out, result.out


def test_node_sees_the_memory_limit_of_its_call(container: Container) -> None:
    result = container.call("AGENT_RESOURCE_HINT=memory:384m node -p 'process.constrainedMemory()'")
    assert result.out.strip() == str(384 * MIB), result.err


def test_go_sees_the_cpu_limit_of_its_call(container: Container) -> None:
    """Go 1.25 and newer take GOMAXPROCS from cpu.max, and never less than 2 unless the machine has fewer."""
    cpu_max = "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpu.max"
    result = container.call(f"AGENT_RESOURCE_HINT=cpu:0.5 bash -c '{cpu_max}; runtime-limits'")
    assert result.out.splitlines()[0] == "50000 100000"
    assert result.out.splitlines()[1].startswith("GOMAXPROCS "), result.err


def test_the_limits_in_force_can_be_read_by_anybody_inside(container: Container) -> None:
    """P075"""
    import json

    limits = json.loads(container.exec("cat", "/dev/agentcgroup/limits").stdout)
    assert (limits["memory_max"], limits["call_memory_default"]) == (1024 * MIB, 256 * MIB)
    assert (limits["calls_memory_max"], limits["call_memory_most"]) == (960 * MIB, 640 * MIB)
