"""Each real break is found by `agentcgroup doctor`, and nothing else is; a remedy that is a command ends it."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import doctor
import pytest
import service
from agentcgroup.doctor.examine import examine
from agentcgroup.doctor.finding import Finding, Level
from agentcgroup.doctor.host import Host
from conftest import POLICIES
from doctor import command, found
from podman import CGROUPFS, Container, Engine, run, set_policy

HOOKS_D = Path("/usr/share/containers/oci/hooks.d")
LIBEXEC = Path("/usr/libexec/agentcgroup")
CONTAINERS_CONF = Path("/etc/containers/containers.conf.d/doctor.conf")
DAEMON_JSON = Path("/etc/docker/daemon.json")
CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")
Break = Callable[[], AbstractContextManager[object]]


@pytest.fixture(scope="module", autouse=True)
def installed(daemon: None) -> Iterator[None]:
    with doctor.installed():
        yield


def mend(finding: Finding) -> None:
    """Do as it says, to the letter."""
    run("sh", "-c", finding.fix)


# --- breaks that their remedy ends ------------------------------------------------------------------------------------


@contextmanager
def moved(path: Path) -> Iterator[None]:
    """Until the block ends, or somebody puts it back."""
    aside = path.rename(path.with_name(path.name + ".aside"))
    try:
        yield
    finally:
        if aside.exists() or aside.is_symlink():
            aside.rename(path)


@contextmanager
def written(path: Path, content: str | bytes) -> Iterator[None]:
    """A file with that content for the length of a block; where there is one, in its place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    before, mode = (path.read_bytes(), path.stat().st_mode) if path.exists() else (None, 0o644)
    new = path.with_name(path.name + ".new")  # by rename, since it may be at work
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.chmod(mode)
    new.rename(path)
    try:
        yield
    finally:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            new.write_bytes(before)
            new.chmod(mode)
            new.rename(path)


@contextmanager
def done(*argv: str) -> Iterator[None]:
    """A command that the remedy takes back."""
    run(*argv)
    yield


@contextmanager
def others_broken_json() -> Iterator[None]:
    with written(HOOKS_D / "99-doctor.json", '{"version": "1.0.0", "hook": {'):
        yield
    (HOOKS_D / "99-doctor.json.off").unlink()


@contextmanager
def profile() -> Iterator[None]:
    """A profile of an engine's name that is nobody's."""
    run("apparmor_parser", "--replace", input="profile crun /nonexistent/crun { }\n")
    yield


@contextmanager
def weighed_io() -> Iterator[None]:
    """A policy that asks for what no disk does."""
    set_policy("doctor-io", "io: {weight: 50}\n")
    yield
    (POLICIES / "doctor-io.yaml").unlink()
    number = (CGROUPFS / "io.cost.qos").read_text().split()[0]
    (CGROUPFS / "io.cost.qos").write_text(f"{number} enable=0")


MENDED: dict[str, tuple[Break, Level, str, str]] = {  # the break, how bad it is, what is said and by which check
    "options lost by a container in the host's cgroup namespace": (
        lambda: done("podman", "run", "--rm", "--network=none", "--cgroupns=host", "localhost/static"),
        Level.WARNING, "/sys/fs/cgroup is mounted without nsdelegate, memory_recursiveprot", "cgroup2-options",
    ),
    "BTF hidden": (
        lambda: done("mount", "-t", "tmpfs", "none", "/sys/kernel/btf"),
        Level.WARNING, "/sys/kernel/btf/vmlinux cannot be read", "btf",
    ),
    "programs detached": (
        lambda: done("agentcgroup", "bpf", "detach"), Level.WARNING, "no program is in the kernel", "bpf-programs",
    ),
    "the group is missing": (
        lambda: done("groupdel", "agentcgroup"), Level.WARNING, "there is no group agentcgroup", "group",
    ),
    "another's broken JSON": (
        others_broken_json, Level.ERROR, "99-doctor.json is broken: line 1: not JSON", "podman-hooks",
    ),
    "the units are disabled": (
        lambda: done("systemctl", "disable", service.SOCKET, service.SERVICE),
        Level.WARNING, "agentcgroupd.socket is disabled, agentcgroupd.service is disabled", "units",
    ),
    "no socket": (
        lambda: done("systemctl", "stop", service.SOCKET, service.SERVICE),
        Level.ERROR, "nothing listens on /run/agentcgroup/hook.sock", "socket",
    ),
    "no daemon": (
        lambda: done("systemctl", "stop", service.SERVICE), Level.WARNING, "agentcgroupd does not run", "daemon",
    ),
    "AppArmor": (profile, Level.WARNING, 'AppArmor enforces the profile "crun"', "apparmor"),
    "io.weight that does nothing": (
        weighed_io, Level.WARNING, "io.weight of policy doctor-io does nothing", "io-weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MENDED)
def test_a_break_is_found_and_its_remedy_mends_it(name: str) -> None:
    broken, level, what, check = MENDED[name]
    with broken():
        bad = found()
        assert list(bad) == [check], bad
        assert bad[check].level is level and what in bad[check].what, bad
        mend(bad[check])
        assert found() == {}


# --- breaks that want a hand ------------------------------------------------------------------------------------------


@contextmanager
def hidden(folder: str) -> Iterator[None]:
    run("mount", "-t", "tmpfs", "none", folder)
    yield
    run("umount", folder)


@contextmanager
def of_another_machine() -> Iterator[None]:
    """The shim as if it were built for AArch64 (e_machine, elf(5))."""
    content = bytearray((LIBEXEC / "agentcgroup-shim").read_bytes())
    content[18:20] = (183).to_bytes(2, "little")
    with written(LIBEXEC / "agentcgroup-shim", bytes(content)):
        yield


@contextmanager
def half_a_shim() -> Iterator[None]:
    with written(LIBEXEC / "agentcgroup-shim", (LIBEXEC / "agentcgroup-shim").read_bytes()[:100]):
        yield


@contextmanager
def daemon_stopped() -> Iterator[None]:
    os.kill(service.pid(), signal.SIGSTOP)
    yield
    os.kill(service.pid(), signal.SIGCONT)


HAND: dict[str, tuple[Break, Level, str, str]] = {
    "the hook is gone": (
        lambda: moved(LIBEXEC / "agentcgroup-hook"), Level.ERROR, "agentcgroup-hook does not exist", "files",
    ),
    "a shim of another machine": (of_another_machine, Level.ERROR, "is of another architecture than this", "files"),
    "half a shim": (half_a_shim, Level.ERROR, "agentcgroup-shim does not start: ", "files"),
    "an object is gone": (
        lambda: moved(Path("/usr/share/agentcgroup/bpf/account.o")), Level.WARNING, "account.o: No such", "bpf-objects",
    ),
    "hooks_dir elsewhere": (
        lambda: written(CONTAINERS_CONF, '[engine]\nhooks_dir = ["/etc/elsewhere"]\n'),
        Level.ERROR, "podman reads hooks of /etc/elsewhere, and no file there names agentcgroup-hook",
        "podman-hooks",
    ),
    "containers.conf broken": (
        lambda: written(CONTAINERS_CONF, "[engine\n"), Level.ERROR, f"{CONTAINERS_CONF}: ", "podman-hooks",
    ),
    "another's hook without a program": (
        lambda: written(HOOKS_D / "00-doctor.json", json.dumps({
            "version": "1.0.0", "hook": {"path": "/nonexistent"}, "when": {"always": True}, "stages": ["prestart"],
        })),
        Level.WARNING, "00-doctor.json names /nonexistent, which does not exist", "podman-hooks",
    ),
    "a runtime that is not there": (
        lambda: written(DAEMON_JSON, '{"runtimes": {"agentcgroup": {"path": "/nowhere/agentcgroup-runtime"}}}'),
        Level.ERROR, "names /nowhere/agentcgroup-runtime, which is no program", "docker-runtime",
    ),
    "a broken policy": (
        lambda: written(POLICIES / "doctor.yaml", "description: mine\nmemory: {max: banana}\n"),
        Level.ERROR, f'{POLICIES}/doctor.yaml:2: memory.max: "banana" is not a size', "policies",
    ),
    "a broken configuration": (
        lambda: written(CONFIG, "pool: many\n"), Level.ERROR, f"{CONFIG}:1: pool: ", "configuration",
    ),
    "no stall figures": (
        lambda: hidden("/proc/pressure"), Level.WARNING, "/proc/pressure/memory cannot be read", "pressure",
    ),
    "a daemon that does not answer": (
        daemon_stopped, Level.ERROR, "agentcgroupd did not answer within 2 s", "daemon",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_a_break_is_found_and_gone_with_its_cause(name: str) -> None:
    broken, level, what, check = HAND[name]
    with broken():
        bad = found()
    assert list(bad) == [check], bad
    assert bad[check].level is level and what in bad[check].what, bad


def test_what_is_broken_is_the_status_and_a_warning_is_not() -> None:
    library = next(Path("/usr/lib").glob("*/libbpf.so.1"))
    with moved(library):
        done = command()
    assert done.returncode == 0 and done.stdout.endswith("\n1 warning\n"), done.stdout
    assert "warning (libbpf): there is no libbpf.so.1\n  why: " in done.stdout
    with moved(LIBEXEC / "agentcgroup-hook"):
        done = command()
    assert done.returncode == 1 and done.stdout.endswith("\n1 error\n"), done.stdout


def test_swap_is_noticed(tmp_path: Path) -> None:
    def notes() -> list[str]:
        return [finding.check for finding in examine(Host()) if finding.check == "swap"]

    had = notes()
    assert had == ([] if len(Path("/proc/swaps").read_text().splitlines()) > 1 else ["swap"])
    file = Path("/var/doctor.swap")  # not a tmpfs
    run("sh", "-c", f"fallocate -l 16M {file} && chmod 600 {file} && mkswap {file} && swapon {file}")
    try:
        assert notes() == []
    finally:
        run("swapoff", str(file))
        file.unlink()


# --- containers that run ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    return file_engine.run("--name=doctor-box", command=("sleep", "1000"))


def test_a_governed_container_is_sound(box: Container) -> None:
    assert found() == {}


def test_a_level_that_hands_down_no_pids(box: Container) -> None:
    calls, tree = box.tree / "calls", box.tree
    service.stop()
    for group in (calls, tree):
        (group / "cgroup.subtree_control").write_text("-pids")
    service.start()
    bad = found()
    assert list(bad) == ["container-controllers"], bad
    assert bad["container-controllers"].what.startswith(f"{tree} does not hand down pids: calls of container doctor-")
    mend(bad["container-controllers"])
    (calls / "cgroup.subtree_control").write_text("+pids")
    assert found() == {}


def test_containers_that_take_more_than_there_is_together_and_one_that_sees_a_writable_cgroupfs(
    box: Container, engine: Engine
) -> None:
    set_policy("doctor-wide", "memory: {max: 90%}\n")
    try:
        engine.run("--privileged", "--name=doctor-wide", policy="doctor-wide", command=("sleep", "1000"))
        bad = found()
        assert list(bad) == ["writable-cgroups", "overcommit"], bad
        assert "container doctor-wide could undo its limits: " in bad["writable-cgroups"].what
        assert "writable cgroup2 at /sys/fs/cgroup" in bad["writable-cgroups"].what
        assert bad["overcommit"].what.startswith("2 containers may take ")
    finally:
        (POLICIES / "doctor-wide.yaml").unlink()


def test_afterwards_the_host_is_sound() -> None:
    assert found() == {}
