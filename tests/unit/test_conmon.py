"""The name of a container comes from conmon above its init, and from nothing that a container could write."""

import os
import subprocess
from pathlib import Path

import pytest
from agentcgroup.conmon import container_name

PARENT = '#!/bin/sh\nsh -c "{child} & echo \\$!; wait"\n'


@pytest.fixture
def conmon(tmp_path: Path) -> Path:
    """A program whose comm is `conmon`, with a runtime and an init below it."""
    path = tmp_path / "conmon"
    path.write_text(PARENT.format(child="sleep 60"))
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("argv", "name"),
    [(["-c", "id", "-n", "box", "-r", "crun"], "box"), (["--name", "box"], "box"), (["-c", "id"], ""), (["-n"], "")],
)
def test_the_name_is_conmons_option(conmon: Path, argv: list[str], name: str) -> None:
    with subprocess.Popen([conmon, *argv], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        init = int(process.stdout.readline())
        assert container_name(init) == name
        os.killpg(process.pid, 9)


def test_an_init_called_conmon_names_nothing(conmon: Path) -> None:
    with subprocess.Popen([conmon, "-n", "mine"], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert container_name(process.pid) == ""
        os.killpg(process.pid, 9)
    assert container_name(process.pid) == ""
