"""sd_notify and sd_listen_fds as a service sees them."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from agentcgroup import systemd


@pytest.mark.parametrize("abstract", [False, True])
def test_a_notification_reaches_the_service_manager(
    abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"@{tmp_path}/notify" if abstract else f"{tmp_path}/notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        assert systemd.notify("READY=1", "STATUS=two\ncontainers")
        assert manager.recv(4096) == b"READY=1\nSTATUS=two containers"


@pytest.mark.parametrize("address", ["", "relative", "/nonexistent/socket"])
def test_without_a_service_manager_nothing_is_raised(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not systemd.notify("READY=1")


def test_the_watchdog_interval_is_ours_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    for text, expected in (("30000000", 30.0), ("0", None), ("", None), ("x", None)):
        monkeypatch.setenv("WATCHDOG_USEC", text)
        assert systemd.watchdog_interval() == expected
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert systemd.watchdog_interval() == 30.0
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert systemd.watchdog_interval() is None


CHILD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv[2], LISTEN_FDNAMES=sys.argv[3])
from agentcgroup import systemd
print([(name, fd) for name, fd in systemd.listen_fds()], os.get_inheritable(3), "LISTEN_FDS" in os.environ)
"""


@pytest.mark.parametrize(
    ("count", "names", "expected"),
    [("1", "hook", "[('hook', 3)]"), ("1", "", "[('unknown', 3)]"), ("x", "", "[]"), ("0", "", "[]")],
)
def test_passed_sockets_are_named_and_not_inherited(count: str, names: str, expected: str) -> None:
    with socket.socket() as passed:
        argv = [sys.executable, "-c", CHILD, str(passed.fileno()), count, names]
        environment = os.environ | {"PYTHONPATH": str(Path(systemd.__file__).parents[1])}
        out = subprocess.run(
            argv, capture_output=True, text=True, check=True, pass_fds=[passed.fileno()], env=environment
        ).stdout
    assert out == f"{expected} {expected == '[]'} False\n"


def test_sockets_passed_to_another_process_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", "1")
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert systemd.listen_sockets() == []
