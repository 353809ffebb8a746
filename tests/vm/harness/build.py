"""Builds the VM's base image with mmdebstrap. This file is part of the image's cache key."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
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
        with ThreadPoolExecutor() as pool:
            wait = [
                pool.submit(
                    _bootstrap, "container system", work / "container.tar", spec.CONTAINER_PACKAGES, _go_hooks()
                ),
                pool.submit(_bootstrap, "VM system", work / "root", spec.VM_PACKAGES, _vm_hooks(result)),
            ]
            for bootstrap in wait:
                bootstrap.result()
        with phase("container images"):
            _as_builder(["sh", GUEST / "container-images.sh", work / "root", work / "container.tar"])
        with phase("root disk"):
            _make_disk(work / "root", result)
        result.rename(folder)
    finally:
        _as_builder(["rm", "-rf", "--one-file-system", work], check=False)


def _go_hooks() -> list[str]:
    return [_hook("setup", "add-suites.sh", spec.SUITE), _hook("customize", "go-program.sh", spec.SUITE)]


def _vm_hooks(result: Path) -> list[str]:
    return [
        _hook("setup", "add-suites.sh", spec.SUITE),
        _hook("essential", "before-packages.sh"),
        _hook("customize", "backports-kernel.sh", spec.SUITE),
        f"--customize-hook=copy-in {GUEST}/rootfs/etc /",
        _hook("customize", "configure.sh", f"{result}/ssh-key.pub"),
    ]


def _hook(stage: str, script: str, argument: str = "") -> str:
    return f'--{stage}-hook=sh {GUEST}/{script} "$1" {argument}'


def _bootstrap(name: str, target: Path, packages: tuple[str, ...], hooks: list[str]) -> None:
    with phase(f"{name}: {spec.SUITE}, {len(packages)} packages"):
        _mmdebstrap(target, packages, hooks)


def _mmdebstrap(target: Path, packages: tuple[str, ...], hooks: list[str]) -> None:
    mirror = find_mirror()
    excludes = [f"--dpkgopt=path-exclude={pattern}" for pattern in spec.DPKG_EXCLUDES]
    command = [
        "mmdebstrap", "--variant=minbase", f"--mode={'root' if os.geteuid() == 0 else 'unshare'}",
        "--dpkgopt=force-unsafe-io", '--aptopt=Apt::Install-Recommends "false"', *excludes,
        f"--include={','.join(packages)}", *hooks, spec.SUITE, str(target), *([mirror] if mirror else []),
    ]  # fmt: skip
    log = target.with_suffix(".log")
    with log.open("wb") as output:
        status = subprocess.run(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL).returncode
    if status:
        kept = target.parent.parent / "failed-build.log"
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
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if check and done.returncode:
        raise ImageError(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
