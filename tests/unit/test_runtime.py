"""agentcgroup-runtime: our hook in the bundle of a container that asks for a policy, everything else as it was."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hook_harness import ROOT, compile_c
from hypothesis import HealthCheck, given, settings

HOOK = "/usr/libexec/agentcgroup/agentcgroup-hook"
OURS = {"path": HOOK, "args": ["agentcgroup-hook"], "timeout": 5}
ASKS = {"agentcgroup.policy": "coding-agent"}


@dataclass
class Host:
    """The wrapper, a runtime that keeps what it was given, a bundle and a journal."""

    program: Path
    folder: Path
    journal: socket.socket

    @property
    def config(self) -> Path:
        return self.folder / "bundle" / "config.json"

    def run(self, *argv: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run([self.program, *argv], text=True, capture_output=True, **kwargs)

    def create(self, config: str | dict[str, Any], *argv: str) -> subprocess.CompletedProcess[str]:
        """What the runtime was given; its standard output is its arguments, one a line."""
        self.config.parent.mkdir(exist_ok=True)
        self.config.write_text(config if isinstance(config, str) else json.dumps(config))
        real = f"--agentcgroup-runtime={self.folder / 'real'}"
        return self.run(real, *(argv or ("create", "--bundle", str(self.config.parent), "c1")))

    def logged(self) -> str:
        try:
            return self.journal.recv(4096, socket.MSG_DONTWAIT).decode()
        except BlockingIOError:
            return ""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    folder = tmp_path_factory.mktemp("rt")
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(folder / "journal"))
    real = folder / "real"
    real.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n')
    real.chmod(0o755)
    shared = [ROOT / "hooks" / f"{name}.c" for name in ("json", "files", "error", "journal", "pod")]
    sources = sorted((ROOT / "hooks" / "runtime").glob("*.c")) + shared
    program = compile_c(folder / "agentcgroup-runtime", sources, f'-DJOURNAL_SOCKET="{folder}/journal"')
    return Host(program, folder, journal)


def test_the_hook_is_added_at_both_ends_and_the_runtime_gets_its_arguments_and_status(host: Host) -> None:
    done = host.create({"ociVersion": "1.2.0", "annotations": ASKS}, "--log", "run", "create", "--bundle=bundle", "c1")
    assert done.returncode == 3 and host.config.read_text() == json.dumps({"ociVersion": "1.2.0", "annotations": ASKS})
    argv = ("--root", "/r", "--systemd-cgroup", "create", "-b", str(host.config.parent), "--pid-file", "p", "c1")
    done = host.create({"ociVersion": "1.2.0", "annotations": ASKS}, *argv)
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (3, list(argv), "")
    assert json.loads(host.config.read_text())["hooks"] == {"prestart": [OURS], "poststop": [OURS]}
    assert not host.logged() and os.listdir(host.config.parent) == ["config.json"]


def test_in_the_bundles_own_folder_no_path_is_needed(host: Host) -> None:
    host.create({"annotations": ASKS}, "list")
    assert (
        host.run(f"--agentcgroup-runtime={host.folder / 'real'}", "run", "c1", cwd=host.config.parent).returncode == 3
    )
    assert "poststop" in json.loads(host.config.read_text())["hooks"]


@pytest.mark.parametrize(
    "annotations, asks",
    [
        ({"agentcgroup.policy": ""}, True),
        ({"agentcgroup.io/policy": "batch"}, True),
        ({"agentcgroup.io/policy": "batch", "io.kubernetes.cri.container-type": "container"}, True),
        ({"agentcgroup.io/policy": "batch", "io.kubernetes.cri.container-type": "sandbox"}, False),
        ({"agentcgroup.policy": "batch", "io.kubernetes.cri-o.ContainerType": "sandbox"}, False),
        ({"policy.agentcgroup.io/main": "batch"}, True),
        ({"policy.agentcgroup.io/": "batch"}, False),
        ({"policy.agentcgroup.io/a/b": "batch"}, False),
        ({"xagentcgroup.policy": "batch", "agentcgroup.policy.x": "y"}, False),
        ({}, False),
        (None, False),
    ],
)
def test_only_who_asks_for_a_policy_is_touched(host: Host, annotations: Any, asks: bool) -> None:
    """The keys are those of the hook's JSON."""
    text = json.dumps({"annotations": annotations, "hooks": {}}, indent=1)
    host.create(text)
    assert (host.config.read_text() != text) == asks


@pytest.mark.parametrize("command", ["start", "state", "delete", "features", "--version", "exec"])
def test_no_other_command_is_touched(host: Host, command: str) -> None:
    text = json.dumps({"annotations": ASKS})
    assert host.create(text, command, "--bundle", str(host.config.parent), "create").returncode == 3
    assert host.config.read_text() == text


def test_twice_is_as_once(host: Host) -> None:
    host.create({"annotations": ASKS, "hooks": {"createRuntime": [OURS]}})
    assert json.loads(host.config.read_text())["hooks"] == {"createRuntime": [OURS]}


def test_the_file_keeps_its_mode_and_owner(host: Host) -> None:
    host.create({"annotations": ASKS}, "list")
    host.config.chmod(0o640)
    if not os.geteuid():
        os.chown(host.config, 12, 34)
    before = host.config.stat()
    host.run(f"--agentcgroup-runtime={host.folder / 'real'}", "create", "-b", str(host.config.parent), "c1")
    after = host.config.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino
    host.config.unlink()


hook = st.fixed_dictionaries({"path": st.text(), "args": st.lists(st.text(max_size=5), max_size=2)})
stage = st.none() | st.lists(hook, max_size=3)
stages = st.dictionaries(st.sampled_from(["prestart", "poststop", "createRuntime", 'x"y', "]"]), stage)


value = st.recursive(
    st.none() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda some: st.lists(some) | st.dictionaries(st.text(st.characters(exclude_characters="\0")), some),
    max_leaves=5,
)


@given(
    hooks=st.none() | stages,
    others=st.dictionaries(st.text(st.characters(exclude_characters="\0")), value, max_size=4),
    indent=st.sampled_from([None, 1]),
    first=st.booleans(),
)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_there_stays_and_ours_comes_last(
    host: Host, hooks: dict[str, Any] | None, others: dict[str, Any], indent: int | None, first: bool
) -> None:
    others = {key: value for key, value in others.items() if key not in ("hooks", "annotations")}
    parts = {"hooks": hooks, **others} if first else {**others, "hooks": hooks}
    config = parts | {"annotations": ASKS}
    text = json.dumps(config, indent=indent, ensure_ascii=False)
    if any(0xD800 <= ord(letter) <= 0xDFFF for letter in text):
        text = json.dumps(config, indent=indent)
    assert host.create(text).returncode == 3
    expected = config | {"hooks": dict(hooks or {})}
    for name in ("prestart", "poststop"):
        expected["hooks"][name] = [*(expected["hooks"].get(name) or []), OURS]
    assert json.loads(host.config.read_text()) == expected, host.logged()
    assert not host.logged()


@pytest.mark.parametrize(
    "text, why",
    [
        ('{"annotations": {"agentcgroup.policy": "a"},', "line 1 column 45"),
        ('{"annotations": {"agentcgroup.policy": "a"}, "hooks": 3}', "is not what the OCI runtime specification says"),
        ('{"annotations": {"agentcgroup.policy": "a"}, "hooks": {"prestart": {}}}', "is not what the OCI"),
    ],
)
def test_what_cannot_be_added_is_said_and_the_runtime_decides(host: Host, text: str, why: str) -> None:
    assert host.create(text).returncode == 3
    assert host.config.read_text() == text and os.listdir(host.config.parent) == ["config.json"]
    assert why in (line := host.logged()) and "AGENTCGROUP_CONTAINER=c1" in line


def test_who_must_be_governed_does_not_start_without(host: Host) -> None:
    done = host.create({"annotations": ASKS | {"agentcgroup.required": "true"}, "hooks": []})
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("agentcgroup-runtime: agentcgroup.required is true and the hook could not be added: ")
    assert "not governed" in host.logged()


def test_without_a_bundle_the_runtime_says_what_is_wrong(host: Host) -> None:
    assert host.create("{}", "create", "--bundle", "/nonexistent", "c1").returncode == 3
    host.config.unlink()
    assert (
        host.run(f"--agentcgroup-runtime={host.folder / 'real'}", "create", "-b", str(host.config.parent)).returncode
        == 3
    )
    assert not host.logged()


def test_a_runtime_that_is_not_there_is_named(host: Host) -> None:
    done = host.run("--agentcgroup-runtime=/nonexistent/runc", "state", "c1")
    assert done.returncode == 127
    assert done.stderr == (
        "agentcgroup-runtime: /nonexistent/runc: No such file or directory: name the real runtime with"
        " --agentcgroup-runtime=PATH\n"
    )
    assert "crun, runc: No such file" in host.run("state", env={"PATH": "/nonexistent"}).stderr
