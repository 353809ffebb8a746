"""What is not governed stays as the engine made it, and somebody is told why; bad input stops no container that does
not insist.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundle import HOOK
from conftest import POLICIES
from podman import Container, Engine, governed, run, wait_for

HOOKS_D = Path("/usr/share/containers/oci/hooks.d/50-agentcgroup.json")
UNITS = ("agentcgroupd.socket", "agentcgroupd.service")
CGROUP = ("cat", "/proc/self/cgroup")
IN_A_CALL = re.compile(r"0::/agentcgroup/calls/\d+\n")

# What differs between two containers that are the same: ids of mounts, layers and containers, free memory.
VARYING = re.compile(
    r"^\d+ \d+ \d+:\d+|[0-9a-f]{12,64}|/[A-Z0-9]{26}\b|overlay-containers/\S+|master:\d+", re.MULTILINE
)
PROBE = "cat /proc/self/mountinfo /proc/self/cgroup; find /dev | sort; env | sort; ls /sys/fs/cgroup"

NOBODY = {
    "id": "refusals", "pid": 4194303, "bundle": "/nonexistent", "annotations": {"agentcgroup.policy": "test"},
}  # fmt: skip

# Adds what no runtime writes today, and takes "root" away, which crun writes and runc does not.
OTHER_STATE = f"""import json, subprocess, sys
state = json.load(sys.stdin)
state.pop("root", None)
state |= {{"unknown": {{"list": [1, None, "\\u00e9"]}}, "annotations": {{**state.get("annotations", {{}}), "a": "b"}}}}
sys.exit(subprocess.run(["{HOOK}"], input=json.dumps(state, indent=4), text=True).returncode)"""


@pytest.fixture(scope="module", autouse=True)
def policies(daemon: None) -> Iterator[None]:
    """A required policy and a broken one."""
    files = {
        "strict": "extends: test\nrequired: true\n",
        "broken": "description: with a mistake\nmemory:\n  max: banana\n",
    }
    for name, text in files.items():
        (POLICIES / f"{name}.yaml").write_text(text)
    run("systemctl", "reload", "agentcgroupd")
    yield
    for name in files:
        (POLICIES / f"{name}.yaml").unlink()
    run("systemctl", "reload", "agentcgroupd")


def journal_of(container_id: str, what: str = "") -> str:
    """What the journal says of a container, once it says `what`."""
    said = ""

    def heard() -> bool:
        nonlocal said
        said = run("journalctl", "-o", "cat", f"AGENTCGROUP_CONTAINER={container_id}").stdout
        return what in said

    wait_for(heard, 1, f"{what!r} in the journal")
    return said


# --- nothing where nothing was asked for ----------------------------------------------------------------------------


def test_without_an_annotation_a_container_is_what_it_is_without_us(file_engine: Engine) -> None:
    def look() -> list[str]:
        done = file_engine.podman(
            "run", "--rm", "--network=none", "--hostname=same", "localhost/debian", "sh", "-c", PROBE
        )
        return sorted(VARYING.sub("X", done.stdout).splitlines())  # podman mounts in any order

    ours = look()
    aside = HOOKS_D.rename(HOOKS_D.with_suffix(".aside"))
    try:
        assert look() == ours
    finally:
        aside.rename(HOOKS_D)
    assert not [line for line in ours if "agentcgroup" in line]


# --- policies that cannot be used -----------------------------------------------------------------------------------


def test_an_unknown_policy_lets_the_container_start_and_the_journal_name_the_nearest(bundle) -> None:
    container = bundle(**{"agentcgroup.policy": "tset"})
    assert container.start().returncode == 0
    assert container.exec("bash", "-c", "cat /proc/self/cgroup").stdout == "0::/\n"
    said = journal_of(container.id, "tset")
    assert 'not governed: no policy "tset"' in said
    assert 'did you mean "test"?' in said


def test_a_broken_policy_lets_the_container_start_and_the_journal_name_the_line(bundle) -> None:
    container = bundle(**{"agentcgroup.policy": "broken"})
    assert container.start().returncode == 0
    assert container.exec(*CGROUP).stdout == "0::/\n"
    assert f'{POLICIES}/broken.yaml:3: memory.max: "banana" is not a size' in journal_of(container.id, "banana")


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"agentcgroup.policy": "x" * 100_000}, "xxx...\" is not a policy's name"),
        ({"agentcgroup.policy": "test\nPRIORITY=0\n"}, '"test?PRIORITY=0?" is not a policy\'s name'),
        ({"agentcgroup.policy": ""}, '"" is not a policy\'s name'),
        ({"agentcgroup.call.memory.defualt": "128M"}, "did you mean agentcgroup.call.memory.default?"),
        ({"agentcgroup.memory.max": "banana"}, 'agentcgroup.memory.max: "banana" is not a size'),
        ({"agentcgroup.memory.agent_min": "2G"}, "memory.agent_min 2 GiB exceeds memory.max 1 GiB"),
        ({"agentcgroup.required": "maybe"}, 'agentcgroup.required: must be true or false, not "maybe"'),
        ({"agentcgroup.call.time_max": "9" * 5000}, "agentcgroup.call.time_max"),
    ],
    ids=lambda value: max(value, key=len).rpartition(".")[2] if isinstance(value, dict) else "",
)
def test_an_annotation_that_makes_no_sense_is_named_and_the_container_starts(
    bundle, annotations: dict[str, str], said: str
) -> None:
    container = bundle(**{"agentcgroup.policy": "test", **annotations})
    assert container.start().returncode == 0
    assert container.exec(*CGROUP).stdout == "0::/\n"
    line = journal_of(container.id, "not governed: ")
    assert said in line
    assert len(line) < 1000


# --- required -------------------------------------------------------------------------------------------------------


def test_a_required_policy_refuses_a_container_in_which_it_would_only_ask_nicely() -> None:
    done = run_strict(Engine("runc"), "--privileged")
    assert done.returncode != 0
    assert done.stdout == ""
    cause = 'policy "strict": limits would be cooperative, the container could undo them: CAP_SYS_ADMIN'
    assert cause in done.stderr


@pytest.mark.parametrize("wrong", ["agentcgroup.io/x=1", "agentcgroup.call.time_max=soon"])
def test_a_wrong_annotation_is_no_way_around_a_required_policy(file_engine: Engine, wrong: str) -> None:
    done = run_strict(file_engine, f"--annotation={wrong}")
    assert done.returncode != 0
    assert done.stdout == ""
    assert wrong.partition("=")[0] in done.stderr


def run_strict(engine: Engine, *options: str) -> subprocess.CompletedProcess[str]:
    annotation = "--annotation=agentcgroup.policy=strict"
    command = ("run", "--rm", "--network=none", annotation, *options, "localhost/debian", "echo", "started")
    return engine.podman(*command, check=False)


# --- the daemon comes later -----------------------------------------------------------------------------------------


class TestWhileTheDaemonIsDown:
    @pytest.fixture(scope="class", autouse=True)
    def down(self) -> Iterator[None]:
        """Neither the daemon nor systemd's socket for it."""
        run("systemctl", "stop", *UNITS)
        yield
        run("systemctl", "start", *UNITS)

    def test_a_required_policy_stops_the_container(self, file_engine: Engine, journal) -> None:
        done = run_strict(file_engine)
        assert done.returncode != 0
        assert done.stdout == ""
        assert "agentcgroupd is not running" in done.stderr
        assert "cannot be kept: agentcgroupd is not running" in journal.text()

    def test_another_container_starts_and_its_calls_run_in_fallback(self, lonely: Container) -> None:
        done = lonely.call("cat /proc/self/cgroup; exit 3")
        assert (done.rc, done.out) == (3, "0::/agentcgroup/calls/fallback\n")
        assert "limits follow later: agentcgroupd is not running" in journal_of(lonely.id)


@pytest.fixture(scope="module")
def lonely(file_engine: Engine) -> Container:
    """A container that was started without the daemon."""
    return file_engine.start("--annotation=agentcgroup.call.memory.default=128M")


def test_the_daemon_adopts_it_with_its_annotations_when_it_comes_back(lonely: Container) -> None:
    wait_for(lambda: lonely.record["registered"], 10, "the adoption")
    governed(lonely, limit=128 << 20)
    assert int((lonely.tree / "calls/fallback/memory.max").read_text()) == 128 << 20


# --- places where no shim may go ------------------------------------------------------------------------------------


def test_with_the_hosts_dev_no_shell_is_wrapped(file_engine: Engine) -> None:
    container = file_engine.start("--volume=/dev:/dev")
    assert "no shell wrapped: the container's /dev is the host's" in journal_of(container.id)
    assert not Path("/dev/agentcgroup").exists()
    assert container.wrapped() == []
    done = container.call("cat /proc/self/cgroup; exit 3")
    assert (done.rc, done.out) == (3, "0::/agentcgroup/agent\n")
    assert int((container.tree / "memory.max").read_text()) == 1 << 30


def hosts_bash() -> tuple[int, str, list[str]]:
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "agentcgroup" in line]
    return Path("/usr/bin/bash").stat().st_ino, run("bash", "--version").stdout, mounts


def test_the_hosts_shells_are_not_wrapped_through_a_shared_mount(file_engine: Engine) -> None:
    """`-v /usr:/usr:rshared` put a prototype's shim over the host's own bash."""
    before = hosts_bash()
    container = file_engine.start("--volume=/usr:/usr:rshared")
    assert hosts_bash() == before
    assert "shared with others" in journal_of(container.id)
    done = container.call("cat /proc/self/cgroup; exit 3")
    assert (done.rc, done.out) == (3, "0::/agentcgroup/agent\n")
    file_engine.podman("rm", "-f", "-t", "0", container.id)
    assert hosts_bash() == before


def test_the_hosts_shells_are_not_wrapped_through_a_shared_mount_of_runc(bundle) -> None:
    before = hosts_bash()
    container = bundle("runc", **{"agentcgroup.policy": "test"})
    container.config["mounts"].append({"destination": "/usr", "source": "/usr", "options": ["rbind", "rshared"]})
    container.config["linux"]["rootfsPropagation"] = "rshared"
    assert container.start().returncode == 0
    assert hosts_bash() == before
    assert "shared with others" in journal_of(container.id)
    assert container.exec("bash", "-c", "cat /proc/self/cgroup").stdout == "0::/agentcgroup/agent\n"
    container.delete()
    assert hosts_bash() == before


def test_an_image_without_a_shell_starts(file_engine: Engine) -> None:
    container = file_engine.run(image="localhost/static", command=("/hello", "1000"))
    wait_for(lambda: container.podman("logs", container.id).stdout == "hello\n", 10, lambda: "its output in the logs")
    assert "no shell to wrap" in journal_of(container.id)
    assert (container.tree / "agent/cgroup.procs").read_text() == f"{container.pid}\n"


def test_busybox_is_not_wrapped(file_engine: Engine) -> None:
    """The shim over a multi-call binary would catch every tool of the image."""
    container = file_engine.run(image="localhost/busybox", command=("sleep", "1000"))
    assert container.wrapped() == []
    assert "it is a multi-call binary (busybox)" in journal_of(container.id)
    done = container.exec("sh", "-c", "cat /proc/self/cgroup; exit 3")
    assert (done.returncode, done.stdout) == (3, "0::/agentcgroup/agent\n")
    [row] = [line for line in run("agentcgroup", "ps").stdout.splitlines() if line.startswith(container.id[:12])]
    assert row.endswith("no shell wrapped")


# --- what engines may write -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["crun", "runc"])
def test_a_bundle_written_another_way_is_understood(bundle, runtime: str) -> None:
    """CRI-O's config.json is pretty-printed: a prototype's search missed the rootfs in it and injected nothing."""
    container = bundle(runtime, **{"agentcgroup.policy": "test", "unknown": 'é\t"\\'})
    container.indent = 4
    container.config["unknown"] = {"list": [1, 2.5e3, None, {"deep": [[[]]]}]}
    container.hook("/usr/bin/python3", "python3", "-c", OTHER_STATE)
    started = container.start()
    assert started.returncode == 0, started.stdout
    done = container.exec("bash", "-c", "cat /proc/self/cgroup; exit 7")
    assert done.returncode == 7
    assert IN_A_CALL.fullmatch(done.stdout), done.stdout


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (b"", "the state on stdin is not valid JSON"),
        (b"\x00\xff{", "the state on stdin is not valid JSON"),
        (b"[" * 500_000, "the state on stdin is not valid JSON"),
        (b" " * (2 << 20), "the state on stdin: more than 1024 KiB"),
        (b"{}", "the state has no id"),
        (b'{"id": "../../etc/passwd", "pid": 1}', "the id is not made of"),
        (b'{"id": "refusals", "pid": 0}', "container refusals: stopped"),
        (json.dumps(NOBODY).encode(), "/nonexistent/config.json"),
    ],
    ids=["empty", "garbage", "deep", "huge", "no id", "path", "pid 0", "nobody"],
)
def test_state_that_makes_no_sense_harms_nothing(state: bytes, said: str, journal) -> None:
    done = subprocess.run([HOOK], input=state, capture_output=True, cwd="/")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    wait_for(lambda: said in journal.text(), 1, f"{said!r} in the journal")
    assert not list(Path("/run/agentcgroup/containers").glob("refusals*"))
