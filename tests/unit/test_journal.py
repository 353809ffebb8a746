"""Entries for journald: bytes on the wire, large entries, and no journald at all."""

import os
import socket
import struct
import time
from pathlib import Path

import pytest
from agentcgroup import journal


@pytest.fixture
def journald(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "socket"))
    listener.settimeout(5)
    monkeypatch.setattr(journal, "SOCKET", tmp_path / "socket")
    return listener


def fields(data: bytes) -> dict[bytes, bytes]:
    """What journald reads: the protocol's own rules, written down a second time."""
    found: dict[bytes, bytes] = {}
    while data:
        line, _, rest = data.partition(b"\n")
        if b"=" in line:
            name, _, found_value = line.partition(b"=")
            found[name], data = found_value, rest
        else:
            (length,) = struct.unpack("<Q", rest[:8])
            found[line], data = rest[8 : 8 + length], rest[8 + length + 1 :]
            assert rest[8 + length : 8 + length + 1] == b"\n"
    return found


def test_an_entry_has_message_priority_and_fields(journald: socket.socket) -> None:
    journal.send("call 7 of web: oom", 5, AGENTCGROUP_CALL=7, agentcgroup_result="oom", AGENTCGROUP_PEAK=None)
    assert fields(journald.recv(65536)) == {
        b"MESSAGE": b"call 7 of web: oom",
        b"PRIORITY": b"5",
        b"SYSLOG_IDENTIFIER": b"agentcgroupd",
        b"AGENTCGROUP_CALL": b"7",
        b"AGENTCGROUP_RESULT": b"oom",
    }


@pytest.mark.parametrize("value", ["two\nlines", "MESSAGE=x\nPRIORITY=0", "a=b", "", b"\x00\xff\n\n", "\udcff"])
def test_no_value_can_add_a_field(journald: socket.socket, value: str | bytes) -> None:
    journal.send("text", 6, AGENTCGROUP_COMMAND=value)
    found = fields(journald.recv(65536))
    assert set(found) == {b"MESSAGE", b"PRIORITY", b"SYSLOG_IDENTIFIER", b"AGENTCGROUP_COMMAND"}
    expected = value if isinstance(value, bytes) else value.encode("utf-8", "replace")
    assert found[b"AGENTCGROUP_COMMAND"] == expected


def test_a_field_name_that_journald_refuses_is_left_out(journald: socket.socket) -> None:
    journal.send("text", 6, **{"_PID": "1", "A B": "2", "": "3", "X" * 65: "4"})
    assert set(fields(journald.recv(65536))) == {b"MESSAGE", b"PRIORITY", b"SYSLOG_IDENTIFIER"}


def test_an_entry_too_large_for_a_datagram_goes_as_a_sealed_file(journald: socket.socket) -> None:
    text = "x" * 600_000
    journal.send(text, 4, AGENTCGROUP_CALL=1)
    data, descriptors, _, _ = socket.recv_fds(journald, 1, 1)
    assert data == b""
    with os.fdopen(descriptors[0], "rb") as file:
        file.seek(0)
        assert fields(file.read())[b"MESSAGE"] == text.encode()
        with pytest.raises(PermissionError):
            os.ftruncate(file.fileno(), 0)


def test_without_journald_the_line_goes_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(journal, "SOCKET", tmp_path / "missing")
    journal.send("first\nsecond", 3, AGENTCGROUP_CALL=1)
    assert capfd.readouterr().err == "<3>first second\n"


def test_a_full_journald_and_a_full_stderr_do_not_block(
    journald: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    with os.fdopen(writer, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        began = time.monotonic()
        for _ in range(500):  # net.unix.max_dgram_qlen is smaller
            journal.send("text", 6)
        assert time.monotonic() - began < 5
        os.close(reader)


def test_a_closed_stderr_does_not_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SOCKET", tmp_path / "missing")
    monkeypatch.setattr("sys.stderr", None)
    journal.send("text", 6)


def test_what_is_less_urgent_than_the_level_is_not_said(capfd: pytest.CaptureFixture[str]) -> None:
    journal.set_level("warning")
    try:
        journal.send("a notice", 5)
        journal.send("a warning", 4)
    finally:
        journal.set_level("info")
    assert capfd.readouterr().err.splitlines() == ["<4>a warning"]
