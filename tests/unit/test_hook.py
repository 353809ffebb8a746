"""The hook on a host with cgroup2, against a daemon of the tests' own (docs/architecture.md, "Hook protocol")."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hook_harness import Host, Start, cgroup_top, fuse, result, said, serve_no_read, start_container

pytest_plugins = ["hook_fixtures"]
pytestmark = pytest.mark.skipif(cgroup_top() is None, reason="needs root and a writable cgroup2")
needs_fuse = pytest.mark.skipif(not os.path.exists("/dev/fuse"), reason="needs FUSE")
HINT = "/dev/agentcgroup/agentcgroup-hint"


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
