"""What the kernel can do. Its configuration is asked only for the cause of what is missing, and for options that show
themselves nowhere.
"""

from __future__ import annotations

import gzip
import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agentcgroup.bpf import loader
from agentcgroup.doctor.finding import Finding, warning
from agentcgroup.doctor.host import Host
from agentcgroup.peer import SO_PEERPIDFD

BTF = Path("/sys/kernel/btf/vmlinux")
_FILES_ALONE = "without programs in the kernel, cgroup files do all the work: peaks and escapes are seen later"
#: Options without which programs are refused in words that do not name them.
_FOR_PROGRAMS = {
    "BPF_SYSCALL": "no program can be loaded",
    "BPF_JIT": "programs cannot be attached to the kernel's functions",
    "BPF_EVENTS": "programs cannot be attached to the kernel's functions and tracepoints",
    "CGROUP_BPF": "network traffic is not counted by call",
}


@cache
def config() -> dict[str, str] | None:
    """The running kernel's configuration, without CONFIG_; None where no file has it."""
    release = os.uname().release
    for path in (Path("/proc/config.gz"), Path(f"/boot/config-{release}"), Path(f"/lib/modules/{release}/config")):
        try:
            data = path.read_bytes()
        except OSError:
            continue
        return parse_config((gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace"))
    return None


def parse_config(text: str) -> dict[str, str]:
    """The options that are set: `y`, `m` or a value."""
    lines = (line.removeprefix("CONFIG_") for line in text.splitlines() if line.startswith("CONFIG_"))
    return dict(line.split("=", 1) for line in lines if "=" in line)


def built_without(option: str) -> bool:
    """Whether the running kernel is known to lack an option."""
    known = config()
    return known is not None and option not in known


def peers(_host: Host) -> Iterator[Finding]:
    """Whether who calls can be held by a descriptor."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            os.close(ours.getsockopt(socket.SOL_SOCKET, SO_PEERPIDFD))
        except OSError:
            yield warning(
                "the kernel does not know SO_PEERPIDFD",
                "a process that took the number of an ended caller could be taken for it",
                "boot Linux 6.5 or newer",
            )


def types(host: Host, path: Path = BTF) -> Iterator[Finding]:
    """Whether the kernel tells its types."""
    if not host.config.bpf or os.access(path, os.R_OK):
        return
    hidden = not built_without("DEBUG_INFO_BTF") and path.parent.is_mount()
    fix = f"umount {path.parent}" if hidden else "boot a kernel with CONFIG_DEBUG_INFO_BTF=y"
    yield warning(f"{path} cannot be read: the kernel's types (BTF) are not to be had", _FILES_ALONE, fix)


def lockdown(host: Host) -> Iterator[Finding]:
    """Whether BPF may read the kernel."""
    if host.config.bpf and loader.locked_down():
        yield warning(
            f"{loader.LOCKDOWN} is confidentiality: BPF may not read the kernel",
            _FILES_ALONE,
            "take lockdown=confidentiality off the kernel's command line (lockdown=integrity is fine) and boot",
        )


def options(host: Host) -> Iterator[Finding]:
    """Options of the kernel that only its configuration tells."""
    for option, lost in _FOR_PROGRAMS.items() if host.config.bpf else ():
        if built_without(option):
            yield warning(f"the kernel has no CONFIG_{option}", lost, f"boot a kernel with CONFIG_{option}=y")
