"""Limits of a container from its policy and the cgroups above it; a directory with files stands for cgroupfs
(logic only).
"""

from pathlib import Path

import pytest
from agentcgroup import admission, subtree
from agentcgroup.cgroup import Cgroup
from agentcgroup.hint import Percent, parse
from agentcgroup.policy.model import Call, CallMemory, Cpu, Io, IoLimit, Memory, Policy, Size

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


def test_a_maximum_that_was_lowered_alone_cuts_the_default_and_the_helpers(base: Cgroup, tmp_path: Path) -> None:
    """An annotation, or a policy that extends another, may say call.memory.max and nothing else."""
    low = policy(call=Call(memory=CallMemory(default=Size(256 * MIB), high=Size(512 * MIB), max=Size(100 * MIB))))
    limits = subtree.compute(low, base, tmp_path)
    assert admission.default_grant(low, limits).memory == 100 * MIB
    assert ("helpers", "memory.max", 100 * MIB) in subtree._knobs(low, limits)


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


def written(tree: Cgroup) -> dict[str, str]:
    """The files below a directory that stands for our subtree."""
    return {str(path.relative_to(tree.path)): path.read_text() for path in Path(tree.path).rglob("*") if path.is_file()}


def empty(tree: Cgroup) -> Cgroup:
    """The same with empty files: a write to cgroupfs replaces all, one to a file its beginning."""
    for name in written(tree):
        (Path(tree.path) / name).write_text("")
    return tree


@pytest.fixture
def tree(base: Cgroup, tmp_path: Path) -> Cgroup:
    """The subtree with the files that `apply` writes."""
    tree = base.child("agentcgroup")
    for path, name, _ in subtree._knobs(policy(), subtree.compute(policy(), base, tmp_path)):
        (Path(tree.path) / path).mkdir(parents=True, exist_ok=True)
        (Path(tree.path) / path / name).touch()
    return tree


def test_observe_sets_no_limit_and_takes_back_an_earlier_policys(base: Cgroup, tree: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(), base, tmp_path)
    subtree.apply(policy(), limits, tree)
    assert written(tree)["calls/memory.max"] == "4294967296"
    subtree.apply(policy(mode="observe"), limits, empty(tree))
    assert {Path(name).name: value for name, value in written(tree).items()} == {
        "memory.high": "max", "memory.max": "max", "memory.min": "0", "memory.swap.max": "max", "pids.max": "max",
        "cpu.max": "max 100000", "cgroup.max.depth": "1",
    }  # fmt: skip
    files = dict(admission.directory_files(policy(mode="observe"), limits))
    assert (files["memory.max"], files["memory.oom.group"], files["pids.max"]) == ("max", "0", "max")


def test_what_a_changed_policy_leaves_out_is_unlimited_again(base: Cgroup, tree: Cgroup, tmp_path: Path) -> None:
    narrow = policy(cpu=Cpu(weight=50, max=1.0), pids_max=64, memory=Memory(high=Size(512 * MIB), swap_max=Size(0)))
    subtree.apply(narrow, subtree.compute(narrow, base, tmp_path), tree)
    assert written(tree)["cpu.max"] == "100000 100000" and written(tree)["calls/memory.high"] == str(512 * MIB)
    subtree.apply(policy(), subtree.compute(policy(), base, tmp_path), empty(tree))
    now = written(tree)
    assert (now["cpu.max"], now["pids.max"], now["memory.swap.max"], now["calls/memory.high"]) == (
        "max 100000", "max", "max", "max",
    )  # fmt: skip


def test_the_soft_limit_is_lifted_to_just_below_the_hard_one_and_put_back(
    base: Cgroup, tree: Cgroup, tmp_path: Path
) -> None:
    soft = policy(memory=Memory(max=Size(512 * MIB), high=Size(256 * MIB), agent_min=Size(32 * MIB)))
    limits = subtree.compute(soft, base, tmp_path)
    for lift, high, calls in ((False, 256, 224), (True, 480, 450), (False, 256, 224)):
        subtree.soften(soft, limits, empty(tree), lift)
        assert [int(written(tree)[name]) >> 20 for name in ("memory.high", "calls/memory.high")] == [high, calls]


def test_without_throttle_on_the_ladder_calls_have_no_soft_limit(base: Cgroup, tree: Cgroup, tmp_path: Path) -> None:
    hard = policy(memory=Memory(high=Size(256 * MIB)), call=Call(on_pressure=("hold", "end")))
    subtree.apply(hard, subtree.compute(hard, base, tmp_path), tree)
    assert written(tree)["calls/memory.high"] == "max"


def test_the_subtree_stays_below_the_containers_own_limit(base: Cgroup, tmp_path: Path) -> None:
    """A container-level OOM with oom.group kills host, runtime and shell together (houston#1527)."""
    (Path(base.path) / "memory.max").write_text(f"{512 * MIB}\n")
    assert subtree.compute(policy(), base, tmp_path).memory_max == (512 - 4) * MIB


def test_a_device_that_is_not_there_is_named_and_stops_nothing(base: Cgroup, tree: Cgroup, tmp_path: Path) -> None:
    slow = policy(io=Io(max=(IoLimit("/dev/no-such-disk", {"rbps": 1000}), IoLimit("8:0", {"wiops": 5}))))
    (Path(tree.path) / "io.max").write_text("8:16 rbps=max wbps=1 riops=max wiops=max\n")
    missed = subtree.apply(slow, subtree.compute(slow, base, tmp_path), tree)
    assert missed == ["io.max of /dev/no-such-disk: No such file or directory"]
    assert written(tree)["io.max"].startswith("8:0 wiops=5 rbps=max wbps=max riops=max")


def test_limits_that_cannot_be_written_are_named(base: Cgroup, tmp_path: Path) -> None:
    limits = subtree.compute(policy(), base, tmp_path)
    missed = subtree.apply(policy(), limits, base.child("agentcgroup"))
    assert "calls/memory.max=4294967296" in missed
