"""The programs for the kernel, and the library that loads them."""

from __future__ import annotations

import os
from collections.abc import Iterator

from agentcgroup.bpf import loader, memcg_ops
from agentcgroup.bpf.libbpf import OLDEST, Libbpf
from agentcgroup.doctor import kernel
from agentcgroup.doctor.daemon import CONTROL, listens
from agentcgroup.doctor.finding import AGAIN, Finding, note, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError
from agentcgroup.paths import BPF_DIR, RUN_DIR

_WITHOUT = "the daemon puts no programs into the kernel: cgroup files do all the work"


def library(host: Host) -> Iterator[Finding]:
    """Whether Python finds libbpf."""
    if not host.config.bpf:
        return
    try:
        Libbpf()
    except UserError as problem:
        needed = f"install libbpf {'.'.join(map(str, OLDEST))} or newer (Debian: libbpf1; Fedora, RHEL: libbpf)"
        yield warning(str(problem).partition(": ")[0], _WITHOUT, f"{needed}, then: systemctl restart agentcgroupd")


def objects(host: Host) -> Iterator[Finding]:
    """Whether the programs are installed."""
    if not host.config.bpf:
        return
    try:
        loader.build_of(BPF_DIR)
    except UserError as problem:
        yield warning(str(problem), _WITHOUT, f"{AGAIN}, then: systemctl restart agentcgroupd")


def attached(host: Host) -> Iterator[Finding]:
    """Whether they are at work. What cannot work here, and is not asked for, is a note."""
    if not (host.config.bpf and host.libbpf and os.access(kernel.BTF, os.R_OK)) or loader.locked_down():
        return  # other checks say so
    try:
        build, found = loader.build_of(BPF_DIR), loader.status(host.libbpf, BPF_DIR)
    except UserError:
        return
    if listens(RUN_DIR / CONTROL) and loader.loaded() != build:
        what = "the programs in the kernel are of another version" if loader.loaded() else "no program is in the kernel"
        yield warning(what, _WITHOUT, "systemctl restart agentcgroupd  # journalctl -u agentcgroupd says if that fails")
    for feature in found:
        if feature.state == "skipped" and feature.why.startswith("this kernel has no"):
            yield note(f"{feature.name} is left out: {feature.why}")
        elif feature.state == "skipped":
            fix = "agentcgroup bpf attach  # when the cause is gone"
            yield warning(f"{feature.name} is left out: {feature.why}", _WITHOUT, fix)
    patches = memcg_ops.feature(host.libbpf)
    if patches.state == "skipped":
        yield note(f"{patches.name} is left out: {patches.why}")
