"""Weights are written where a container has others beside it; files stand for cgroupfs (logic only)."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup.cgroup import Cgroup
from agentcgroup.policy.model import Cpu, Io, Policy
from agentcgroup.weights import Weights

ID = "c0ffee"
PLAIN = Policy("p")
HEAVY = replace(PLAIN, cpu=Cpu(weight=300), io=Io(weight=200))


def group(path: Path, cpu: str = "100", io: str = "100") -> Cgroup:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cpu.weight").write_text(cpu)
    (path / "io.weight").write_text(io)
    return Cgroup(path)


def found(group: Cgroup) -> tuple[str, str]:
    return group.read("cpu.weight"), group.read("io.weight")


def test_they_come_and_go_with_the_policy(tmp_path: Path) -> None:
    base = group(tmp_path / "libpod_parent" / f"libpod-{ID}")
    weights = Weights(base, ID)
    assert not weights.due(PLAIN) and weights.due(HEAVY)
    assert weights.set(HEAVY) == [] and found(base) == ("300", "200")
    assert weights.due(PLAIN)
    assert weights.set(PLAIN) == [] and found(base) == ("100", "100")
    assert not weights.due(PLAIN)
    assert weights.set(replace(HEAVY, mode="observe")) == [] and found(base) == ("100", "100")


def test_the_engines_stay_and_that_is_said(tmp_path: Path) -> None:
    base = group(tmp_path / f"libpod-{ID}", cpu="59")
    weights = Weights(base, ID)
    assert weights.set(HEAVY) == ["cpu.weight=300"] and found(base) == ("59", "200")
    assert weights.set(PLAIN) == [] and found(base) == ("59", "100")


@pytest.mark.parametrize(
    ("base", "unit"),
    [
        (f"machine.slice/libpod-{ID}.scope/container", f"libpod-{ID}.scope"),
        (f"machine.slice/crio-{ID}.scope", f"crio-{ID}.scope"),
        (f"user.slice/session-3.scope/libpod-{ID}", ""),
        (f"user.slice/user@1000.service/user.slice/libpod-{ID}.scope/container", ""),
    ],
)
def test_systemd_is_asked_for_the_containers_own_scope_and_no_other(
    base: str, unit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def run(argv: list[str], **_: object) -> SimpleNamespace:
        asked.append(argv[3:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    for part in (base, *(str(path) for path in Path(base).parents)):
        group(tmp_path / part)
    weights = Weights(Cgroup(tmp_path / base), ID)
    weights.set(HEAVY)
    weights.set(PLAIN)
    changes = ["CPUWeight=300", "IOWeight=200"]
    assert asked == ([[unit, change] for change in changes] if unit else [])
    scope = tmp_path / "user.slice/session-3.scope"
    assert not scope.exists() or found(Cgroup(scope)) == ("100", "100")
