"""Fixtures for the tests of the hook: one compilation a session, a fresh host a test."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hook_harness import (
    Container,
    Host,
    Journal,
    Start,
    build_hook,
    build_shells,
    cgroup_top,
    make_rootfs,
    start_container,
)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("hookhost")
    return build_hook(folder).parents[1], build_shells(folder / "shells")


@pytest.fixture
def host(programs: tuple[Path, dict[str, Path]]) -> Iterator[Host]:
    folder, _ = programs
    for name in ("run", "state", "journal"):
        subprocess.run(["rm", "-rf", str(folder / name)], check=True)
    for bundle in folder.glob("bundle*"):
        shutil.rmtree(bundle)
    mount = cgroup_top()
    assert mount
    top = mount / f"agentcgroup-test-{os.getpid()}"
    top.mkdir()
    for controller in (top / "cgroup.controllers").read_text().split():
        (top / "cgroup.subtree_control").write_text("+" + controller)
    before = Path("/proc/self/mountinfo").read_text()
    host = Host(folder, top, folder / "libexec/agentcgroup-hook", Journal(folder / "journal"))
    yield host
    host.close()
    assert not top.exists()
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.fixture
def start(host: Host, programs: tuple[Path, dict[str, Path]], tmp_path: Path) -> Start:
    """Start a container; `shape` changes its rootfs first."""

    def start(shape: Callable[[Path], None] | None = None, **options: Any) -> Container:
        rootfs = tmp_path / f"rootfs{len(host.containers)}"
        make_rootfs(rootfs, programs[1])
        if shape:
            shape(rootfs)
        return start_container(host, rootfs, **options)

    return start
