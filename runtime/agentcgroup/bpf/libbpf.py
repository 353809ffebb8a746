"""The functions of libbpf.so.1 that are used, each declared once. Those that fail raise OSError with the cause."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Callable
from typing import Any

from agentcgroup.errors import UserError

#: bpf_program__attach of tp_btf with cookies, ring_buffer over pinned maps and light links all work from here on.
OLDEST = (1, 4)

_POINTER, _TEXT, _INT, _U32, _U64, _SIZE = (
    ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_size_t,
)  # fmt: skip
SAMPLE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _SIZE)
PRINT = ctypes.CFUNCTYPE(_INT, _INT, _TEXT, _POINTER)

_SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result first
    "libbpf_major_version": (_U32,),
    "libbpf_minor_version": (_U32,),
    "libbpf_set_print": (_POINTER, PRINT),
    "bpf_object__open_file": (_POINTER, _TEXT, _POINTER),
    "bpf_object__load": (_INT, _POINTER),
    "bpf_object__close": (None, _POINTER),
    "bpf_object__next_map": (_POINTER, _POINTER, _POINTER),
    "bpf_map__name": (_TEXT, _POINTER),
    "bpf_map__fd": (_INT, _POINTER),
    "bpf_map__type": (_U32, _POINTER),
    "bpf_map__key_size": (_U32, _POINTER),
    "bpf_map__value_size": (_U32, _POINTER),
    "bpf_map__max_entries": (_U32, _POINTER),
    "bpf_map__map_flags": (_U32, _POINTER),
    "bpf_map__set_autocreate": (_INT, _POINTER, ctypes.c_bool),
    "bpf_map__attach_struct_ops": (_POINTER, _POINTER),
    "bpf_map__set_pin_path": (_INT, _POINTER, _TEXT),
    "bpf_object__next_program": (_POINTER, _POINTER, _POINTER),
    "bpf_program__name": (_TEXT, _POINTER),
    "bpf_program__section_name": (_TEXT, _POINTER),
    "bpf_program__set_autoload": (_INT, _POINTER, ctypes.c_bool),
    "bpf_program__fd": (_INT, _POINTER),
    "bpf_program__pin": (_INT, _POINTER, _TEXT),
    "bpf_program__attach": (_POINTER, _POINTER),
    "bpf_link__pin": (_INT, _POINTER, _TEXT),
    "bpf_link__destroy": (_INT, _POINTER),
    "btf__load_vmlinux_btf": (_POINTER,),
    "btf__find_by_name_kind": (_INT, _POINTER, _TEXT, _U32),
    "btf__type_by_id": (ctypes.POINTER(ctypes.c_uint32), _POINTER, _U32),
    "btf__name_by_offset": (_TEXT, _POINTER, _U32),
    "btf__free": (None, _POINTER),
    "bpf_obj_get": (_INT, _TEXT),
    "bpf_obj_get_info_by_fd": (_INT, _INT, _POINTER, _POINTER),
    "bpf_obj_pin": (_INT, _INT, _TEXT),
    "bpf_link_create": (_INT, _INT, _INT, _INT, _POINTER),
    "bpf_map_update_elem": (_INT, _INT, _POINTER, _POINTER, _U64),
    "bpf_map_lookup_elem": (_INT, _INT, _POINTER, _POINTER),
    "bpf_map_delete_elem": (_INT, _INT, _POINTER),
    "bpf_map_get_next_key": (_INT, _INT, _POINTER, _POINTER),
    "ring_buffer__new": (_POINTER, _INT, SAMPLE, _POINTER, _POINTER),
    "ring_buffer__epoll_fd": (_INT, _POINTER),
    "ring_buffer__consume": (_INT, _POINTER),
    "ring_buffer__free": (None, _POINTER),
}


_STRUCT = 4  # BTF_KIND_STRUCT


class MapInfo(ctypes.Structure):
    """struct bpf_map_info up to the name (include/uapi/linux/bpf.h)."""

    _fields_ = (
        ("type", _U32), ("id", _U32), ("key_size", _U32), ("value_size", _U32), ("max_entries", _U32),
        ("map_flags", _U32), ("name", ctypes.c_char * 16),
    )  # fmt: skip


class Libbpf:
    """The library. Raises UserError where there is none or it is too old."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libbpf.so.1", use_errno=True)
        except OSError:
            raise UserError("there is no libbpf.so.1: install libbpf1 (Debian) or libbpf (Fedora, RHEL)") from None
        for name, (result, *arguments) in _SIGNATURES.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, arguments
        version = (self._library.libbpf_major_version(), self._library.libbpf_minor_version())
        if version < OLDEST:
            raise UserError(f"libbpf {version[0]}.{version[1]} is too old: {OLDEST[0]}.{OLDEST[1]} or newer is needed")
        self._print = PRINT(lambda _level, _format, _arguments: 0)
        self._library.libbpf_set_print(self._print)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """The function as it is."""
        function: Callable[..., Any] = getattr(self._library, name)
        return function

    def knows(self, name: str, kind: int) -> bool:
        """Whether the kernel's BTF has a type of that name and kind (BTF_KIND_*)."""
        types = self.btf__load_vmlinux_btf()
        found = bool(types) and self.btf__find_by_name_kind(types, name.encode(), kind) > 0
        self.btf__free(types)
        return found

    def members(self, name: str) -> dict[str, int]:
        """The members of a struct in the kernel's BTF, and their offsets in bytes; empty where there is none
        (Documentation/bpf/btf.rst: struct btf_type is three words, struct btf_member as well).
        """
        types = self.btf__load_vmlinux_btf()
        number = self.btf__find_by_name_kind(types, name.encode(), _STRUCT) if types else -1
        found = {}
        if number > 0:
            words = self.btf__type_by_id(types, number)
            mask = 0xFFFFFF if words[1] >> 31 else 0xFFFFFFFF  # else it has bit fields, whose size is above that
            for index in range(words[1] & 0xFFFF):
                text, _, bits = words[3 + 3 * index : 6 + 3 * index]
                found[self.btf__name_by_offset(types, text).decode()] = (bits & mask) // 8
        self.btf__free(types)
        return found

    def call(self, name: str, *arguments: Any) -> Any:
        """The function's result. Raises OSError when that is negative or no pointer."""
        result = getattr(self._library, name)(*arguments)
        if result is None or (isinstance(result, int) and result < 0 and name != "btf__find_by_name_kind"):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
