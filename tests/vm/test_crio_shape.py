"""Containers as CRI-O makes them, run by crun and runc themselves: its cgroup paths, its annotations, an indented
config.json, RuntimeDefault's answer to clone3, and kubelet's memory.oom.group.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bundle import HOOK, Bundle
from conftest import Journal
from podman import CGROUPFS, fill, nothing_left, run, wait_for

UID = "1f0a6f0c_9b3e_4d0e_8a52_0c5b2f7a6e11"
SLICE = f"kubepods-burstable-pod{UID}.slice"
POD_CGROUP = f"/kubepods/burstable/pod{UID.replace('_', '-')}"
ENOSYS = 38
KUBELET_LIMIT = 512 << 20
IN_A_CALL = re.compile(r"0::/agentcgroup/calls/\d+\n")
CLONE3 = (
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True); libc.syscall(435, None, 0); print(ctypes.get_errno())"
)
ENDS = [("crun", "systemd"), ("crun", "cgroupfs"), ("runc", "systemd"), ("runc", "cgroupfs")]
#: A cgroup beside ours, in which processes are executed (`--cgroup` of crun and runc).
MAKE_LEAF = """import json, os, sys
pid = json.load(sys.stdin)["pid"]
os.mkdir("/sys/fs/cgroup" + open(f"/proc/{pid}/cgroup").read().strip().removeprefix("0::") + "/exec")"""
OTHER_HOOK = {"path": "/usr/bin/python3", "args": ["python3", "-c", MAKE_LEAF]}


class CrioBundle(Bundle):
    """`name`: the container's in its pod. The hook is in it where `agentcgroup match` says that CRI-O would run it."""

    def __init__(self, runtime: str, manager: str, rootfs: Path, name: str, **annotations: str) -> None:
        super().__init__(runtime + " --systemd-cgroup" * (manager == "systemd"), rootfs, {})
        self.indent = 4
        systemd = manager == "systemd"
        self.config["linux"]["cgroupsPath"] = f"{SLICE}:crio:{self.id}" if systemd else f"{POD_CGROUP}/crio-{self.id}"
        infra = name == "POD"
        self.config["annotations"] = {
            "io.container.manager": "cri-o",
            "io.kubernetes.container.name": name,
            "io.kubernetes.pod.name": "agents-0",
            "io.kubernetes.pod.namespace": "default",
            "io.kubernetes.pod.uid": UID.replace("_", "-"),
            "io.kubernetes.cri-o.ContainerType": "sandbox" if infra else "container",
            "io.kubernetes.cri-o.ContainerID": self.id,
            "io.kubernetes.cri-o.Annotations": json.dumps(annotations),
            "io.kubernetes.cri-o.Labels": '{"io.kubernetes.container.name":"' + name + '"}',
            **annotations,
        }
        self.config["linux"]["seccomp"] = {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS}],
        }
        if not infra:
            self.config["linux"]["resources"] |= {
                "memory": {"limit": KUBELET_LIMIT},
                "unified": {"memory.oom.group": "1"},
            }
        self.config["hooks"] = hooks_of(annotations)

    def state(self) -> str:
        return str(json.loads(run(*self.runtime, "state", self.id).stdout)["status"])

    @property
    def record(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(f"/run/agentcgroup/containers/{self.id}.json").read_text())
        return found

    def run(self, text: str, *options: str) -> subprocess.CompletedProcess[str]:
        """`bash -c` in it, as CRI-O executes a probe or what `kubectl exec` asks for."""
        return run(*self.runtime, "exec", *options, self.id, "bash", "-c", text, check=False)


def hooks_of(annotations: dict[str, str]) -> dict[str, list[dict[str, Any]]]:
    """What CRI-O takes from hooks.d, prestart at createRuntime, after a hook of somebody else's."""
    wanted = [f"--annotation={key}={value}" for key, value in annotations.items()]
    done = run("agentcgroup", "match", "--json", "--engine", "crio", *wanted, check=False)
    found: dict[str, list[dict[str, Any]]] = {"createRuntime": [OTHER_HOOK], "poststop": []}
    for hook in json.loads(done.stdout)["hooks"]:
        for stage in hook["stages"]:
            where = "createRuntime" if stage == "prestart" else stage
            found[where].append({key: hook[key] for key in ("path", "args", "timeout")})
    return found


@pytest.fixture
def pod(rootfs: Path) -> Iterator[Callable[..., CrioBundle]]:
    """Makes containers of one pod; nothing is left of them, and the pod's cgroup is empty."""
    made: list[CrioBundle] = []

    def make(runtime: str, manager: str, name: str = "agent", **annotations: str) -> CrioBundle:
        made.append(CrioBundle(runtime, manager, rootfs, name, **annotations))
        done = made[-1].start()
        assert done.returncode == 0, done.stdout
        return made[-1]

    yield make
    for each in made:
        each.delete()
        nothing_left(each.id)
    run("systemctl", "stop", "kubepods.slice", check=False)
    for folder in sorted((path for path in CGROUPFS.glob("kubepods/**/") if path.is_dir()), reverse=True):
        folder.rmdir()


@pytest.mark.parametrize(("runtime", "manager"), ENDS)
def test_a_container_of_a_pod(pod: Callable[..., CrioBundle], runtime: str, manager: str) -> None:
    box = pod(runtime, manager, **{"policy.agentcgroup.io/agent": "test"})
    record, base = box.record, Path(box.record["base"])
    assert (record["engine"], record["policy"], record["cooperative"]) == ("crio", "test", [])
    assert re.search(rf"crio-{box.id}(\.scope)?(/container)?$", str(base))
    assert (base / "memory.oom.group").read_text() == "1\n" or base.name == "container"
    assert int((base / "agentcgroup/calls/memory.max").read_text()) < KUBELET_LIMIT
    [row] = run("agentcgroup", "ps").stdout.splitlines()[1:]
    assert row.split()[:3] == [box.id[:12], "agent", "test"]

    assert box.run(f"python3 -c '{CLONE3}'").stdout == f"{ENOSYS}\n"
    assert IN_A_CALL.fullmatch(box.run("cat /proc/self/cgroup").stdout)
    assert box.run("exit 7").returncode == 7

    assert (base / "exec").is_dir()
    assert run(*box.runtime, "exec", "--cgroup=exec", box.id, "cat", "/proc/self/cgroup").stdout == "0::/exec\n"
    beside = box.run("cat /proc/self/cgroup; exit 5", "--cgroup=exec")
    assert beside.returncode == 5 and IN_A_CALL.fullmatch(beside.stdout), beside

    killed = box.run(fill(300))
    assert killed.returncode == 137 and "out of memory" in killed.stderr, killed
    assert box.run("echo on").stdout == "on\n"
    assert box.state() == "running"


def test_a_key_of_the_pod_means_all_containers_but_the_infra_container(pod: Callable[..., CrioBundle]) -> None:
    annotations = {"agentcgroup.io/policy": "test"}
    infra = pod("crun", "systemd", "POD", **annotations)
    assert HOOK in json.dumps(infra.config["hooks"])  # CRI-O itself would not run it here
    agent = pod("crun", "systemd", "agent", **annotations)
    assert not Path(f"/run/agentcgroup/containers/{infra.id}.json").exists()
    assert infra.run("cat /proc/self/cgroup").stdout == "0::/\n"
    assert IN_A_CALL.fullmatch(agent.run("cat /proc/self/cgroup").stdout)


def test_a_key_for_one_container_leaves_the_others_alone(pod: Callable[..., CrioBundle], journal: Journal) -> None:
    sidecar = pod("runc", "systemd", "proxy", **{"policy.agentcgroup.io/agent": "test"})
    assert sidecar.run("cat /proc/self/cgroup").stdout == "0::/\n"
    assert f"container {sidecar.id[:12]}: " not in journal.text()
    assert "agentcgroup" not in sidecar.run("cat /proc/self/mountinfo").stdout


def test_a_tenant_may_only_tighten(pod: Callable[..., CrioBundle], journal: Journal) -> None:
    narrow = pod("crun", "systemd", **{"agentcgroup.io/policy": "test", "agentcgroup.io/call.memory.default": "128M"})
    assert narrow.run(fill(200)).returncode == 137
    wide = pod("crun", "systemd", **{"agentcgroup.io/policy": "test", "agentcgroup.io/memory.max": "8G"})
    assert wide.run("cat /proc/self/cgroup").stdout == "0::/\n"
    said = "not governed: annotation agentcgroup.memory.max: 8 GiB loosens the policy's 1 GiB"
    wait_for(lambda: said in journal.text(), 1, said)
