"""Which accelerator QEMU can use here, found by booting a kernel: /dev/kvm opening is not proof that guests run."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from .image import Image, cache_folder
from .progress import phase

KVM = ["-accel", "kvm", "-cpu", "host"]
TCG = ["-accel", "tcg,thread=multi", "-cpu", "max,-la57"]

_PROBE_SECONDS = 12
# Printed by the initrd, so user space runs too.
_PROBE_SIGN = b"Begin: "


def accelerator(image: Image) -> list[str]:
    """Return QEMU's accelerator options: KVM if a guest really boots with it, else TCG; found once a host boot."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return TCG
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record = cache_folder() / f"kvm-works-{boot_id}"
    if not record.exists():
        for old in record.parent.glob("kvm-works-*"):
            old.unlink()
        with phase("probing KVM"):
            works = _kvm_boots(image)
        record.write_text("yes" if works else "no")
    return KVM if record.read_text() == "yes" else TCG


def _kvm_boots(image: Image) -> bool:
    command: list[str | Path] = [
        "qemu-system-x86_64", *KVM, "-m", "512", "-nodefaults", "-display", "none", "-no-reboot",
        "-kernel", image.kernel("7"), "-initrd", image.initrd("7"), "-append", "console=ttyS0 panic=-1",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        serial = Path(folder) / "serial"
        with subprocess.Popen([*command, "-serial", f"file:{serial}"], stderr=subprocess.DEVNULL) as qemu:
            try:
                return _appears(serial, _PROBE_SIGN, qemu)
            finally:
                qemu.kill()


def _appears(serial: Path, sign: bytes, qemu: subprocess.Popen[bytes]) -> bool:
    deadline = time.monotonic() + _PROBE_SECONDS
    while time.monotonic() < deadline and qemu.poll() is None:
        if serial.exists() and sign in serial.read_bytes():
            return True
        time.sleep(0.1)
    return False
