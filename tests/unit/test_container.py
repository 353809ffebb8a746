"""What a container does with the limits of its calls; directories with files stand for cgroupfs (logic only)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentcgroup.cgroup import Cgroup
from agentcgroup.container import Container


def test_a_memory_limit_below_what_is_in_use_is_left_to_another_thread(tmp_path: Path) -> None:
    """The kernel reclaims and kills inside that write."""
    for name in ("memory.max", "memory.current", "pids.max"):
        (tmp_path / name).write_text("500")
    later: list[Callable[[], Any]] = []
    container: Any = SimpleNamespace(slowly=lambda work, _done: later.append(work))

    def limit(memory: str) -> tuple[str, str]:
        Container.limit(container, Cgroup(tmp_path), (("memory.max", memory), ("pids.max", "700")))
        return tuple((tmp_path / name).read_text() for name in ("memory.max", "pids.max"))  # type: ignore[return-value]

    assert limit("600") == ("600", "700") and not later
    assert limit("400") == ("600", "700") and len(later) == 1
    assert limit("max") == ("max", "700") and len(later) == 1
    later[0]()
    assert (tmp_path / "memory.max").read_text() == "400"
