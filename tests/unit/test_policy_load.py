"""Where policies come from: directories and names; and that every field of a file reaches the model."""

from dataclasses import fields
from pathlib import Path

import pytest
from agentcgroup.errors import UserError
from agentcgroup.policy.load import PolicySet, load_file, load_policies
from agentcgroup.policy.model import GIB, MIB, Call, CallMemory, IoLimit, Memory, Policy, Size

VENDOR, LOCAL = Path("vendor"), Path("policies.d")


@pytest.fixture(autouse=True)
def directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    VENDOR.mkdir()
    LOCAL.mkdir()


def load(vendor: dict[str, str] | None = None, **local: str) -> PolicySet:
    for place, texts in ((VENDOR, vendor or {}), (LOCAL, local)):
        for name, text in texts.items():
            (place / f"{name}.yaml").write_text(text)
    return load_policies([VENDOR, LOCAL])


EVERYTHING = """\
description: all of it
mode: observe
required: true
delegate: true
priority: batch
memory: {max: 75%, high: 12.5%, agent_min: 256M, agent_max: 2GiB, reserve: 0, swap_max: 0}
cpu: {weight: 50, max: 1.5}
pids_max: 4096
io:
  weight: 20
  max:
    /dev/nvme0n1: {rbps: 10M, wiops: 200}
    8:0: {wbps: 1048576}
network: {egress: 1.5M, ingress: none}
shells: [/bin/bash]
exec_match: [make, 'npm( .*)?']
call:
  memory: {default: 1G, low: 256M, medium: 2G, high: 3G, max: 90%}
  pids_max: 100
  time_max: 1h30m
  grace: 250ms
  stall_deadline: 10
  fork_rate: none
  orphans: kill
  on_pressure: [hold, end]
  cpu_low: 1
  cpu_normal: 2
  cpu_high: 3
rules:
  - match: '\\bmake\\b'
    hint: memory:high
  - {match: pylsp, as: helper}
records: {command: off}
tenant: team-a
"""


def test_every_field_is_read() -> None:
    policy = load(full=EVERYTHING).get("full")
    rules = [(rule.match.pattern, rule.hint, rule.as_) for rule in policy.rules]
    patterns = [pattern.pattern for pattern in policy.exec_match]
    assert (policy.name, policy.source, policy.description) == ("full", LOCAL / "full.yaml", "all of it")
    assert (policy.mode, policy.required, policy.delegate, policy.priority) == ("observe", True, True, "batch")
    assert policy.memory == Memory(
        max=Size(percent=75.0), high=Size(percent=12.5), agent_min=Size(256 * MIB), agent_max=Size(2 * GIB),
        reserve=Size(0), swap_max=Size(0),
    )  # fmt: skip
    assert (policy.cpu.weight, policy.cpu.max, policy.pids_max) == (50, 1.5, 4096)
    assert policy.io.weight == 20
    assert policy.io.max == (
        IoLimit("/dev/nvme0n1", {"rbps": 10 * MIB, "wiops": 200}),
        IoLimit("8:0", {"wbps": MIB}),
    )
    assert (policy.network.egress, policy.network.ingress) == (3 * MIB // 2, None)
    assert (policy.shells, patterns) == (("/bin/bash",), ["make", "npm( .*)?"])
    assert policy.call == Call(
        memory=CallMemory(Size(GIB), Size(256 * MIB), Size(2 * GIB), Size(3 * GIB), Size(percent=90.0)),
        pids_max=100, time_max=5400.0, grace=0.25, stall_deadline=10.0, fork_rate=None, orphans="kill",
        on_pressure=("hold", "end"), cpu_low=1, cpu_normal=2, cpu_high=3,
    )  # fmt: skip
    assert rules == [("\\bmake\\b", "memory:high", None), ("pylsp", None, "helper")]
    assert (policy.records.command, policy.tenant) == ("off", "team-a")


def test_this_test_sets_every_field_of_the_model() -> None:
    policy, bare = load(full=EVERYTHING).get("full"), Policy("full")
    same = [name for name in (entry.name for entry in fields(Policy)) if getattr(policy, name) == getattr(bare, name)]
    assert same == ["name"]


@pytest.mark.parametrize("text", ["", "# nothing\n", "memory:\ncall:\n  memory:\n", "{}\n", "\ufeffmode: enforce\n"])
def test_an_empty_file_and_empty_sections_are_the_defaults(text: str) -> None:
    policy = load(bare=text).get("bare")
    assert policy == Policy("bare", LOCAL / "bare.yaml")


def test_off_and_no_are_words_and_8_0_is_a_device() -> None:
    """YAML 1.1 would make them False, False and 480."""
    policy = load(ci="records: {command: off}\nio: {max: {8:0: {wbps: 1M}}}\ntenant: no\n").get("ci")
    assert (policy.records.command, policy.io.max[0].device, policy.tenant) == ("off", "8:0", "no")


def test_a_missing_directory_is_no_error() -> None:
    found = load_policies([Path("nowhere"), LOCAL])
    assert (found.policies, found.errors) == ({}, {})


def test_a_later_directory_wins_by_name() -> None:
    found = load({"ci": "priority: batch\n", "other": ""}, ci="mode: observe\n")
    assert found.get("ci").source == LOCAL / "ci.yaml"
    assert (found.get("ci").mode, found.get("ci").priority) == ("observe", "normal")
    assert list(found.policies) == ["ci", "other"]


def test_a_broken_local_file_does_not_fall_back_to_the_vendors() -> None:
    """The vendor's may be looser than what the administrator meant."""
    found = load({"ci": "mode: observe\n"}, ci="mode: x\n")
    with pytest.raises(UserError, match="^policies.d/ci.yaml:1: mode: must be observe or enforce"):
        found.get("ci")


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("coding-agnet", 'did you mean "coding-agent"?'),
        ("Coding-Agent", 'did you mean "coding-agent"?'),
        ("xyzzy", "see `agentcgroup policy list`"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest_and_the_directories(name: str, advice: str) -> None:
    with pytest.raises(UserError) as error:
        load({"coding-agent": ""}).get(name)
    assert str(error.value) == f'no policy "{name}" in vendor, policies.d: {advice}'


def test_asking_for_a_broken_policy_again_and_again_keeps_no_memory() -> None:
    found = load(ci="mode: x\n")
    for _ in range(3):
        with pytest.raises(UserError):
            found.get("ci")
    assert found.errors["ci"].__traceback__ is None


def test_one_file_is_loaded_with_what_stands_beside_it() -> None:
    load({"base": "priority: batch\n"}, base="priority: interactive\n", ci="extends: base\n")
    assert load_file(VENDOR / "base.yaml", [VENDOR, LOCAL]).priority == "batch"
    assert load_file(LOCAL / "ci.yaml", []).priority == "interactive"
    assert load_file(LOCAL / "ci.yaml", [VENDOR]).priority == "interactive"
    with pytest.raises(UserError, match="^policies.d/x.yml: a policy's file name ends in .yaml: rename it$"):
        load_file(LOCAL / "x.yml", [])


# --- the model -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "count", "text"),
    [
        (Size(), 1000, "none"),
        (Size(512 * MIB), 512 * MIB, "512 MiB"),
        (Size(percent=12.5), 125, "12.5 %"),
        (Size(100, 75.0), 100, "100 B or 75 %"),
        (Size(800, 75.0), 750, "800 B or 75 %"),
    ],
)
def test_a_size_is_bytes_or_a_share_or_the_smaller_of_both(size: Size, count: int, text: str) -> None:
    assert (size.of(1000), str(size)) == (count, text)


def test_a_pattern_sees_4096_characters_and_a_process_name_as_a_whole() -> None:
    policy = load(ci="rules: [{match: make, as: call}]\nexec_match: [make]\n").get("ci")
    assert policy.rule_for(" " * 4092 + "make") is not None
    assert policy.rule_for(" " * 4093 + "make") is None
    assert policy.takes_exec("make") and not policy.takes_exec("cmake")
