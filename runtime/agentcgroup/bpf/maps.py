"""Pinned maps of another build: whether they have the layout that this one needs, and what to do if not."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentcgroup.bpf.libbpf import Libbpf, MapInfo

#: enum bpf_map_type (include/uapi/linux/bpf.h): those whose entries can be listed.
_LISTED = (1, 2)  # hash, array
_LAYOUT = ("type", "key_size", "value_size", "max_entries", "map_flags")


def fits(lib: Libbpf, item: int, pin: Path) -> bool:
    """Whether a map of an opened object may be what is pinned there, if anything. Raises OSError."""
    if not pin.exists():
        return True
    with _opened(lib, pin) as fd:
        found = info(lib, fd)
    return all(getattr(found, field) == getattr(lib, f"bpf_map__{field}")(item) for field in _LAYOUT)


def info(lib: Libbpf, fd: int) -> MapInfo:
    """What the kernel says of a map. Raises OSError."""
    found, size = MapInfo(), ctypes.c_uint32(ctypes.sizeof(MapInfo))
    lib.call("bpf_obj_get_info_by_fd", fd, ctypes.byref(found), ctypes.byref(size))
    return found


def carry_over(lib: Libbpf, old: Path, new: Path) -> None:
    """Copy each entry: fields are only added at the end of a value, and what is new is 0. Tasks are told anew by the
    daemon, events are lost. Raises OSError.
    """
    with _opened(lib, old) as source, _opened(lib, new) as target:
        before, after = info(lib, source), info(lib, target)
        if before.type not in _LISTED or (before.type, before.key_size) != (after.type, after.key_size):
            return
        value = ctypes.create_string_buffer(max(before.value_size, after.value_size))
        for key in _keys(lib, source, before.key_size):
            ctypes.memset(value, 0, len(value))
            if lib.bpf_map_lookup_elem(source, key, value) == 0:
                lib.bpf_map_update_elem(target, key, value, 0)


def _keys(lib: Libbpf, fd: int, size: int) -> Iterator[ctypes.Array[ctypes.c_char]]:
    key, following = None, ctypes.create_string_buffer(size)
    while lib.bpf_map_get_next_key(fd, key, following) == 0:
        yield following
        key = ctypes.create_string_buffer(following.raw, size)


@contextmanager
def _opened(lib: Libbpf, pin: Path) -> Iterator[int]:
    fd = int(lib.call("bpf_obj_get", str(pin).encode()))
    try:
        yield fd
    finally:
        os.close(fd)
