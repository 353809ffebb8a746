"""agentcgroup-runtime: engines that know no hooks, as Docker and containerd, whose containers crun and runc start."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import service
from bundle import Bundle

WRAPPER = "/usr/libexec/agentcgroup/agentcgroup-runtime"


def governed() -> dict[str, str]:
    """Containers and their policies, as the daemon knows them."""
    return {box["id"]: box["policy"] for box in service.ask(op="ps")["containers"]}


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_container_that_asks_is_governed_and_let_go_of_at_its_end(
    runtime: str, bundle: Callable[..., Bundle]
) -> None:
    container = bundle(f"{WRAPPER} --agentcgroup-runtime={runtime}", **{"agentcgroup.policy": "test"})
    others = {"createContainer": [{"path": "/bin/true"}]}
    container.config["hooks"] = others
    done = container.start()
    assert done.returncode == 0, done.stdout
    hooks = json.loads((container.folder / "config.json").read_text())["hooks"]
    assert {"createContainer": hooks.pop("createContainer")} == others and sorted(hooks) == ["poststop", "prestart"]
    assert governed()[container.id] == "test"
    assert container.exec("bash", "-c", "cat /proc/self/cgroup").stdout.startswith("0::/agentcgroup/")
    container.delete()
    assert container.id not in governed()


def test_a_container_that_does_not_ask_is_as_the_engine_made_it(bundle: Callable[..., Bundle]) -> None:
    container = bundle(WRAPPER)
    del container.config["hooks"]
    assert container.start().returncode == 0
    assert json.loads((container.folder / "config.json").read_text()) == container.config
    assert container.exec("cat", "/proc/self/cgroup").stdout == "0::/\n"
