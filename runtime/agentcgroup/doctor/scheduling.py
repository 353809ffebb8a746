"""sched_ext: who has the CPUs, and whether that is who should have them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from agentcgroup.bpf import scheduler as sched
from agentcgroup.doctor import kernel
from agentcgroup.doctor.finding import Finding, note, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError

#: Services that load schedulers (the projects scx and scx-loader).
_MANAGERS = ("scx.service", "scx_loader.service")


def scheduler(host: Host) -> Iterator[Finding]:
    """Ours where it was asked for, nobody's otherwise."""
    owner, managers = sched.owner(), _managers(host.top)
    if owner not in ("", sched.NAME):
        yield _foreign(owner, managers, host.config.scheduler)
        return
    if host.config.scheduler == "off":
        yield from _not_to_be_had(host)
        return
    if managers:
        yield warning(
            f"{managers[0]} loads schedulers on this host",
            f"it may take the CPUs from `scheduler: {host.config.scheduler}` at any time",
            f"systemctl disable --now {managers[0]}",
        )
    if sched.loaded() != host.config.scheduler:
        yield _missing(host)


def _foreign(owner: str, managers: list[str], mode: str) -> Finding:
    waits = "" if mode == "off" else f", and `scheduler: {mode}` does not act"
    by_hand = "echo S >/proc/sysrq-trigger  # or end the program that loaded it"
    stop = f"systemctl disable --now {managers[0]}" if managers else by_hand
    return warning(
        f'the sched_ext scheduler "{owner}" has the CPUs',
        f"many such schedulers ignore cpu.weight and cpu.max of all cgroups{waits}",
        stop,
    )


def _missing(host: Host) -> Finding:
    mode, cause = host.config.scheduler, sched.why_not()
    if host.libbpf and host.top:
        try:
            sched.refuse(host.libbpf, mode, host.top)
        except UserError as problem:
            cause = str(problem)
    return warning(
        f"`scheduler: {mode}` does not act: {cause or 'the daemon has not loaded it'}",
        "CPUs are shared by cpu.weight alone",
        "systemctl restart agentcgroupd  # when the cause is gone; or write scheduler: off in agentcgroup.yaml",
    )


def _not_to_be_had(host: Host) -> Iterator[Finding]:
    if not sched.STATE.exists():
        yield note("this kernel has no sched_ext: `scheduler` must stay off")
    elif host.libbpf and os.access(kernel.BTF, os.R_OK) and not sched.has_deadline_server(host.libbpf):
        yield note("this kernel has no deadline server for sched_ext: `scheduler: partial` is refused")


def _managers(top: Path | None) -> list[str]:
    return [name for name in _MANAGERS if top and (top / "system.slice" / name).is_dir()]
