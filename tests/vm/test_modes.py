"""The ways in which people start containers: in each of them a call has its own cgroup, its limit is in force and its
status arrives, or the container is left as the engine made it and the journal says why.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from podman import CGROUPFS, Container, Engine, governed, nothing_left, run, wait_for

ENTRY = "cat /proc/self/cgroup >/agent/entry; exec python3 /agent/agent.py /agent/agent.sock"

KUBE = """
apiVersion: v1
kind: Pod
metadata:
  name: modes-kube
  annotations: {{agentcgroup.io/policy: test}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: agent
    image: localhost/debian
    imagePullPolicy: Never
    command: [python3, /agent/agent.py, /agent/agent.sock]
    resources: {{limits: {{memory: 512Mi}}}}
    volumeMounts: [{{name: agent, mountPath: /agent}}]
  volumes:
  - name: agent
    hostPath: {{path: {shared}, type: Directory}}
"""

QUADLET = """
[Container]
ContainerName=modes-quadlet
Image=localhost/debian
Pull=never
Network=none
Annotation=agentcgroup.policy=test
Volume={shared}:/agent
Exec=python3 /agent/agent.py /agent/agent.sock
PodmanArgs=--stop-timeout=0
[Service]
MemoryMax=512M
"""

UNIT = f"""
[Unit]
DefaultDependencies=no
[Service]
ExecStart=/bin/sh -c '{ENTRY}'
"""


@pytest.fixture
def id_ranges() -> Iterator[None]:
    """Ids that --userns=auto may hand out (containers-storage.conf(5), "auto-userns")."""
    files = [Path("/etc/subuid"), Path("/etc/subgid")]
    before = [path.read_text() for path in files]
    for path, text in zip(files, before, strict=True):
        path.write_text(text + "containers:1000000:1000000\n")
    yield
    for path, text in zip(files, before, strict=True):
        path.write_text(text)


@pytest.fixture(scope="module")
def runc() -> Iterator[Engine]:
    """The other runtime with the other cgroup manager."""
    engine = Engine("runc", "cgroupfs")
    yield engine
    engine.clean()


def test_under_an_init_and_as_another_user(runc: Engine) -> None:
    container = runc.start("--init", "--user=1000", command=("sh", "-c", ENTRY))
    assert container.record["cooperative"] == []
    assert (container.agent / "entry").read_text() == "0::/agentcgroup/agent\n"
    governed(container)
    governed(container, shell="sh")
    assert container.call("id -u; kill -TERM $$").out == "1000\n"
    assert container.call("kill -TERM $$").rc == -signal.SIGTERM


@pytest.mark.parametrize("which", ["file_engine", "runc"])
def test_in_a_user_namespace_without_capabilities_and_with_a_read_only_root(
    which: str, request: pytest.FixtureRequest, id_ranges: None
) -> None:
    engine = request.getfixturevalue(which)
    container = engine.start("--userns=auto", "--cap-drop=all", "--read-only")
    assert container.record["cooperative"] == []
    assert container.record["uid"] >= 1000000
    assert container.call("id -u; grep CapEff /proc/self/status").out == "0\nCapEff:\t0000000000000000\n"
    assert container.call("touch /file").rc == 1
    governed(container)
    governed(container, shell="sh")


def test_in_the_hosts_cgroup_namespace(file_engine: Engine) -> None:
    container = file_engine.start("--cgroupns=host")
    assert container.record["cooperative"] == ["host cgroup namespace"]
    governed(container)


def test_a_privileged_container_is_governed_and_said_to_be_cooperative(file_engine: Engine, journal) -> None:
    container = file_engine.start("--privileged")
    assert "cooperative: CAP_SYS_ADMIN" in journal.text()
    [row] = [line for line in run("agentcgroup", "ps").stdout.splitlines() if line.startswith(container.id[:12])]
    assert "cooperative: CAP_SYS_ADMIN" in row
    governed(container)
    governed(container, shell="sh")
    heavy = container.call("AGENT_RESOURCE_HINT=memory:64M python3 -c 'bytearray(100 << 20)'")
    assert heavy.rc == -signal.SIGKILL
    assert any("64 MiB" in line for line in heavy.feedback), heavy.err


def test_without_cgroups_the_callers_own_stays_untouched(file_engine: Engine, journal) -> None:
    """A prototype took over ssh.service: with --cgroups=disabled init runs in the cgroup of podman's caller."""
    own = CGROUPFS / Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")

    def groups() -> dict[Path, str]:
        return {path: path.read_text() for path in own.rglob("cgroup.subtree_control")}

    before = groups()
    container = file_engine.start("--cgroups=disabled")
    assert groups() == before
    assert "is not the container's own" in journal.text()
    done = container.call("cat /proc/self/cgroup; ls /dev; exit 7")
    assert done.rc == 7
    assert "agentcgroup" not in done.out


def test_in_a_pod_from_kube_yaml(file_engine: Engine, tmp_path: Path) -> None:
    shared = file_engine.shared_directory()
    (tmp_path / "pod.yaml").write_text(KUBE.format(shared=shared))
    file_engine.podman("kube", "play", "--network=none", str(tmp_path / "pod.yaml"))
    try:
        container = named(file_engine, "modes-kube-agent", shared)
        assert container.record["cooperative"] == []
        assert "/machine-libpod_pod_" in container.record["base"]
        governed(container)
        assert int((container.tree / "memory.max").read_text()) == (512 - 4) << 20
    finally:
        file_engine.podman("kube", "down", "--force", str(tmp_path / "pod.yaml"))
    nothing_left(container.id)


def test_as_a_quadlet(file_engine: Engine) -> None:
    """quadlet starts podman with --cgroups=split: the container lives in its unit's cgroup."""
    shared = file_engine.shared_directory()
    quadlet = Path("/etc/containers/systemd/modes-quadlet.container")
    quadlet.parent.mkdir(parents=True, exist_ok=True)
    quadlet.write_text(QUADLET.format(shared=shared))
    run("systemctl", "daemon-reload")
    try:
        run("systemctl", "start", "modes-quadlet.service")
        container = named(file_engine, "modes-quadlet", shared)
        assert "/modes-quadlet.service/" in container.record["base"]
        governed(container)
        assert int((container.tree / "memory.max").read_text()) == 512 << 20
    finally:
        run("systemctl", "stop", "modes-quadlet.service")
        quadlet.unlink()
    nothing_left(container.id)
    assert not list(CGROUPFS.rglob("modes-quadlet.service"))


def test_under_systemd_a_unit_is_the_agent_and_its_shells_are_calls(file_engine: Engine) -> None:
    """podman#8401: exec into a container with systemd in it was EBUSY."""
    shared = file_engine.shared_directory()
    (shared / "agent.service").write_text(UNIT)
    container = file_engine.run(
        f"--volume={shared}:/agent",
        f"--volume={shared}/agent.service:/etc/systemd/system/agent.service:ro",
        image="localhost/systemd",
        command=("/sbin/init", "--unit=agent.service"),
    )
    container.agent = shared
    wait_for(container.answers, 30, "the agent")
    assert re.fullmatch(r"0::/agentcgroup/agent/.*agent\.service\n", (shared / "entry").read_text())
    done = container.exec("cat", "/proc/self/cgroup")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0::/agentcgroup/agent/")
    governed(container)
    governed(container, shell="sh")


def named(engine: Engine, name: str, shared: Path) -> Container:
    """A container that something else has started, once its agent takes requests."""
    container = engine.adopt(engine.podman("inspect", "--format={{.Id}}", name).stdout.strip(), shared)
    wait_for(container.answers, 10, "the agent")
    return container
