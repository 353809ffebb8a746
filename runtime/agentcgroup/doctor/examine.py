"""All checks, in the order in which they are told: what the rest stands on comes first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from agentcgroup.doctor import (
    cgroups,
    confinement,
    containers,
    daemon,
    engines,
    kernel,
    policies,
    pressure,
    product,
    programs,
    scheduling,
)
from agentcgroup.doctor.finding import Finding, note, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError


@dataclass(frozen=True, slots=True)
class Check:
    """`root`: it reads what nobody else may."""

    name: str
    run: Callable[[Host], Iterable[Finding]]
    root: bool = False


CHECKS = (
    Check("cgroup2", cgroups.unified),
    Check("cgroup2-options", cgroups.options),
    Check("controllers", cgroups.controllers),
    Check("user-managers", cgroups.user_managers),
    Check("pidfds", kernel.peers),
    Check("pressure", pressure.stalls),
    Check("swap", pressure.swap),
    Check("io-weight", pressure.io_weight),
    Check("btf", kernel.types),
    Check("lockdown", kernel.lockdown),
    Check("kernel-config", kernel.options),
    Check("libbpf", programs.library),
    Check("bpf-objects", programs.objects),
    Check("bpf-programs", programs.attached, root=True),
    Check("scheduler", scheduling.scheduler, root=True),
    Check("files", product.files),
    Check("group", product.group),
    Check("podman-hooks", engines.podman),
    Check("crio-hooks", engines.crio),
    Check("docker-runtime", engines.docker),
    Check("configuration", policies.configuration),
    Check("policies", policies.policies),
    Check("units", daemon.units),
    Check("socket", daemon.hook_socket),
    Check("daemon", daemon.answers, root=True),
    Check("selinux", confinement.selinux),
    Check("apparmor", confinement.apparmor, root=True),
    Check("writable-cgroups", containers.cooperative, root=True),
    Check("container-controllers", containers.levels, root=True),
    Check("overcommit", containers.overcommit, root=True),
)


def examine(host: Host) -> list[Finding]:
    """The findings of all checks that this user may make."""
    findings = [found for check in CHECKS if host.root or not check.root for found in _findings(check, host)]
    left_out = [check.name for check in CHECKS if check.root and not host.root]
    if left_out:
        findings.append(replace(note(f"not looked at, for that is root's: {', '.join(left_out)}"), check="user"))
    return findings


def _findings(check: Check, host: Host) -> Iterator[Finding]:
    """A check that fails hides no other."""
    try:
        for found in check.run(host):
            yield replace(found, check=check.name)
    except (OSError, UserError) as problem:
        why = "this was not looked at; something else that is told here may be the cause"
        yield replace(warning(f"cannot be checked: {problem}", why, "agentcgroup --debug doctor"), check=check.name)
