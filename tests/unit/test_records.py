"""The ledger on disk: what is kept of a command, rotation, damage, a full disk, and reading it back."""

import grp
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from agentcgroup import journal, records
from agentcgroup.commandline import analyse
from agentcgroup.outcome import Neighbour, Outcome
from agentcgroup.records import Ledger, read
from hypothesis import given, settings
from hypothesis import strategies as st


def outcome(number: int = 1, text: str = "pytest -x --token=secret", **changes: Any) -> Outcome:
    command = analyse(["sh", "-c", "--", text], False)
    plain = {"container": "c0ffee" * 10, "name": "web", "number": number, "policy": "coding-agent", "status": 0}
    return Outcome(**{**plain, "command": command, "command_class": command.command_class, **changes})


def numbers(directory: Path, **wanted: Any) -> list[int]:
    return [record["number"] for record in read(directory, **wanted)]


def fill(directory: Path, count: int, max_size: int = 1 << 20, keep: int = 3) -> Ledger:
    ledger = Ledger(directory, max_size, keep)
    for number in range(1, count + 1):
        ledger.write(outcome(number))
    assert ledger.flush()
    return ledger


def test_records_come_back_newest_first(tmp_path: Path) -> None:
    fill(tmp_path, 5).close()
    assert numbers(tmp_path) == [5, 4, 3, 2, 1]
    assert numbers(tmp_path, limit=2) == [5, 4]
    assert numbers(tmp_path, call=3) == [3]


@pytest.mark.parametrize("group, modes", [(None, (0o700, 0o600)), ("nogroup", (0o750, 0o640))])
def test_only_root_may_look_and_the_group_of_readers_where_there_is_one(
    group: str | None, modes: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "READERS", group or "no-such-group")
    directory = tmp_path / "new" / "log"
    old = os.umask(0)
    try:
        fill(directory, 1).close()
    finally:
        os.umask(old)
    files = (directory.stat(), (directory / "calls.jsonl").stat())
    assert tuple(stat.S_IMODE(file.st_mode) for file in files) == modes
    assert {file.st_gid for file in files} == {grp.getgrnam(group).gr_gid if group else os.getgid()}


def test_a_link_in_the_place_of_the_file_is_not_followed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SOCKET", tmp_path / "missing")
    target = tmp_path / "target"
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "calls.jsonl").symlink_to(target)
    fill(tmp_path / "log", 3).close()
    assert not target.exists()
    assert capfd.readouterr().err.count("calls are not recorded") == 1


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        ("off", (None, None, None)),
        ("hash", ("cfefb1411ff1f869", None, None)),
        ("first", ("pytest", "pytest", "pytest")),
        ("full", ("pytest -x --token=secret", "pytest", "pytest")),
    ],
)
def test_as_much_of_a_command_is_kept_as_the_policy_says(tmp_path: Path, kept: Any, expected: tuple[Any, ...]) -> None:
    ledger = Ledger(tmp_path, 1 << 20, 1)
    ledger.write(outcome(others=(Neighbour(2, "npm", 5),)), kept)
    ledger.close()
    (record,) = read(tmp_path)
    assert (record["command"], record["first_word"], record["command_class"]) == expected
    assert record["others"][0]["first_word"] == (None if kept in ("off", "hash") else "npm")
    if kept != "full":
        assert "secret" not in (tmp_path / "calls.jsonl").read_text()


def test_a_long_command_is_cut_at_4_kib_between_characters(tmp_path: Path) -> None:
    assert len(records.record_of(outcome(text="x" * 9000), "full")["command"]) == 4096
    cut = records.record_of(outcome(text="\u20ac" * 3000), "full")["command"]
    assert cut == "\u20ac" * 1365


@settings(max_examples=300)
@given(
    st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")), st.sampled_from(["hash", "full"])
)
def test_any_command_text_makes_one_valid_line(text: str, kept: Any) -> None:
    line = json.dumps(records.record_of(outcome(text=text), kept))
    assert "\n" not in line
    back = json.loads(line)["command"]
    back.encode()  # no lone surrogate
    valid = text.encode("utf-8", "ignore").decode()
    if kept == "full" and valid == text and len(text.encode()) <= 4096:
        assert back == text


def test_numbers_that_json_does_not_have_are_null() -> None:
    record = records.record_of(outcome(duration_s=float("inf"), cpu_s=float("nan")))
    assert json.loads(json.dumps(record, allow_nan=False))["duration_s"] is None


def test_rotation_loses_nothing_and_keeps_n(tmp_path: Path) -> None:
    size = len(json.dumps(records.record_of(outcome(10)), separators=(",", ":"))) + 1
    ledger = fill(tmp_path, 35, max_size=10 * size, keep=3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls.jsonl", *(f"calls.jsonl.{n}" for n in (1, 2, 3))]
    assert numbers(tmp_path) == list(range(35, 0, -1))
    for number in range(36, 47):
        ledger.write(outcome(number))
    ledger.close()
    found = numbers(tmp_path)
    assert found == list(range(46, found[-1] - 1, -1)) and 30 < len(found) <= 41
    assert all(path.stat().st_size <= 10 * size for path in tmp_path.iterdir())


def test_fewer_kept_files_than_before_removes_the_rest(tmp_path: Path) -> None:
    fill(tmp_path, 40, max_size=2000, keep=5).close()
    fill(tmp_path, 10, max_size=2000, keep=1).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["calls.jsonl", "calls.jsonl.1"]
    fill(tmp_path, 10, max_size=2000, keep=0).close()
    assert [path.name for path in tmp_path.iterdir()] == ["calls.jsonl"]


def test_a_crash_amid_a_rotation_hides_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 3).close()
    (tmp_path / "calls.jsonl").rename(tmp_path / "calls.jsonl.2")
    assert numbers(tmp_path) == [3, 2, 1]
    fill(tmp_path, 1).close()
    assert numbers(tmp_path) == [1, 3, 2, 1]


@pytest.mark.parametrize("torn", [b'{"number": 99, "conta', b"{", b'"text"\n', b"\xff\xfe\x00\n", b"\n\n", b"[" * 9000])
def test_a_torn_line_is_closed_off_and_left_out(tmp_path: Path, torn: bytes) -> None:
    fill(tmp_path, 2).close()
    with open(tmp_path / "calls.jsonl", "ab") as file:
        file.write(torn)
    assert numbers(tmp_path) == [2, 1]
    fill(tmp_path, 3).close()
    assert numbers(tmp_path) == [3, 2, 1, 2, 1]


def test_a_file_moved_by_logrotate_is_not_written_on(tmp_path: Path) -> None:
    ledger = fill(tmp_path, 2)
    (tmp_path / "calls.jsonl").rename(tmp_path / "elsewhere")
    ledger.write(outcome(3))
    ledger.flush()
    (tmp_path / "calls.jsonl").unlink()
    ledger.write(outcome(4))
    ledger.close()
    assert numbers(tmp_path) == [4]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from agentcgroup import journal
from agentcgroup.records import Ledger
from test_records import outcome
journal.SOCKET = Path("/nonexistent")
ledger = Ledger(Path(sys.argv[1]), 1 << 20, 1)
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limits[1]))
for number in range(1, 21):
    ledger.write(outcome(number))
ledger.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
ledger.write(outcome(21))
ledger.write(outcome(22))
ledger.close()
"""


def test_a_full_disk_is_said_once_and_raises_nothing(tmp_path: Path) -> None:
    sources = [str(Path(records.__file__).parents[1]), str(Path(__file__).parent)]
    argv = [sys.executable, "-c", FULL_DISK, str(tmp_path), *sources]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    found = numbers(tmp_path)
    assert found[:2] == [22, 21]
    assert found[2:] == list(range(len(found) - 2, 0, -1)) and 0 < len(found) < 20
    lost = 22 - len(found)
    first, second = done.stderr.splitlines()
    assert first.startswith(f"<3>{tmp_path}/calls.jsonl: calls are not recorded: ")
    assert second == f"<4>{tmp_path}/calls.jsonl: calls are recorded again, {lost} were not"


def test_a_disk_that_stalls_does_not_stall_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    real = records._Appender.append

    def stalled(self: Any, line: bytes) -> None:
        go_on.wait(30)
        real(self, line)

    monkeypatch.setattr(records._Appender, "append", stalled)
    monkeypatch.setattr(records, "QUEUED", 8)
    ledger = Ledger(tmp_path, 1 << 20, 1)
    for number in range(1, 51):
        ledger.write(outcome(number))
    assert not ledger.flush(0.05)
    go_on.set()
    ledger.close()
    assert 8 <= len(numbers(tmp_path)) <= 10


@pytest.mark.parametrize(
    ("asked", "found"),
    [("c0ffee" * 10, 1), ("c0ff", 1), ("c0f", 0), ("web", 1), ("we", 0), ("other", 0), ("", 0), (None, 1)],
)
def test_a_container_is_found_by_id_beginning_or_name(tmp_path: Path, asked: str | None, found: int) -> None:
    fill(tmp_path, 1).close()
    assert len(list(read(tmp_path, container=asked))) == found


def test_reading_where_nothing_was_written(tmp_path: Path) -> None:
    assert list(read(tmp_path / "missing")) == []


def test_reading_goes_on_over_a_rotation(tmp_path: Path) -> None:
    fill(tmp_path, 30, max_size=4000, keep=20).close()
    reader = read(tmp_path)
    first = [next(reader)["number"] for _ in range(3)]
    fill(tmp_path, 8, max_size=4000, keep=20).close()
    assert first + [record["number"] for record in reader] == list(range(30, 0, -1))


def test_lines_over_block_boundaries_are_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 1 << 24, 1)
    for number in range(1, 101):
        ledger.write(outcome(number, text="y" * (number * 37 % 4000)), "full")
    ledger.close()
    assert numbers(tmp_path) == list(range(100, 0, -1))
