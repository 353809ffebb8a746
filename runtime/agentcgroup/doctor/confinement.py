"""Security modules that may keep our programs, or the engine, from what they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentcgroup.doctor.finding import Finding, warning
from agentcgroup.doctor.host import Host

ENFORCE = Path("/sys/fs/selinux/enforce")
PROFILES = Path("/sys/kernel/security/apparmor/profiles")
_ENGINES = ("podman", "crun", "runc", "crio", "conmon", "dockerd")


def selinux(_host: Host, path: Path = ENFORCE) -> Iterator[Finding]:
    """Whether it enforces: our programs were not run so."""
    if path.exists() and path.read_text().strip() == "1":
        yield warning(
            "SELinux is enforcing",
            "hook, shim and daemon have no policy module yet: what it denies them is not governed",
            "ausearch -m AVC -ts boot | grep agentcgroup  # what it denied; audit2allow makes a module of it",
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
