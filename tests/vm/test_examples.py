"""The packaged examples, run as they are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import service
from podman import Container, Engine, run, wait_for

EXAMPLES = Path("/usr/share/agentcgroup/examples")
HOOKS_D = Path("/usr/share/containers/oci/hooks.d")
LOCAL_HOOKS_D = Path("/usr/local/share/containers/oci/hooks.d")
IMAGE = "localhost/my-agent"
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def image() -> Iterator[None]:
    """The image that the examples name; it sleeps."""
    base = run("podman", "create", "localhost/debian").stdout.strip()
    run("podman", "commit", "-q", "--change", 'CMD ["sleep", "1000"]', "--change", "STOPSIGNAL KILL", base, IMAGE)
    run("podman", "rm", base)
    yield
    run("podman", "rmi", IMAGE)


def of_policy(engine: Engine, name: str, policy: str) -> Container:
    """The container of this name; it must be governed by that policy, and a command in it a call."""
    shown = json.loads(run("podman", "inspect", name).stdout)
    container = engine.adopt(shown[0]["Id"], Path())
    wait_for(lambda: service.governs(container.id), 5, name)
    assert container.record["policy"] == policy
    assert container.exec("bash", "-c", "cat /proc/self/cgroup").stdout.startswith("0::/agentcgroup/calls/")
    return container


def test_the_quadlet(engine: Engine) -> None:
    unit = Path("/etc/containers/systemd/agent.container")
    shutil.copy(EXAMPLES / "quadlet/agent.container", unit)
    try:
        run("systemctl", "daemon-reload")
        run("systemctl", "start", "agent.service")
        container = of_policy(engine, "agent", "coding-agent")
        assert "/agentcgroup.slice/agent.service/" in container.record["base"]
        limits = json.loads(container.exec("cat", "/dev/agentcgroup/limits").stdout)
        assert limits["call_memory_default"] == 1024 * MIB
    finally:
        run("systemctl", "stop", "agent.service")
        unit.unlink()
        run("systemctl", "daemon-reload")


def test_the_pod(engine: Engine) -> None:
    manifest = str(EXAMPLES / "kube/agent.yaml")
    try:
        run("podman", "kube", "play", manifest)
        container = of_policy(engine, "agent-main", "coding-agent")
        infra = run("podman", "pod", "inspect", "--format", "{{.InfraContainerID}}", "agent").stdout.strip()
        assert not service.governs(infra)
        assert json.loads(container.exec("cat", "/dev/agentcgroup/limits").stdout)["memory_max"] <= 1024 * MIB
    finally:
        run("podman", "kube", "down", "--force", manifest)


def test_compose(engine: Engine) -> None:
    compose = ("podman-compose", "--in-pod=false", "-p", "example", "-f", str(EXAMPLES / "compose/compose.yaml"))
    try:
        run(*compose, "up", "-d")
        container = of_policy(engine, "example_agent_1", "coding-agent")
        limits = json.loads(container.exec("cat", "/dev/agentcgroup/limits").stdout)
        assert limits["call_memory_default"] == 1024 * MIB and limits["memory_max"] <= 4096 * MIB
    finally:
        run(*compose, "down", "-t", "0")


@pytest.fixture
def local_hook() -> Iterator[None]:
    """The hook's JSON where `make install PREFIX=/usr/local` puts it, and nowhere else."""
    LOCAL_HOOKS_D.mkdir(parents=True)
    name = "50-agentcgroup.json"
    shutil.move(HOOKS_D / name, LOCAL_HOOKS_D / name)
    yield
    shutil.move(LOCAL_HOOKS_D / name, HOOKS_D / name)
    shutil.rmtree("/usr/local/share/containers")


def test_hooks_below_another_prefix_run_once_podman_is_told_of_them(local_hook: None, engine: Engine) -> None:
    def started(*options: str) -> str:
        asked = ("run", "--rm", "--network=none", "--annotation=agentcgroup.policy=test", "localhost/debian")
        return run("podman", *options, *asked, "bash", "-c", "cat /proc/self/cgroup").stdout

    assert started() == "0::/\n"
    assert started("--module", str(EXAMPLES / "containers.conf.d/50-agentcgroup.conf")).startswith("0::/agentcgroup/")
