"""Starts and ends QEMU processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from .accel import accelerator
from .image import Image

CMDLINE = (
    "root=/dev/vda rw console=ttyS0 quiet fsck.mode=skip net.ifnames=0 panic=-1 apparmor=1 security=apparmor psi=1 "
    # Only speed: TCG runs `rep stosb` byte by byte, and nothing in the VM needs hardening.
    "clearcpuid=erms,rep_good mitigations=off init_on_alloc=0 hardened_usercopy=off randomize_kstack_offset=off"
)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Settings:
    """What a VM is booted with; `memory` as QEMU reads it."""

    kernel: str
    memory: str = "3072M"
    smp: int = 1


@dataclass(frozen=True)
class SavedState:
    """A VM that was stopped after its boot: its memory, and its disk on top of the image's."""

    memory: Path
    disk: Path


def start(image: Image, settings: Settings, folder: Path, saved: SavedState | None, outlive: bool) -> tuple[int, int]:
    """Start QEMU on a new overlay in `folder`; return its pid and the loopback port of the VM's ssh.

    It ends with the calling thread unless `outlive`.
    """
    overlay = folder / "overlay.qcow2"
    backing: list[str | Path] = ["-F", "qcow2", "-b", saved.disk] if saved else ["-F", "raw", "-b", image.disk]
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *backing, overlay], check=True)
    port = _free_port()
    command: list[str | Path] = [
        "qemu-system-x86_64", *accelerator(image), "-smp", str(settings.smp), "-m", settings.memory,
        "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
        "-kernel", image.kernel(settings.kernel), "-initrd", image.initrd(settings.kernel), "-append", CMDLINE,
        "-drive", f"file={overlay},if=virtio,cache=unsafe,discard=unmap",
        "-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:22",
        "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci",
        "-serial", f"file:{folder / 'serial.log'}", "-qmp", f"unix:{folder / 'qmp'},server=on,wait=off",
    ]  # fmt: skip
    if saved:
        command += ["-incoming", f"exec:cat '{saved.memory}'"]
    with (folder / "qemu.log").open("wb") as log:
        qemu = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            preexec_fn=None if outlive else _die_with_parent,
        )  # fmt: skip
    return qemu.pid, port


def version() -> str:
    """Return what QEMU says of itself: another version may not read this one's saved states."""
    return subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, text=True, check=True).stdout


def alive(pid: int) -> bool:
    """Say whether a process is a running QEMU."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name.startswith("qemu-system")
    except OSError:
        return False


def end(pid: int) -> None:
    """End a QEMU and wait until it is gone."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if reap(pid):
                return
            time.sleep(0.05)


def reap(pid: int) -> bool:
    """Say whether a process is gone; a child of ours is waited for."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _die_with_parent() -> None:
    # Bound to the thread that forks (prctl(2)): a VM is booted and used in one thread.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
