"""Files of cgroupfs are read whole."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest
from agentcgroup.cgroup import Cgroup, mount_point

THREADS = 1000


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """This process in a cgroup of its own."""
    made = Cgroup(mount_point() / f"agentcgroup-test-{os.getpid()}")
    with open("/proc/self/cgroup") as file:
        home = Cgroup(f"{mount_point()}{next(line[3:-1] for line in file if line.startswith('0::'))}")
    try:
        os.mkdir(made.path)
        made.write("cgroup.procs", os.getpid())
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield made
    home.write("cgroup.procs", os.getpid())
    os.rmdir(made.path)


def test_a_list_longer_than_a_page_is_read_to_its_end(group: Cgroup) -> None:
    """A thread that is not listed is taken for a zombie."""
    gate = threading.Event()
    threads = [threading.Thread(target=gate.wait) for _ in range(THREADS)]
    try:
        for thread in threads:
            thread.start()
        listed = group.lines("cgroup.threads")
        assert len(listed) == len(set(listed)) == len(os.listdir("/proc/self/task"))
    finally:
        gate.set()
        for thread in threads:
            with contextlib.suppress(RuntimeError):
                thread.join()
