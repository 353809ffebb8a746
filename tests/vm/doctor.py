"""`agentcgroup doctor` as the tests treat it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import service
from agentcgroup.doctor.examine import examine
from agentcgroup.doctor.finding import Finding, Level
from agentcgroup.doctor.host import Host
from podman import CGROUPFS, run


def found() -> dict[str, Finding]:
    """What is worse than a note, by the check that found it; each finds one thing."""
    bad = [finding for finding in examine(Host()) if finding.level is not Level.NOTE]
    assert len({finding.check for finding in bad}) == len(bad), bad
    return {finding.check: finding for finding in bad}


def command(*argv: str, user: str = "root") -> subprocess.CompletedProcess[str]:
    """The command as a user runs it."""
    return run("runuser", "-u", user, "--", "agentcgroup", "doctor", *argv, check=False, cwd="/")


@contextmanager
def installed() -> Iterator[None]:
    """As after an installation by a package, which makes the group and enables the units; whatever other tests did."""
    run("systemd-sysusers")
    run("mount", "-o", "remount,nsdelegate,memory_recursiveprot", str(CGROUPFS))
    run("systemctl", "enable", service.SOCKET, service.SERVICE)
    run("systemctl", "restart", service.SOCKET, service.SERVICE)
    yield
    run("systemctl", "disable", service.SOCKET, service.SERVICE)
