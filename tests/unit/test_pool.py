"""Ready directories and their tickets, on a real cgroup2."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentcgroup import cgroup, pool
from agentcgroup.cgroup import Cgroup
from agentcgroup.pool import OUTSTANDING, Pool, Slot

SIZE = 3


@pytest.fixture
def calls() -> Iterator[Cgroup]:
    """An empty cgroup in the place of calls/."""
    folder = cgroup.mount_point() / f"agentcgroup-pool-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    yield Cgroup(folder)
    for child in folder.iterdir():
        if child.is_dir():
            child.rmdir()
    folder.rmdir()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    return tmp_path / "tickets"


def make(calls: Cgroup, fifo: Path | None, first: int = 1, reserved: list[int] | None = None) -> Pool:
    def reserve(number: int) -> int:
        if reserved is not None:
            reserved.append(number)
        return number + 10

    return Pool(calls, fifo, SIZE, first, lambda: (), reserve)


def fill(ready: Pool) -> None:
    while ready.fill():
        pass


def take_ticket(fifo: Path) -> int:
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    number = int(struct.unpack("<I", os.read(fd, 4))[0])
    os.close(fd)
    return number


def names(calls: Cgroup) -> set[str]:
    return {path.name for path in Path(calls.path).iterdir() if path.is_dir()}


def test_a_ticket_that_was_just_taken_is_not_lost_however_old_its_directory_is(
    calls: Cgroup, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LOST_AFTER", 0.3)
    ready = make(calls, fifo)
    fill(ready)
    time.sleep(0.4)
    first, second = take_ticket(fifo), take_ticket(fifo)
    assert ready.lost() == []
    assert ready.claim(first) is not None and ready.claim(second) is not None


def test_a_ticket_that_nobody_speaks_of_is_lost_after_a_while(
    calls: Cgroup, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LOST_AFTER", 0.2)
    ready = make(calls, fifo)
    fill(ready)
    number = take_ticket(fifo)
    assert [slot.number for slot in ready.taken()] == [number]
    time.sleep(0.3)
    assert [slot.number for slot in ready.lost()] == [number]
    assert ready.claim(number) is None


def test_who_drains_the_tickets_gets_a_bounded_number_of_directories(calls: Cgroup, fifo: Path) -> None:
    ready = make(calls, fifo)
    for _ in range(20):
        fill(ready)
        while ready._unread():
            take_ticket(fifo)
    fill(ready)
    assert len(names(calls)) == SIZE * OUTSTANDING


def test_numbers_are_set_aside_before_they_are_given(calls: Cgroup, fifo: Path) -> None:
    reserved: list[int] = []
    ready = make(calls, fifo, first=5, reserved=reserved)
    fill(ready)
    assert (names(calls), reserved) == ({"5", "6", "7"}, [5])
    for _ in range(8):
        assert ready.take() is not None
    assert reserved == [5, 15]
    assert max(int(name) for name in names(calls)) == 15


def test_an_old_daemons_directory_waits_for_the_shim_that_has_its_ticket(
    calls: Cgroup, fifo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "LOST_AFTER", 0.2)
    Path(calls.path, "4").mkdir()
    ready = make(calls, fifo, first=10)
    fill(ready)
    old = Slot(4, calls.child("4"))
    assert ready.expect(old) and ready.lost() == []
    assert ready.claim(4) is old
    assert ready.expect(old)
    time.sleep(0.3)
    assert ready.lost() == [old]


def test_a_failed_reservation_gives_no_number(calls: Cgroup, fifo: Path) -> None:
    def full(_number: int) -> int:
        raise OSError(28, "No space left on device")

    ready = Pool(calls, fifo, SIZE, 1, lambda: (), full)
    assert not ready.fill() and names(calls) == set()
