"""Builds the VM's base image with mmdebstrap. This file is part of the image's cache key."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from . import spec
from .mirror import find_mirror
from .progress import phase

GUEST = Path(__file__).with_name("guest")


class ImageError(Exception):
    """The image could not be built; the text says at which step."""


def build(cache: Path, folder: Path) -> None:
    """Build in a folder beside the target and rename it, so that only a whole image has the final name.

    Raises ImageError.
    """
    work = Path(tempfile.mkdtemp(prefix="building-", dir=cache))
    # mmdebstrap insists that its user namespace can reach the folder.
    work.chmod(0o755)
    try:
        result = work / "result"
        result.mkdir()
        _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "agentcgroup-test-vm", "-f", result / "ssh-key"])
        with phase(f"container image: {spec.SUITE}, {len(spec.CONTAINER_PACKAGES)} packages"):
            _bootstrap(work / "container.tar", spec.CONTAINER_PACKAGES, work, [])
        with phase(f"VM system: {spec.SUITE}, {len(spec.VM_PACKAGES)} packages, {len(spec.KERNELS)} kernels"):
            _bootstrap(work / "root", spec.VM_PACKAGES, work, _vm_hooks(work))
        with phase("root disk"):
            _make_disk(work / "root", result)
        result.rename(folder)
    finally:
        _as_builder(["rm", "-rf", "--one-file-system", work], check=False)


def _vm_hooks(work: Path) -> list[str]:
    return [
        f'--setup-hook=sh {GUEST}/add-suites.sh "$1" {spec.SUITE}',
        f'--essential-hook=sh {GUEST}/before-packages.sh "$1"',
        f'--customize-hook=sh {GUEST}/backports-kernel.sh "$1" {spec.SUITE}',
        f"--customize-hook=copy-in {GUEST}/rootfs/etc /",
        f'--customize-hook=sh {GUEST}/configure.sh "$1" {work}/result/ssh-key.pub',
        f'--customize-hook=sh {GUEST}/container-images.sh "$1" {work}/container.tar',
    ]


def _bootstrap(target: Path, packages: tuple[str, ...], work: Path, hooks: list[str]) -> None:
    mirror = find_mirror()
    excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in spec.DPKG_EXCLUDES]
    command = [
        "mmdebstrap", "--variant=minbase", f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        "--dpkgopt=force-unsafe-io", '--aptopt=Apt::Install-Recommends "false"', *excludes,
        f"--include={','.join(packages)}", *hooks, spec.SUITE, str(target), *([mirror] if mirror else []),
    ]  # fmt: skip
    log = work / f"{target.name}.log"
    with log.open("wb") as output:
        status = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL).returncode
    if status:
        kept = work.parent / "failed-build.log"
        shutil.copy(log, kept)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise ImageError(f"mmdebstrap ended with {status} (whole log: {kept}):\n{tail}")


def _make_disk(root: Path, result: Path) -> None:
    for kernel in spec.KERNELS.values():
        for kind, name in (("vmlinuz", "vmlinuz"), ("initrd.img", "initrd")):
            found = sorted((root / "boot").glob(f"{kind}-{kernel.release}"))
            if not found:
                raise ImageError(f"no {kind}-{kernel.release} in the built system: did the kernel package install?")
            shutil.copy(found[-1], result / f"{name}-{kernel.name}")
    disk = result / "root.img"
    with disk.open("wb"):
        pass
    _as_builder(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0", "-d", root, disk, spec.DISK_SIZE])


def _as_builder(command: list[str | Path], check: bool = True) -> None:
    """Run a command where the files that mmdebstrap made have their real owners."""
    prefix = [] if os.geteuid() == 0 else ["mmdebstrap", "--unshare-helper"]
    _run([*prefix, *command], check)


def _run(command: list[str | Path], check: bool = True) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if check and done.returncode:
        raise ImageError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
