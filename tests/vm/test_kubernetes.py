"""packaging/kubernetes on a node: the image is built, its installer runs against a node's root, and podman plays the
DaemonSet, whose daemon then governs the node's containers.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import service
import yaml
from conftest import Journal
from podman import Engine, fill, governed, run, wait_for

FOLDER = Path(__file__).parents[2] / "packaging/kubernetes"
IMAGE = "localhost/agentcgroup:0.1.0"
PYTHON = Path("usr/lib/python3/dist-packages")
MODULES = (
    "agentcgroup", "yaml", "_yaml", "jsonschema", "jsonschema_specifications", "referencing", "rpds", "attr", "attrs",
)  # fmt: skip
PRODUCT = (
    "usr/libexec/agentcgroup", "usr/share/agentcgroup", "usr/share/containers/oci/hooks.d", "usr/bin/agentcgroup",
    "usr/bin/agentcgroupd", "usr/lib/x86_64-linux-gnu/libbpf.so.1", "usr/lib/x86_64-linux-gnu/libelf.so.1",
)  # fmt: skip
HOOK_FILES = {
    "usr/libexec/agentcgroup/agentcgroup-hook", "usr/libexec/agentcgroup/agentcgroup-runtime",
    "usr/libexec/agentcgroup/agentcgroup-shim", "usr/share/containers/oci/hooks.d/50-agentcgroup.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """As `make kubernetes` and the Containerfile make it, of the product that is installed here."""
    context = Path(tempfile.mkdtemp(prefix="image-", dir="/var/tmp"))
    for name in (*PRODUCT, *(str(PYTHON / module) for module in MODULES)):
        source, target = Path("/", name), context / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, target, symlinks=True) if source.is_dir() else shutil.copy(source, target)
    shutil.copy(FOLDER / "agentcgroup-node", context / "usr/bin")
    bases = ("--build-arg=BASE=localhost/debian", "--build-arg=PACKAGES=", "--network=none")
    run("podman", "build", *bases, f"--tag={IMAGE}", f"--file={FOLDER}/Containerfile", str(context), timeout=300)
    yield IMAGE
    run("podman", "rmi", "--force", IMAGE)
    shutil.rmtree(context)


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_the_installer_in_a_container_puts_the_hook_on_the_node_and_takes_it_away(image: str, tmp_path: Path) -> None:
    options = ("--rm", "--network=none", f"--volume={tmp_path}:/host", "--env=PREFIX=/usr", "--env=SETTLE=0")
    for _ in range(2):
        run("podman", "run", *options, image, "agentcgroup-node", "install")
        assert files(tmp_path) == HOOK_FILES
    assert all((tmp_path / name).read_bytes() == Path("/", name).read_bytes() for name in HOOK_FILES)
    run("podman", "run", *options, image, "agentcgroup-node", "uninstall")
    assert files(tmp_path) == set()
    assert (tmp_path / "usr/share/containers/oci/hooks.d").is_dir()


def config_maps() -> list[dict[str, Any]]:
    """What kustomize makes of configMapGenerator, but for the hash in the names."""
    wanted = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["configMapGenerator"]
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": each["name"]},
            "data": {Path(file).name: (FOLDER / file).read_text() for file in each["files"]},
        }
        for each in wanted
    ]


@pytest.fixture
def node_pod(image: str, tmp_path: Path) -> Iterator[str]:
    """The DaemonSet's pod in the place of this machine's daemon; its installer writes below tmp_path."""
    workload = yaml.safe_load((FOLDER / "daemonset.yaml").read_text())
    pod = workload["spec"]["template"]["spec"]
    [node] = [volume for volume in pod["volumes"] if volume["name"] == "node"]
    node["hostPath"]["path"] = str(tmp_path)
    pod["initContainers"][0]["env"] = [{"name": "PREFIX", "value": "/usr"}]
    maps = config_maps()
    maps[0]["data"]["agentcgroup.yaml"] = maps[0]["data"]["agentcgroup.yaml"] + "ack_ms: 2000\n"
    for each in (*pod["initContainers"], *pod["containers"]):
        each["image"] = image
    manifest = tmp_path / "node.yaml"
    manifest.write_text(yaml.safe_dump_all([*maps, workload]))
    service.stop()
    run("agentcgroup", "bpf", "detach")
    run("podman", "kube", "play", str(manifest), timeout=300)
    wait_for(service.answers, 20, "the daemon in the pod")
    yield "agentcgroup-pod-agentcgroupd"
    run("podman", "kube", "down", "--force", str(manifest))
    Path("/run/agentcgroup/hook.sock").unlink(missing_ok=True)
    service.start()


def test_the_daemon_of_the_daemonset_governs_the_nodes_containers(
    node_pod: str, engine: Engine, tmp_path: Path, journal: Journal
) -> None:
    assert files(tmp_path) >= HOOK_FILES
    assert service.pid() == 0
    box = engine.start("--memory=2g", "--annotation=agentcgroup.cpu.weight=200", policy="team")
    assert box.record["policy"] == "team" and box.record["registered"]
    governed(box, 1 << 30)
    killed = box.call(fill(1100))
    assert killed.rc in (-9, 137) and "out of memory" in killed.feedback[0]
    assert box.record_of(killed.number)["result"] == "oom"
    assert "Traceback" not in journal.text()
    weight = Path(box.record["base"]).parent / "cpu.weight"
    wait_for(lambda: weight.read_text() == "200\n", 5, "systemd to set the weight")
    assert re.search(r"populated .* active\n", run("podman", "exec", node_pod, "agentcgroup", "bpf", "status").stdout)
    run("podman", "restart", "--time=10", node_pod)
    wait_for(service.answers, 20, "the daemon after a restart of its container")
    governed(box, 1 << 30)
