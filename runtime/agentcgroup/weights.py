"""cpu.weight and io.weight of a container. Weights count between cgroups of one parent (cgroup-v2.rst, "Weights"), so
they belong to the cgroup that has other containers beside it: the container's scope, which systemd writes, or BASE.
"""

from __future__ import annotations

import subprocess
from contextlib import suppress

from agentcgroup.cgroup import Cgroup
from agentcgroup.policy.model import Policy

DEFAULT = 100  # cgroup-v2.rst
#: Properties of systemd.resource-control(5).
_PROPERTIES = {"cpu.weight": "CPUWeight", "io.weight": "IOWeight"}


class Weights:
    """Those of one container. One that the engine has set (`podman run --cpu-shares`) stays."""

    def __init__(self, base: Cgroup, container_id: str) -> None:
        self._unit = next((name for name in reversed(base.path.split("/")[-2:]) if _is_scope(name, container_id)), "")
        end = base.path.rindex(self._unit) + len(self._unit) if self._unit else len(base.path)
        self._group = Cgroup(base.path[:end])
        self._ours: dict[str, int] = {}

    def due(self, policy: Policy) -> bool:
        """Whether there is anything to be set, or to be taken back."""
        return bool(self._ours or _wanted(policy))

    def set(self, policy: Policy) -> list[str]:
        """As the policy says. It may wait for systemd. Returns what could not be set, in words."""
        missed = []
        wanted = _wanted(policy)
        for name in _PROPERTIES:
            value, found = wanted.get(name, DEFAULT), self._found(name)
            free = found is not None and found == self._ours.pop(name, DEFAULT)
            if found == value or (free and self._write(name, value)):
                self._ours |= {name: value} if name in wanted else {}
            elif name in wanted:
                missed.append(f"{name}={value}")
        return missed

    def _found(self, name: str) -> int | None:
        """None where its controller is not there; systemd enables it for a weight."""
        with suppress(OSError, ValueError, IndexError):
            return int(self._group.read(name).split()[-1])
        return DEFAULT if self._unit and self._group.exists() else None

    def _write(self, name: str, value: int) -> bool:
        """Past systemd the next `systemctl set-property` of the scope would undo it; a user's own is not asked."""
        if not self._unit or "/user@" in self._group.path:
            return self._group.try_write(name, value)
        change = f"{_PROPERTIES[name]}={value if value != DEFAULT else ''}"
        argv = ["systemctl", "set-property", "--runtime", self._unit, change]
        return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def _is_scope(name: str, container_id: str) -> bool:
    return name.endswith(".scope") and container_id in name


def _wanted(policy: Policy) -> dict[str, int]:
    weights = {"cpu.weight": policy.cpu.weight, "io.weight": policy.io.weight}
    return {name: value for name, value in weights.items() if value is not None and policy.mode == "enforce"}
