"""The sched_ext scheduler, bpf/sched.bpf.c: whether it may have the CPUs here, and that it has.

The link that is pinned as `scheduler_MODE` keeps it loaded while the daemon is away; without the pin it is gone. Why it
is not loaded, or was taken out, stands beside it as `refused_sched`, as for every other object.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Literal

from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.bpf.loader import PINS, SCHEDULER, Object, in_words
from agentcgroup.bpf.model import Ejection
from agentcgroup.cgroup import Cgroup
from agentcgroup.errors import UserError

Mode = Literal["off", "partial", "full"]

#: The name in struct sched_ext_ops, and what the kernel says of its scheduler (Documentation/scheduler/sched-ext.rst).
NAME = "agentcgroup"
STATE, OWNER = Path("/sys/kernel/sched_ext/state"), Path("/sys/kernel/sched_ext/root/ops")
#: sched_ext's share of each CPU where the fair class wants all (kernel/sched/ext.c): without it `partial` starves.
_DL_SERVER = "ext_server_pick_task"
_FUNC = 12  # BTF_KIND_FUNC
_LEAVE = 5.0  # seconds in which a scheduler is gone
#: enum scx_exit_kind: it was detached; or by SysRq-S, an administrator's word. All others are faults, or the kernel
#: asks for another start, since a CPU came or went (enum scx_exit_code, include/linux/sched/ext.h).
UNREGISTERED, SYSRQ = (64, 65), 67
RESTART = 1 << 48


def owner() -> str:
    """The name of the scheduler that has the CPUs, or some of them; "" for the kernel's own."""
    try:
        return "" if STATE.read_text().strip() == "disabled" else OWNER.read_text().strip()
    except OSError:
        return ""


def leaves() -> bool:
    """Whether the kernel is about to be rid of a scheduler."""
    try:
        return STATE.read_text().strip() == "disabling"
    except OSError:
        return False


def loaded(pins: Path = PINS) -> Mode:
    """The mode in which ours is at work."""
    modes: tuple[Mode, ...] = ("partial", "full")
    return next((mode for mode in modes if (pins / f"scheduler_{mode}").exists() and owner() == NAME), "off")


def why_not(pins: Path = PINS) -> str:
    """What keeps it from being at work, where it was wanted; "" if nothing does."""
    try:
        return os.readlink(pins / f"refused_{SCHEDULER}")
    except OSError:
        return ""


def note(why: str, pins: Path = PINS) -> None:
    """Leave that for others to see; "" takes it back."""
    path = pins / f"refused_{SCHEDULER}"
    path.unlink(missing_ok=True)
    if why and pins.is_dir():
        path.symlink_to(why)


def attach(lib: Libbpf, folder: Path, mode: Mode, top: Path, pins: Path = PINS) -> None:
    """Have it schedule; ours must not do so already. Raises UserError where it may not."""
    refuse(lib, mode, top)
    with Object(lib, folder / f"{SCHEDULER}.o") as opened:
        try:
            opened.load_struct_ops(pins, mode, pins / f"scheduler_{mode}")
        except OSError as error:
            raise UserError(in_words(error)) from None


def refuse(lib: Libbpf, mode: Mode, top: Path) -> None:
    """Raises UserError with the cause where a host must not be scheduled by us in that mode."""
    if not STATE.exists():
        raise UserError("this kernel has no sched_ext: Linux 7.1 or newer with CONFIG_SCHED_CLASS_EXT is needed")
    other = owner()
    if other:
        raise UserError(f'the scheduler "{other}" has the CPUs: stop it, or say `scheduler: off`')
    if mode == "partial" and not has_deadline_server(lib):
        raise UserError("this kernel would starve `partial`: it has no deadline server for sched_ext (Linux 7.0)")
    limited = bandwidth(top) if mode == "full" else ""
    if limited:
        raise UserError(ignored(limited))


def has_deadline_server(lib: Libbpf) -> bool:
    """Whether the kernel keeps a share of each CPU for sched_ext where the fair class wants all."""
    return lib.knows(_DL_SERVER, _FUNC)


def ignored(path: str) -> str:
    """Why there is no `full` while that cgroup has a cpu.max."""
    return f"`full` does not keep cpu.max, and {path} has one: take it away, or say `scheduler: partial`"


def bandwidth(top: Path) -> str:
    """A cgroup with a cpu.max, if there is one; a path without the mount point."""
    limited = (group.path for group in Cgroup(top).all() if group.cpu_quota() is not None)
    return next(limited, "").removeprefix(str(top))


def detach(pins: Path = PINS) -> None:
    """Give the CPUs back. Raises UserError if the kernel does not take them."""
    found = list(pins.glob("scheduler_*"))
    for path in found:
        path.unlink()
    until = time.monotonic() + _LEAVE
    while found and owner() == NAME:
        if time.monotonic() > until:
            raise UserError(f"the scheduler is still loaded after {_LEAVE:.0f} s")
        time.sleep(0.01)


def ejection(lib: Libbpf, pins: Path = PINS) -> Ejection:
    """The latest end of it. Raises OSError when nothing is loaded."""
    found, key = Ejection(), ctypes.c_uint32(0)
    fd = int(lib.call("bpf_obj_get", str(pins / "ejected").encode()))
    try:
        lib.call("bpf_map_lookup_elem", fd, ctypes.byref(key), ctypes.byref(found))
    finally:
        os.close(fd)
    return found


def in_short(end: Ejection) -> str:
    """Why the kernel took it out, in the kernel's words."""
    parts = [text.decode(errors="replace") for text in (end.reason, end.message) if text]
    return ": ".join(parts) or f"exit kind {end.kind}"
