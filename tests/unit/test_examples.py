"""The packaged examples ask for what hook and policies know. Most of them are run: tests/vm/test_examples.py."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from agentcgroup.config import Config
from agentcgroup.policy.annotations import choose
from agentcgroup.policy.load import load_file

ROOT = Path(__file__).resolve().parents[2] / "oci-config"
EXAMPLES = ROOT / "examples"
[KEY] = json.loads((ROOT / "hooks.d/50-agentcgroup.json").read_text())["when"]["annotations"]


def annotations() -> Iterator[tuple[str, str, dict[str, str]]]:
    """(example, engine, what it asks for)."""
    compose = yaml.safe_load((EXAMPLES / "compose/compose.yaml").read_text())
    for service in compose["services"].values():
        yield "compose", "docker", service["annotations"]
    yield "kube", "podman", yaml.safe_load((EXAMPLES / "kube/agent.yaml").read_text())["metadata"]["annotations"]
    quadlet = re.findall(r"^Annotation=(.*?)=(.*)$", (EXAMPLES / "quadlet/agent.container").read_text(), re.MULTILINE)
    yield "quadlet", "podman", dict(quadlet)


@pytest.mark.parametrize(("engine", "asked"), [pytest.param(e, a, id=name) for name, e, a in annotations()])
def test_an_example_asks_for_a_packaged_policy(engine: str, asked: dict[str, str]) -> None:
    assert [key for key in asked if re.search(KEY, key)] == ["agentcgroup.policy"]
    choice = choose(asked, engine, Config())
    assert choice and load_file(ROOT / "policies.d" / f"{choice.policy_name}.yaml", (ROOT / "policies.d",))


def test_compose_names_the_runtime_of_the_docker_example() -> None:
    [runtime] = json.loads((EXAMPLES / "docker/daemon.json").read_text())["runtimes"]
    assert f"# runtime: {runtime}\n" in (EXAMPLES / "compose/compose.yaml").read_text()


def test_podman_is_told_of_both_directories() -> None:
    drop_in = tomllib.loads((EXAMPLES / "containers.conf.d/50-agentcgroup.conf").read_text())
    assert drop_in == {
        "engine": {"hooks_dir": [f"{prefix}/share/containers/oci/hooks.d" for prefix in ("/usr", "/usr/local")]}
    }
