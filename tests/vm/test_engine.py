"""What people do with a container all day does to a governed one what it does to any: exec, pause, update, restart,
stop, commit. Calls go on, and what is over leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BOTH_ENDS
from podman import Container, Engine, governed, nothing_left, run, wait_for

HOOK = "/usr/libexec/agentcgroup/agentcgroup-hook"
SHIMS = ["/dev/agentcgroup/agentcgroup-hint", "/usr/bin/bash", "/usr/bin/dash"]


# What depends on podman or systemd alone.
once = pytest.mark.parametrize("both_ends", BOTH_ENDS[:1], indirect=True, ids=lambda p: "-".join(p))


@pytest.fixture(scope="module")
def box(both_ends: Engine) -> Container:
    """A governed container that the tests of this file share, in their order."""
    if "--runtime=crun" in both_ends.command:
        options = ["--restart=on-failure", "--health-cmd=head /proc/self/cgroup", "--health-interval=1h"]
    else:
        options = ["--restart=always"]
    return both_ends.start("--name=engine-box", "--memory=2g", *options)


@once
def test_a_shell_healthcheck_is_no_call(box: Container) -> None:
    def log() -> list[dict[str, str]]:
        return json.loads(box.podman("inspect", "--format", "{{json .State.Health.Log}}", box.id).stdout) or []

    wait_for(log, 30, "the first health check")
    assert log()[0]["Output"] == "0::/agentcgroup/agent\n"
    assert [entry for entry in box.ledger() if entry["first_word"] == "head"] == []


@once
def test_people_may_use_podmans_name(box: Container) -> None:
    assert run("agentcgroup", "calls", "engine-box").stdout.startswith("CALL  KIND  COMMAND")
    assert json.loads(run("agentcgroup", "ps", "--json").stdout)[-1]["name"] == "engine-box"


def test_exec_of_a_shell_is_a_call_and_of_another_program_is_not(box: Container) -> None:
    """runc#2416: exec was EBUSY once there were cgroups below the container's."""
    assert box.exec("cat", "/proc/self/cgroup").stdout == "0::/agentcgroup/agent\n"
    calls = len(box.ledger())
    done = box.exec("bash", "-c", "cat /proc/self/cgroup; exit 5")
    assert (done.returncode, done.stderr) == (5, "")
    assert re.fullmatch(r"0::/agentcgroup/calls/\d+\n", done.stdout), done.stdout
    done = box.exec("sh", input="cat /proc/self/cgroup\nexit 6\n")
    assert (done.returncode, done.stderr) == (6, "")
    assert re.fullmatch(r"0::/agentcgroup/calls/\d+\n", done.stdout), done.stdout
    kinds = [(entry["kind"], entry["result"]) for entry in box.settled(calls + 2)[calls:]]
    assert kinds == [("call", "exit 5"), ("shell", "exit 6")]


@once
def test_stats_and_top_count_what_runs_in_calls(box: Container) -> None:
    call = box.hold()
    [stats] = json.loads(box.podman("stats", "--no-stream", "--format=json", box.id).stdout)
    top = box.podman("top", box.id, "pid", "comm").stdout
    in_all = [pid for procs in box.tree.rglob("cgroup.procs") for pid in procs.read_text().split()]
    assert call.finish().rc == 7
    assert int(stats["pids"]) >= len(in_all) >= 3  # the agent, the shim and the shell; stats counts threads
    assert stats["mem_usage"].endswith(" / 2.147GB")
    assert [line.split()[1] for line in top.splitlines()][:4] == ["COMMAND", "python3", "bash", "bash"]


def test_pause_stops_a_call_and_unpause_lets_it_go_on(box: Container) -> None:
    call = box.hold()
    box.podman("pause", box.id)
    assert "frozen 1" in (call.directory / "cgroup.events").read_text()
    box.podman("unpause", box.id)
    assert "frozen 0" in (call.directory / "cgroup.events").read_text()
    assert call.finish().rc == 7


def test_an_update_of_the_memory_limit_reaches_the_calls(box: Container) -> None:
    calls = box.tree / "calls/memory.max"
    for update, limit_of_all, limit_of_one in (("256m", 256 - 4 - 64, 256 - 4 - 64), ("2g", 1024 - 64, 256)):
        box.podman("update", f"--memory={update}", box.id)
        box.call("true")
        own = (box.tree.parent / "memory.max").read_text().strip()
        spare = (
            4 if own == "max" and update == "256m" else 0
        )  # nothing is kept free below a limit that is not BASE's own
        wanted = (limit_of_all + spare) << 20
        wait_for(lambda wanted=wanted: int(calls.read_text()) == wanted, 5, f"the limit after {update}")
        governed(box, limit=(limit_of_one + spare) << 20)


@once
def test_a_limit_that_moves_just_after_it_was_read_is_seen(box: Container) -> None:
    limit, calls = box.tree.parent / "memory.max", box.tree / "calls/memory.max"
    before, found = limit.read_text(), calls.read_text()
    box.call("true")
    limit.write_text(f"{300 << 20}")
    box.call("true")
    wait_for(lambda: calls.read_text() == f"{(300 - 4 - 64) << 20}\n", 5, "the new limit")
    limit.write_text(before)
    box.call("true")
    wait_for(lambda: calls.read_text() == found, 5, "the old limit")


@once
def test_systemd_rereading_its_units_changes_nothing(box: Container) -> None:
    """systemd#8364: a daemon-reload cleared the controllers of a delegated cgroup."""

    def knobs() -> dict[str, str]:
        files = [box.tree.parent / "cgroup.subtree_control", *box.tree.rglob("cgroup.subtree_control")]
        limits = [path for name in ("memory.max", "pids.max", "cgroup.procs") for path in call.directory.glob(name)]
        return {str(path): path.read_text() for path in (*files, *limits)}

    call = box.hold()
    before = knobs()
    run("systemctl", "daemon-reload")
    assert knobs() == before
    assert call.finish().rc == 7
    governed(box)


@once
def test_logs_are_the_agents(box: Container) -> None:
    assert box.call("echo to the call; echo to the log >/proc/1/fd/1").out == "to the call\n"
    assert box.podman("logs", box.id).stdout == "to the log\n"


@once
def test_files_are_copied_in_and_out(box: Container, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from the host\n")
    box.podman("cp", str(tmp_path / "in"), f"{box.id}:/tmp/file")
    assert box.call("cat /tmp/file; echo and back >>/tmp/file").out == "from the host\n"
    box.podman("cp", f"{box.id}:/tmp/file", str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "from the host\nand back\n"


@once
def test_diff_and_a_committed_image_show_nothing_of_ours(box: Container) -> None:
    changed = [line.split(maxsplit=1)[1] for line in box.podman("diff", box.id).stdout.splitlines()]
    assert not [path for path in changed if "agentcgroup" in path or path.startswith(("/dev", "/bin", "/usr/bin"))]
    image = box.podman("commit", "-q", box.id).stdout.strip()
    try:
        inspected = box.podman("image", "inspect", image).stdout
        layer = Path(json.loads(inspected)[0]["GraphDriver"]["Data"]["UpperDir"])
        files = [str(path.relative_to(layer)) for path in layer.rglob("*")]
        assert not [path for path in files if "agentcgroup" in path or path.startswith(("dev/", "bin/", "usr/bin/"))]
        config = json.loads(inspected)[0]["Config"]
        assert not [word for word in (*config["Env"], *config["Cmd"]) if "agentcgroup" in word.lower()]
    finally:
        box.podman("rmi", image)


def test_a_poststop_too_many_ends_nothing_that_lives(box: Container) -> None:
    call = box.hold()
    state = {"ociVersion": "1.0.2", "id": box.id, "status": "stopped", "bundle": box.record["bundle"]}
    for _ in range(2):
        done = subprocess.run([HOOK, "poststop"], input=json.dumps(state), text=True, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert call.finish().rc == 7
    governed(box)


def test_a_restart_wraps_the_shells_once(box: Container) -> None:
    assert box.wrapped() == SHIMS
    before = box.record["pid"]
    box.podman("restart", "-t", "0", box.id)
    wait_for(box.answers, 10, "the agent")
    assert box.record["pid"] == box.pid != before
    assert box.wrapped() == SHIMS
    governed(box)


def test_the_restart_policy_brings_back_a_governed_container(box: Container) -> None:
    before = box.record["pid"]
    os.kill(before, signal.SIGKILL)

    def restarted() -> bool:
        with contextlib.suppress(FileNotFoundError):  # between the two there is no record
            return box.record["pid"] != before
        return False

    wait_for(restarted, 20, "the restart")
    wait_for(box.answers, 10, "the agent")
    assert box.wrapped() == SHIMS
    governed(box)


def test_stop_takes_running_calls_along(box: Container) -> None:
    box.hold()
    box.podman("stop", "-t", "1", box.id)
    nothing_left(box.id)
    box.podman("start", box.id)
    wait_for(box.answers, 10, "the agent")
    governed(box)


@once
def test_kill_takes_running_calls_along(box: Container) -> None:
    box.hold()
    box.podman("kill", box.id)
    nothing_left(box.id)
    box.podman("start", box.id)
    wait_for(box.answers, 10, "the agent")


def test_a_removed_container_leaves_only_its_records(box: Container) -> None:
    """podman#25990: cgroups were gone before anybody had read what had happened in them."""
    before = len(box.ledger())
    call = box.hold()
    box.podman("rm", "-f", "-t", "0", box.id)
    nothing_left(box.id)
    [record] = box.settled(before + 1)[before:]
    assert record["number"] == int(call.directory.name)
    assert record["peak_bytes"] > 0
    assert box.id not in run("agentcgroup", "ps", "--json").stdout
