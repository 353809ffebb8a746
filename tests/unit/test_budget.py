"""Budgets that calls share: at what use the kernel is to tell us, and that its word is heard again and again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup import budget as budgets
from agentcgroup.admission import PRIORITIES
from agentcgroup.budget import Budget
from agentcgroup.cgroup import Cgroup
from agentcgroup.loop import Loop

MIB = 1 << 20


class Kernel:
    """Keeps what it is asked to watch: the container's inode, bytes, the level, and whether it is parked there."""

    def __init__(self) -> None:
        self.watched: dict[int, tuple[int, int, bool]] = {}

    def watch(self, root: int, stop_at: int, level: int, park: bool, first: int) -> None:
        self.watched[root] = (stop_at, level, park)
        self.first = first


def cgroup(path: Path, **files: int) -> Cgroup:
    for name, value in files.items():
        (path / name.replace("_", ".")).write_text(f"{value}\n")
    return Cgroup(path)


def container(cgid: int, priority: str, reserve: int = 0, tree: Cgroup | None = None) -> SimpleNamespace:
    burden = SimpleNamespace(burden=(PRIORITIES.index(priority), 0))
    strain = SimpleNamespace(at_work=True, standing=lambda *_: burden)
    call = SimpleNamespace(strain=strain, enforced=False, held_since=None, ended=None, relocated=False)
    call.slot, call.grant = SimpleNamespace(cgid=10 * cgid), SimpleNamespace(declared=0, priority=priority)
    policy = SimpleNamespace(priority=priority, mode="enforce", call=SimpleNamespace(on_pressure=["hold", "end"]))
    box = SimpleNamespace(cgid=cgid, policy=policy, reserve=reserve, tree=tree, calls={1: call} if reserve else {})
    call.container = box
    return box


@pytest.fixture
def shared(tmp_path: Path) -> Budget:
    (tmp_path / "tree").mkdir()
    found = Budget(cgroup(tmp_path, memory_current=100 * MIB, memory_max=1600 * MIB), level=1)
    promised = container(1, "interactive", 400 * MIB, cgroup(tmp_path / "tree", memory_current=50 * MIB))
    found.containers = {"a": promised, "b": container(2, "batch")}  # type: ignore[dict-item]
    return found


def test_lower_priorities_stop_where_what_is_promised_to_higher_ones_begins(shared: Budget) -> None:
    kernel = Kernel()
    shared.arm(kernel)  # type: ignore[arg-type]
    assert kernel.watched == {1: (1500 * MIB, 1, False), 2: (1150 * MIB, 1, True)}


def test_between_the_calls_of_a_container_all_but_the_one_that_gives_way_last_are_parked(tmp_path: Path) -> None:
    inside, kernel = Budget(cgroup(tmp_path, memory_current=100 * MIB, memory_max=1600 * MIB)), Kernel()
    box = container(1, "normal", 400 * MIB)
    inside.containers = {"a": box}  # type: ignore[dict-item]
    inside.arm(kernel)  # type: ignore[arg-type]
    assert (kernel.watched, kernel.first) == ({1: (1500 * MIB, 0, True)}, 10)
    box.calls[1].grant.declared = 200 * MIB
    box.calls[1].cgroup = cgroup(tmp_path)
    inside.arm(kernel)  # type: ignore[arg-type]
    assert kernel.watched == {1: (1400 * MIB, 0, False)}


def test_a_limit_that_was_moved_counts_when_it_is_armed_anew(shared: Budget) -> None:
    kernel = Kernel()
    cgroup(Path(shared.group.path), memory_max=800 * MIB)
    shared.arm(kernel)  # type: ignore[arg-type]
    assert kernel.watched[1] == (750 * MIB, 1, False)


def test_after_a_look_that_failed_the_next_crossing_is_looked_at(
    shared: Budget, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[BaseException] = []
    loop, kernel = Loop(faults.append), Kernel()

    def fail(*_: object) -> None:
        raise OSError("gone")

    monkeypatch.setattr(budgets, "give_way", fail)
    for _ in range(2):
        shared.crossed(1.0, loop, kernel)  # type: ignore[arg-type]
        for _ in range(5):
            loop.turn(0.02)
    assert len(faults) == 2
