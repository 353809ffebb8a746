"""The layouts of bpf/model.bpf.h, which says what each field is."""

from __future__ import annotations

import ctypes

MAX_ROOTS = 1024
CALL_ENDED, ESCAPED, CALLS_CROSSED, SHARED_CROSSED, EJECTED, BANDWIDTH = 1, 2, 3, 4, 5, 6
PAGE_BYTES = 4096
_U32, _U64 = ctypes.c_uint32, ctypes.c_uint64


class Share(ctypes.Structure):
    """CPU time under the scheduler."""

    _fields_ = (
        ("vtime", _U64), ("spent_ns", _U64), ("window", _U64), ("weighed_ns", _U64), ("weight", _U32), ("queue", _U32),
    )  # fmt: skip


class Slot(ctypes.Structure):
    """A container. The daemon writes what is before `window`."""

    _fields_ = (
        ("root", _U64), ("calls", _U64), ("calls_stop_at", _U64), ("shared_stop_at", _U64), ("level", _U32),
        ("shared_level", _U32), ("priority", _U32), ("park", _U32), ("decision", _U64), ("calls_first", _U64),
        ("reserve", _U64), ("window", _U64), ("events", _U64), ("dropped", _U64), ("ended", _U64), ("escaped", _U64),
        ("charges", _U64), ("crossed", _U64), ("told_ns", _U64), ("share", Share), ("cpu_ns", _U64), ("parks", _U64),
        ("park_lag_ns", _U64), ("early", _U64),
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


class Refusal(ctypes.Structure):
    """How far a call may come, and how often it was told ENOMEM."""

    _fields_ = (("limit_bytes", _U64), ("times", _U64))


class Event(ctypes.Structure):
    """What the ring buffer brings."""

    _fields_ = (
        ("time_ns", _U64), ("root", _U64), ("cgid", _U64), ("type", _U32), ("pid", _U32),
        ("memory_bytes", _U64), ("usage", Usage), ("comm", ctypes.c_char * 16),
    )  # fmt: skip


class Ejection(ctypes.Structure):
    """Why the kernel took the scheduler out; `kind` is of enum scx_exit_kind."""

    _fields_ = (
        ("time_ns", _U64), ("code", ctypes.c_int64), ("kind", _U32), ("partial", _U32),
        ("reason", ctypes.c_char * 64), ("message", ctypes.c_char * 192),
    )  # fmt: skip
