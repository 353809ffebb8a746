"""The daemon's hold on what is loaded: which containers the kernel knows, and what it has to say of them."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from agentcgroup.bpf import memcg_ops
from agentcgroup.bpf.libbpf import SAMPLE, Libbpf
from agentcgroup.bpf.loader import MEMCG_OPS, PINS
from agentcgroup.bpf.model import MAX_ROOTS, PAGE_BYTES, Event, Home, Refusal, Slot
from agentcgroup.cgroup import Cgroup

#: enum bpf_attach_type (include/uapi/linux/bpf.h).
_DIRECTIONS = {"egress": 1, "ingress": 0}
_PIDFD_THREAD = os.O_EXCL  # Linux 6.9 (include/uapi/linux/pidfd.h)


class Kernel:
    """The pinned maps, and for each container `traffic_DIRECTION_CGID`, the programs on its packets. `on_event` gets
    each event when `read` is called, which is due when `fd` is readable.

    Raises OSError when nothing is loaded.
    """

    def __init__(self, lib: Libbpf, on_event: Callable[[Event], None], pins: Path = PINS) -> None:
        self._lib = lib
        self._pins = pins
        self._on_event = on_event
        self._maps = {name: self._pinned(name) for name in ("roots", "slots", "home", "events", "refusals")}
        self._flavour = memcg_ops.flavour(lib) if (pins / MEMCG_OPS).exists() else None
        self._refuses = (pins / "link_enomem").exists()
        self._memory = mmap.mmap(self._maps["slots"], ctypes.sizeof(Slot) * MAX_ROOTS)
        self._table = (Slot * MAX_ROOTS).from_buffer(self._memory)
        self._known = {slot.root: index for index, slot in enumerate(self._table) if slot.root}
        self._free = [index for index, slot in enumerate(self._table) if not slot.root]
        self._sample = SAMPLE(self._take)
        self._ring = lib.call("ring_buffer__new", self._maps["events"], self._sample, None, None)
        self.fd: int = lib.ring_buffer__epoll_fd(self._ring)
        self._programs = {name: self._pinned(f"program_{name}") for name in _DIRECTIONS if self._has(name)}

    def register(self, tree: Cgroup, top: Path) -> None:
        """Know a container from now on, and every process in it. Raises OSError, ENOSPC when there is no room."""
        root, calls = os.stat(tree.path).st_ino, os.stat(tree.child("calls").path).st_ino
        index = self._known.get(root)
        if index is None:
            if not self._free:
                raise OSError(errno.ENOSPC, f"{MAX_ROOTS} containers are known")
            index = self._known[root] = self._free.pop()
            slot = self._table[index]
            ctypes.memset(ctypes.addressof(slot), 0, ctypes.sizeof(Slot))
            slot.level = tree.level(top)
            slot.calls, slot.root = calls, root
            self._update(self._maps["roots"], ctypes.c_uint64(root), ctypes.c_uint32(index))
        self._settle(tree, Home(root, index))

    def attach(self, tree: Cgroup) -> None:
        """Attach what is attached to each container: the programs that see its packets. Raises OSError. It takes
        milliseconds, for which the hook does not wait.
        """
        root = os.stat(tree.path).st_ino
        self._attach(tree, root)
        with suppress(OSError):
            self._attach_memory(tree, root)

    def classify(self, root: int, priority: int, reserve: int) -> None:
        """A container's priority, 0 is the highest, and the bytes that it was promised."""
        slot = self.slot(root)
        if slot is not None:
            slot.priority, slot.reserve = priority, reserve // PAGE_BYTES

    def watch(self, root: int, stop_at: int, level: int, park: bool = False, first: int = 0) -> None:
        """Tell of charges by a container once more bytes are in use in the cgroup above it of that level in the
        hierarchy, or for 0 in its calls/. A `stop_at` of 0 ends that. `park`: who makes one waits until this is called
        again, a second at most, where the scheduler is at work; between the calls of one container not `first`, a call
        by its cgroup's inode.
        """
        slot, pages = self.slot(root), -(-stop_at // PAGE_BYTES)
        if slot is not None and level:
            slot.shared_level, slot.shared_stop_at, slot.park = level, pages, park
            slot.decision += 1
        elif slot is not None:
            slot.calls_stop_at, slot.calls_first = pages, first if park else 0
            slot.decision += 1

    def refuse(self, call: int, limit: int) -> bool:
        """Have a call, by its cgroup's inode, told ENOMEM when it would come to more bytes. False if that is not to be
        had here.
        """
        try:
            self._update(self._maps["refusals"], ctypes.c_uint64(call), Refusal(limit, self.refusals(call)))
        except OSError:
            return False
        return self._refuses

    def refusals(self, call: int) -> int:
        """How often a call was told ENOMEM."""
        key, found = ctypes.c_uint64(call), Refusal()
        self._lib.bpf_map_lookup_elem(self._maps["refusals"], ctypes.byref(key), ctypes.byref(found))
        return int(found.times)

    def forget(self, root: int) -> None:
        """A container has ended."""
        index = self._known.pop(root, None)
        if index is not None:
            self._free.append(index)
            key = ctypes.c_uint64(root)
            self._lib.bpf_map_delete_elem(self._maps["roots"], ctypes.byref(key))
            self._table[index].root = 0
        for name in (*(f"traffic_{direction}_{root}" for direction in _DIRECTIONS), f"memory_{root}"):
            (self._pins / name).unlink(missing_ok=True)

    def keep(self, roots: set[int]) -> None:
        """Forget all containers but these."""
        for root in set(self._known) - roots:
            self.forget(root)

    def slot(self, root: int) -> Slot | None:
        """The counters of a container."""
        index = self._known.get(root)
        return None if index is None else self._table[index]

    def read(self) -> None:
        """Hand over the events that there are."""
        self._lib.ring_buffer__consume(self._ring)

    def close(self) -> None:
        """Give the files back; what is loaded stays."""
        self._lib.ring_buffer__free(self._ring)
        del self._table
        self._memory.close()
        for fd in (*self._maps.values(), *self._programs.values()):
            os.close(fd)

    def _pinned(self, name: str) -> int:
        return int(self._lib.call("bpf_obj_get", str(self._pins / name).encode()))

    def _has(self, program: str) -> bool:
        return (self._pins / f"program_{program}").exists()

    def _update(self, fd: int, key: ctypes._SimpleCData[int], value: object) -> None:
        self._lib.call("bpf_map_update_elem", fd, ctypes.byref(key), ctypes.byref(value), 0)  # type: ignore[arg-type]

    def _attach(self, tree: Cgroup, root: int) -> None:
        """The programs that see its sockets' packets."""
        group = os.open(tree.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name, program in self._programs.items():
                pin = self._pins / f"traffic_{name}_{root}"
                if not pin.exists():
                    link = self._lib.call("bpf_link_create", program, group, _DIRECTIONS[name], None)
                    try:
                        self._lib.call("bpf_obj_pin", link, str(pin).encode())
                    finally:
                        os.close(link)
        finally:
            os.close(group)

    def _attach_memory(self, tree: Cgroup, root: int) -> None:
        """The operations of an experimental kernel; without them all is as on others."""
        pin = self._pins / f"memory_{root}"
        if self._flavour is not None and not pin.exists():
            memcg_ops.attach(self._lib, self._flavour, tree, pin, self._pins)

    def _settle(self, tree: Cgroup, home: Home) -> None:
        """Tell whose each thread is that was there before the kernel knew the container; new ones inherit it."""
        for group in tree.all():
            for text in group.lines("cgroup.threads"):
                with suppress(OSError):
                    self._settle_thread(int(text), home)

    def _settle_thread(self, thread: int, home: Home) -> None:
        fd = os.pidfd_open(thread, _PIDFD_THREAD)
        try:
            self._update(self._maps["home"], ctypes.c_int(fd), home)
        finally:
            os.close(fd)

    def _take(self, _context: int, data: int, size: int) -> int:
        if size >= ctypes.sizeof(Event):
            self._on_event(Event.from_buffer_copy(ctypes.string_at(data, ctypes.sizeof(Event))))
        return 0
