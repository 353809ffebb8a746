"""What keeps a container's network from being limited; real limits are in tests/vm/test_network.py."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
from agentcgroup.network import limit
from agentcgroup.peer import look
from agentcgroup.policy.model import Network
from agentcgroup.record import Record

RATES = Network(egress=1 << 20)


@pytest.fixture
def record() -> Record:
    """As if this process were the init of a container with the host's network."""
    found = look(os.getpid())
    assert found is not None
    return Record("c0ffee", found.pid, "/sys/fs/cgroup/c0ffee", start_time=found.start_time)


def test_the_hosts_network_is_not_limited(record: Record) -> None:
    assert limit(record, RATES) == "it uses the host's network"


def test_another_process_of_the_same_pid_is_not_the_container(record: Record) -> None:
    assert limit(replace(record, start_time=record.start_time + 1), RATES) == "it has ended"


def test_without_the_library_it_is_said_what_to_install(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    assert limit(record, RATES) == "the Python package pyroute2 is missing: install it"
