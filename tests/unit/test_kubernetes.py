"""packaging/kubernetes: its files fit each other and the product, and its installer may be interrupted anywhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from agentcgroup import config, paths
from agentcgroup.policy.load import load_file

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging/kubernetes"
LAYERS = [FOLDER, FOLDER / "uninstall"]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def daemon_set(layer: Path) -> Any:
    return read(layer / "daemonset.yaml")["spec"]["template"]["spec"]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda path: path.name)
def test_all_that_a_kustomization_names_is_there(layer: Path) -> None:
    content = read(layer / "kustomization.yaml")
    files = [file for maps in content.get("configMapGenerator", []) for file in maps["files"]]
    assert [name for name in content["resources"] + files if not (layer / name).is_file()] == []
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version and content["images"] == [
        {"name": "agentcgroup", "newName": "REGISTRY/agentcgroup", "newTag": version[1]}
    ]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda path: path.name)
def test_what_a_container_mounts_is_a_volume(layer: Path) -> None:
    pod = daemon_set(layer)
    wanted = {m["name"] for c in pod["initContainers"] + pod["containers"] for m in c.get("volumeMounts", ())}
    assert wanted == {volume["name"] for volume in pod["volumes"]}


def test_the_daemon_finds_its_directories_where_they_are_on_the_node() -> None:
    pod = daemon_set(FOLDER)
    [daemon] = pod["containers"]
    places = {mount["name"]: mount["mountPath"] for mount in daemon["volumeMounts"]}
    assert places["config"] == str(paths.CONFIG_FILE) and places["policies"] == str(paths.POLICY_DIRS[1])
    assert {places["run"], places["state"], places["records"]} == {
        str(path) for path in (paths.RUN_DIR, paths.LIB_DIR, paths.LOG_DIR)
    }
    there = {v["name"]: v["hostPath"]["path"] for v in pod["volumes"] if "hostPath" in v and v["name"] != "node"}
    assert {name: places[name] for name in there} == there


def test_configuration_and_policies_are_valid() -> None:
    found = config.load(FOLDER / "agentcgroup.yaml")
    [maps] = [m for m in read(FOLDER / "kustomization.yaml")["configMapGenerator"] if m["name"].endswith("policies")]
    packaged = ROOT / "oci-config/policies.d"
    policies = [load_file(FOLDER / name, (packaged, FOLDER / "policies")) for name in maps["files"]]
    assert {policy.name for policy in policies} < set(found.allowed_policies or ())


def test_the_pods_key_names_a_container_and_a_policy() -> None:
    pod = read(FOLDER / "pod.yaml")
    [(key, policy)] = pod["metadata"]["annotations"].items()
    assert key.removeprefix("policy.agentcgroup.io/") in [each["name"] for each in pod["spec"]["containers"]]
    assert policy in (config.load(FOLDER / "agentcgroup.yaml").allowed_policies or ())


# --- the installer --------------------------------------------------------------------------------------------------

PROGRAMS = ("agentcgroup-hook", "agentcgroup-runtime", "agentcgroup-shim")
HOOK_JSON = "usr/share/containers/oci/hooks.d/50-agentcgroup.json"
#: As a shell that runs the installer and is killed before the command of that number.
INTERRUPTED = """set -T; n=0; trap 'if [ $((n += 1)) -gt "$KILL_AT" ]; then kill -9 $$; fi' DEBUG; . "$0" """


@dataclass
class Node:
    """A node's root, and the part of the image that goes there."""

    root: Path
    prefix: Path

    def run(self, action: str, kill_at: int | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        script = [FOLDER / "agentcgroup-node", action]
        argv = ["sh", *script] if kill_at is None else ["bash", "-c", INTERRUPTED, *script]
        ours = {"HOST": str(self.root), "PREFIX": str(self.prefix), "SETTLE": "0", "KILL_AT": str(kill_at)}
        return subprocess.run(argv, env={**os.environ, **ours, **env}, text=True, capture_output=True)

    @property
    def programs(self) -> Path:
        return self.root / str(self.prefix)[1:] / "libexec/agentcgroup"

    def files(self) -> set[str]:
        return {str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir()}

    def is_sound(self) -> bool:
        """No engine meets half a file, or a JSON without its hook."""
        program = self.programs / "agentcgroup-hook"
        present = [path for name in PROGRAMS if (path := self.programs / name).exists()]
        assert all(path.read_text() == path.name * 9999 and os.access(path, os.X_OK) for path in present)
        json_file = self.root / HOOK_JSON
        return not json_file.exists() or (
            json.loads(json_file.read_text()) == {"version": "1.0.0"} and program.exists()
        )


@pytest.fixture
def node(tmp_path: Path) -> Node:
    prefix = tmp_path / "image"
    (prefix / "libexec/agentcgroup").mkdir(parents=True)
    (prefix / "share/containers/oci/hooks.d").mkdir(parents=True)
    for name in PROGRAMS:
        (prefix / "libexec/agentcgroup" / name).write_text(name * 9999)
    (prefix / "share/containers/oci/hooks.d/50-agentcgroup.json").write_text('{"version": "1.0.0"}')
    (tmp_path / "node/etc/crio/crio.conf.d").mkdir(parents=True)
    return Node(tmp_path / "node", prefix)


def test_a_second_run_changes_nothing_and_the_last_takes_all_away(node: Node) -> None:
    foreign = node.root / "usr/share/containers/oci/hooks.d/90-other.json"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("{}")
    node.run("install").check_returncode()
    assert node.is_sound()
    whole = node.files()
    assert {Path(name).name for name in whole} == {*PROGRAMS, "50-agentcgroup.json", "90-other.json"}
    before = {name: (node.root / name).stat().st_ino for name in whole}
    node.run("install").check_returncode()
    assert {name: (node.root / name).stat().st_ino for name in node.files()} == before
    node.run("uninstall").check_returncode()
    assert node.files() == {str(foreign.relative_to(node.root))}
    assert node.run("uninstall").returncode == 0


@pytest.mark.parametrize("action", ["install", "uninstall"])
def test_wherever_it_is_interrupted_no_engine_meets_half_of_it_and_a_second_run_mends(node: Node, action: str) -> None:
    killed = 0
    for kill_at in range(1000):
        node.run("install" if action == "uninstall" else "uninstall").check_returncode()
        done = node.run(action, kill_at)
        assert node.is_sound(), f"killed before command {kill_at}"
        killed += done.returncode == -9
        node.run(action).check_returncode()
        assert node.is_sound() and len(node.files()) == (4 if action == "install" else 0), node.files()
        if done.returncode == 0:
            break
    assert killed > 15


def test_an_upgrade_replaces_by_rename(node: Node) -> None:
    node.run("install").check_returncode()
    running = (node.programs / "agentcgroup-shim").open()
    (node.prefix / "libexec/agentcgroup/agentcgroup-shim").write_text("new")
    node.run("install").check_returncode()
    assert running.read() == "agentcgroup-shim" * 9999 and (node.programs / "agentcgroup-shim").read_text() == "new"
    running.close()


def test_another_folder_of_hooks_is_named_to_crio(node: Node) -> None:
    node.run("install", HOOKS_DIR="/etc/containers/oci/hooks.d").check_returncode()
    drop_in = node.root / "etc/crio/crio.conf.d/50-agentcgroup.conf"
    assert drop_in.read_text() == (
        '[crio.runtime]\nhooks_dir = ["/usr/share/containers/oci/hooks.d", "/etc/containers/oci/hooks.d"]\n'
    )
    assert (node.root / "etc/containers/oci/hooks.d/50-agentcgroup.json").exists()
    node.run("uninstall", HOOKS_DIR="/etc/containers/oci/hooks.d").check_returncode()
    assert node.files() == set()


def test_containerd_gets_the_programs_alone(node: Node) -> None:
    node.run("install", HOOKS_DIR="").check_returncode()
    assert {Path(name).name for name in node.files()} == set(PROGRAMS)


def test_a_link_out_of_the_nodes_root_is_not_followed(node: Node, tmp_path: Path) -> None:
    (node.root / "usr").symlink_to(tmp_path)
    done = node.run("install")
    assert done.returncode == 1
    link = f"/usr/share/containers/oci/hooks.d on the node is a link to {tmp_path}/share/containers/oci/hooks.d"
    assert done.stderr == f"agentcgroup-node: {link}: name the place itself\n"
    assert not (tmp_path / "share").exists()


def test_it_says_what_it_wants(node: Node) -> None:
    assert node.run("remove").stderr == "agentcgroup-node: say install or uninstall\n"
