"""One running VM, reached over ssh."""

from __future__ import annotations

import json
import re
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from . import qemu
from .image import Image
from .qemu import SavedState, Settings
from .ssh import Ssh

_PANIC = re.compile(rb"Kernel panic[^\r\n]*")


class MachineError(Exception):
    """A VM did not come up or went away; the text says what its console showed."""


@dataclass(frozen=True)
class Machine:
    """A VM. Everything about it lies in `folder`, from which another process can find it again."""

    folder: Path
    settings: Settings
    pid: int
    port: int
    key: Path

    @property
    def ssh(self) -> Ssh:
        return Ssh(self.port, self.key, self.folder / "ssh")

    @property
    def serial(self) -> Path:
        return self.folder / "serial.log"

    def alive(self) -> bool:
        """Say whether its QEMU still runs."""
        return qemu.alive(self.pid)

    def panic(self) -> str | None:
        """Return the console's panic line, None if there is none."""
        found = _PANIC.search(self.serial.read_bytes()) if self.serial.exists() else None
        return found.group().decode(errors="replace") if found else None

    def stop(self) -> None:
        """End QEMU at once (the disk is an overlay that nobody reads again) and remove the VM's folder."""
        if self.alive():
            self.ssh.close()
            qemu.end(self.pid)
        shutil.rmtree(self.folder, ignore_errors=True)

    def save(self) -> None:
        """Record the VM in its folder for `Machine.load`."""
        record = {**asdict(self), "folder": str(self.folder), "key": str(self.key)}
        (self.folder / "machine.json").write_text(json.dumps(record))

    @classmethod
    def load(cls, folder: Path) -> Machine:
        """Return the VM recorded in a folder. Raises MachineError if there is none."""
        try:
            record = json.loads((folder / "machine.json").read_text())
        except FileNotFoundError:
            raise MachineError(f"no VM named {folder.name}: start it with `run.py up {folder.name}`") from None
        return cls(folder, Settings(**record["settings"]), record["pid"], record["port"], Path(record["key"]))


def launch(
    image: Image, settings: Settings, folder: Path, saved: SavedState | None, seconds: float, outlive: bool = False
) -> Machine:
    """Start a VM from its kernel or from a saved state and wait for its ssh. Raises MachineError."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(folder, settings, *qemu.start(image, settings, folder, saved, outlive), image.ssh_key)
    try:
        _wait(machine, seconds)
    except BaseException:
        machine.stop()
        raise
    machine.save()
    return machine


def _wait(machine: Machine, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if panic := machine.panic():
            raise MachineError(f"the guest panicked: {panic}")
        if not machine.alive():
            qemu.reap(machine.pid)
            raise MachineError(f"QEMU ended: {_tail(machine.folder / 'qemu.log')}")
        if machine.ssh.answers() and machine.ssh.open():
            return
        time.sleep(0.2)
    raise MachineError(f"no ssh after {seconds:.0f} s; the console's end: {_tail(machine.serial)}")


def _tail(path: Path, size: int = 600) -> str:
    return path.read_text(errors="replace")[-size:].strip() if path.exists() else "(empty)"
