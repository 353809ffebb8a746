"""`agentcgroup match`: each field of oci-hooks(5), as podman and CRI-O read it."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from agentcgroup.cli import main
from agentcgroup.ocihooks import (
    Container,
    Hook,
    State,
    Verdict,
    judge,
    suggestions,
)
from agentcgroup.re2 import InvalidRegex, UntranslatedRegex, compile_re2

PACKAGED = Path(__file__).resolve().parents[2] / "oci-config" / "hooks.d" / "50-agentcgroup.json"
HOOK = {"path": "/bin/true"}
ALWAYS = {"version": "1.0.0", "hook": HOOK, "when": {"always": True}, "stages": ["prestart"]}
NOTHING_COUNTS = "podman starts no container at all until it is mended or removed"


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hooks.d").mkdir()
    Path("bin").mkdir()
    shutil.copy("/bin/true", "bin/agentcgroup-hook")


def write(content: Any, name: str = "hooks.d/a.json") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def with_when(**when: Any) -> dict[str, Any]:
    return {**ALWAYS, "when": when}


def verdicts(*directories: str, engine: str = "podman", **container: Any) -> list[Verdict]:
    return judge([Path(name) for name in directories or ["hooks.d"]], Container(**container), engine)


def verdict(content: Any, engine: str = "podman", **container: Any) -> Verdict:
    write(content)
    [found] = verdicts(engine=engine, **container)
    return found


def hook_of(content: Any) -> Hook:
    found = verdict(content).hook
    assert found
    return found


def ours() -> None:
    """The packaged file, with a program that is there."""
    content = json.loads(PACKAGED.read_text())
    content["hook"]["path"] = str(Path("bin/agentcgroup-hook").absolute())
    write(content, "hooks.d/50-agentcgroup.json")


# -- fields of schema 1.0.0 --


def test_a_hook_keeps_all_its_fields() -> None:
    hook = hook_of({**ALWAYS, "hook": {**HOOK, "args": ["true", None], "env": ["A=b"], "timeout": 5}})
    assert (hook.schema, hook.path, hook.args, hook.env, hook.timeout) == (
        "1.0.0",
        "/bin/true",
        ("true", ""),
        ("A=b",),
        5,
    )
    assert (hook.stages, hook.always, hook.has_bind_mounts) == (("prestart",), True, None)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"version": "1.1.0"}, 'version "1.1.0" is unknown: it must be "1.0.0" or, for the old schema, "0.1.0"'),
        ({"version": 1}, "version must be a string, not 1"),
        ({"hook": None}, "hook.path is missing"),
        ({"hook": "/bin/true"}, 'hook must be an object, not "/bin/true"'),
        ({"hook": {"path": ""}}, "hook.path is missing"),
        ({"hook": {"path": 7}}, "hook.path must be a string, not 7"),
        ({"hook": {"path": "/bin/true/x"}}, "hook.path /bin/true/x: Not a directory"),
        ({"hook": {"path": "/bin/\0"}}, "hook.path /bin/\0: embedded null byte"),
        ({"hook": {**HOOK, "args": "true"}}, 'hook.args must be an array of strings, not "true"'),
        ({"hook": {**HOOK, "env": ["A=b", 1]}}, 'hook.env must be an array of strings, not ["A=b", 1]'),
        ({"hook": {**HOOK, "timeout": "5"}}, 'hook.timeout must be a whole number, not "5"'),
        ({"hook": {**HOOK, "timeout": 5.0}}, "hook.timeout must be a whole number, not 5.0"),
        ({"hook": {**HOOK, "timeout": True}}, "hook.timeout must be a whole number, not true"),
        ({"when": [1]}, "when must be an object, not [1]"),
        ({"when": {"always": "yes"}}, 'when.always must be true or false, not "yes"'),
        ({"when": {"hasBindMounts": 1}}, "when.hasBindMounts must be true or false, not 1"),
        ({"when": {"annotations": ["a"]}}, 'when.annotations must be an object of strings, not ["a"]'),
        ({"when": {"annotations": {"a": 1}}}, 'when.annotations must be an object of strings, not {"a": 1}'),
        ({"when": {"annotations": {"(": ""}}}, 'annotation key "(": a "(" is not closed'),
        ({"when": {"annotations": {"": "a**"}}}, 'annotation value "a**": "**" repeats a repetition'),
        ({"when": {"commands": "sh"}}, 'when.commands must be an array of strings, not "sh"'),
        ({"when": {"commands": ["[a"]}}, 'command "[a": a "[" is not closed'),
        ({"stages": None}, "stages is missing"),
        ({"stages": "prestart"}, 'stages must be an array of strings, not "prestart"'),
        ({"stages": ["preStart"]}, 'stage "preStart" is unknown to podman: prestart'),
        ({"stages": ["createruntime"]}, 'stage "createruntime" is unknown to podman: createRuntime'),
    ],
)
def test_a_value_that_the_engine_refuses_stops_every_container(change: dict[str, Any], error: str) -> None:
    found = verdict({**ALWAYS, **change})
    assert (found.state, found.reasons) == (State.BROKEN, (error, NOTHING_COUNTS))


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", "line 1: not JSON: Expecting value"),
        ('{\n  "version": "1.0.0"\n  "hook": {}\n}', "line 3: not JSON: Expecting ',' delimiter"),
        ('{"hook": NaN}', "not JSON: NaN is no value"),
        ("\ufeff{}", "line 1: not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig)"),
        ("[]", "the file must be an object, not []"),
        ("null", "hook is missing"),
    ],
)
def test_a_file_that_is_not_the_json_of_an_object_is_broken(content: str, error: str) -> None:
    assert verdict(content).reasons == (error, NOTHING_COUNTS)


def test_a_file_nested_beyond_reason_is_broken() -> None:
    assert verdict("[" * 100_000).reasons[0].startswith("not JSON: maximum recursion depth exceeded")


@pytest.mark.parametrize(
    "stage", ["createContainer", "createRuntime", "prestart", "poststart", "poststop", "startContainer"]
)
@pytest.mark.parametrize("engine", ["podman", "crio"])
def test_each_stage_of_the_runtime_specification_is_known(stage: str, engine: str) -> None:
    assert verdict({**ALWAYS, "stages": [stage]}, engine).stages == (stage,)


def test_precreate_is_for_podman_only() -> None:
    content = {**ALWAYS, "stages": ["precreate"]}
    assert verdict(content).stages == ("precreate",)
    error, consequence = verdict(content, "crio").reasons
    assert error == (
        'stage "precreate" is unknown to crio: '
        "createContainer or createRuntime or poststart or poststop or prestart or startContainer"
    )
    assert consequence == "CRI-O does not start with such a file, and one that runs goes on without this hook"


@pytest.mark.parametrize(
    ("change", "warning"),
    [
        ({"hook": {**HOOK, "timeout": 0}}, "hook.timeout is 0 s: the runtime specification wants more than 0"),
        ({"hook": {**HOOK, "env": ["A"]}}, 'hook.env: "A" has no "="'),
        ({"hook": {"path": "/etc"}}, "hook.path /etc is no program: the runtime fails every container that matches"),
        ({"hook": {**HOOK, "arg": []}}, '"arg" is ignored: did you mean args?'),
        ({"comment": "x"}, '"comment" is ignored: there is no such key'),
        ({"stages": ["poststop", "poststop"]}, "stage poststop is named twice: the hook runs twice"),
        ({"hook": {"path": "bin/agentcgroup-hook"}}, "hook.path bin/agentcgroup-hook is relative: it must be absolute"),
    ],
)
def test_what_the_engine_accepts_and_nobody_means_is_a_warning(change: dict[str, Any], warning: str) -> None:
    found = verdict({**ALWAYS, **change})
    assert (found.state, found.warnings) == (State.RUNS, (warning,))


def test_a_relative_path_is_looked_for_where_the_engine_is() -> None:
    found = verdict({**ALWAYS, "hook": {"path": "bin/agentcgroup-hook"}}, "crio")
    assert (found.state, found.reasons[1]) == (
        State.NO_BINARY,
        "a CRI-O that read the file while the binary was there fails every container that matches",
    )


def test_names_of_fields_may_be_in_upper_or_lower_case() -> None:
    """Go's encoding/json reads them so; keys of `annotations` are no fields."""
    found = verdict({"VERSION": "1.0.0", "Hook": HOOK, "when": {"hasbindmounts": True}, "Stages": ["prestart"]})
    assert found.hook and found.hook.has_bind_mounts
    assert verdict(with_when(annotations={"^A$": ""}), annotations={"a": ""}).state is State.UNMATCHED


def test_bytes_that_are_no_text_are_no_error() -> None:
    Path("hooks.d/a.json").write_bytes(json.dumps(ALWAYS).encode()[:-1] + b', "x\xff": 1}')
    assert verdicts()[0].state is State.RUNS


# -- when --


@pytest.mark.parametrize(
    ("when", "container", "unmet"),
    [
        ({"always": True}, {}, []),
        ({"always": False}, {}, ["always is false, which matches nothing: leave it out"]),
        ({"annotations": {"^a$": "^b$"}}, {"annotations": {"a": "b"}}, []),
        ({"annotations": {"^a$": "^b$"}}, {}, ['annotations: no key matches "^a$"']),
        (
            {"annotations": {"^a$": "^b$"}},
            {"annotations": {"a": "c"}},
            ['annotations: the value of a must match "^b$", and is "c"'],
        ),
        ({"annotations": {"a": "b"}}, {"annotations": {"xax": "xbx"}}, []),
        ({"annotations": {"a": None}}, {"annotations": {"a": "b"}}, []),
        ({"annotations": {"a": "1", "b": "2"}}, {"annotations": {"a": "1", "b": "2"}}, []),
        ({"annotations": {"a": "1", "b": "2"}}, {"annotations": {"a": "1"}}, ['annotations: no key matches "b"']),
        ({"annotations": {"a": "1"}}, {"annotations": {"a2": "2", "a1": "1"}}, []),
        (
            {"annotations": {"a": "1"}},
            {"annotations": {"a2": "2", "b": "1"}},
            ['annotations: the value of a2 must match "1", and is "2"'],
        ),
        ({"commands": ["^x$", "/sh$"]}, {"command": "/bin/sh"}, []),
        ({"commands": ["^sh$"]}, {"command": "/bin/sh"}, ['commands: "/bin/sh" does not match "^sh$"']),
        ({"commands": ["a", "b"]}, {}, ['commands: argv[0] must match "a", "b": say --command ARGV0']),
        ({"commands": [""]}, {"command": ""}, []),
        ({"hasBindMounts": True}, {"bind_mounts": True}, []),
        ({"hasBindMounts": True}, {}, ["hasBindMounts: there are none, or say --bind-mounts (volumes count too)"]),
        (
            {"hasBindMounts": False, "always": True},
            {},
            ["hasBindMounts is false, which matches nothing: leave it out"],
        ),
        ({"always": True, "commands": ["x"]}, {"command": "y"}, ['commands: "y" does not match "x"']),
        (
            {"hasBindMounts": True, "annotations": {"a": ""}},
            {},
            [
                "hasBindMounts: there are none, or say --bind-mounts (volumes count too)",
                'annotations: no key matches "a"',
            ],
        ),
    ],
)
def test_all_conditions_must_be_met(when: dict[str, Any], container: dict[str, Any], unmet: list[str]) -> None:
    found = verdict(with_when(**when), **container)
    assert (found.state, list(found.reasons)) == (State.UNMATCHED if unmet else State.RUNS, unmet)


@pytest.mark.parametrize("when", [{}, None, {"annotations": {}}, {"commands": []}])
def test_without_a_condition_a_hook_never_runs(when: Any) -> None:
    never = 'it has no condition, and then it never runs: "when": {"always": true} is for all containers'
    assert verdict({**ALWAYS, "when": when}).reasons == (never,)


def test_a_misspelt_condition_is_none() -> None:
    """podman-container-tools/podman#887: `annotation` was ignored in silence."""
    found = verdict(with_when(annotation={"a": "b"}), annotations={"a": "b"})
    assert (found.state, found.warnings) == (State.UNMATCHED, ('"annotation" is ignored: did you mean annotations?',))


def test_without_a_stage_a_hook_never_runs() -> None:
    assert verdict({**ALWAYS, "stages": []}).reasons == ("stages is empty: add a stage",)


# -- schema 0.1.0 --

OLD = {"hook": "/bin/true", "stages": ["prestart"]}


def test_the_old_schema_is_that_of_a_file_without_version() -> None:
    hook = hook_of({**OLD, "arguments": ["-v"], "cmds": ["a"], "annotations": ["b", "c"], "hasbindmounts": True})
    assert (hook.schema, hook.args, hook.commands, hook.annotations) == (
        "0.1.0", ("/bin/true", "-v"), ("a",), {".*": "b|c"},
    )  # fmt: skip
    assert hook_of({**OLD, "version": "0.1.0"}).args == ()
    assert verdict(OLD).warnings == ('schema 0.1.0 is deprecated: write "version": "1.0.0"',)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"hook": None}, "hook is missing"),
        ({"hook": HOOK}, 'hook must be a string without a version, which means schema 0.1.0: add "version": "1.0.0"'),
        ({"hook": 1}, "hook must be a string, not 1"),
        ({"stages": None}, "stages is missing"),
        ({"stage": ["prestart"]}, "both stages and stage are set: leave one of them out"),
        ({"cmds": [], "cmd": []}, "both cmds and cmd are set: leave one of them out"),
        ({"annotations": [], "annotation": []}, "both annotations and annotation are set: leave one of them out"),
        ({"annotations": {"a": "b"}}, 'annotations must be an array of strings, not {"a": "b"}'),
        ({"arguments": "x"}, 'arguments must be an array of strings, not "x"'),
        ({"cmds": ["("]}, 'command "(": a "(" is not closed'),
    ],
)
def test_errors_of_the_old_schema(change: dict[str, Any], error: str) -> None:
    assert verdict({**OLD, **change}).reasons == (error, NOTHING_COUNTS)


@pytest.mark.parametrize(
    ("conditions", "container", "runs"),
    [
        ({"cmd": ["sh$"]}, {"command": "/bin/sh"}, True),
        ({"annotation": ["x"]}, {"annotations": {"key": "axb"}}, True),
        ({"annotations": ["x"]}, {"annotations": {"x": "b"}}, False),
        ({"annotations": []}, {"annotations": {"any": "thing"}}, True),
        ({"annotations": []}, {}, False),
        ({"hasbindmounts": True}, {"bind_mounts": True}, True),
        ({"hasbindmounts": False, "cmds": ["a"]}, {"command": "a"}, True),
        ({"cmds": ["a"], "annotations": ["x"]}, {"annotations": {"k": "x"}}, True),
        ({"cmds": ["a"], "annotations": ["x"]}, {"annotations": {"k": "y"}, "command": "b"}, False),
        ({}, {}, False),
    ],
)
def test_in_the_old_schema_one_condition_is_enough(
    conditions: dict[str, Any], container: dict[str, Any], runs: bool
) -> None:
    assert verdict({**OLD, **conditions}, **container).state is (State.RUNS if runs else State.UNMATCHED)


def test_the_old_schema_has_stage_too() -> None:
    content = {"hook": "/bin/true", "stage": ["poststop"], "cmds": [""]}
    assert verdict(content, command="x").stages == ("poststop",)


# -- directories --


def test_a_later_directory_masks_a_file_of_the_same_name() -> None:
    write(ALWAYS)
    write(with_when(commands=["x"]), "etc/a.json")
    assert [(str(found.file), found.state, found.reasons[:1]) for found in verdicts("hooks.d", "etc")] == [
        ("hooks.d/a.json", State.MASKED, ("etc/a.json has the same name",)),
        ("etc/a.json", State.UNMATCHED, ('commands: argv[0] must match "x": say --command ARGV0',)),
    ]


def test_a_file_without_its_binary_masks_nothing() -> None:
    write(ALWAYS)
    write({**ALWAYS, "hook": {"path": "/nowhere"}}, "etc/a.json")
    assert [found.state for found in verdicts("hooks.d", "etc")] == [State.RUNS, State.NO_BINARY]


def test_a_broken_file_is_broken_even_if_it_is_masked() -> None:
    write("{")
    write(ALWAYS, "etc/a.json")
    assert [found.state for found in verdicts("hooks.d", "etc")] == [State.BROKEN, State.RUNS]


def test_only_names_that_end_in_json_are_read_hidden_ones_too() -> None:
    for name in ("a.json~", "a.JSON", "json", "a.json.tmp"):
        write("{", f"hooks.d/{name}")
    write(ALWAYS, "hooks.d/.hidden.json")
    write(ALWAYS, "hooks.d/.json")
    os.symlink("nothing", "hooks.d/link.json")
    assert [found.file.name for found in verdicts()] == [".hidden.json", ".json"]


def test_a_directory_with_the_name_of_a_file_is_broken() -> None:
    Path("hooks.d/x.json").mkdir()
    assert verdicts()[0].reasons == ("cannot be read: Is a directory", NOTHING_COUNTS)


def test_hooks_are_injected_in_the_order_of_their_names_in_lower_case() -> None:
    for name in ("01-my-hook.json", "02-another-hook.json", "01-UPPERCASE.json", "é.json", "_.json"):
        write(ALWAYS, f"hooks.d/{name}")
    names = [found.file.name for found in verdicts()]
    assert names == ["01-my-hook.json", "01-UPPERCASE.json", "02-another-hook.json", "_.json", "é.json"]


def test_a_missing_binary_is_passed_over_and_hides_broken_files_after_it() -> None:
    """read.go keeps the first error of a directory, and hooks.go forgives it if something does not exist."""
    write({**ALWAYS, "hook": {"path": "/nowhere"}, "stages": ["what"]}, "hooks.d/b.json")
    write("{", "hooks.d/c.json")
    missing, broken = verdicts()
    assert (missing.state, missing.reasons) == (
        State.NO_BINARY,
        ("hook.path /nowhere does not exist, and then the engine passes the file over without a word",),
    )
    assert broken.reasons[1] == "passed over only because the binary of b.json, read before it, is missing"
    write("{", "hooks.d/a.json")
    assert [found.reasons[1] for found in verdicts() if found.state is State.BROKEN] == [NOTHING_COUNTS] * 2


def test_a_path_that_is_no_directory_fails_podman_and_is_skipped_by_crio() -> None:
    write(ALWAYS, "hooks.d/file")
    assert verdicts("hooks.d/file")[0].reasons == ("cannot be read: Not a directory", NOTHING_COUNTS)
    assert verdicts("hooks.d/file", engine="crio") == []
    assert verdicts("nowhere") == []


# -- RE2 --


@pytest.mark.parametrize(
    ("source", "yes", "no"),
    [
        ("b", ["abc"], ["ac"]),
        ("", ["", "a"], []),
        ("^a$", ["a"], ["a\n", "ba"]),
        ("(?m)^a$", ["x\na\ny", "a\n"], ["ab"]),
        ("(?m:^a)$", ["x\na"], ["a\n"]),
        (r"\Aa\z", ["a"], ["a\n"]),
        (r"^\d\w\s$", ["1a ", "1_\f"], ["٣a ", "1é ", "1a\v"]),
        (r"^[\d-z]$", ["1", "-", "z"], ["y"]),
        (r"^[^\D]$", ["1"], ["a"]),
        (r"\bé", ["aé"], ["é"]),
        (r"^\B$", [""], ["a"]),
        ("^(?i)a|b$", ["Ax", "xB"], ["xa"]),
        ("^(?:(?i)a)a$", ["Aa"], ["AA"]),
        ("^(?i:a)a(?-i)$", ["Aa"], ["aA"]),
        (r"(?i)^\W$", ["-"], ["k", "K"]),
        ("^(?i)[[:lower:]]$", ["A"], ["1"]),
        ("^a.b$", ["a b"], ["a\nb"]),
        ("(?s)^a.b$", ["a\nb"], ["ab"]),
        ("(?U)^a+$", ["aa"], ["b"]),
        ("^(?P<n>a)(b|)$", ["a", "ab"], ["b"]),
        ("^[[:alpha:]][[:^alpha:]]$", ["a1"], ["1a"]),
        ("^[]a]$", ["]", "a"], ["b"]),
        ("^[^]a]$", ["b"], ["]"]),
        ("^[a-]$", ["-"], ["b"]),
        ("^[[&&]$", ["[", "&"], ["a"]),
        (r"^\x41\x{42}\103\.\_$", ["ABC._"], ["ABC.a"]),
        (r"^\Qa.b*\E*$", ["a.b", "a.b**"], ["axb"]),
        (r"^\Q(", ["("], ["a"]),
        ("^a{2}$", ["aa"], ["a"]),
        ("^a{1,2}?$", ["a", "aa"], ["aaa"]),
        ("^a{,2}$", ["a{,2}"], ["aa"]),
        ("^a{01}$", ["a{01}"], ["a"]),
        ("^{$", ["{"], [""]),
        ("(?:^)*a", ["a"], ["b"]),
        ("^*a", ["a"], ["b"]),
    ],
)
def test_a_pattern_finds_what_go_would_find(source: str, yes: list[str], no: list[str]) -> None:
    pattern = compile_re2(source)
    assert [text for text in yes + no if pattern.search(text)] == yes


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("(?=a)", 'RE2 has no lookahead: "(?=a"'),
        ("(?!a)", 'RE2 has no lookahead: "(?!a"'),
        ("(?<=a)", 'RE2 has no lookbehind: "(?<="'),
        ("(?<!a)", 'RE2 has no lookbehind: "(?<!"'),
        ("(?>a)", 'RE2 has no atomic group: "(?>a"'),
        ("(?#a)", 'RE2 has no comment: "(?#a"'),
        ("(a)(?(1)b)", 'RE2 has no condition: "(?(1"'),
        ("(?P<n>a)(?P=n)", 'RE2 has no backreference: "(?P="'),
        (r"(a)\1", r"RE2 has no backreference \1"),
        ("(?x)a", 'RE2 has no such group: "(?x)"'),
        ("(?-)a", 'RE2 has no such group: "(?-)"'),
        (r"a\Z", r"RE2 has no \Z"),
        (r"\u0041", r"RE2 has no \u"),
        (r"[\b]", r"RE2 has no \b"),
        (r"\é", r"RE2 has no \é"),
        ("\\", "it ends with a backslash"),
        (r"\x{110000}", r"\x{110000} is no character"),
        ("a*+", '"*+" repeats a repetition'),
        ("a{2}{3}", '"{2}{3}" repeats a repetition'),
        ("a|*", '"*" repeats nothing'),
        ("a{1001}", '"{1001}" is no valid count: RE2 takes up to 1000'),
        ("a{2,1}", '"{2,1}" is no valid count: RE2 takes up to 1000'),
        ("(a{40}){40}", '"{40}" is no valid count: RE2 takes up to 1000'),
        ("a)", '")" closes nothing'),
        ("(a", 'a "(" is not closed'),
        ("[a", 'a "[" is not closed'),
        ("[]", 'a "[" is not closed'),
        ("[b-a]", '"b-a" is no range'),
        ("[[:foo:]]", "RE2 has no class [:foo:]"),
        ("[[:d:]]", "RE2 has no class [:d:]"),
        ("(?P<n>a)(?P<n>b)", "two groups are called n"),
        ("(" * 5000, "it is nested too deeply"),
    ],
)
def test_a_pattern_that_go_refuses_is_refused(source: str, error: str) -> None:
    with pytest.raises(InvalidRegex) as raised:
        compile_re2(source)
    assert str(raised.value) == error


@pytest.mark.parametrize("source", [r"\pL", r"[\p{Greek}]", r"\PN"])
def test_unicode_classes_are_not_guessed(source: str) -> None:
    with pytest.raises(UntranslatedRegex):
        compile_re2(source)
    found = verdict(with_when(commands=[source]), command="α")
    what = r"\P" if "P" in source else r"\p"
    assert found.warnings == (
        f'command "{source}": {what} is not understood here, so the engine may match where this says no',
    )


def test_a_group_with_a_new_kind_of_name_is_a_warning() -> None:
    found = verdict(with_when(commands=["(?<n>a)"]), command="a")
    warning = 'command "(?<n>a)": an engine built with Go before 1.22 refuses (?<NAME>: write (?P<NAME>'
    assert (found.state, found.warnings) == (State.RUNS, (warning,))


# -- the command --

KEY_PATTERN = r"^(agentcgroup\.policy|agentcgroup\.io/policy|policy\.agentcgroup\.io/[^/]+)$"
KEYS = ["agentcgroup.policy", "agentcgroup.io/policy", "policy.agentcgroup.io/main"]


@pytest.mark.parametrize("key", KEYS)
def test_the_packaged_hook_runs_for_each_of_our_annotations(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    ours()
    assert main(["match", "--hooks-dir", "hooks.d", "--annotation", f"{key}=a=b"]) == 0
    assert capsys.readouterr() == (
        "hooks.d/50-agentcgroup.json: runs at prestart (as createRuntime, by older engines as prestart), "
        "poststop (by podman itself)\nagentcgroup-hook would run\n",
        "",
    )


@pytest.mark.parametrize(
    "key", ["agentcgroup.policyx", "xagentcgroup.policy", "agentcgroup-policy", "policy.agentcgroup.io/a/b"]
)
def test_the_packaged_hook_does_not_run_for_others_and_the_right_ones_are_named(
    key: str, capsys: pytest.CaptureFixture[str]
) -> None:
    ours()
    assert main(["match", "--hooks-dir", "hooks.d", "--annotation", f"{key}=ci"]) == 1
    out, err = capsys.readouterr()
    assert (out.splitlines()[1:], err) == (
        [
            rf'  annotations: no key matches "{KEY_PATTERN}"',
            "agentcgroup-hook does not run: it would with --annotation agentcgroup.policy=NAME or "
            "agentcgroup.io/policy=NAME or policy.agentcgroup.io/CONTAINER=NAME",
        ],
        "",
    )


def test_nothing_is_promised_that_another_condition_forbids() -> None:
    hook = hook_of(with_when(annotations={"^agentcgroup.policy$": ".*"}, hasBindMounts=True))
    assert suggestions(hook, Container(), "podman") == []
    assert suggestions(hook, Container(bind_mounts=True), "podman") == ["agentcgroup.policy=NAME"]


def test_crio_is_told_of_pods(capsys: pytest.CaptureFixture[str]) -> None:
    ours()
    assert main(["match", "--engine", "crio", "--hooks-dir", "hooks.d"]) == 1
    *_, note, conclusion = capsys.readouterr().out.splitlines()
    assert note == (
        "CRI-O goes by the annotations of the pod and of the container, the pod's first. One of the pod reaches all "
        "its containers; the infra container gets no hook."
    )
    assert "--annotation agentcgroup.io/policy=NAME or policy.agentcgroup.io/CONTAINER=NAME" in conclusion


def test_a_broken_file_of_somebody_else_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    ours()
    write("{", "hooks.d/60-x\n.json")
    assert main(["match", "--hooks-dir", "hooks.d", "--annotation", "agentcgroup.policy=ci"]) == 2
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == [
        r"hooks.d/60-x\n.json: broken",
        "  line 1: not JSON: Expecting property name enclosed in double quotes",
        "agentcgroup-hook would run, were it not for the broken file",
    ]
    assert err == rf"agentcgroup: hooks.d/60-x\n.json is broken: {NOTHING_COUNTS}" + "\n"


def test_a_host_without_our_hook_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    write(ALWAYS)
    assert main(["match", "--hooks-dir", "hooks.d", "--hooks-dir", "etc"]) == 1
    out, err = capsys.readouterr()
    no = "agentcgroup-hook does not run: no file of hooks.d, etc names it: install agentcgroup, or say --hooks-dir"
    assert out.splitlines()[-1] == no
    assert err == "agentcgroup: etc is no directory: it holds no hooks\n"


def test_our_hook_without_its_binary_is_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    ours()
    Path("bin/agentcgroup-hook").unlink()
    assert main(["match", "--hooks-dir", "hooks.d", "--annotation", "agentcgroup.policy=ci"]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == (
        "agentcgroup-hook does not run: see hooks.d/50-agentcgroup.json above"
    )


def test_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    ours()
    write("{", "hooks.d/60.json")
    assert main(["match", "--json", "--hooks-dir", "hooks.d", "--annotation", "agentcgroup.policy=ci"]) == 2
    shown = json.loads(capsys.readouterr().out)
    assert (shown["engine"], shown["status"]) == ("podman", 2)
    ours_, broken = shown["hooks"]
    assert ours_ == {
        "file": "hooks.d/50-agentcgroup.json", "state": "runs", "ours": True, "schema": "1.0.0",
        "path": str(Path("bin/agentcgroup-hook").absolute()), "args": ["agentcgroup-hook"], "env": [], "timeout": 5,
        "stages": ["prestart", "poststop"], "reasons": [], "warnings": [],
    }  # fmt: skip
    assert (broken["state"], broken["ours"], broken["path"], len(broken["reasons"])) == ("broken", False, None, 2)


@pytest.mark.parametrize("word", ["agentcgroup.policy", "=ci"])
def test_an_annotation_has_a_key_and_a_value(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["match", "--annotation", word]) == 1
    assert capsys.readouterr().err == f'agentcgroup: --annotation "{word}" is no annotation: write KEY=VALUE\n'


def test_of_an_annotation_given_twice_the_last_counts() -> None:
    write(with_when(annotations={"a": "^2$"}) | {"hook": {"path": str(Path("bin/agentcgroup-hook").absolute())}})
    assert main(["match", "--hooks-dir", "hooks.d", "--annotation", "a=1", "--annotation", "a=2"]) == 0
    assert main(["match", "--hooks-dir", "hooks.d", "--annotation", "a=2", "--annotation", "a=1"]) == 1


def test_yaml_is_not_needed_for_it() -> None:
    source = "import sys; from agentcgroup.cli import parser; parser('match'); sys.exit('yaml' in sys.modules)"
    assert os.spawnve(os.P_WAIT, sys.executable, ["python", "-c", source], {"PYTHONPATH": ":".join(sys.path)}) == 0
