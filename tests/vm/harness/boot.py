"""Gives a booted VM in seconds: a VM that has come up once is saved beside the image and resumed from there."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from . import qemu
from .image import Image, locked
from .machine import Machine, MachineError, launch
from .progress import phase, say
from .qemu import SavedState, Settings
from .qmp import connect

BOOT_SECONDS = 300
RESUME_SECONDS = 60
ATTEMPTS = 2

# Whatever still starts after ssh answers is done, and dirty pages are written, before the state is saved.
_SETTLE = "systemctl is-system-running --wait; systemctl is-active --wait user@1000.service; sync"


@contextlib.contextmanager
def booted(image: Image, settings: Settings) -> Iterator[Machine]:
    """Have a VM for the length of a block; it ends with the block, and with this thread whatever happens."""
    machine = boot(image, settings, Path(tempfile.mkdtemp(prefix="agentcgroup-vm.")))
    try:
        yield machine
    finally:
        machine.stop()


def boot(image: Image, settings: Settings, folder: Path, outlive: bool = False) -> Machine:
    """Return a new VM that has just come up; with `outlive` it survives this process. Raises MachineError."""
    saved = _saved_state(image, settings)
    with phase("resuming a booted VM", settings.kernel):
        machine = _twice(lambda: launch(image, settings, folder, saved, RESUME_SECONDS, outlive), settings)
    # Its clock stopped when it was saved.
    machine.ssh.run(["date", "--utc", "--set", f"@{time.time():.3f}"], capture_output=True)
    return machine


def _saved_state(image: Image, settings: Settings) -> SavedState:
    inputs = f"{settings}{qemu.version()}{qemu.CMDLINE}"
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:8]
    folder = image.folder / f"booted-{settings.kernel}-{digest}"
    saved = SavedState(folder / "memory", folder / "disk.qcow2")
    with locked(image.folder / f"{folder.name}.lock", "waiting for another run that boots this kernel"):
        if not folder.exists():
            _boot_and_save(image, settings, folder)
    return saved


def _boot_and_save(image: Image, settings: Settings, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix="booting-", dir=image.folder))
    text = f"booting Linux {settings.kernel} ({settings.memory}, {settings.smp} CPU)"
    try:
        with phase(text, settings.kernel):
            machine = _twice(lambda: launch(image, settings, work / "vm", None, BOOT_SECONDS), settings)
        try:
            with phase("saving the booted VM", settings.kernel):
                _save(machine, work / "saved")
        finally:
            machine.stop()
        (work / "saved").rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _save(machine: Machine, target: Path) -> None:
    machine.ssh.run(["sh", "-c", _SETTLE], capture_output=True)
    machine.ssh.close()
    target.mkdir()
    with connect(machine.folder / "qmp") as qmp:
        qmp.execute("migrate-set-parameters", **{"max-bandwidth": 1 << 40})
        qmp.execute("migrate", uri=f"exec:cat >'{target}/memory'")
        while (status := qmp.execute("query-migrate")["status"]) != "completed":
            if status in ("failed", "cancelled"):
                raise MachineError(f"QEMU could not save the VM's state: {status}")
            time.sleep(0.1)
        qmp.execute("quit")
    while not qemu.reap(machine.pid):
        time.sleep(0.05)
    (machine.folder / "overlay.qcow2").rename(target / "disk.qcow2")


def _twice(attempt: Callable[[], Machine], settings: Settings) -> Machine:
    """Try once more after a failure: multi-threaded TCG panics now and then while the kernel patches itself."""
    for _ in range(ATTEMPTS - 1):
        try:
            return attempt()
        except MachineError as error:
            say(f"{error}; trying once more", settings.kernel)
    return attempt()
