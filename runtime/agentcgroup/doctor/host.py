"""What several checks ask for, found once. What is broken is for one check to say; the others go on without it."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

from agentcgroup import cgroup, client, config, paths, peer, record
from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.errors import UserError
from agentcgroup.policy.load import PolicySet, load_policies


class Host:
    """This host."""

    @cached_property
    def root(self) -> bool:
        """Whether who asks may see everything."""
        return os.geteuid() == 0

    @cached_property
    def top(self) -> Path | None:
        """Where cgroup2 is mounted."""
        try:
            return cgroup.mount_point()
        except FileNotFoundError:
            return None

    @cached_property
    def config(self) -> config.Config:
        """agentcgroup.yaml; the defaults where it is broken."""
        try:
            return config.load(paths.CONFIG_FILE)
        except UserError:
            return config.Config()

    @cached_property
    def policies(self) -> PolicySet:
        """All policies, and what is wrong with the rest."""
        return load_policies(paths.POLICY_DIRS)

    @cached_property
    def libbpf(self) -> Libbpf | None:
        """None where there is none that can be used."""
        try:
            return Libbpf()
        except UserError:
            return None

    @cached_property
    def records(self) -> list[record.Record]:
        """The governed containers whose init lives. Raises PermissionError."""
        inits = [(found, peer.look(found.pid)) for found in client.records()]
        return [found for found, init in inits if init is not None and init.start_time == found.start_time]
