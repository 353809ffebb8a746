"""What of ours is in the kernel, as bpftool sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentcgroup.bpf.kernel import Kernel
from agentcgroup.bpf.libbpf import Libbpf
from podman import Container, run

PINS = Path("/sys/fs/bpf/agentcgroup")


def links() -> dict[str, int]:
    """The ids of what is attached, by the names of the pins: another id is another copy."""
    show = ("bpftool", "-j", "link", "show", "pinned")
    pins = PINS.glob("link_*")
    return {path.name: json.loads(run(*show, str(path), check=False).stdout)["id"] for path in pins}


def programs() -> int:
    """How many of our programs are loaded, wherever they are attached."""
    names = {path.name.partition("_")[2] for path in PINS.glob("*_*")}
    return sum(program.get("name") in names for program in json.loads(run("bpftool", "-j", "prog", "show").stdout))


def dumped(name: str) -> list[Any]:
    """The entries of a map."""
    return json.loads(run("bpftool", "-j", "map", "dump", "pinned", str(PINS / name)).stdout)


@contextmanager
def opened() -> Iterator[Kernel]:
    """What is in the kernel, beside the daemon: for the slots, not to read events."""
    kernel = Kernel(Libbpf(), lambda _event: None)
    try:
        yield kernel
    finally:
        with suppress(BufferError):  # a slot is still looked at
            kernel.close()


def counter(box: Container, name: str) -> int:
    """A field of a container's slot."""
    with opened() as kernel:
        return int(getattr(kernel.slot(box.tree.stat().st_ino), name))
