"""Experimental: bpf/memcg_ops.bpf.c on kernels with memcg_bpf_ops, which is not in Linux yet. Others are left alone.

The link of a container is made with bpf(2) itself: libbpf knows no struct_ops that belong to a cgroup. The two versions
of the patches differ in where BPF_LINK_CREATE takes the cgroup from.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path
from typing import Literal

from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.bpf.loader import MEMCG_OPS, PINS, Feature, Object
from agentcgroup.cgroup import Cgroup

Flavour = Literal["v6", "v7"]

STRUCT = "memcg_bpf_ops"
#: A member that only this version has.
_TELLING: dict[Flavour, str] = {"v6": "get_high_delay_ms", "v7": "memcg_charged"}
_BPF = {"x86_64": 321, "aarch64": 280}  # the number of bpf(2)
_LINK_CREATE, _STRUCT_OPS = 28, 44  # enum bpf_cmd, enum bpf_attach_type (include/uapi/linux/bpf.h)
_ALLOW_OVERRIDE, _CGROUP_FD = 1 << 0, 1 << 7
_ATTRIBUTE = 48  # bytes of union bpf_attr.link_create up to cgroup.expected_revision


def flavour(lib: Libbpf) -> Flavour | None:
    """Which version of the patches the kernel has, by its BTF; None: neither."""
    members = lib.members(STRUCT)
    return next((name for name, member in _TELLING.items() if member in members), None)


def link_create(version: Flavour, operations: int, cgroup: int) -> bytes:
    """union bpf_attr for BPF_LINK_CREATE: a loaded struct_ops map and a cgroup, both by descriptor."""
    target, flags, relative = (0, _ALLOW_OVERRIDE, cgroup) if version == "v6" else (cgroup, _CGROUP_FD, 0)
    return struct.pack("<IIIII", operations, target, _STRUCT_OPS, flags, relative).ljust(_ATTRIBUTE, b"\0")


def value(lib: Libbpf, size: int, programs: dict[str, int], name: str = STRUCT) -> bytes:
    """What a struct_ops map of `size` bytes is set to: the descriptor of each member's program, where the kernel has
    that member (bpf_struct_ops_map_update_elem in kernel/bpf/bpf_struct_ops.c).
    """
    start, members = lib.members(f"bpf_struct_ops_{name}")["data"], lib.members(name)
    found = bytearray(size)
    for member, program in programs.items():
        struct.pack_into("<Q", found, start + members[member], program)
    return bytes(found)


def feature(lib: Libbpf, pins: Path = PINS) -> Feature:
    """Whether they are at work, as for each program."""
    target, version = f"struct_ops/{STRUCT}", flavour(lib)
    if (pins / MEMCG_OPS).exists():
        return Feature(MEMCG_OPS, target, "active", f"experimental, {version} of the patches")
    if version is None:
        return Feature(MEMCG_OPS, target, "skipped", f"this kernel has no {STRUCT} (experimental, not in Linux)")
    return Feature(MEMCG_OPS, target, "off")


def load(lib: Libbpf, folder: Path, pins: Path = PINS) -> None:
    """Load the operations that the kernel asks for, if any, and pin them as `memcg_ops`. Raises OSError."""
    version = flavour(lib)
    if version is None or (pins / MEMCG_OPS).exists():
        return
    with Object(lib, folder / f"{MEMCG_OPS}.o") as opened:
        operations, size = opened.load_operations(pins, f"memcg_{version}")
        programs = {section.rpartition("/")[2]: fd for section, fd in opened.descriptors(f"_{version}").items()}
        key, content = ctypes.c_uint32(0), ctypes.create_string_buffer(value(lib, size, programs), size)
        lib.call("bpf_map_update_elem", operations, ctypes.byref(key), content, 0)
        lib.call("bpf_obj_pin", operations, str(pins / MEMCG_OPS).encode())


def attach(lib: Libbpf, version: Flavour, tree: Cgroup, pin: Path, pins: Path = PINS) -> None:
    """Have the kernel ask them for one container, and pin that. Raises OSError."""
    operations = int(lib.call("bpf_obj_get", str(pins / MEMCG_OPS).encode()))
    group = os.open(tree.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        link = _bpf(_LINK_CREATE, link_create(version, operations, group))
    finally:
        os.close(group)
        os.close(operations)
    try:
        lib.call("bpf_obj_pin", link, str(pin).encode())
    finally:
        os.close(link)


def _bpf(command: int, attribute: bytes) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(_BPF[platform.machine()], command, attribute, len(attribute)))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
