"""Fixtures for the tests of the shim: one compilation a session, a fresh box a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from shim_harness import Box, Daemon, build_shim, cgroup_top, short_folder


@pytest.fixture(scope="session")
def compiled() -> Iterator[tuple[Path, Path]]:
    """The folder that the shim was compiled for, and the shim."""
    if not shutil.which("musl-gcc") and not shutil.which("cc"):
        pytest.skip("no C compiler")
    with short_folder() as base:
        yield base / "dev", build_shim(base / "shim", base / "dev")


@pytest.fixture
def box(compiled: tuple[Path, Path]) -> Iterator[Box]:
    """Without a daemon."""
    box = Box(*compiled, cgroup_top())
    yield box
    box.remove()


@pytest.fixture
def daemon(box: Box) -> Daemon:
    """Serving, with tickets 1 to 8."""
    return box.serve()
