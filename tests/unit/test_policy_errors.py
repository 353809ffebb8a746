"""What each mistake in a policy file is called: place, key, cause, and what to write instead."""

import os
from pathlib import Path

import pytest
from agentcgroup.policy.load import load_policies
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SIZE = "a size such as 512M, 2GiB or 75%"

# (text of policies.d/ci.yaml, line, message)
MISTAKES = [
    # keys
    ("memroy:\n  max: 4G\n", 1, "memroy: unknown key: did you mean memory?"),
    ("memory:\n  maximum: 4G\n", 2, "memory.maximum: unknown key: did you mean memory.max?"),
    ("time_max: 10min\n", 1, "time_max: unknown key: did you mean call.time_max?"),
    ("network:\n  xyzzy: 1\n", 2, "network.xyzzy: unknown key: known here: egress, ingress"),
    ("<<: {mode: observe}\n", 1, "<<: unknown key: known here: {top}"),
    ("mode: observe\nmode: enforce\n", 2, "mode: given before, in line 1: keep one"),
    ("memory: 4G\n", 1, 'memory: must be a mapping of keys to values, not "4G"'),
    ("memory: []\n", 1, "memory: must be a mapping of keys to values, not an empty list"),
    # sizes
    ("memory:\n  max: 2g\n", 2, 'memory.max: "2g" is not a size: write 2G'),
    ("memory:\n  max: infinity\n", 2, 'memory.max: "infinity" is not a size: write none where no limit is wanted'),
    ("memory:\n  max: 2 GiB RAM\n", 2, 'memory.max: "2 GiB RAM" is not a size: write one such as 512M or 2GiB'),
    ("memory:\n  max: 512\n", 2, "memory.max: 512 B is less than 1 MiB: write 512M if MiB are meant"),
    ("memory:\n  max: 0\n", 2, "memory.max: 0 B is less than 1 MiB: write 512M if MiB are meant"),
    ("memory:\n  swap_max: 8\n", 2, "memory.swap_max: 8 B is less than 1 MiB: write 8M if MiB are meant"),
    ("memory:\n  max: 120%\n", 2, "memory.max: 120% is more than there is: write 100% or less"),
    ("memory:\n  max: 9000P\n", 2, 'memory.max: "9000P" is larger than any memory: write a smaller size'),
    ("memory:\n  max: -1\n", 2, f"memory.max: must be {SIZE}, or none, not -1"),
    ("memory:\n  max:\n", 2, f"memory.max: must be {SIZE}, or none, not empty: write none if no limit is wanted"),
    ("memory:\n  max: true\n", 2, f"memory.max: must be {SIZE}, or none, not true"),
    ("memory:\n  max: 1.5\n", 2, f"memory.max: must be {SIZE}, or none, not 1.5"),
    ("call:\n  memory: {high: none}\n", 2, 'call.memory.high: "none" is not a size: write one such as 512M or 2GiB'),
    ("network:\n  egress: 1K\n", 2, "network.egress: 1 KiB/s is out of range: write 16K or more and less than 4G"),
    ("network:\n  ingress: 4G\n", 2, "network.ingress: 4 GiB/s is out of range: write 16K or more and less than 4G"),
    ("network:\n  egress: 10Mbit\n", 2, 'network.egress: "10Mbit" is not a size: write one such as 512M or 2GiB'),
    # durations
    (
        "call:\n  time_max: 90 parsecs\n", 2,
        'call.time_max: "90 parsecs" is not a duration: write one such as 90s, 5min or 1h30m',
    ),
    ("call:\n  time_max: 0\n", 2, "call.time_max: 0 s is out of range: write 1 s to 366 d"),
    ("call:\n  grace: 10min\n", 2, "call.grace: 10 min is out of range: write 0 s to 5 min"),
    ("call:\n  stall_deadline: 500ms\n", 2, "call.stall_deadline: 500 ms is out of range: write 1 s to 1 h"),
    ("call:\n  time_max: 400d\n", 2, 'call.time_max: "400d" is longer than a year: write a shorter duration'),
    # words and switches
    ("mode: enforced\n", 1, 'mode: must be observe or enforce, not "enforced"'),
    ("required: yes\n", 1, 'required: must be true or false, not "yes": write true'),
    ("delegate: off\n", 1, 'delegate: must be true or false, not "off": write false'),
    ("required: 1\n", 1, "required: must be true or false, not 1"),
    (
        "description: true\n", 1,
        'description: must be a text of at most 500 characters, not true: write "true" in quotes if that is meant',
    ),
    (
        "tenant: 42\n", 1,
        "tenant: must be a name of letters, digits, dot, dash and underscore, or none, not 42: "
        'write "42" in quotes if that is meant',
    ),
    ("records:\n  command: no\n", 2, 'records.command: must be off, hash, first or full, not "no"'),
    ("call:\n  orphans: reap\n", 2, 'call.orphans: must be kill, keep or report, not "reap"'),
    # numbers
    ("cpu:\n  weight: 0\n", 2, "cpu.weight: must be an integer from 1 to 10000, or none, not 0"),
    ("io:\n  weight: 10001\n", 2, "io.weight: must be an integer from 1 to 10000, or none, not 10001"),
    (
        'cpu:\n  weight: "100"\n', 2,
        'cpu.weight: must be an integer from 1 to 10000, or none, not "100": take the quotes off',
    ),
    ("cpu:\n  max: 150%\n", 2, 'cpu.max: must be a number of CPUs such as 2 or 0.5, or none, not "150%"'),
    ("cpu:\n  max: 0\n", 2, "cpu.max: must be a number of CPUs such as 2 or 0.5, or none, not 0"),
    ("pids_max: 4096.5\n", 1, "pids_max: must be an integer from 16 to 4194304, or none, not 4096.5"),
    ("call:\n  pids_max: 1\n", 2, "call.pids_max: must be an integer from 4 to 4194304, not 1"),
    ("call:\n  fork_rate: 0\n", 2, "call.fork_rate: must be an integer from 1 to 1000000, or none, not 0"),
    # lists
    ("shells: /bin/bash\n", 1, 'shells: must be a list of absolute paths, not "/bin/bash"'),
    ("shells: [bash]\n", 1, 'shells[0]: must be an absolute path without .. such as /bin/bash, not "bash"'),
    (
        "shells:\n  - /bin/sh\n  - /a/../b\n", 3,
        'shells[1]: must be an absolute path without .. such as /bin/bash, not "/a/../b"',
    ),
    ("call:\n  on_pressure: [end, throttle]\n", 2, "call.on_pressure: out of order: write [throttle, end]"),
    ("call:\n  on_pressure: [kill]\n", 2, 'call.on_pressure[0]: must be throttle, hold, enomem or end, not "kill"'),
    (
        "call:\n  on_pressure: [hold, hold]\n", 2,
        "call.on_pressure: must be a list of throttle, hold, enomem and end, in this order, "
        "not a list with one of them twice",
    ),
    (
        "io:\n  max:\n    sda: {wbps: 1M}\n", 3,
        'io.max.sda: must be a path such as /dev/sda, or MAJ:MIN such as 8:0, not "sda"',
    ),
    (
        "io:\n  max:\n    /dev/../x: {wbps: 1M}\n", 3,
        'io.max./dev/../x: must be a path such as /dev/sda, or MAJ:MIN such as 8:0, not "/dev/../x"',
    ),
    ("io:\n  max:\n    8:0: {wpbs: 1M}\n", 3, "io.max.8:0.wpbs: unknown key: did you mean io.max.8:0.wbps?"),
    (
        "io:\n  max:\n    8:0: {}\n", 3,
        "io.max.8:0: must be limits such as {wbps: 100M, wiops: 2000}, not an empty mapping",
    ),
    # patterns and rules
    (
        "exec_match: ['(make']\n", 1,
        'exec_match[0]: "(make" is not a regular expression: missing ), unterminated subpattern at position 0: '
        "escape or mend it",
    ),
    (
        "exec_match: ['(a+)+$']\n", 1,
        'exec_match[0]: "(a+)+$" could run for minutes on a hostile text: take the inner repeat out',
    ),
    (
        "rules:\n  - match: ok\n    as: call\n  - match: a.*b.*c\n    as: call\n", 4,
        'rules[1]: "a.*b.*c" could run for seconds on a hostile text: write .{0,99} for .*, and so on',
    ),
    ("rules:\n  - as: call\n", 2, "rules[0]: has no match: add one"),
    ("rules:\n  - match: make\n", 2, "rules[0]: says neither hint nor as: add one, or drop the rule"),
    ("rules:\n  - match: make\n    as: server\n", 3, 'rules[0].as: must be call, helper or agent, not "server"'),
    (
        "rules:\n  - match: ''\n    as: call\n", 2,
        'rules[0].match: must be a regular expression of 1 to 512 characters, not ""',
    ),
    # contradictions
    (
        "memory:\n  max: 4G\ncall:\n  memory:\n    max: 6G\n", 5,
        "call.memory.max 6 GiB exceeds memory.max 4 GiB: lower call.memory.max or raise memory.max",
    ),
    (
        "memory:\n  max: 4G\n  high: 5G\n", 3,
        "memory.high 5 GiB exceeds memory.max 4 GiB: lower memory.high or raise memory.max",
    ),
    (
        "memory:\n  max: 50%\n  agent_min: 60%\n", 3,
        "memory.agent_min 60 % exceeds memory.max 50 %: lower memory.agent_min or raise memory.max",
    ),
    (
        "pids_max: 512\ncall:\n  pids_max: 1000\n", 3,
        "call.pids_max 1000 exceeds pids_max 512: lower call.pids_max or raise pids_max",
    ),
    (
        "call:\n  cpu_low: 300\n", 2,
        "call.cpu_low 300 exceeds call.cpu_normal 100 (call.cpu_normal: default): "
        "lower call.cpu_low or raise call.cpu_normal",
    ),
    # files that are no policy
    ("- mode\n", 1, "the file must hold `key: value` lines: see docs/policy.md"),
    ("? [a]\n: b\n", 1, "a key must be a word, not a list or a mapping"),
    ("mode: observe\n---\nmode: enforce\n", 2, "a second document (`---`): write one policy a file"),
    ("a: b: c\n", 1, "not YAML: mapping values are not allowed here: check indentation, colons and quotes"),
    (
        "cpu:\n\tweight: 5\n", 2,
        "not YAML: while scanning for the next token, found character '\\t' that cannot start any token: "
        "check indentation, colons and quotes",
    ),
    ("mode: !!str observe\n", 1, "the tag !!str is not taken: write the plain value"),
    ("memory: &m {max: 4G}\n", 1, "anchors and aliases (& and *) are not taken: write the value out, or use `extends`"),
    ("call: *m\n", 1, "anchors and aliases (& and *) are not taken: write the value out, or use `extends`"),
    (f"x: {'[' * 9}{']' * 9}\n", 1, "deeper than 8 levels or more than 4096 values: make it smaller"),
    ("x:\n" + "- 1\n" * 5000, 4095, "deeper than 8 levels or more than 4096 values: make it smaller"),
    ("mode: \x07\n", 1, "the character 0x7 is not allowed in YAML: remove it"),
    (b"mode: observe\ndescription: caf\xe9\n", 2, "byte 0xe9 is not UTF-8: save the file as UTF-8"),
]  # fmt: skip

PIECES = [
    "memory:", "call:", "max: ", "2G", "1", "-1", "75%", "\n", "\n  ", "- ", "{", "}", "[", "]", ",", ": ",
    "none", "true", "~", "'", '"', "#", "&a ", "*a", "!!str ", "? ", "|", "rules:", "match: x", "as: call",
    "mode: observe", "io:", "8:0", "1e999",
]  # fmt: skip

TOP = (
    "extends, description, mode, required, delegate, priority, memory, cpu, pids_max, io, network, shells, exec_match, "
    "call, rules, records, tenant"
)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies.d").mkdir()
    return Path("policies.d")


def broken(directory: Path, text: str | bytes) -> str:
    (directory / "ci.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    (directory / "good.yaml").write_text("mode: observe\n")
    found = load_policies([directory])
    assert list(found.policies) == ["good"], "a broken file hides no other"
    return str(found.errors["ci"])


@pytest.mark.parametrize(("text", "line", "message"), MISTAKES, ids=[str(case[2])[:40] for case in MISTAKES])
def test_a_mistake_is_named_with_its_line(directory: Path, text: str | bytes, line: int, message: str) -> None:
    assert broken(directory, text) == f"policies.d/ci.yaml:{line}: {message.replace('{top}', TOP)}"


def test_all_mistakes_of_a_file_are_reported_in_its_order(directory: Path) -> None:
    text = """\
mode: obsrve
required: yes
memory:
  max: 2g
  hihg: 1G
rules:
  - match: '('
    as: call
  - match: x
call:
  memory: {default: 3G, max: 2G}
"""
    assert broken(directory, text).splitlines() == [
        'policies.d/ci.yaml:1: mode: must be observe or enforce, not "obsrve"',
        'policies.d/ci.yaml:2: required: must be true or false, not "yes": write true',
        'policies.d/ci.yaml:4: memory.max: "2g" is not a size: write 2G',
        "policies.d/ci.yaml:5: memory.hihg: unknown key: did you mean memory.high?",
        'policies.d/ci.yaml:7: rules[0]: "(" is not a regular expression: missing ), unterminated subpattern at '
        "position 0: escape or mend it",
        "policies.d/ci.yaml:9: rules[1]: says neither hint nor as: add one, or drop the rule",
        "policies.d/ci.yaml:11: call.memory.default 3 GiB exceeds call.memory.max 2 GiB: lower call.memory.default "
        "or raise call.memory.max",
    ]


def test_a_hint_that_means_nothing_is_an_error(directory: Path) -> None:
    text = broken(directory, "rules:\n  - match: make\n    hint: colour:red\n")
    assert text.startswith('policies.d/ci.yaml:2: rules[0]: hint: "colour:red": there is no such key, only memory, ')


def test_a_file_of_more_than_256_KiB_is_not_parsed(directory: Path) -> None:
    text = broken(directory, "# x\n" * 65537)
    assert text == "policies.d/ci.yaml: larger than 256 KiB: split it, or drop what is not a setting"


def test_what_is_no_file_is_an_error_and_does_not_hang(directory: Path) -> None:
    (directory / "dir.yaml").mkdir()
    (directory / "gone.yaml").symlink_to("nowhere")
    (directory / "loop.yaml").symlink_to("loop.yaml")
    fifo = directory / "fifo.yaml"
    os.mkfifo(fifo)
    assert {name: str(error) for name, error in load_policies([directory]).errors.items()} == {
        "dir": "policies.d/dir.yaml: not a regular file: put the YAML text there",
        "fifo": "policies.d/fifo.yaml: not a regular file: put the YAML text there",
        "gone": "policies.d/gone.yaml: cannot be read: No such file or directory",
        "loop": "policies.d/loop.yaml: cannot be read: Too many levels of symbolic links",
    }


@pytest.mark.parametrize("name", ["ci.yml", "my policy.yaml", f"{'x' * 65}.yaml", "größe.yaml"])
def test_a_file_whose_name_cannot_be_a_policy_is_an_error(directory: Path, name: str) -> None:
    (directory / name).write_text("mode: observe\n")
    found = load_policies([directory])
    (error,) = found.errors.values()
    assert found.policies == {}
    assert str(error).startswith(f"policies.d/{name}: a policy's ") and str(error).endswith(": rename it")


@given(
    st.binary(max_size=60) | st.lists(st.sampled_from(PIECES), max_size=12).map(lambda parts: "".join(parts).encode())
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_a_policy_or_an_error(raw: bytes) -> None:
    path = Path("policies.d/any.yaml")
    path.write_bytes(raw)
    found = load_policies([path.parent])
    assert len(found.policies) + len(found.errors) == 1
    assert all(line.startswith(str(path)) for error in found.errors.values() for line in str(error).splitlines())


def test_left_overs_of_editors_and_package_managers_are_ignored(directory: Path) -> None:
    for name in ("ci.yaml~", ".ci.yaml.swp", "ci.yaml.rpmnew", "README", ".hidden.yaml"):
        (directory / name).write_text("{{{")
    found = load_policies([directory])
    assert (found.policies, found.errors) == ({}, {})
