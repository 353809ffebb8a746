"""A daemon takes over what ran, and what ended, while there was none."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
from agentcgroup import judge
from agentcgroup.call import NAMED, NEIGHBOURS
from agentcgroup.cgroup import Cgroup
from agentcgroup.reaper import Reaper
from governed import Box


@pytest.fixture
def box() -> Iterator[Box]:
    made = Box()
    yield made
    made.remove()


def end_shell(call: object) -> None:
    call.stdin.close()  # type: ignore[attr-defined]


def test_a_call_that_ended_without_a_daemon_has_its_record_and_only_one(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = box.call(5)
    end_shell(call)
    call.wait()
    box.directory(6)  # nothing ever ran here
    monkeypatch.setattr(Reaper, "remove", lambda _self, _path: None)  # as if its page cache were dirty
    for _ in range(2):
        assert not box.daemon().calls
        assert [(r.number, r.status, r.command.text) for r in box.records] == [(5, None, "")]
    assert box.records[0].cpu_s > 0 and Cgroup(f"{box.tree.path}/calls/5").exists()


def test_a_call_of_which_nobody_spoke_and_that_is_over_has_its_record(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentcgroup.pool.LOST_AFTER", 0.1)
    monkeypatch.setattr("agentcgroup.container.LOST_AFTER", 0.1)
    pool = box.daemon().pool
    box.until(lambda: pool.holds(pool.next_number - 1))
    with open(box.run_dir / "c/c0ffee/tickets", "rb", buffering=0) as tickets:
        number = int.from_bytes(tickets.read(4), "little")
    call = box.call(number)
    end_shell(call)
    call.wait()
    box.until(lambda: box.records)
    assert [r.number for r in box.records] == [number]


def test_orphans_of_an_adopted_call_are_ended_with_its_shell(box: Box) -> None:
    call = box.call(5, "sleep 300 & sleep 300 & echo; read _")
    adopted = box.daemon().calls[5]
    box.until(lambda: adopted.strain.looks)
    assert adopted.ended is None and adopted.shim_fd >= 0
    end_shell(call)
    box.until(lambda: box.records)
    [record] = box.records
    assert (record.ended, record.orphans, record.orphan_names) == ("orphans", 2, ("sleep", "sleep"))
    assert adopted.shim_fd == -1


def test_orphans_that_outlived_the_daemon_that_told_them_to_end_are_ended(box: Box) -> None:
    call = box.call(5, 'trap "" TERM; sleep 300 & echo; read _')
    box.daemon()
    end_shell(call)
    call.wait()
    box.end_daemon()
    box.daemon()
    box.until(lambda: box.records)
    assert (box.records[0].ended, box.records[0].orphans) == ("orphans", 1)


def test_a_build_driver_is_no_orphan_of_an_adopted_call(box: Box) -> None:
    box.policy = replace(box.policy, exec_match=(re.compile("sleep"),))
    group = box.directory(5)
    driver = box.start("calls/5", "echo; exec sleep 300")
    adopted = box.daemon().calls[5]
    box.until(lambda: adopted.strain.looks)
    assert adopted.driven() and adopted.ended is None and group.pids() == [driver.pid]


def test_two_hundred_orphans_are_two_hundred(box: Box) -> None:
    call = box.call(5, "i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i + 1)); done; echo; read _")
    box.daemon()
    end_shell(call)
    box.until(lambda: box.records)
    [record] = box.records
    assert (record.orphans, len(record.orphan_names)) == (200, NAMED)


def test_the_figures_of_the_last_look_are_recorded_where_the_engine_removes_the_directory(box: Box) -> None:
    call = box.call(5, "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; echo; read _")
    adopted = box.daemon().calls[5]
    box.until(lambda: adopted.strain.looks)
    seen = adopted.strain.cpu_seen
    call.send_signal(signal.SIGKILL)
    adopted.cgroup.kill()
    end = time.monotonic() + 5
    while os.path.isdir(adopted.cgroup.path) and time.monotonic() < end:
        try:
            os.rmdir(adopted.cgroup.path)
        except OSError:
            time.sleep(0.01)
    box.until(lambda: box.records)
    assert seen > 0 and box.records[0].cpu_s == seen


def test_the_eight_largest_neighbours_are_recorded(box: Box) -> None:
    box.call(5)
    container = box.daemon()
    adopted = container.calls[5]
    for number in range(100, 150):
        group = SimpleNamespace(number=lambda _name, size=number * 1000: size)
        container.calls[number] = SimpleNamespace(  # type: ignore[assignment]
            number=number, cgroup=group, command=SimpleNamespace(first_word="w")
        )
    adopted.note_neighbours()
    for number in range(100, 150):
        del container.calls[number]
    assert sorted(adopted.others) == list(range(150 - NEIGHBOURS, 150))


def test_a_helper_that_forks_while_it_is_moved_is_moved_whole(box: Box) -> None:
    group, helpers = box.directory(5), box.tree.child("helpers")
    for _ in range(30):
        box.start("calls/5", "echo; while :; do sleep 0.001 & wait; done")
    assert judge._move_all(group, helpers, 0)
    assert group.pids() == [] and len(helpers.pids()) >= 30


def test_what_cannot_be_moved_is_not_said_to_be(box: Box) -> None:
    group = box.directory(5)
    child = box.start("calls/5", "echo; exec sleep 300")
    assert not judge._move_all(group, box.tree.child("nowhere"), 0)
    assert group.pids() == [child.pid]


def test_a_move_does_not_wait_for_a_limit_that_reclaims(box: Box) -> None:
    container, moved = box.daemon(), []
    container.slowly(lambda: time.sleep(1), lambda _: moved.append("limit"))
    container.moving(lambda: None, lambda _: moved.append("move"))
    box.until(lambda: len(moved) == 2)
    assert moved == ["move", "limit"]


def test_a_limit_that_was_raised_without_a_daemon_is_capped(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    number = Cgroup.number

    def raised(group: Cgroup, name: str) -> int | None:
        return 1 << 50 if (name, group.path[-2:]) == ("memory.max", "/5") else number(group, name)

    monkeypatch.setattr(Cgroup, "number", raised)
    box.call(5)
    container = box.daemon()
    assert container.calls[5].grant.memory == container.limits.call(box.policy.call.memory.max)
