"""VMs that stay up between commands, one for each developer: up, ssh, sync, down."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .boot import boot
from .image import Image
from .machine import Machine, MachineError
from .qemu import Settings


def _folder(name: str) -> Path:
    if not name or "/" in name or name.startswith("."):
        raise MachineError(f"{name!r} cannot name a VM: use letters, digits and dashes")
    return Path(tempfile.gettempdir()) / f"agentcgroup-vms-{os.getuid()}" / name


def up(image: Image, settings: Settings, name: str) -> Machine:
    """Boot a VM that outlives this process. Raises MachineError if one of that name runs already."""
    folder = _folder(name)
    if (folder / "machine.json").exists():
        old = Machine.load(folder)
        if old.alive():
            raise MachineError(f"VM {name} is up already: end it with `run.py down {name}`")
        old.stop()
    return boot(image, settings, folder, outlive=True)


def find(name: str) -> Machine:
    """Return a running VM with its shared connection open. Raises MachineError if it does not run."""
    machine = Machine.load(_folder(name))
    if not machine.alive():
        raise MachineError(f"VM {name} has ended: its console is {machine.serial}")
    if not machine.ssh.is_open():
        machine.ssh.open()
    return machine


def down(name: str) -> None:
    """End a VM and remove its files."""
    Machine.load(_folder(name)).stop()
