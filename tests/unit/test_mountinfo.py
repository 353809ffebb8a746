"""What is mounted where, whatever it is called."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from agentcgroup.cgroup import mount_point
from agentcgroup.mountinfo import Mount, mounts

TEXT = (
    b"22 1 0:20 / / rw shared:1 - ext4 /dev/vda rw\n"
    b"23 22 0:21 /a /tmp/na\xefve\xa0x\\040y\\134z rw - tmpfs tmpfs rw\n"
    b"24 22 0:22 / /tmp/line\xe2\x80\xa8break\x0c rw shared:2 master:3 - tmpfs tmpfs rw\n"
    b"25 22 0:23 / /sys/fs/cgroup ro,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
)


@pytest.fixture(autouse=True)
def text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _path: TEXT)


def test_names_are_any_bytes() -> None:
    assert list(mounts(1)) == [
        Mount("/", "/", "ext4", ("rw",), ("rw",)),
        Mount("/a", os.fsdecode(b"/tmp/na\xefve\xa0x y\\z"), "tmpfs", ("rw",), ("rw",)),
        Mount("/", "/tmp/line\u2028break\x0c", "tmpfs", ("rw",), ("rw",)),
        Mount("/", "/sys/fs/cgroup", "cgroup2", ("ro", "nosuid"), ("rw", "nsdelegate")),
    ]


def test_a_mount_with_an_odd_name_does_not_hide_cgroup2() -> None:
    assert mount_point() == Path("/sys/fs/cgroup")
