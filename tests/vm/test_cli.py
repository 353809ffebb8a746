"""The commands that an operator has: what runs, what became of it, policies, and one call without any container."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from podman import CGROUPFS, Container, Engine, fill, run, wait_for

MIB = 1 << 20
HOG = ("python3", "-c", "print(len(bytearray(400 << 20)) >> 20)")


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.start("--name=cli-box", "--annotation=agentcgroup.name=cli-box")


@pytest.fixture
def no_daemon() -> Iterator[None]:
    run("systemctl", "stop", "agentcgroupd.socket", "agentcgroupd.service")
    yield
    run("systemctl", "start", "agentcgroupd.socket", "agentcgroupd.service")


def agentcgroup(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    return run("agentcgroup", *argv, check=False, **options)


def test_ps_and_calls_show_what_runs(box: Container) -> None:
    call = box.hold()
    number = int(call.directory.name)
    ps = agentcgroup("ps")
    header, row = ps.stdout.splitlines()
    assert header.split() == ["CONTAINER", "NAME", "POLICY", "MEMORY", "LIMIT", "AGENT", "CALLS", "NOTES"]
    assert re.fullmatch(rf"{box.id[:12]}  cli-box +test +[\d.]+ MiB +1 GiB +[\d.]+ MiB +1", row), row
    calls = agentcgroup("calls", "cli-box")
    header, row = calls.stdout.splitlines()
    assert header.split() == ["CALL", "KIND", "COMMAND", "TIME", "MEMORY", "LIMIT", "FROM", "PIDS", "STATE"]
    assert re.fullmatch(rf"{number} +call +cat +[\d.]+ m?s +[\d.]+ [KM]iB +256 MiB +default +1 +running", row), row
    [container] = json.loads(agentcgroup("ps", "--json").stdout)
    assert {key: container[key] for key in ("id", "name", "policy", "mode", "memory_max", "cooperative")} == {
        "id": box.id,
        "name": "cli-box",
        "policy": "test",
        "mode": "enforce",
        "memory_max": 1024 * MIB,
        "cooperative": [],
    }
    assert container["injected"]
    [running] = json.loads(agentcgroup("calls", "--json", box.id[:8]).stdout)
    assert (running["call"], running["limit"], running["held"], running["ended"]) == (number, 256 * MIB, False, None)
    assert call.finish().rc == 7
    assert json.loads(agentcgroup("calls", "--json", box.id).stdout) == []


def test_why_tells_of_calls_that_something_happened_to(box: Container) -> None:
    box.call("exit 3")
    killed = box.call(fill(300))
    box.record_of(killed.number)
    said = agentcgroup("why", "cli-box").stdout
    assert said.startswith(f"call {killed.number} of cli-box (policy test): ended for memory\n  when ")
    assert "exited with 3" not in said
    every = agentcgroup("why", "--all", "-n", "2", "cli-box").stdout
    assert re.findall(r"^call \d+ of cli-box \(policy test\): (.*)$", every, re.MULTILINE) == [
        "ended for memory",
        "exited with 3",
    ]
    [record] = [
        json.loads(line) for line in agentcgroup("why", "--json", f"cli-box/{killed.number}").stdout.splitlines()
    ]
    assert (record["container"], record["result"]) == (box.id, "oom")
    assert agentcgroup("why", f"cli-box/{killed.number + 100}").stdout == (
        f'no record of "cli-box/{killed.number + 100}" in /var/log/agentcgroup\n'
    )


MISTAKES = {
    ("calls", "no-such-box"): 'agentcgroup: container "no-such-box" is not governed; governed: cli-box\n',
    ("why", "cli-box/x"): 'agentcgroup: "x" is no call number: agentcgroup why CONTAINER/7\n',
    ("policy", "show", "tset"): 'policy "tset"',
    ("run", "--policy", "tset", "--", "true"): 'policy "tset"',
}


@pytest.mark.parametrize("argv", MISTAKES, ids=" ".join)
def test_a_mistake_gets_one_clear_line(box: Container, argv: tuple[str, ...]) -> None:
    done = agentcgroup(*argv)
    assert (done.returncode, done.stdout) == (1, "")
    assert MISTAKES[argv] in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_policies_are_checked_and_shown(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    good.write_text("extends: coding-agent\ncall: {time_max: 10min}\n")
    bad.write_text("call:\n  memroy: {default: 1G}\n")
    checked = agentcgroup("policy", "check", str(good), str(bad))
    assert (checked.returncode, checked.stdout) == (1, f"{good}: ok\n")
    assert checked.stderr.startswith(f"{bad}:2: ") and "memory" in checked.stderr
    shown = agentcgroup("policy", "show", "test").stdout
    assert re.search(
        r"^call\.memory\.default +256 MiB +/etc/agentcgroup/policies\.d/test\.yaml:\d+$", shown, re.MULTILINE
    )


def test_without_the_daemon_the_commands_say_so_or_do_without_it(box: Container, no_daemon: None) -> None:
    for argv in (("ps", "--json"), ("calls", "cli-box"), ("top",)):
        done = agentcgroup(*argv)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == "agentcgroup: agentcgroupd is not running: systemctl start agentcgroupd\n"
    assert "cli-box" in agentcgroup("why", "--all", "cli-box").stdout
    assert agentcgroup("run", "--policy", "test", "--", "sh", "-c", "exit 4").returncode == 4


# --- run --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scopes() -> Iterator[None]:
    """What `agentcgroup run` makes is gone afterwards."""

    def found() -> set[Path]:
        ours = {path.parent for path in CGROUPFS.rglob("agentcgroup") if path.is_dir() and "run-" in path.parent.name}
        return ours | set(CGROUPFS.rglob("run-*.scope"))

    before = found()
    yield
    wait_for(lambda: found() <= before, 5, "the end of the scope")
    assert "run-" not in run("systemctl", "list-units", "--all", "--plain", "--no-legend", "run-*.scope").stdout


def test_run_limits_one_command_of_the_host_and_tells(scopes: None) -> None:
    done = agentcgroup("run", "--policy", "test", "--", *HOG)
    assert (done.returncode, done.stdout) == (137, "")
    [line] = done.stderr.splitlines()
    assert re.match(
        r"\[agentcgroup\] Call 1 was ended: out of memory\. Peak 25[56](\.\d)? MiB, limit 256 MiB \(default\)\. "
        r"Killed: python3\. Next: ",
        line,
    ), line


def test_run_grants_a_hint_and_is_silent_when_nothing_happens(scopes: None) -> None:
    text = "cat; pwd; python3 -c 'print(len(bytearray(400 << 20)) >> 20)'; exit 9"
    done = agentcgroup(
        "run", "--policy", "test", "--hint", "memory:512m", "--", "sh", "-c", text, input="in\n", cwd="/var"
    )
    assert (done.returncode, done.stdout, done.stderr) == (9, "in\n/var\n400\n", "")


def test_run_ends_what_is_out_of_time_and_what_it_leaves(scopes: None) -> None:
    late = agentcgroup(
        "run", "--policy", "test", "--hint", "time:1s", "--json", "--", "sh", "-c", "setsid sleep 1000 & sleep 1000"
    )
    assert late.returncode == 128 + 15
    line, record = late.stderr.splitlines()
    assert line == ("[agentcgroup] Call 1 was ended at its time limit of 1 s. Next: run it without time in the hint.")
    assert {key: json.loads(record)[key] for key in ("result", "policy", "time_limit_s")} == {
        "result": "time",
        "policy": "test",
        "time_limit_s": 1.0,
    }


def test_run_says_what_it_cannot_start(scopes: None) -> None:
    done = agentcgroup("run", "--", "no-such-command")
    assert (done.returncode, done.stderr) == (127, "agentcgroup: no-such-command: No such file or directory\n")


def test_a_normal_user_may_run_and_may_not_ask(box: Container, scopes: None) -> None:
    user = ("runuser", "-u", "agent", "--", "env", "XDG_RUNTIME_DIR=/run/user/1000", "agentcgroup")
    asked = run(*user, "ps", check=False)
    assert (asked.returncode, asked.stdout) == (1, "")
    assert asked.stderr == "agentcgroup: /run/agentcgroup/control.sock: permission denied: run this as root\n"
    done = run(*user, "run", "--policy", "test", "--", *HOG, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (137, "")
    assert "Call 1 was ended: out of memory. Peak 25" in done.stderr and done.stderr.count("\n") == 1


def test_systemd_finds_no_fault_in_the_units() -> None:
    units = sorted(str(path) for path in Path("/usr/lib/systemd/system").glob("agentcgroup*"))
    done = run("systemd-analyze", "verify", "--man=no", *units)
    assert len(units) == 3 and (done.stdout, done.stderr) == ("", "")
