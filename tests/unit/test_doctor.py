"""`agentcgroup doctor`: how files are read. What it finds on a real host that is broken: tests/vm/test_doctor*.py."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

import pytest
from agentcgroup import paths
from agentcgroup.bpf import loader
from agentcgroup.bpf import scheduler as sched
from agentcgroup.cli import main
from agentcgroup.config import Config
from agentcgroup.doctor import (
    cgroups,
    confinement,
    daemon,
    engines,
    examine,
    kernel,
    policies,
    pressure,
    product,
    scheduling,
)
from agentcgroup.doctor.finding import Finding, Level, error, note, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError
from agentcgroup.mountinfo import Mount
from agentcgroup.policy.load import PolicySet


def host(**facts: object) -> Host:
    """A host of which that is known; the rest is this one's."""
    found = Host()
    found.__dict__.update({"config": Config(), **facts})
    return found


def whats(findings: object) -> list[str]:
    return [finding.what for finding in findings]  # type: ignore[attr-defined]


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def three(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the command is given to print."""
    found = [note("c", "", ""), warning("b", "because", "mend b"), error("a", "because", "mend a")]
    monkeypatch.setattr(examine, "examine", lambda _host: found)
    return found


def test_what_is_worst_comes_first_and_an_error_is_the_status(
    three: list[Finding], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor"]) == 1
    assert capsys.readouterr().out == (
        "error (): a\n  why: because\n  fix: mend a\nwarning (): b\n  why: because\n  fix: mend b\nnote (): c\n"
        "1 error, 1 warning\n"
    )
    del three[2]
    three.append(warning("d", "", ""))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.endswith("note (): c\n2 warnings\n")
    del three[1:]
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "note (): c\nnothing is wrong\n"


def test_json_has_all_of_it(three: list[Finding], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], len(told["findings"])) == (1, 3)
    assert told["findings"][1] == {"level": "warning", "what": "b", "why": "because", "fix": "mend b", "check": ""}


def test_a_check_that_fails_hides_no_other_and_nobody_is_asked_for_what_is_roots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(_host: Host) -> list[Finding]:
        raise PermissionError(13, "Permission denied", "/secret")

    checks = (
        examine.Check("one", fails),
        examine.Check("two", lambda _host: [error("x", "y", "z")]),
        examine.Check("three", lambda _host: [error("never", "y", "z")], root=True),
    )
    monkeypatch.setattr(examine, "CHECKS", checks)
    one, two, left_out = examine.examine(host(root=False))
    assert (one.check, one.level) == ("one", Level.WARNING)
    assert one.what == "cannot be checked: [Errno 13] Permission denied: '/secret'"
    assert (two.check, two.what) == ("two", "x")
    assert left_out.what == "not looked at, for that is root's: three"
    assert [found.check for found in examine.examine(host(root=True))] == ["one", "two", "three"]


def test_every_check_has_a_name_of_its_own_and_ends_on_this_machine() -> None:
    names = [check.name for check in examine.CHECKS]
    assert len(set(names)) == len(names)
    found = examine.examine(Host())
    assert all(finding.what and finding.check in (*names, "user") for finding in found)
    assert all(finding.why and finding.fix for finding in found if finding.level is not Level.NOTE)


# --- the kernel -------------------------------------------------------------------------------------------------------


def test_a_kernels_configuration_is_what_is_set() -> None:
    text = "# Automatically generated\nCONFIG_PSI=y\n# CONFIG_MEMCG is not set\nCONFIG_ZRAM=m\nCONFIG_HZ=250\n"
    assert kernel.parse_config(text) == {"PSI": "y", "ZRAM": "m", "HZ": "250"}


def test_the_cause_of_what_is_missing_is_the_kernels_configuration_where_it_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = tmp_path / "missing"
    monkeypatch.setattr(kernel, "config", lambda: None)
    [found] = pressure.stalls(host(), missing)
    assert found.fix == "put psi=1 on the kernel's command line and boot"
    monkeypatch.setattr(kernel, "config", lambda: {"MEMCG": "y"})
    [found] = pressure.stalls(host(), missing)
    assert found.fix == "boot a kernel with CONFIG_PSI=y"
    [found] = kernel.types(host(), missing)
    assert found.fix == "boot a kernel with CONFIG_DEBUG_INFO_BTF=y"
    assert len(list(kernel.options(host()))) == 4
    without = host(config=Config(bpf=False))
    assert [*kernel.options(without), *kernel.types(without, missing)] == []


@pytest.mark.parametrize("text", ["none integrity [confidentiality]", "[none] integrity confidentiality"])
def test_lockdown(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lockdown").write_text(f"{text}\n")
    monkeypatch.setattr(loader, "LOCKDOWN", tmp_path / "lockdown")
    assert len(list(kernel.lockdown(host()))) == text.count("[confidentiality]")


def test_a_manager_of_schedulers_is_named_where_ours_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "system.slice/scx_loader.service").mkdir(parents=True)
    monkeypatch.setattr(sched, "owner", lambda: "lavd")
    [found] = scheduling.scheduler(host(top=tmp_path))
    assert (found.level, found.fix) == (Level.WARNING, "systemctl disable --now scx_loader.service")
    monkeypatch.setattr(sched, "owner", lambda: sched.NAME)
    monkeypatch.setattr(sched, "loaded", lambda: "partial")
    assert whats(scheduling.scheduler(host(top=tmp_path, config=Config(scheduler="partial")))) == [
        "scx_loader.service loads schedulers on this host"
    ]


# --- cgroups ----------------------------------------------------------------------------------------------------------


def test_a_remount_keeps_what_it_does_not_mend() -> None:
    known = ["nsdelegate", "favordynmods", "memory_recursiveprot"]
    mount = Mount("/", "/sys/fs/cgroup", "cgroup2", ("rw",), ("rw", "seclabel", "favordynmods", "nsdelegate"))
    lost = cgroups.lost_options(mount, known)
    assert lost == ["memory_recursiveprot"]
    assert cgroups._remount(mount, known, lost) == (
        "mount -o remount,favordynmods,nsdelegate,memory_recursiveprot /sys/fs/cgroup"
    )
    assert cgroups.lost_options(mount, ["nsdelegate"]) == []  # a kernel that does not know the other


def test_a_hybrid_host_is_told_to_boot_with_one_hierarchy() -> None:
    [found] = cgroups.unified(host(top=Path("/sys/fs/cgroup/unified")))
    assert found.level is Level.ERROR and "systemd.unified_cgroup_hierarchy=1" in found.fix
    [found] = cgroups.unified(host(top=None))
    assert found.what == "cgroup2 is not mounted"
    assert not list(cgroups.options(host(top=None))) and not list(cgroups.controllers(host(top=None)))


@pytest.mark.parametrize(
    ("have", "level"),
    [
        ("cpu io memory pids", None),
        ("cpu memory pids", Level.NOTE),
        ("memory pids", Level.WARNING),
        ("", Level.WARNING),
    ],
)
def test_what_a_users_services_lack(tmp_path: Path, have: str, level: Level | None) -> None:
    manager = tmp_path / "user.slice/user-1000.slice/user@1000.service"
    manager.mkdir(parents=True)
    (manager / "cgroup.controllers").write_text(f"{have}\n")
    found = list(cgroups.user_managers(host(top=tmp_path, root=True)))
    assert [finding.level for finding in found] == ([level] if level else [])
    assert all("Delegate=cpu cpuset io memory pids" in f.fix and f.fix.endswith("user@1000") for f in found)
    if os.getuid() != 1000:
        assert not list(cgroups.user_managers(host(top=tmp_path, root=False)))


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "directories"),
    [
        ([], ["/usr/share/containers/oci/hooks.d"]),
        (['[engine]\nruntime = "crun"\n'], ["/usr/share/containers/oci/hooks.d"]),
        (['[engine]\nhooks_dir = ["/a", "/b"]\n'], ["/a", "/b"]),
        (["[engine]\nhooks_dir = []\n"], []),
        (['[engine]\nhooks_dir = ["/a"]\n', '[engine]\nhooks_dir = ["/b"]\n'], ["/b"]),
        (
            ['[engine]\nhooks_dir = ["/a", {append = true}]\n', '[engine]\nhooks_dir = ["/b"]\n'],
            ["/usr/share/containers/oci/hooks.d", "/a", "/b"],
        ),
        (
            ['[engine]\nhooks_dir = ["/a", {append = true}]\n', '[engine]\nhooks_dir = ["/b", {append = false}]\n'],
            ["/b"],
        ),
    ],
)
def test_the_directories_of_hooks_are_merged_as_podman_does(
    tmp_path: Path, texts: list[str], directories: list[str]
) -> None:
    files = [tmp_path / f"{number}.conf" for number in range(len(texts) + 1)]  # the last is not there
    for file, text in zip(files, texts, strict=False):
        file.write_text(text)
    found = engines.hook_dirs(files, "engine")
    assert [str(path) for path in found.directories] == directories
    named = [file for file, text in zip(files, texts, strict=False) if "hooks_dir" in text]
    assert found.origin == (named[-1] if named else None)


@pytest.mark.parametrize(("text", "said"), [("[engine", "Expected"), ('[engine]\nhooks_dir = "/a"\n', "is no list")])
def test_an_engines_file_that_is_broken_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.conf").write_text(text)
    with pytest.raises(UserError, match=rf"^{tmp_path}/a.conf: .*{said}"):
        engines.hook_dirs([tmp_path / "a.conf"], "engine")


def test_the_files_that_podman_merges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    drop_in = tmp_path / "containers/containers.conf.d/a.conf"
    drop_in.parent.mkdir(parents=True)
    drop_in.touch()
    found = engines.podman_files()
    assert str(found[0]) == "/usr/share/containers/containers.conf"
    assert found[-2:] == [tmp_path / "containers/containers.conf", drop_in]
    monkeypatch.setenv("CONTAINERS_CONF", "/only")
    monkeypatch.setenv("CONTAINERS_CONF_OVERRIDE", "/last")
    assert engines.podman_files() == [Path("/only"), Path("/last")]


def test_crio_is_told_the_directory_in_a_drop_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the prefix is /usr/local."""
    ours = tmp_path / "hooks.d"
    ours.mkdir()
    monkeypatch.setattr(engines, "OURS", ours)
    (ours / "50-agentcgroup.json").write_text("{}")
    directories = f'"/usr/share/containers/oci/hooks.d", "{ours}"'
    assert engines._not_read("crio", engines.HookDirs()).fix == (
        f"printf '[crio.runtime]\\nhooks_dir = [{directories}]\\n' | install -D -m 644 /dev/stdin "
        "/etc/crio/crio.conf.d/50-agentcgroup.conf && systemctl restart crio"
    )
    conf = tmp_path / "crio.conf"
    conf.write_text('[crio.runtime]\nhooks_dir = ["/elsewhere"]\n')
    [found] = engines._engine("crio", [conf], "crio.runtime")
    assert found.fix == f'add "{ours}" to hooks_dir in {conf} && systemctl restart crio'


# --- the product ------------------------------------------------------------------------------------------------------


def test_programs_that_do_not_run(tmp_path: Path) -> None:
    for name in ("agentcgroup-hook", "agentcgroup-shim", "agentcgroup-runtime"):
        (tmp_path / name).write_bytes(Path(sys.executable).read_bytes())
        (tmp_path / name).chmod(0o755)
    (tmp_path / "agentcgroup-shim").unlink()
    (tmp_path / "agentcgroup-hook").chmod(0o644)
    (tmp_path / "agentcgroup-runtime").write_text("#!/bin/sh\n")
    found = {Path(finding.what.split()[0]).name: finding for finding in product.files(host(), tmp_path)}
    assert [finding.what.split(" ", 1)[1] for finding in found.values()] == [
        "is not executable",
        "does not exist",
        "is no program",
    ]
    assert found["agentcgroup-hook"].fix == f"chmod 755 {tmp_path}/agentcgroup-hook"


def test_a_broken_configuration_is_an_error_for_each_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "agentcgroup.yaml"
    file.write_text("pool: many\nack_ms: soon\n")
    monkeypatch.setattr(paths, "CONFIG_FILE", file)
    found = list(policies.configuration(host(policies=PolicySet({}, {}))))
    assert [finding.what.partition(": ")[0] for finding in found] == [f"{file}:1", f"{file}:2"]
    file.write_text("allowed_policies: [nobody]\n")
    known = host(policies=PolicySet({}, {}), config=Config(allowed_policies=("nobody",)))
    assert whats(policies.configuration(known)) == ['allowed_policies names "nobody", and there is no such policy']


def test_who_listens_is_known_without_a_connection(tmp_path: Path) -> None:
    path = tmp_path / "hook.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        assert not daemon.listens(path)
        listener.listen()
        assert daemon.listens(path)
        path.rename(tmp_path / "control.sock")
        assert not daemon.listens(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:  # as hookserver.listen() does
        listener.bind(f"{path}.new")
        listener.listen()
        Path(f"{path}.new").rename(path)
        assert daemon.listens(path)
    assert not daemon.listens(path)


# --- security modules, swap -------------------------------------------------------------------------------------------


def test_profiles_of_engines_that_are_enforced(tmp_path: Path) -> None:
    path = tmp_path / "profiles"
    path.write_text(
        "/usr/sbin/tcpdump (enforce)\ncrun (unconfined)\nrunc (complain)\n/usr/bin/podman (enforce)\n"
        "containers-default-0.62.0 (enforce)\nagentcgroup-hook (enforce)\n"
    )
    found = list(confinement.apparmor(host(), path))
    assert whats(found) == [
        'AppArmor enforces the profile "/usr/bin/podman"',
        'AppArmor enforces the profile "agentcgroup-hook"',
    ]
    assert found[0].fix.startswith(f"printf %s '/usr/bin/podman' >{tmp_path}/.remove  #")
    assert list(confinement.apparmor(host(), tmp_path / "none")) == []


@pytest.mark.parametrize(
    ("label", "count"), [("", 1), ("system_u:object_r:var_run_t:s0", 1), ("system_u:object_r:agentcgroup_run_t:s0", 0)]
)
def test_selinux_is_told_of_where_the_run_directory_lacks_our_label(tmp_path: Path, label: str, count: int) -> None:
    (tmp_path / "enforce").touch()
    assert len(list(confinement.selinux(host(), tmp_path / "enforce", lambda: label))) == count
    assert list(confinement.selinux(host(), tmp_path / "none", lambda: label)) == []


def test_swap(tmp_path: Path) -> None:
    path = tmp_path / "swaps"
    path.write_text("Filename\tType\tSize\tUsed\tPriority\n")
    assert whats(pressure.swap(host(), path)) == ["there is no swap"]
    path.write_text("Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 1 0 100\n")
    assert list(pressure.swap(host(), path)) == []
