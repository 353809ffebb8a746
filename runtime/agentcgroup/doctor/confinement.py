"""Security modules that may keep our programs, or the engine, from what they do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from agentcgroup.doctor.finding import Finding, warning
from agentcgroup.doctor.host import Host
from agentcgroup.paths import RUN_DIR

ENFORCE = Path("/sys/fs/selinux/enforce")
PROFILES = Path("/sys/kernel/security/apparmor/profiles")
MODULE = "/usr/share/selinux/packages/agentcgroup.cil"
_ENGINES = ("podman", "crun", "runc", "crio", "conmon", "dockerd")


def _run_dir_label() -> str:
    try:
        return os.getxattr(RUN_DIR, "security.selinux").decode(errors="replace")
    except OSError:
        return ""


def selinux(_host: Host, path: Path = ENFORCE, label: Callable[[], str] = _run_dir_label) -> Iterator[Finding]:
    """Whether containers may run the shim where SELinux is; the hook looks for the same label (payload.c)."""
    if path.exists() and ":agentcgroup_run_t:" not in label():
        yield warning(
            f"SELinux is there, and {RUN_DIR} has not the label of our policy module",
            "no container may run the shim, so the hook leaves shells alone: nothing is a call",
            f"semodule -i {MODULE} && restorecon -R {RUN_DIR} && systemctl restart agentcgroupd",
        )


def apparmor(_host: Host, path: Path = PROFILES) -> Iterator[Finding]:
    """Whether it confines an engine or a program of ours."""
    for line in path.read_text().splitlines() if path.exists() else ():
        profile, _, mode = line.removesuffix(")").rpartition(" (")
        name = profile.rpartition("/")[2]
        if mode in ("enforce", "kill") and (name in _ENGINES or name.startswith("agentcgroup")):
            yield warning(
                f'AppArmor enforces the profile "{profile}"',
                "it may keep the hook from making cgroups and mounts; containers start ungoverned then",
                f"printf %s '{profile}' >{path.with_name('.remove')}  # until the next boot; for good: aa-disable",
            )
