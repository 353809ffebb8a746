"""The name of a docker container comes from dockerd's own files, wherever its data root is."""

import json
from pathlib import Path
from typing import Any

import pytest
from agentcgroup.docker import container_name

ID = "c0ffee" * 10


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle as dockerd writes it, for a container called `box`."""
    own = tmp_path / "data/100000.100000/containers" / ID
    own.mkdir(parents=True)
    (own / "config.v2.json").write_text(json.dumps({"ID": ID, "Name": "/box", "Config": {"Hostname": "x"}}))
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/etc/resolv.conf", "type": "bind", "source": str(own / "resolv.conf")},
    ]
    (tmp_path / "config.json").write_text(json.dumps({"mounts": mounts}))
    return tmp_path


def test_the_name_is_dockers(bundle: Path) -> None:
    assert container_name(str(bundle), ID) == "box"


def test_a_file_of_the_users_in_its_place_names_nothing(bundle: Path) -> None:
    assert container_name(str(bundle), "beef" * 16) == ""


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"mounts": 1}', '{"mounts": [{}]}', '{"mounts": [null]}', "\xff"])
def test_a_bundle_that_says_nothing(bundle: Path, text: str) -> None:
    (bundle / "config.json").write_bytes(text.encode("latin-1"))
    assert container_name(str(bundle), ID) == ""


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"Name": '])
def test_a_folder_that_says_nothing(bundle: Path, text: str) -> None:
    next(bundle.rglob("config.v2.json")).write_text(text)
    assert container_name(str(bundle), ID) == ""
