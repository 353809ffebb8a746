"""What judging and easing a shortage needs: stall figures, swap, and something that acts on io.weight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentcgroup.cgroup import Cgroup
from agentcgroup.doctor import kernel
from agentcgroup.doctor.finding import Finding, note, warning
from agentcgroup.doctor.host import Host

PRESSURE = Path("/proc/pressure/memory")
BLOCK = Path("/sys/block")
SWAPS = Path("/proc/swaps")


def stalls(_host: Host, path: Path = PRESSURE) -> Iterator[Finding]:
    """Whether the kernel measures stalls (accounting/psi.rst)."""
    try:
        path.read_text()
    except OSError:  # absent, or EOPNOTSUPP with psi=0
        built = kernel.built_without("PSI")
        yield warning(
            f"{path} cannot be read: the kernel does not measure stalls (PSI)",
            "stall_deadline does not act, and a call that is slowed for memory is not told so",
            "boot a kernel with CONFIG_PSI=y" if built else "put psi=1 on the kernel's command line and boot",
        )


def swap(_host: Host, path: Path = SWAPS) -> Iterator[Finding]:
    """Whether there is any."""
    if len(path.read_text().splitlines()) < 2:  # the first names the columns
        yield note(
            "there is no swap",
            "a call over its soft limit waits where it could be swapped, until stall_deadline ends it",
            "fallocate -l 4G /swapfile && chmod 600 /swapfile && mkswap /swapfile && swapon /swapfile",
        )


def io_weight(host: Host) -> Iterator[Finding]:
    """Whether anything acts on it, where a policy sets it: a cost model, or bfq (cgroup-v2.rst, io.weight)."""
    policies = [policy for policy in host.policies.policies.values() if policy.mode == "enforce"]
    asking = [policy.name for policy in policies if policy.io.weight is not None]
    if not asking or host.top is None or _acts(host.top):
        return
    disks = [path for path in sorted(BLOCK.iterdir()) if (path / "device").exists()]
    number = (disks[0] / "dev").read_text().strip() if disks else "MAJOR:MINOR"
    yield warning(
        f"io.weight of policy {', '.join(asking)} does nothing: no disk has io.cost or bfq",
        "disks are shared without regard to it",
        f'echo "{number} enable=1" >{host.top}/io.cost.qos  # until the next boot',
    )


def _acts(top: Path) -> bool:
    costs = any(" enable=1 " in f"{line} " for line in Cgroup(top).lines("io.cost.qos"))
    return costs or any("[bfq]" in path.read_text() for path in BLOCK.glob("*/queue/scheduler"))
