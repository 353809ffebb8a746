"""`extends`: what a child inherits, where each value comes from, and chains that cannot be."""

from pathlib import Path

import pytest
from agentcgroup.policy.load import PolicySet, load_policies
from agentcgroup.policy.model import GIB, Size

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


def test_a_child_inherits_what_it_is_silent_about() -> None:
    found = load(
        base="description: B\nmode: observe\nmemory: {max: 4G, high: 3G}\nshells: [/bin/sh]\n",
        ci="extends: base\nmemory: {high: none}\n",
    )
    policy = found.get("ci")
    assert (policy.mode, policy.memory.max, policy.memory.high, policy.shells) == (
        "observe", Size(4 * GIB), None, ("/bin/sh",),
    )  # fmt: skip
    assert policy.description == "", "a description is of one file"


def test_each_value_knows_its_file_and_line() -> None:
    found = load(
        base="mode: observe\ncall:\n  grace: 1s\n  memory: {low: 1G,\n    high: 5G}\n",
        mid="extends: base\ncall:\n\n  grace: 2s\n",
        ci="extends: mid\npriority: batch\n",
    )
    places = found.get("ci").provenance
    assert {key: place for key, place in places.items() if place != "default"} == {
        "mode": "policies.d/base.yaml:1",
        "call.memory.low": "policies.d/base.yaml:4",
        "call.memory.high": "policies.d/base.yaml:5",
        "call.grace": "policies.d/mid.yaml:4",
        "priority": "policies.d/ci.yaml:2",
    }
    assert places["memory.max"] == "default"


def test_rules_of_the_child_are_tried_before_inherited_ones() -> None:
    found = load(
        base="rules:\n  - {match: make, as: helper}\n  - {match: x, as: helper}\n",
        mid="extends: base\n",
        ci="extends: mid\nrules:\n  - match: make\n    as: call\n",
    )
    policy = found.get("ci")
    rule = policy.rule_for("make all")
    assert rule is not None and rule.as_ == "call"
    assert [policy.provenance[f"rules[{index}]"] for index in range(3)] == [
        "policies.d/ci.yaml:3",
        "policies.d/base.yaml:2",
        "policies.d/base.yaml:3",
    ]


def test_a_local_file_may_extend_the_vendors_of_the_same_name() -> None:
    found = load({"ci": "mode: observe\npriority: batch\n"}, ci="extends: ci\npriority: normal\n")
    policy = found.get("ci")
    assert (policy.mode, policy.priority) == ("observe", "normal")
    assert policy.provenance["mode"] == "vendor/ci.yaml:1"


def test_a_vendors_child_inherits_from_the_local_parent() -> None:
    found = load({"base": "", "ci": "extends: base\n"}, base="extends: base\nmode: observe\n")
    assert found.get("ci").mode == "observe"


def test_inherited_sizes_are_cut_not_refused() -> None:
    found = load(base="memory: {max: 16G}\ncall: {memory: {high: 8G}}\n", ci="extends: base\nmemory: {max: 2G}\n")
    assert found.errors == {}


@pytest.mark.parametrize(
    ("child", "message"),
    [
        (
            "memory: {max: 128M}",
            "memory.agent_min 256 MiB exceeds memory.max 128 MiB (memory.agent_min: policies.d/base.yaml:1): "
            "lower memory.agent_min or raise memory.max",
        ),
        (
            "call: {memory: {low: 3G}}",
            "call.memory.low 3 GiB exceeds call.memory.medium 2 GiB (call.memory.medium: policies.d/base.yaml:2): "
            "lower call.memory.low or raise call.memory.medium",
        ),
    ],
)
def test_what_cannot_be_cut_must_fit_inherited_values(child: str, message: str) -> None:
    base = "memory: {agent_min: 256M}\ncall: {memory: {medium: 2G}}\n"
    found = load(base=base, ci=f"extends: base\n{child}\n")
    assert str(found.errors["ci"]) == f"policies.d/ci.yaml:2: {message}"


def test_circles_are_named() -> None:
    found = load(
        a="extends: b\n", b="mode: observe\nextends: c\n", c="extends: a\n", d="extends: a\n", e="extends: e\n"
    )
    assert {name: str(error) for name, error in found.errors.items()} == {
        "a": "policies.d/a.yaml:1: extends: a circle: a -> b -> c -> a: take one `extends` out",
        "b": "policies.d/b.yaml:2: extends: a circle: b -> c -> a -> b: take one `extends` out",
        "c": "policies.d/c.yaml:1: extends: a circle: c -> a -> b -> c: take one `extends` out",
        "d": 'policies.d/d.yaml:1: extends: policy "a" has errors itself: run '
        "`agentcgroup policy check policies.d/a.yaml`",
        "e": 'policies.d/e.yaml:1: extends: "e" is this policy, and no earlier directory has one: name another',
    }


def test_a_long_chain_is_refused() -> None:
    found = load(p0="", **{f"p{number}": f"extends: p{number - 1}\n" for number in range(1, 12)})
    assert list(found.policies) == ["p0", "p1", *(f"p{number}" for number in range(2, 8))]
    assert str(found.errors["p8"]) == (
        "policies.d/p8.yaml:1: extends: more than 8 policies extend each other: write some of them out"
    )


def test_a_missing_or_broken_parent_hides_no_mistake_of_the_child() -> None:
    found = load(
        broken="mode: x\n",
        ci="extends: brokn\nmode: obsrve\n",
        dev="extends: broken\ncall: {grace: 1y}\nmemory: {max: 1G, high: 2G}\n",
    )
    assert str(found.errors["ci"]).splitlines() == [
        'policies.d/ci.yaml:1: extends: no policy "brokn": did you mean "broken"?',
        'policies.d/ci.yaml:2: mode: must be observe or enforce, not "obsrve"',
    ]
    assert str(found.errors["dev"]).splitlines() == [
        'policies.d/dev.yaml:1: extends: policy "broken" has errors itself: run '
        "`agentcgroup policy check policies.d/broken.yaml`",
        'policies.d/dev.yaml:2: call.grace: "1y" is not a duration: write one such as 90s, 5min or 1h30m',
        "policies.d/dev.yaml:3: memory.high 2 GiB exceeds memory.max 1 GiB: lower memory.high or raise memory.max",
    ]
