"""One running VM: QEMU on a throw-away overlay of the base image, reached over ssh."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .accel import accelerator
from .image import Image
from .progress import phase, say
from .ssh import Ssh

BOOT_SECONDS = 240
BOOT_ATTEMPTS = 2

_CMDLINE = (
    "root=/dev/vda rw console=ttyS0 quiet fsck.mode=skip net.ifnames=0 mitigations=off panic=-1 "
    "apparmor=1 security=apparmor psi=1"
)
_PANIC = re.compile(rb"Kernel panic[^\r\n]*")
_PR_SET_PDEATHSIG = 1


class MachineError(Exception):
    """A VM did not come up or went away; the text says what its console showed."""


@dataclass(frozen=True)
class Settings:
    """What a VM is booted with; `memory` as QEMU reads it."""

    kernel: str
    memory: str = "3072M"
    smp: int = 1


@dataclass(frozen=True)
class Machine:
    """A booted VM. Everything about it lies in `folder`, from which another process can find it again."""

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
        try:
            return Path(f"/proc/{self.pid}/exe").readlink().name.startswith("qemu-system")
        except OSError:
            return False

    def panic(self) -> str | None:
        """Return the console's panic line, None if there is none."""
        found = _PANIC.search(self.serial.read_bytes()) if self.serial.exists() else None
        return found.group().decode(errors="replace") if found else None

    def stop(self) -> None:
        """End QEMU at once (the disk is an overlay that nobody reads again) and remove the VM's folder."""
        if self.alive():
            self.ssh.close()
            _end(self.pid)
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


@contextlib.contextmanager
def booted(image: Image, settings: Settings) -> Iterator[Machine]:
    """Boot a VM for the length of a block; it ends with the block, and with this thread whatever happens."""
    machine = boot(image, settings, Path(tempfile.mkdtemp(prefix="agentcgroup-vm.")))
    try:
        yield machine
    finally:
        machine.stop()


def boot(image: Image, settings: Settings, folder: Path, outlive: bool = False) -> Machine:
    """Boot a VM and wait for its ssh; with `outlive` it survives this process. Raises MachineError."""
    for attempt in range(1, BOOT_ATTEMPTS + 1):
        folder.mkdir(parents=True, exist_ok=True)
        machine = _start(image, settings, folder, outlive)
        try:
            with phase(f"booting Linux {settings.kernel} ({settings.memory}, {settings.smp} CPU)", settings.kernel):
                _wait(machine)
        except MachineError as error:
            machine.stop()
            if attempt == BOOT_ATTEMPTS:
                raise
            say(f"{error}; trying once more", settings.kernel)
        except BaseException:
            machine.stop()
            raise
        else:
            machine.save()
            return machine
    raise AssertionError("unreachable")


def _start(image: Image, settings: Settings, folder: Path, outlive: bool) -> Machine:
    overlay = folder / "overlay.qcow2"
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, overlay], check=True
    )  # fmt: skip
    port = _free_port()
    command: list[str | Path] = [
        "qemu-system-x86_64", *accelerator(image), "-smp", str(settings.smp), "-m", settings.memory,
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-kernel", image.kernel(settings.kernel), "-initrd", image.initrd(settings.kernel), "-append", _CMDLINE,
        "-drive", f"file={overlay},if=virtio,cache=unsafe,discard=unmap",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci",
        "-serial", f"file:{folder / 'serial.log'}",
    ]  # fmt: skip
    with (folder / "qemu.log").open("wb") as log:
        qemu = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            preexec_fn=None if outlive else _die_with_parent,
        )  # fmt: skip
    return Machine(folder, settings, qemu.pid, port, image.ssh_key)


def _wait(machine: Machine) -> None:
    deadline = time.monotonic() + BOOT_SECONDS
    while time.monotonic() < deadline:
        if panic := machine.panic():
            raise MachineError(f"the guest panicked while booting: {panic}")
        if not machine.alive():
            _reap(machine.pid)
            raise MachineError(f"QEMU ended while booting: {_tail(machine.folder / 'qemu.log')}")
        if machine.ssh.answers() and machine.ssh.open():
            return
        time.sleep(0.5)
    raise MachineError(f"no ssh after {BOOT_SECONDS} s; the console's end: {_tail(machine.serial)}")


def _tail(path: Path, size: int = 600) -> str:
    return path.read_text(errors="replace")[-size:].strip() if path.exists() else "(empty)"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _die_with_parent() -> None:
    # Bound to the thread that forks (prctl(2)): a VM is booted and used in one thread.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(pid: int) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if _reap(pid):
                return
            time.sleep(0.05)


def _reap(pid: int) -> bool:
    """Say whether a process is gone; a child of ours is waited for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()
