"""Limits of a container from its policy and the cgroups above it; a directory with files stands for cgroupfs
(logic only).
"""

from pathlib import Path

import pytest
from agentcgroup import admission, subtree
from agentcgroup.cgroup import Cgroup
from agentcgroup.hint import Percent, parse
from agentcgroup.policy.model import Call, CallMemory, Cpu, Memory, Policy, Size

MIB = 1 << 20


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroup:
    """slice/scope below a mount point; the host has 8 GiB."""
    monkeypatch.setattr(subtree, "total_memory", lambda: 8192 * MIB)
    scope = tmp_path / "a.slice" / "b.scope"
    scope.mkdir(parents=True)
    for group, memory in ((scope.parent, "4294967296"), (scope, "max")):
        (group / "memory.max").write_text(memory + "\n")
        (group / "cpu.max").write_text("max 100000\n")
    return Cgroup(scope)


def policy(**fields: object) -> Policy:
    sizes = CallMemory(default=Size(256 * MIB), low=Size(64 * MIB), high=Size(1024 * MIB), max=Size(2048 * MIB))
    return Policy("p", **{"call": Call(memory=sizes, pids_max=100, time_max=60.0), **fields})  # type: ignore[arg-type]


def test_an_ancestors_limit_binds(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(memory=Memory(agent_min=Size(256 * MIB))), base, tmp_path)
    assert limits.total == limits.memory_max == 4096 * MIB
    assert limits.calls_max == (4096 - 256) * MIB


def test_a_percentage_is_of_what_the_container_may_use(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(memory=Memory(max=Size(percent=50.0), high=Size(percent=25.0))), base, tmp_path)
    assert (limits.memory_max, limits.memory_high) == (2048 * MIB, 1024 * MIB)


def test_an_agent_never_gets_more_than_half_promised(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(memory=Memory(max=Size(100 * MIB), agent_min=Size(256 * MIB))), base, tmp_path)
    assert (limits.agent_min, limits.calls_max) == (50 * MIB, 50 * MIB)


def test_a_cpu_limit_is_the_lowest_of_policy_and_ancestors(base: Cgroup, tmp_path: Path) -> None:
    (Path(base.path) / "cpu.max").write_text("150000 100000\n")
    assert subtree.compute(policy(cpu=Cpu(max=4.0)), base, tmp_path).cpu == 1.5


def test_a_hint_is_granted_up_to_the_policys_maximum_and_no_further(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(), base, tmp_path)
    granted = admission.grant(policy(), limits, "call", parse("memory:1g,pids:50,time:10s,cpu:2"), "hint")
    assert (granted.memory, granted.pids, granted.time, granted.cpu) == (1024 * MIB, 50, 10.0, 2.0)
    assert granted.clamps == () and granted.source == "hint 1g"
    greedy = admission.grant(policy(), limits, "call", parse("memory:100g,pids:5000,time:2h"), "hint")
    assert (greedy.memory, greedy.pids, greedy.time) == (2048 * MIB, 100, 60.0)
    assert [(c.key, c.granted) for c in greedy.clamps] == [("memory", 2048 * MIB), ("pids", 100), ("time", 60.0)]


def test_a_word_and_a_share_are_sizes_of_the_policy(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(), base, tmp_path)
    assert admission.grant(policy(), limits, "call", parse("memory:low"), "rule").memory == 64 * MIB
    half = admission.grant(policy(), limits, "call", parse("memory:25%"), "hint")
    assert half.memory == 1024 * MIB and isinstance(parse("memory:25%").memory, Percent)


def test_a_shell_and_a_helper_have_no_time_budget(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(), base, tmp_path)
    assert admission.grant(policy(), limits, "shell", parse("time:5s"), "hint").time is None
    assert admission.grant(policy(), limits, "helper", parse(""), "hint").time is None


def test_observe_writes_nothing(base: Cgroup, tmp_path: Path) -> None:
    observing = policy(mode="observe")
    limits = subtree.compute(observing, base, tmp_path)
    assert admission.directory_files(observing, limits) == ()
    assert subtree.apply(observing, limits, base) == []


def test_limits_that_cannot_be_written_are_named(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(), base, tmp_path)
    missed = subtree.apply(policy(), limits, base.child("agentcgroup"))
    assert "calls/memory.max=4294967296" in missed
