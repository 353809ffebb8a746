"""When the hook may not or cannot: refusals, a daemon that is away or slow, the end, and who hears of it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hook_harness import Host, Start, cgroup_top, open_path, result, said, untouched

pytest_plugins = ["hook_fixtures"]
pytestmark = pytest.mark.skipif(cgroup_top() is None, reason="needs root and a writable cgroup2")


@pytest.mark.parametrize("required", [False, True])
def test_a_refused_plan_leaves_the_container_alone(host: Host, start: Start, required: bool) -> None:
    host.serve(plan={"refuse": 'no policy "coding"', "required": required})
    container = start()
    done = host.run(container)
    assert done.returncode == required
    assert untouched(container)
    line = result(host)
    assert line["AGENTCGROUP_RESULT"] == "refused"
    assert 'no policy "coding"' in line["MESSAGE"]
    assert done.stderr == (f'{said(container)}no policy "coding"\n' if required else "")


def test_another_containers_policy_is_no_event(host: Host, start: Start) -> None:
    host.serve(plan={"refuse": "the pod means another container", "required": False, "quiet": True})
    container = start()
    assert host.run(container).returncode == 0
    assert untouched(container)
    assert host.journal.lines() == []


@pytest.mark.parametrize("required", [False, True])
def test_a_refused_registration_puts_everything_back(host: Host, start: Start, required: bool) -> None:
    host.serve(register={"refuse": "memory.max 4G exceeds the limit", "required": required})
    container = start()
    assert host.run(container).returncode == required
    assert untouched(container)
    assert not (host.run_dir / "containers" / f"{container.id}.json").exists()
    assert not (host.run_dir / "c" / container.id).exists()
    assert result(host)["AGENTCGROUP_RESULT"] == "refused"


def test_without_a_daemon_the_container_starts_and_leaves_a_record(host: Host, start: Start) -> None:
    container = start()
    assert host.run(container).returncode == 0
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]
    assert container.cgroup_of_init().endswith("/agentcgroup/agent")
    record = host.record(container)
    assert (record["registered"], record["policy"]) == (False, "coding")
    assert record["injected"] == ["/usr/bin/bash", "/usr/bin/dash"]
    line = result(host)
    assert line["AGENTCGROUP_RESULT"] == "unregistered"
    assert "limits follow later: agentcgroupd is not running: nobody listens on /" in line["MESSAGE"]
    assert "hook.sock: systemctl start agentcgroupd.socket" in line["MESSAGE"]


@pytest.mark.parametrize("plan", [b"{", b"[]", b"\xff" * 100, "hang up"])
def test_a_daemon_that_talks_nonsense_counts_as_none(host: Host, start: Start, plan: Any) -> None:
    host.serve(plan=plan)
    container = start()
    assert host.run(container).returncode == 0
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]
    assert result(host)["AGENTCGROUP_RESULT"] == "unregistered"


@pytest.mark.parametrize("silent", ["plan", "register"])
def test_a_daemon_that_does_not_answer_costs_less_than_three_seconds(host: Host, start: Start, silent: str) -> None:
    host.serve(**{silent: None})
    container = start()
    began = time.monotonic()
    assert host.run(container).returncode == 0
    assert 1 < time.monotonic() - began < 3
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]
    line = result(host)
    assert line["AGENTCGROUP_RESULT"] == "unregistered"
    assert "wait for the daemon's answer" in line["MESSAGE"]


@pytest.mark.parametrize("silent", ["plan", "register"])
def test_a_daemon_that_was_too_slow_is_told_of_the_record_all_the_same(host: Host, start: Start, silent: str) -> None:
    """It may have looked for records to adopt before this one was there."""
    daemon = host.serve(**{silent: None})
    assert host.run(start()).returncode == 0
    assert daemon.operations(4)[-1] == "register"
    assert len(daemon.operations(0)) == {"plan": 2, "register": 3}[silent]


def test_a_daemon_that_was_started_again_meanwhile_is_told_of_the_record(host: Host, start: Start) -> None:
    daemon = host.serve(plan="hang up")
    assert host.run(start()).returncode == 0
    assert daemon.operations(2) == ["plan", "register"]


@pytest.mark.parametrize("how", ["agentcgroup.required", "agentcgroup.io/required", "marker"])
def test_a_refusal_stops_a_container_whose_own_policy_is_required(host: Host, start: Start, how: str) -> None:
    """The daemon need not say it: a wrong annotation beside a required policy would leave the container ungoverned."""
    host.serve(plan={"refuse": "annotation agentcgroup.x: unknown key", "required": False})
    container = start()
    if how == "marker":
        (host.folder / "state/required").mkdir(parents=True)
        (host.folder / "state/required/coding").touch()
    else:
        container.config["annotations"][how] = "true"
    done = host.run(container)
    assert (done.returncode, done.stderr) == (1, f"{said(container)}annotation agentcgroup.x: unknown key\n")
    assert untouched(container)
    assert result(host)["AGENTCGROUP_RESULT"] == "refused"


@pytest.mark.parametrize("how", ["agentcgroup.required", "agentcgroup.io/required", "marker", "plan"])
def test_a_required_policy_without_a_daemon_stops_the_container(host: Host, start: Start, how: str) -> None:
    container = start()
    if how.startswith("agentcgroup"):
        container.config["annotations"][how] = "true"
    elif how == "marker":
        (host.folder / "state/required").mkdir(parents=True)
        (host.folder / "state/required/coding").touch()
    else:
        host.serve(plan={"policy": "coding", "required": True}, register="hang up")
    done = host.run(container)
    assert done.returncode == 1
    assert untouched(container)
    assert done.stderr.startswith(said(container))
    assert "no such file" not in done.stderr.lower()  # podman would report a missing command
    assert result(host)["PRIORITY"] == "3"


def test_a_policy_name_cannot_be_a_path(host: Host, start: Start) -> None:
    (host.folder / "state/required").mkdir(parents=True)
    (host.folder / "state/secret").touch()
    container = start()
    container.config["annotations"]["agentcgroup.policy"] = "../secret"
    assert host.run(container).returncode == 0
    assert untouched(container)
    assert 'policy name "../secret"' in result(host)["MESSAGE"]


@pytest.mark.parametrize(("name", "governed"), [("agent", True), ("sidecar", False)])
def test_a_pods_annotation_means_the_container_it_names(host: Host, start: Start, name: str, governed: bool) -> None:
    container = start()
    container.config["annotations"] = {"policy.agentcgroup.io/agent": "coding", "io.kubernetes.container.name": name}
    assert host.run(container).returncode == 0
    assert untouched(container) is not governed
    assert len(host.journal.lines()) == governed


def test_a_policy_for_one_container_of_a_pod_goes_before_the_pods(host: Host, start: Start) -> None:
    container = start()
    container.config["annotations"] = {
        "agentcgroup.policy": "third",
        "agentcgroup.io/policy": "second",
        "policy.agentcgroup.io/agent": "first",
        "io.kubernetes.container.name": "agent",
    }
    assert host.run(container).returncode == 0
    assert host.record(container)["policy"] == "first"


def test_the_infra_container_of_a_pod_is_never_meant(host: Host, start: Start) -> None:
    container = start()
    container.config["annotations"] |= {"io.kubernetes.cri.container-type": "sandbox", "agentcgroup.required": "true"}
    assert host.run(container).returncode == 0
    assert untouched(container)
    assert host.journal.lines() == []


@pytest.mark.parametrize(("name", "status"), [("agent", 1), ("sidecar", 0)])
def test_required_means_the_named_container_only(host: Host, start: Start, name: str, status: int) -> None:
    container = start()
    container.config["annotations"] = {
        "policy.agentcgroup.io/agent": "coding",
        "agentcgroup.required": "true",
        "io.kubernetes.container.name": name,
    }
    assert host.run(container).returncode == status
    container.config["linux"]["cgroupsPath"] = ""
    assert host.run(container).returncode == status
    assert len(host.journal.lines()) == 2 * status


def test_a_disabled_cgroup_is_refused(host: Host, start: Start) -> None:
    """podman --cgroups=disabled leaves init in the engine's cgroup: a prototype took over ssh.service."""
    host.serve()
    container = start()
    container.config["linux"]["cgroupsPath"] = ""
    assert host.run(container).returncode == 0
    assert untouched(container)
    assert "is not the container's own" in result(host)["MESSAGE"]
    container.config["annotations"]["agentcgroup.required"] = "true"
    assert host.run(container).returncode == 1


def test_a_cgroup_with_the_engine_in_it_is_refused(host: Host, start: Start) -> None:
    container = start()
    script = f'echo $$ >{container.base}/cgroup.procs; "$0"'
    done = subprocess.run(["sh", "-c", script, host.hook], input=container.write(), text=True, capture_output=True)
    assert done.returncode == 0
    assert "the engine runs in it" in result(host)["MESSAGE"]


def test_the_end_is_passed_on(host: Host, start: Start) -> None:
    daemon = host.serve()
    container = start()
    container.state |= {"pid": 0, "status": "stopped"}
    assert host.run(container).returncode == 0
    assert daemon.operations(1) == ["stop"]
    assert daemon.told == [{"v": 1, "op": "stop", "id": container.id}]
    assert result(host)["AGENTCGROUP_RESULT"] == "stopped"
    del container.state["pid"]
    (container.bundle / "config.json").unlink()
    assert host.run(container).returncode == 0


def test_the_end_of_a_container_that_no_policy_means_is_no_event(host: Host, start: Start) -> None:
    host.serve()
    container = start()
    container.state["annotations"] = {"policy.agentcgroup.io/agent": "coding", "io.kubernetes.container.name": "other"}
    assert host.run(container, argv=["poststop"]).returncode == 0
    assert host.journal.lines() == []


def test_the_end_without_a_daemon(host: Host, start: Start) -> None:
    container = start()
    assert host.run(container, argv=["poststop"]).returncode == 0
    assert "the daemon was not told" in result(host)["MESSAGE"]


def test_a_users_own_engine(host: Host, start: Start) -> None:
    host.serve()
    host.folder.joinpath("run/hook.sock").chmod(0o600)
    container = start()
    state = container.write()
    open_path(host.folder)
    host.folder.joinpath("journal").chmod(0o666)
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "unshare", "-Ur", host.hook]
    done = subprocess.run(command, input=state, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert untouched(container)
    line = result(host)
    assert line["AGENTCGROUP_RESULT"] == "rootless"
    assert "not governed: the engine runs without root" in line["MESSAGE"]
    container.state["pid"] = 0
    done = subprocess.run(command, input=container.write(), text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert host.journal.lines() == []


def test_state_that_is_no_json(host: Host) -> None:
    done = subprocess.run([host.hook], input='{"id"', text=True, capture_output=True)
    assert done.returncode == 0
    assert "the state on stdin is not valid JSON: line 1 column 6: expected ':'" in result(host)["MESSAGE"]


def test_without_a_journal_the_line_goes_to_stderr(host: Host, start: Start) -> None:
    (host.folder / "journal").unlink()
    container = start()
    done = host.run(container)
    assert done.returncode == 0
    assert done.stderr.startswith(f"agentcgroup-hook: container {container.id[:12]}: unregistered: policy coding, ")


def test_a_stderr_that_nobody_reads_stops_no_container(host: Host, start: Start) -> None:
    (host.folder / "journal").unlink()
    container = start()
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([host.hook], input=container.write(), text=True, stderr=writer)
    os.close(writer)
    assert done.returncode == 0


def test_a_daemon_that_goes_before_it_is_told_of_the_mounts_leaves_the_whole_record(host: Host, start: Start) -> None:
    daemon = host.serve()
    daemon.last = "register"
    container = start()
    host.run(container)
    assert daemon.operations(3) == ["plan", "register", "register"]
    assert host.record(container)["injected"] == ["/usr/bin/bash", "/usr/bin/dash"]


def test_a_text_from_the_container_stays_one_field_in_the_journal(host: Host, start: Start) -> None:
    host.serve(plan={"refuse": "first\nPRIORITY=0\nsecond"})
    host.run(start())
    line = result(host)
    assert line["PRIORITY"] == "4"
    assert "first PRIORITY=0 second" in line["MESSAGE"]


@pytest.mark.parametrize(
    ("spelling", "terminal"), [(["--log", "LOG"], False), (["--log=LOG"], False), ([], False), (["--log", "LOG"], True)]
)
def test_the_cause_reaches_the_engine_when_the_hooks_own_stderr_is_thrown_away(
    host: Host, start: Start, tmp_path: Path, spelling: list[str], terminal: bool
) -> None:
    """crun runs hooks with /dev/null for stderr, and an engine that only says "exit code 1" helps nobody."""
    host.serve(plan={"refuse": 'no "such" policy', "required": True})
    container = start()
    container.config["process"]["terminal"] = terminal
    log = tmp_path / "oci-log"
    log.write_text('{"msg":"before"}\n')
    options = [word.replace("LOG", str(log)) for word in spelling]
    done = subprocess.run(
        ["bash", "-c", '"$0" 2>/dev/null; exit $?', host.hook, *options, "--log-format=json"],
        input=container.write(),
        text=True,
        capture_output=True,
    )
    assert done.returncode == 1
    cause = f'{said(container)}no "such" policy'
    assert done.stderr == cause + "\n"
    logged = [json.loads(line) for line in log.read_text().splitlines()]
    assert logged == [{"msg": "before"}, {"msg": cause, "level": "error"}][: 2 if spelling and not terminal else 1]


def test_no_cause_reads_like_a_missing_command(host: Host, start: Start) -> None:
    """podman takes "no such file or directory" in what a hook says for a command that the image does not have."""
    host.serve(plan={"refuse": "a: No such file or directory, b: no such file or directory", "required": True})
    container = start()
    assert host.run(container).stderr == f"{said(container)}a: it is not there, b: it is not there\n"
    container.config["annotations"]["agentcgroup.required"] = "true"
    container.config["root"]["path"] = "/missing"
    assert host.run(container).stderr == f"{said(container)}open the container's root /missing: it is not there\n"


def test_many_long_annotations_fit_into_a_message(host: Host, start: Start) -> None:
    daemon = host.serve()
    container = start()
    many = {f"io.kubernetes.cri-o.{i:03}": "x\x01é" * 3000 for i in range(100)}
    container.config["annotations"] = many | {"agentcgroup.policy": "coding", "agentcgroup.n": 5}
    host.run(container)
    sent = daemon.told[0]["annotations"]
    assert sent["agentcgroup.policy"] == "coding"
    assert "agentcgroup.n" not in sent
    assert 2 < len(sent) < 100
    assert max(len(v.encode()) for v in sent.values()) <= 4096
    assert json.loads(json.dumps(host.record(container)))["annotations"] == sent
