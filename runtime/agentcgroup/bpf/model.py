"""The layouts of bpf/model.bpf.h, which says what each field is."""

from __future__ import annotations

import ctypes

MAX_ROOTS = 1024
CALL_ENDED, ESCAPED = 1, 2
_U64 = ctypes.c_uint64


class Slot(ctypes.Structure):
    """A container. The daemon writes the first two."""

    _fields_ = (
        ("root", _U64), ("calls", _U64), ("later", _U64 * 6), ("window", _U64), ("events", _U64), ("dropped", _U64),
        ("ended", _U64), ("escaped", _U64), ("more", _U64 * 3),
    )  # fmt: skip


class Home(ctypes.Structure):
    """Where a task belongs."""

    _fields_ = (("root", _U64), ("slot", _U64))


class Usage(ctypes.Structure):
    """What the processes of a call used that have ended."""

    _fields_ = (
        ("cpu_ns", _U64), ("read_bytes", _U64), ("write_bytes", _U64), ("processes", _U64), ("egress_bytes", _U64),
        ("ingress_bytes", _U64),
    )  # fmt: skip


class Event(ctypes.Structure):
    """What the ring buffer brings."""

    _fields_ = (
        ("time_ns", _U64), ("root", _U64), ("cgid", _U64), ("type", ctypes.c_uint32), ("pid", ctypes.c_uint32),
        ("peak_bytes", _U64), ("usage", Usage), ("comm", ctypes.c_char * 16),
    )  # fmt: skip
