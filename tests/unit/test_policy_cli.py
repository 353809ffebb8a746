"""`agentcgroup policy check | show | list`: what is printed where, and the exit status."""

import argparse
import json
from pathlib import Path

import pytest
from agentcgroup.cli import policy
from agentcgroup.errors import UserError

PACKAGED = Path(__file__).resolve().parents[2] / "oci-config" / "policies.d"

BASE = """\
description: what others extend
memory: {max: 2G, swap_max: 0}
network: {egress: 1M}
tenant: blue
io: {max: {8:0: {wbps: 10M, riops: 100}}}
shells: [/bin/sh]
exec_match: ['npm( .*)?']
call: {time_max: 90min, grace: 250ms}
"""
CI = "extends: base\nmode: observe\nrules:\n  - {match: make, as: call, hint: memory:high}\n"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(policy, "POLICY_DIRS", (Path("policies.d"),))
    Path("policies.d").mkdir()
    Path("policies.d/base.yaml").write_text(BASE)
    Path("policies.d/ci.yaml").write_text(CI)


def agentcgroup(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="agentcgroup")
    policy.register(parser.add_subparsers(required=True))
    options = parser.parse_args(["policy", *words])
    return int(options.run(options))


def test_check_says_ok_for_each_good_file_and_what_has_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    Path("small.yaml").write_text("mode: observe\n")
    assert agentcgroup("check", "policies.d/base.yaml", "small.yaml") == 0
    early = "policies.d/base.yaml: ok (tenant has no effect yet)\n"
    assert capsys.readouterr() == (early + "small.yaml: ok\n", "")


def test_check_goes_on_after_a_bad_file_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    Path("bad.yaml").write_text("extends: ci\nmode: x\nmemroy: 1\n")
    assert agentcgroup("check", "bad.yaml", "policies.d/ci.yaml", "gone.yaml") == 1
    out, err = capsys.readouterr()
    assert out == "policies.d/ci.yaml: ok (tenant has no effect yet)\n"
    assert err.splitlines() == [
        'bad.yaml:2: mode: must be observe or enforce, not "x"',
        "bad.yaml:3: memroy: unknown key: did you mean memory?",
        "gone.yaml: cannot be read: No such file or directory",
    ]


def test_check_finds_a_parent_beside_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentcgroup("check", *(str(path) for path in sorted(PACKAGED.glob("*.yaml")))) == 0
    assert capsys.readouterr().out.count(": ok") == 4


def test_show_gives_each_value_with_its_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentcgroup("show", "ci") == 0
    rows = {line.split("  ")[0]: line.split() for line in capsys.readouterr().out.splitlines()}
    assert rows["name"] == ["name", "ci", "policies.d/ci.yaml"]
    assert rows["mode"] == ["mode", "observe", "policies.d/ci.yaml:2"]
    assert rows["memory.max"] == ["memory.max", "2", "GiB", "policies.d/base.yaml:2"]
    assert rows["memory.high"] == ["memory.high", "none", "default"]
    assert rows["memory.swap_max"] == ["memory.swap_max", "0", "B", "policies.d/base.yaml:2"]
    assert rows["required"] == ["required", "false", "default"]
    assert rows["network.egress"] == ["network.egress", "1", "MiB/s", "policies.d/base.yaml:3"]
    assert rows["call.time_max"] == ["call.time_max", "1", "h", "30", "min", "policies.d/base.yaml:8"]
    assert rows["call.grace"] == ["call.grace", "250", "ms", "policies.d/base.yaml:8"]
    assert rows["call.on_pressure"] == ["call.on_pressure", "throttle,", "hold,", "end", "default"]
    assert rows["exec_match"] == ["exec_match", "npm(", ".*)?", "policies.d/base.yaml:7"]
    assert rows["io.max 8:0"] == ["io.max", "8:0", "wbps", "10", "MiB/s,", "riops", "100/s", "policies.d/base.yaml:5"]
    assert rows["rules[0]"] == ["rules[0]", "make", "->", "call", "memory:high", "policies.d/ci.yaml:4"]


def test_show_as_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentcgroup("show", "ci", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["name"], shown["source"], shown["mode"]) == ("ci", "policies.d/ci.yaml", "observe")
    assert shown["memory"] == {
        "max": 2**31, "high": None, "agent_min": None, "agent_max": None, "reserve": None, "swap_max": 0,
    }  # fmt: skip
    assert (shown["call"]["time_max"], shown["call"]["memory"]["max"]) == (5400.0, "100%")
    assert shown["io"]["max"] == [{"device": "8:0", "wbps": 10 * 2**20, "riops": 100}]
    assert shown["rules"] == [{"match": "make", "hint": "memory:high", "as": "call"}]
    assert shown["exec_match"] == ["npm( .*)?"]
    assert shown["provenance"]["memory.max"] == "policies.d/base.yaml:2"


def test_show_of_an_unknown_or_broken_policy_raises() -> None:
    with pytest.raises(UserError, match='^no policy "bas" in policies.d: did you mean "base"[?]$'):
        agentcgroup("show", "bas")
    Path("policies.d/bad.yaml").write_text("mode: x\n")
    with pytest.raises(UserError, match="^policies.d/bad.yaml:1: mode: must be"):
        agentcgroup("show", "bad")


def test_list_shows_broken_policies_too_and_fails_then(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentcgroup("list") == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["base", "enforce", "what", "others", "extend"],
        ["ci", "observe", "policies.d/ci.yaml"],
    ]
    Path("policies.d/bad.yaml").write_text("mode: x\n")
    assert agentcgroup("list") == 1
    out, err = capsys.readouterr()
    assert "bad                   broken    not usable, see below" in out
    assert err == 'policies.d/bad.yaml:1: mode: must be observe or enforce, not "x"\n'


def test_other_directories_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert agentcgroup("list", "--policies", str(PACKAGED)) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["batch", "coding-agent", "interactive", "observe"]
