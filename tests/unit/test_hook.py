"""The hook on a host with cgroup2, against a daemon of the tests' own (docs/architecture.md, "Hook protocol")."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hook_harness import (
    Container,
    Host,
    Journal,
    build_hook,
    build_shells,
    cgroup_top,
    fuse,
    make_rootfs,
    open_path,
    serve_no_read,
    start_container,
)

pytestmark = pytest.mark.skipif(cgroup_top() is None, reason="needs root and a writable cgroup2")
needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs FUSE")
Start = Callable[..., Container]
HINT = "/dev/agentcgroup/agentcgroup-hint"


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Path]]:
    folder = tmp_path_factory.mktemp("hookhost")
    return build_hook(folder).parents[1], build_shells(folder / "shells")


@pytest.fixture
def host(programs: tuple[Path, dict[str, Path]]) -> Iterator[Host]:
    folder, _ = programs
    for name in ("run", "state", "journal"):
        subprocess.run(["rm", "-rf", str(folder / name)], check=True)
    for bundle in folder.glob("bundle*"):
        shutil.rmtree(bundle)
    mount = cgroup_top()
    assert mount
    top = mount / f"agentcgroup-test-{os.getpid()}"
    top.mkdir()
    for controller in (top / "cgroup.controllers").read_text().split():
        (top / "cgroup.subtree_control").write_text("+" + controller)
    before = Path("/proc/self/mountinfo").read_text()
    host = Host(folder, top, folder / "libexec/agentcgroup-hook", Journal(folder / "journal"))
    yield host
    host.close()
    assert not top.exists()
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.fixture
def start(host: Host, programs: tuple[Path, dict[str, Path]], tmp_path: Path) -> Start:
    """Start a container; `shape` changes its rootfs first."""

    def start(shape: Callable[[Path], None] | None = None, **options: Any) -> Container:
        rootfs = tmp_path / f"rootfs{len(host.containers)}"
        make_rootfs(rootfs, programs[1])
        if shape:
            shape(rootfs)
        return start_container(host, rootfs, **options)

    return start


def result(host: Host) -> dict[str, str]:
    (line,) = host.journal.lines()
    return line


def said(container: Container) -> str:
    """The beginning of what the hook writes to stderr when it stops a container."""
    return f"agentcgroup-hook: container {container.id[:12]}: its policy is required and cannot be kept: "


def untouched(container: Container) -> bool:
    """The container is as the engine made it."""
    return (
        not (container.base / "agentcgroup").exists()
        and not container.wrapped()
        and container.cgroup_of_init().endswith(container.base.name)
        and (container.base / "cgroup.subtree_control").read_text().split() == []
    )


def test_a_container_is_brought_under_control(host: Host, start: Start) -> None:
    daemon = host.serve()
    container = start()
    done = host.run(container)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert daemon.operations(3) == ["plan", "register", "ready"]
    plan, register, ready = daemon.told
    assert plan == {
        "v": 1,
        "op": "plan",
        "id": container.id,
        "pid": container.init.pid,
        "bundle": str(container.bundle),
        "base": str(container.base),
        "engine": "podman",
        "cooperative": [],
        "annotations": {"agentcgroup.policy": "coding", "io.container.manager": "libpod"},
    }
    assert register == {"v": 1, "op": "register", "id": container.id}
    assert ready["injected"] == ["/usr/bin/bash", "/usr/bin/dash"]
    assert 0 < ready["us"] < 3_000_000
    line = result(host)
    assert line["AGENTCGROUP_RESULT"] == "governed"
    assert line["AGENTCGROUP_CONTAINER"] == container.id
    assert line["SYSLOG_IDENTIFIER"] == "agentcgroup-hook"
    assert line["PRIORITY"] == "6"
    assert int(line["AGENTCGROUP_HOOK_USEC"]) >= ready["us"]
    assert line["MESSAGE"].startswith(f"container {container.id[:12]}: policy coding, 2 shells wrapped (")


def test_the_subtree(host: Host, start: Start) -> None:
    """podman#8330, #22147 (P097, P098): a controller that is not there is noted and no obstacle."""
    daemon = host.serve()
    container = start()
    host.run(container)
    ours = container.base / "agentcgroup"
    assert container.cgroup_of_init().endswith("/agentcgroup/agent")
    assert {str(p.relative_to(ours)) for p in ours.rglob("*") if p.is_dir()} == {
        "agent",
        "helpers",
        "calls",
        "calls/fallback",
    }
    modes = {d: (ours / d / "cgroup.procs").stat().st_mode & 0o777 for d in (".", "agent", "calls", "calls/fallback")}
    assert modes == {".": 0o666, "agent": 0o644, "calls": 0o644, "calls/fallback": 0o666}
    assert (ours / "calls/cgroup.max.depth").read_text() == "1\n"
    limits = {"cpu", "memory", "pids", "io"}
    wanted = limits & set((container.base / "cgroup.controllers").read_text().split())
    missing = {note for note in daemon.told[-1]["notes"] if " controller in " in note}
    assert missing == {f"no {name} controller in {container.base}" for name in limits - wanted}
    for directory in (container.base, ours, ours / "calls"):
        assert set((directory / "cgroup.subtree_control").read_text().split()) == wanted
    if "memory" in wanted:
        assert (ours / "calls/fallback/memory.oom.group").read_text() == "1\n"


def test_the_record(host: Host, start: Start) -> None:
    host.serve()
    container = start()
    container.config["annotations"] |= {"io.kubernetes.container.name": "agent", "org.other": "x"}
    host.run(container)
    record = host.record(container)
    stat = Path(f"/proc/{container.init.pid}/stat").read_text().rsplit(")", 1)[1].split()
    assert record == {
        "v": 1,
        "id": container.id,
        "name": "agent",
        "pid": container.init.pid,
        "start_time": int(stat[19]),
        "base": str(container.base),
        "bundle": str(container.bundle),
        "cooperative": [],
        "policy": "coding",
        "uid": 0,
        "gid": 0,
        "engine": "podman",
        "registered": False,
        "annotations": {
            "agentcgroup.policy": "coding",
            "io.container.manager": "libpod",
            "io.kubernetes.container.name": "agent",
        },
    }
    assert not list((host.run_dir / "containers").glob(".*"))


def test_what_the_container_sees(host: Host, start: Start) -> None:
    host.serve(plan={"policy": "coding", "ack_ms": 2000})
    container = start()
    host.run(container)
    mounts = container.mounts()
    locked = {"ro", "nosuid", "nodev"}
    assert locked | {"noexec"} <= set(mounts["/dev/agentcgroup"])
    assert locked | {"noexec"} <= set(mounts["/dev/agentcgroup/calls"])
    assert "ro" in mounts["/dev/agentcgroup/real/bash"]
    for shim in ("/usr/bin/bash", "/usr/bin/dash", HINT):
        assert locked <= set(mounts[shim])
        assert "noexec" not in mounts[shim]
    shim_len = (host.folder / "libexec/agentcgroup-shim").stat().st_size
    shell_len = (container.rootfs / "usr/bin/dash").stat().st_size
    done = container.inside("/bin/sh", "-c")
    assert done.stdout == (
        f"shim name=dash shim_len={shim_len} shell_len={shell_len} ack_ms=2000\nreal shell dash as /bin/sh with -c\n"
    )
    assert container.inside("/bin/bash", "x").stdout.endswith("real shell bash as /bin/bash with x\n")
    assert container.inside(HINT).stdout.startswith("shim name=bash ")
    assert container.inside("/bin/cat", "x").stdout == "real shell cat as /bin/cat with x\n"


def test_the_payload_is_shim_and_shell_and_made_once(host: Host, start: Start) -> None:
    host.serve()
    container = start()
    host.run(container)
    (path,) = (host.run_dir / "shims").glob("dash-*")
    payload, shim = path.read_bytes(), (host.folder / "libexec/agentcgroup-shim").read_bytes()
    assert payload[len(shim) :] == (container.rootfs / "usr/bin/dash").read_bytes()
    assert path.stat().st_mode & 0o777 == 0o755
    made = path.stat().st_ino
    second = start_container(host, container.rootfs)
    host.run(second)
    assert [p.stat().st_ino for p in (host.run_dir / "shims").glob("dash-*")] == [made]
    os.utime(host.folder / "libexec/agentcgroup-shim")  # an upgrade
    host.run(start_container(host, container.rootfs))
    assert len(list((host.run_dir / "shims").glob("dash-*"))) == 2


def test_a_payload_under_the_right_key_with_another_shell_in_it_is_made_again(host: Host, start: Start) -> None:
    """An image on EROFS can forge all that the key is made of, and so leave its own shell to other containers."""
    host.serve()
    container = start()
    host.run(container)
    (path,) = (host.run_dir / "shims").glob("dash-*")
    payload = path.read_bytes()
    path.write_bytes(payload[:-8] + b"attacker")
    host.run(start_container(host, container.rootfs))
    assert path.read_bytes() == payload


def test_a_payload_that_is_used_again_is_among_the_newest(host: Host, start: Start) -> None:
    """The daemon sweeps the oldest, also between this hook's look at the file and its mount."""
    host.serve()
    container = start()
    host.run(container)
    (path,) = (host.run_dir / "shims").glob("dash-*")
    os.utime(path, (0, 0))
    host.run(start_container(host, container.rootfs))
    assert path.stat().st_mtime > time.time() - 60


def test_hooks_of_many_containers_at_once(host: Host, start: Start) -> None:
    host.serve()
    containers = [start(), *(start() for _ in range(5))]
    with ThreadPoolExecutor(6) as pool:
        statuses = [r.returncode for r in pool.map(host.run, containers)]
    assert statuses == [0] * 6
    assert all(c.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"] for c in containers)
    assert not list((host.run_dir / "shims").glob(".*"))


def test_a_pretty_printed_config_with_a_relative_root(host: Host, start: Start) -> None:
    """CRI-O indents config.json: a search for `"path":"` injected nothing there."""
    host.serve()
    container = start()
    (container.bundle / "rootfs").symlink_to(container.rootfs)
    container.config["root"]["path"] = "rootfs"
    container.pretty = True
    host.run(container)
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]


def test_run_twice_it_never_wraps_a_shim(host: Host, start: Start) -> None:
    daemon = host.serve()
    container = start()
    host.run(container)
    before = container.mounts()
    assert host.run(container).returncode == 0
    assert container.mounts() == before
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]
    assert daemon.operations(6)[3:] == ["plan", "register", "ready"]
    assert daemon.told[3]["base"] == str(container.base)
    assert daemon.told[5]["injected"] == ["/bin/bash", "/bin/sh"] or daemon.told[5]["injected"][0] == "/bin/bash"
    assert [line["AGENTCGROUP_RESULT"] for line in host.journal.lines()] == ["governed", "governed"]


def test_a_run_that_was_cut_short_before_the_shims_is_made_good(host: Host, start: Start) -> None:
    host.serve()
    container = start()
    host.run(container)
    for path in ("/usr/bin/bash", "/usr/bin/dash", HINT):
        umount = ["nsenter", "-m", "-t", str(container.init.pid), "umount", str(container.rootfs) + path]
        subprocess.run(umount, check=True)
    assert container.wrapped() == []
    host.run(container)
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]
    assert container.inside("/bin/sh", "-c").stdout.endswith("real shell dash as /bin/sh with -c\n")
    assert [m for m in container.mounts() if m == "/dev/agentcgroup"] == ["/dev/agentcgroup"]


def test_other_processes_in_the_containers_cgroup_move_too(host: Host, start: Start) -> None:
    host.serve()
    container = start()
    (container.base / "extra").mkdir()
    with subprocess.Popen(["sleep", "60"]) as other:
        (container.base / "cgroup.procs").write_text(str(other.pid))
        host.run(container)
        assert str(other.pid) in (container.base / "agentcgroup/agent/cgroup.procs").read_text().split()
        other.kill()


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


@pytest.mark.parametrize(
    ("change", "reasons"),
    [
        ({"caps": ["CAP_SYS_ADMIN"]}, ["CAP_SYS_ADMIN"]),
        ({"caps": ["CAP_DAC_READ_SEARCH", "CAP_KILL"]}, ["CAP_DAC_READ_SEARCH"]),
        ({"options": ["rw"]}, ["writable cgroup2 at /sys/fs/cgroup"]),
        ({"namespaces": [{"type": "mount"}]}, ["host cgroup namespace"]),
        ({"namespaces": [{"type": "cgroup", "path": "/proc/1/ns/cgroup"}]}, ["shared cgroup namespace"]),
    ],
)
def test_a_container_that_could_free_itself_is_cooperative(
    host: Host, start: Start, change: dict[str, Any], reasons: list[str]
) -> None:
    daemon = host.serve()
    container = start()
    container.config["process"]["capabilities"]["bounding"] = change.get("caps", [])
    container.config["mounts"][0]["options"] = change.get("options", ["ro"])
    container.config["linux"]["namespaces"] = change.get("namespaces", [{"type": "cgroup"}])
    host.run(container)
    assert daemon.told[0]["cooperative"] == host.record(container)["cooperative"] == reasons
    assert "/dev/agentcgroup/calls" not in container.mounts()
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]
    assert f"cooperative: {reasons[0]}" in result(host)["MESSAGE"]


def test_a_second_writable_cgroup2_mount_makes_it_cooperative(host: Host, start: Start) -> None:
    daemon = host.serve()
    container = start(lambda r: (r / "mnt x").mkdir(), mounts='mount -t cgroup2 cgroup2 "$R/mnt x"')
    host.run(container)
    assert daemon.told[0]["cooperative"] == ["writable cgroup2 at /mnt x"]


def as_busybox(rootfs: Path) -> None:
    """busybox under its own name, and as a hard link."""
    os.rename(rootfs / "usr/bin/dash", rootfs / "usr/bin/busybox")
    (rootfs / "usr/bin/sh").unlink()
    (rootfs / "usr/bin/sh").symlink_to("/bin/busybox")
    (rootfs / "usr/bin/bash").unlink()
    os.link(rootfs / "usr/bin/cat", rootfs / "usr/bin/bash")


def as_script(rootfs: Path) -> None:
    for name in ("bash", "dash"):
        (rootfs / "usr/bin" / name).write_text("#!/usr/bin/env x\n")
        (rootfs / "usr/bin" / name).chmod(0o755)


def as_setuid(rootfs: Path) -> None:
    (rootfs / "usr/bin/bash").chmod(0o4755)
    (rootfs / "usr/bin/dash").chmod(0o700)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"shape": as_busybox}, "/bin/sh is not wrapped: it is a multi-call binary (busybox)"),
        ({"shape": as_script}, "/bin/sh is not wrapped: it is not an ELF program"),
        ({"shape": as_setuid}, "/bin/sh is not wrapped: its mode is 0700"),
        ({"mounts": "mount --make-shared $R"}, "/bin/sh is not wrapped: its mount is shared with others"),
        ({"mounts": "umount $R/dev; mount --bind /dev $R/dev"}, "the container's /dev is the host's"),
        ({"mounts": "umount $R/dev"}, "the container's /dev is no tmpfs"),
        (
            {"mounts": "mount --make-shared $R/dev"},
            "the container's /dev cannot be used: its mount is shared with others",
        ),
        ({"mounts": "mount -o remount,ro $R/dev"}, "mkdir /dev/agentcgroup: Read-only file system"),
        (
            {"mounts": "mkdir $R/dev/agentcgroup; mount -t tmpfs x $R/dev/agentcgroup"},
            "something else is mounted on /dev/agentcgroup",
        ),
        ({"mounts": "ln -s /usr $R/dev/agentcgroup"}, "open /dev/agentcgroup: "),
    ],
)
@pytest.mark.parametrize("required", [False, True])
def test_shells_that_cannot_be_wrapped(
    host: Host, start: Start, options: dict[str, Any], cause: str, required: bool
) -> None:
    daemon = host.serve(plan={"policy": "coding", "required": required})
    container = start(**options)
    before = container.mounts()
    assert host.run(container).returncode == required
    assert container.mounts() == before
    line = result(host)
    assert cause in line["MESSAGE"]
    assert line["AGENTCGROUP_RESULT"] == ("failed" if required else "not-injected")
    if not required:
        assert daemon.operations(3)[-1] == "ready"
        assert daemon.told[-1]["injected"] == []
        assert any(cause in note for note in daemon.told[-1]["notes"])


def test_a_mount_that_fails_half_way_takes_the_others_back(host: Host, start: Start) -> None:
    """An unbindable mount cannot be cloned, which shows only when /dev/agentcgroup is mounted already."""
    daemon = host.serve()
    mounts = "cp $R/usr/bin/dash $R/dash; mount --bind $R/dash $R/usr/bin/dash; mount --make-unbindable $R/usr/bin/dash"
    container = start(mounts=mounts)
    before = container.mounts()
    assert host.run(container).returncode == 0
    assert container.mounts() == before
    assert not (Path(f"/proc/{container.init.pid}/root") / str(container.rootfs)[1:] / "dev/agentcgroup").exists()
    assert daemon.operations(3)[-1] == "ready"
    assert daemon.told[-1]["injected"] == []
    assert "clone a mount of /usr/bin/dash of the image: Invalid argument" in result(host)["MESSAGE"]


def without_shells(rootfs: Path) -> None:
    for name in ("bash", "dash"):
        (rootfs / "usr/bin" / name).unlink()


def test_an_image_without_a_shell_starts_even_if_required(host: Host, start: Start) -> None:
    daemon = host.serve(plan={"policy": "coding", "required": True})
    container = start(without_shells)
    assert host.run(container).returncode == 0
    assert daemon.operations(3)[-1] == "ready"
    assert "the image has no shell to wrap" in daemon.told[-1]["notes"]
    assert "no shell to wrap" in result(host)["MESSAGE"]


@needs_fuse
@pytest.mark.parametrize("required", [False, True])
def test_a_file_system_that_hangs_does_not_keep_the_hook_until_the_engine_kills_it(
    host: Host, start: Start, tmp_path: Path, required: bool
) -> None:
    """A wait for a page ends with the process only, and a killed hook is a failed start."""
    host.serve(plan={"policy": "coding", "required": required})
    (tmp_path / "bash").touch()
    with fuse(tmp_path / "bash", serve_no_read):
        container = start(mounts=f"mount --bind {tmp_path}/bash $R/usr/bin/bash")
        began = time.monotonic()
        done = host.run(container)
        assert 3.9 < time.monotonic() - began < 4.9
    assert done.returncode == required
    assert done.stderr.startswith(said(container) if required else "")
    assert "a file system has not answered for 4 s" in result(host)["MESSAGE"]


@needs_fuse
@pytest.mark.parametrize("required", [False, True])
def test_a_shell_that_cannot_be_looked_at_is_not_absent(
    host: Host, start: Start, tmp_path: Path, required: bool
) -> None:
    daemon = host.serve(plan={"policy": "coding", "required": required, "shells": ["/usr/local/bin/bash"]})
    (tmp_path / "dead").mkdir()
    with fuse(tmp_path / "dead", os.close):
        mounts = f"mkdir $R/usr/local; mount --bind {tmp_path}/dead $R/usr/local"
        container = start(mounts=mounts)
        assert host.run(container).returncode == required
    cause = "/usr/local/bin/bash is not wrapped: open it: "
    assert cause in result(host)["MESSAGE"]
    if not required:
        assert daemon.operations(3)[-1] == "ready"
        assert daemon.told[-1]["notes"][0].startswith(cause)


def test_a_policy_that_wants_no_shim(host: Host, start: Start) -> None:
    host.serve(plan={"policy": "coding", "inject": False})
    container = start()
    host.run(container)
    assert container.wrapped() == []
    assert container.cgroup_of_init().endswith("/agentcgroup/agent")
    assert (host.run_dir / "c" / container.id).is_dir()


def with_many_shells(rootfs: Path) -> None:
    (rootfs / "opt").mkdir()
    shutil.copy(rootfs / "usr/bin/dash", rootfs / "opt/bash")
    os.link(rootfs / "usr/bin/bash", rootfs / "opt/linked")
    (rootfs / "opt/out").symlink_to("../../../../../../../../bin/bash")
    (rootfs / "opt/loop").symlink_to("loop")
    (rootfs / "opt/.hidden").symlink_to("/usr/bin/bash")
    shutil.copy(rootfs / "usr/bin/dash", rootfs / "opt/a b")


def test_shells_are_wrapped_once_each_under_a_name_of_their_own(host: Host, start: Start) -> None:
    shells = [
        "/bin/bash",
        "/opt/bash",
        "/opt/linked",
        "/opt/out",
        "/opt/loop",
        "/opt/.hidden",
        "/opt/a b",
        "/none",
        "/opt",
    ]
    daemon = host.serve(plan={"policy": "coding", "shells": shells})
    container = start(with_many_shells)
    host.run(container)
    assert daemon.operations(3)[-1] == "ready"
    assert daemon.told[-1]["injected"] == ["/usr/bin/bash", "/opt/bash", "/opt/linked"]
    assert "/opt/a b is not wrapped: its name cannot be used" in daemon.told[-1]["notes"]
    assert sorted(p.name for p in (host.run_dir / "c" / container.id / "real").iterdir()) == ["bash", "bash.2"]
    assert container.inside("/opt/bash", "1").stdout.endswith("real shell dash as /opt/bash with 1\n")
    assert container.inside("/opt/linked", "1").stdout.endswith("real shell bash as /opt/linked with 1\n")


def test_a_container_in_a_user_namespace(host: Host, start: Start) -> None:
    """Nodes in its /dev must be made with the host's id of its root, else EOVERFLOW."""
    host.serve()
    container = start(in_user_namespace=True)
    assert host.run(container).returncode == 0
    record = host.record(container)
    assert (record["uid"], record["gid"]) == (100000, 100000)
    assert container.wrapped() == ["/usr/bin/bash", "/usr/bin/dash"]


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
