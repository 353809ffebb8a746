"""Loads the objects, pins what they are made of, and finds it again: one copy, whoever loads and however often.

/sys/fs/bpf/agentcgroup/ has the maps by name, `link_PROGRAM` for each program that is attached to the whole kernel,
`program_PROGRAM` for those that are attached to each container, the symbolic link `build` to the digest of the objects
that they are of, and `refused_OBJECT` to the reason where the kernel does not take one. All of it stays while the
daemon is away.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentcgroup.bpf import maps
from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.errors import UserError

PINS = Path("/sys/fs/bpf/agentcgroup")
LOCKDOWN = Path("/sys/kernel/security/lockdown")
OBJECTS = ("account", "memwatch", "enomem")
#: What is loaded by request (runtime/agentcgroup/bpf/scheduler.py), and where the kernel has what it needs
#: (runtime/agentcgroup/bpf/memcg_ops.py).
SCHEDULER, MEMCG_OPS = "sched", "memcg_ops"
#: Maps that are more than one object's, or the daemon's (bpf/model.bpf.h); and those whose timers and work for tasks
#: the kernel does only while somebody has a descriptor or a pin (bpf_timer_init, bpf_task_work_schedule).
_SHARED = ("roots", "slots", "home", "calls", "refusals", "tasks", "events", "ejected", "parks", "timers")
#: What the kernel's BTF calls the target of a program, and of what kind that is (include/uapi/linux/btf.h).
_TARGETS = {"tp_btf": ("btf_trace_{}", 8), "fentry": ("{}", 12), "fexit": ("{}", 12), "fmod_ret": ("{}", 12)}
_PER_CONTAINER = "cgroup_skb"
_STRUCT_OPS = 26  # BPF_MAP_TYPE_STRUCT_OPS (include/uapi/linux/bpf.h)
_NEW, _OLD = "new_", "old_"


State = Literal["active", "skipped", "off"]


@dataclass(frozen=True, slots=True)
class Feature:
    """One program; `why` says in words what keeps it from being active."""

    name: str
    target: str
    state: State
    why: str = ""


def build_of(folder: Path) -> str:
    """A digest of the objects in a folder. Raises UserError when one is missing."""
    digest = hashlib.sha256()
    for name in (*OBJECTS, SCHEDULER, MEMCG_OPS):
        try:
            digest.update((folder / f"{name}.o").read_bytes())
        except OSError as error:
            raise UserError(f"{folder}/{name}.o: {error.strerror}: `make install` puts it there") from None
    return digest.hexdigest()[:16]


def loaded(pins: Path = PINS) -> str:
    """The digest of the build that is in the kernel; "" without one."""
    try:
        return os.readlink(pins / "build")
    except OSError:
        return ""


def attach(lib: Libbpf, folder: Path, pins: Path = PINS) -> None:
    """Put a build's programs into the kernel, in the place of another's; what is in the maps stays. An object that this
    kernel refuses is left out, and `status` says why. Raises UserError with the remedy where it refuses all, and then
    nothing has changed.
    """
    build, refused = build_of(folder), {}
    try:
        pins.mkdir(mode=0o700, exist_ok=True)
        _drop(pins, f"{_NEW}*")
    except OSError as error:
        raise UserError(in_words(error)) from None
    for name in OBJECTS:
        with Object(lib, folder / f"{name}.o") as opened:
            try:
                opened.load(pins)
            except OSError as error:
                opened.drop(pins)
                refused[name] = in_words(error)
    if len(refused) == len(OBJECTS):
        _drop(pins, f"{_NEW}*")
        raise UserError(refused[OBJECTS[0]])
    _drop(pins, "link_*", "program_*", "traffic_*", "refused_*", "scheduler_*", "memory_*", MEMCG_OPS, "build")
    for path in pins.glob(f"{_NEW}*"):
        path.rename(pins / path.name.removeprefix(_NEW))
    for name, why in refused.items():
        (pins / f"refused_{name}").symlink_to(why)
    (pins / "build").symlink_to(build)


def status(lib: Libbpf, folder: Path, pins: Path = PINS) -> list[Feature]:
    """Each program of the build in a folder, and whether it is at work. Raises UserError."""
    build_of(folder)
    found: list[Feature] = []
    for name in OBJECTS:
        refused = pins / f"refused_{name}"
        with Object(lib, folder / f"{name}.o") as opened:
            for program, missing in opened.programs.items():
                why = missing or (os.readlink(refused) if refused.is_symlink() else "")
                pinned = any((pins / f"{kind}_{program.name}").exists() for kind in ("link", "program"))
                state: State = "active" if pinned else "skipped" if why else "off"
                found.append(Feature(program.name, program.section, state, "" if pinned else why))
    return found


def detach(pins: Path = PINS) -> bool:
    """Take everything of ours out of the kernel; False if there was nothing."""
    if not pins.is_dir():
        return False
    for path in sorted(pins.iterdir(), key=lambda path: not path.name.startswith("link_")):
        path.unlink()
    pins.rmdir()
    return True


@dataclass(frozen=True, slots=True)
class _Program:
    pointer: int
    name: str
    section: str


class Object:
    """An opened object. `programs` maps each of its programs to why it cannot be in this kernel, or ""."""

    def __init__(self, lib: Libbpf, path: Path) -> None:
        self._lib = lib
        self._opened = lib.call("bpf_object__open_file", str(path).encode(), None)
        types = lib.btf__load_vmlinux_btf()
        if not types:
            self.__exit__()
            raise UserError("the kernel has no BTF: one with CONFIG_DEBUG_INFO_BTF is needed")
        self.programs = {
            program: self._missing(program, types)
            for pointer in self._each("program")
            for program in [
                _Program(
                    pointer,
                    lib.bpf_program__name(pointer).decode(),
                    lib.bpf_program__section_name(pointer).decode(),
                )
            ]
        }
        lib.btf__free(types)

    def __enter__(self) -> Object:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.bpf_object__close(self._opened)

    def load(self, pins: Path) -> None:
        """Load it with the maps that are pinned, attach it, and pin that under new names. Raises OSError."""
        for program, why in self.programs.items():
            if why:
                self._lib.call("bpf_program__set_autoload", program.pointer, False)
        replaced = [name for item in self._each("map") if (name := self._place(item, pins))]
        self._lib.call("bpf_object__load", self._opened)
        for name in replaced:
            maps.carry_over(self._lib, pins / name, pins / f"{_NEW}{name}")
        for program, why in self.programs.items():
            if not why:
                self._attach(program, pins)

    def load_struct_ops(self, pins: Path, name: str, pin: Path) -> None:
        """Load it with the maps that are pinned, attach the operations of that name and pin that. Raises OSError."""
        self._load_operations(pins, name)
        self._pin(self._lib.call("bpf_map__attach_struct_ops", self._map(name)), pin)

    def load_operations(self, pins: Path, name: str) -> tuple[int, int]:
        """Load it with the maps that are pinned. The descriptor of the operations of that name, which stays open as
        long as this object, and the bytes that they are set to. Raises OSError.
        """
        self._load_operations(pins, name)
        operations = self._map(name)
        fd = int(self._lib.bpf_map__fd(operations))
        return fd, maps.info(self._lib, fd).value_size

    def descriptors(self, ending: str) -> dict[str, int]:
        """Of the loaded programs whose names end so, by section."""
        chosen = [program for program in self.programs if program.name.endswith(ending)]
        return {program.section: int(self._lib.bpf_program__fd(program.pointer)) for program in chosen}

    def _load_operations(self, pins: Path, name: str) -> None:
        _drop(pins, "timers")  # those of an earlier one
        for item in self._each("map"):
            if self._lib.bpf_map__type(item) == _STRUCT_OPS:
                self._lib.call("bpf_map__set_autocreate", item, self._name(item) == name)
            self._place(item, pins)
        self._lib.call("bpf_object__load", self._opened)

    def _map(self, name: str) -> int:
        return next(item for item in self._each("map") if self._name(item) == name)

    def drop(self, pins: Path) -> None:
        """Take back the new pins of its programs, which have not come into force."""
        for program in self.programs:
            _drop(pins, f"{_NEW}link_{program.name}", f"{_NEW}program_{program.name}")

    def _place(self, item: int, pins: Path) -> str:
        """Have a map pinned, or taken from its pin. The name, if it is the first to replace one of another layout."""
        name = self._name(item)
        if name not in _SHARED:
            return ""
        other = (pins / f"{_NEW}{name}").exists() or not maps.fits(self._lib, item, pins / name)
        path = pins / f"{_NEW if other else ''}{name}"
        first = other and not path.exists()
        self._lib.call("bpf_map__set_pin_path", item, str(path).encode())
        return name if first else ""

    def _attach(self, program: _Program, pins: Path) -> None:
        if program.section.startswith(_PER_CONTAINER):
            path = pins / f"{_NEW}program_{program.name}"
            self._lib.call("bpf_program__pin", program.pointer, str(path).encode())
            return
        link = self._lib.call("bpf_program__attach", program.pointer)
        self._pin(link, pins / f"{_NEW}link_{program.name}")

    def _pin(self, link: int, path: Path) -> None:
        try:
            self._lib.call("bpf_link__pin", link, str(path).encode())
        finally:
            self._lib.bpf_link__destroy(link)  # closes our descriptor; the pin keeps it attached

    def _name(self, item: int) -> str:
        return str(self._lib.bpf_map__name(item).decode())

    def _each(self, kind: Literal["map", "program"]) -> Iterator[int]:
        following = getattr(self._lib, f"bpf_object__next_{kind}")
        item = following(self._opened, None)
        while item:
            yield item
            item = following(self._opened, item)

    def _missing(self, program: _Program, types: int) -> str:
        kind, _, target = program.section.partition("/")
        if kind not in _TARGETS:
            return ""
        form, number = _TARGETS[kind]
        if self._lib.btf__find_by_name_kind(types, form.format(target).encode(), number) > 0:
            return ""
        return f"this kernel has no {target}"


def _drop(pins: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in pins.glob(pattern):
            path.unlink()


def in_words(error: OSError) -> str:
    """What to do where the kernel refuses an object."""
    if locked_down():  # whatever it says: helpers that read the kernel are unknown then (kernel_lockdown(7))
        return "lockdown=confidentiality keeps BPF from reading the kernel: boot with lockdown=integrity, or without"
    remedies = {
        1: "the kernel refuses BPF: run this as root, with CAP_BPF",
        13: "the kernel's verifier refuses a program: please report this with `uname -r`",
        22: "the kernel does not know what a program needs: Linux 6.12 or newer is needed",
    }
    return remedies.get(error.errno or 0, f"libbpf: {error.strerror}")


def locked_down() -> bool:
    """Whether BPF may not read the kernel (kernel_lockdown(7))."""
    try:
        return "[confidentiality]" in LOCKDOWN.read_text()
    except OSError:
        return False
