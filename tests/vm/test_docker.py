"""Docker's containers by agentcgroup-runtime, with dockerd as it is installed and the packaged daemon.json."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import service
from conftest import Journal, leftovers
from docker_api import Docker, DockerContainer, DockerError, import_image
from podman import fill, governed, nothing_left, run, wait_for

EXAMPLE = Path("/usr/share/agentcgroup/examples/docker/daemon.json")
ETC = Path("/etc/docker/daemon.json")
FIRST = {"agentcgroup.policy": "test"}


@pytest.fixture(scope="module")
def dockerd(rootfs: Path) -> Iterator[None]:
    """dockerd with an image of ours; it ends with the file, and its network and storage go."""
    ETC.parent.mkdir(exist_ok=True)
    ETC.write_text(json.dumps({**json.loads(EXAMPLE.read_text()), "iptables": False}))  # podman's are left alone
    run("systemctl", "start", "docker.service")
    import_image(rootfs, "debian")
    yield
    run("systemctl", "stop", "docker.socket", "docker.service", "containerd.service")
    subprocess.run(["ip", "link", "delete", "docker0"], check=True)
    ETC.unlink()
    shutil.rmtree("/var/lib/docker")


@pytest.fixture
def docker(dockerd: None) -> Iterator[Docker]:
    """Its containers end with the test and leave nothing."""
    before = leftovers()
    engine = Docker()
    yield engine
    engine.clean()
    wait_for(lambda: leftovers() <= before, 10, "nothing left behind")


@pytest.fixture(scope="module")
def box(dockerd: None) -> Iterator[DockerContainer]:
    """A governed container that tests share."""
    engine = Docker()
    yield engine.run(name="docker-box", **FIRST)
    engine.clean()


def cgroup_of(container: DockerContainer) -> str:
    return container.exec("cat", "/proc/self/cgroup").stdout


def test_its_name_and_engine_are_dockers(box: DockerContainer) -> None:
    shown = run("agentcgroup", "ps").stdout.splitlines()[1]
    assert shown.split()[:3] == [box.id[:12], "docker-box", "test"]
    assert (box.record["engine"], box.record["called"], box.record["cooperative"]) == ("docker", "docker-box", [])
    assert run("agentcgroup", "calls", "--json", "docker-box").stdout == "[]\n"


def test_each_call_has_its_cgroup(box: DockerContainer) -> None:
    governed(box)
    assert box.call("cat /proc/self/cgroup", shell="sh").out.startswith("0::/agentcgroup/calls/")


def test_what_dockerd_executes_is_governed(box: DockerContainer) -> None:
    assert cgroup_of(box) == "0::/agentcgroup/agent\n"
    done = box.exec("bash", "-c", "cat /proc/self/cgroup; echo no >&2; exit 3")
    assert done.stdout.startswith("0::/agentcgroup/calls/")
    assert (done.returncode, done.stderr) == (3, "no\n")


def test_a_call_over_its_limit_ends_alone(box: DockerContainer) -> None:
    result = box.call(fill(300))
    assert result.rc in (-9, 137)
    assert "out of memory" in result.feedback[0]
    assert box.call("echo on").out == "on\n"
    assert box.inspect()["State"]["OOMKilled"] is False
    record = box.record_of(result.number)
    assert (record["name"], record["oom_kills"] > 0) == ("docker-box", True)


def test_a_call_over_its_limit_in_exec_is_told_there(box: DockerContainer) -> None:
    done = box.exec("bash", "-c", fill(300))
    assert done.returncode == 137
    assert "[agentcgroup] Call " in done.stderr


def test_update_moves_the_limits_of_calls(box: DockerContainer) -> None:
    box.post("update", {"Memory": 192 << 20, "MemorySwap": 192 << 20})
    wait_for(lambda: box.call("echo look").rc == 0 and service.ask(op="ps")["containers"][0]["memory_max"] <= 192 << 20,
             10, "the new limit")  # fmt: skip
    call = box.hold()
    assert call.limit() < 192 << 20
    call.finish()
    box.post("update", {"Memory": 2 << 30, "MemorySwap": 2 << 30})


def test_stop_start_and_restart(docker: Docker) -> None:
    container = docker.run(**FIRST)
    first = container.record["pid"]
    container.post("restart?t=0")
    wait_for(container.answers, 10, "the agent")
    assert container.record["pid"] == container.pid != first
    governed(container)
    container.post("stop?t=0")
    nothing_left(container.id)
    assert not service.governs(container.id)
    container.post("start")
    wait_for(container.answers, 10, "the agent")
    governed(container)


def test_policies_of_annotations_in_docker_are_as_podmans(docker: Docker) -> None:
    container = docker.run(**FIRST, **{"agentcgroup.call.memory.default": "128M"})
    governed(container, 128 << 20)


def test_a_hardened_container_is_governed(docker: Docker) -> None:
    hardened = {"ReadonlyRootfs": True, "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], "Init": True}
    container = docker.run(**FIRST, host={"NetworkMode": "none", **hardened})
    governed(container)


@pytest.mark.parametrize("runtime", [None, "agentcgroup"])
def test_a_container_that_does_not_ask_is_left_alone(docker: Docker, runtime: str | None) -> None:
    container = docker.run(runtime=runtime)
    assert cgroup_of(container) == "0::/\n"
    assert "agentcgroup" not in Path(f"/proc/{container.pid}/mountinfo").read_text()
    bundle = json.loads(
        Path(f"/run/containerd/io.containerd.runtime.v2.task/moby/{container.id}/config.json").read_text()
    )
    assert "agentcgroup" not in json.dumps(bundle["hooks"])
    assert not service.governs(container.id)


def test_a_required_policy_that_is_not_there_is_told_by_docker(docker: Docker) -> None:
    container = docker.create(**{"agentcgroup.policy": "nowhere", "agentcgroup.required": "true"})
    with pytest.raises(DockerError, match="agentcgroup-hook: container .*nowhere"):
        container.post("start")
    assert not service.governs(container.id)


def test_a_privileged_container_is_cooperative(docker: Docker) -> None:
    container = docker.run(**FIRST, host={"Privileged": True})
    assert container.record["cooperative"]
    assert container.call("echo on").out == "on\n"


def test_a_daemon_that_is_killed_leaves_the_container_governed(box: DockerContainer, journal: Journal) -> None:
    service.kill()
    governed(box)
    assert box.record["called"] == "docker-box"
    assert "Traceback" not in journal.text()
