"""Events: nothing is lost while the ledger is rotated, following ends cleanly, hostile text comes out harmless."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentcgroup import config, events
from agentcgroup.cli import main
from agentcgroup.commandline import analyse
from agentcgroup.errors import UserError
from agentcgroup.hint import parse
from agentcgroup.outcome import Outcome, Step
from agentcgroup.records import Ledger, numbered, record_of
from agentcgroup.tail import Tail
from agentcgroup.units import parse_since
from hypothesis import given
from hypothesis import strategies as st

RUNTIME = Path(__file__).resolve().parents[2] / "runtime"
MIB = 1 << 20
NASTY = "\x1b]0;owned\x07<script>alert(1)</script>\n\udcff\u202e\x9b31m"


def outcome(number: int = 1, text: str = "pytest -x", **changes: Any) -> Outcome:
    command = analyse(["sh", "-c", text], False)
    plain = {"container": "c0ffee" * 10, "name": "web", "number": number, "policy": "ci", "status": 0}
    more = {"started": 1796060000.0, "duration_s": 2.5, "peak_bytes": 28 * MIB, "limit_bytes": 256 * MIB}
    return Outcome(**{**plain, **more, "command": command, "command_class": command.command_class, **changes})


def record(**changes: Any) -> dict[str, Any]:
    return dict(json.loads(json.dumps(record_of(outcome(**changes), "full"))))


def numbers(tail: Tail) -> list[int]:
    return [found["number"] for found in tail.records()]


# --- the ledger, followed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 3])
def test_no_record_is_lost_or_met_twice_while_files_are_rotated(tmp_path: Path, keep: int) -> None:
    ledger = Ledger(tmp_path, 8 * len(json.dumps(record())), keep)
    tail, found = Tail(tmp_path), []
    written, given_up = threading.Event(), threading.Event()

    def write() -> None:
        for number in range(1, 401):
            ledger.write(outcome(number))
            if number % 5 == 0:
                ledger.flush()
                while len(found) < number - 5 and not given_up.is_set():
                    time.sleep(0.0005)
        ledger.close()
        written.set()

    writing = threading.Thread(target=write)
    writing.start()
    end = time.monotonic() + 60
    while not written.is_set():
        found += numbers(tail)
        if time.monotonic() > end:
            given_up.set()
    writing.join()
    found += numbers(tail)
    tail.close()
    assert numbered(tmp_path / "calls.jsonl", keep).exists()
    assert found == list(range(1, 401))


def test_what_was_rotated_between_two_looks_is_read_first(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 1 << 20, 5)
    ledger.write(outcome(1))
    ledger.flush()
    tail = Tail(tmp_path)
    assert numbers(tail) == [1]
    for number in (2, 4, 6):
        ledger.write(outcome(number))
        ledger.flush()
        ledger.close()
        for place in (1, 0):
            path = numbered(tmp_path / "calls.jsonl", place)
            if path.exists():
                path.rename(numbered(tmp_path / "calls.jsonl", place + 1))
        ledger.write(outcome(number + 1))
        ledger.flush()
    ledger.close()
    assert numbers(tail) == [2, 3, 4, 5, 6, 7]
    assert numbers(tail) == []
    tail.close()


def test_half_a_line_is_left_until_it_is_whole_and_a_torn_one_is_no_record(tmp_path: Path) -> None:
    path, line = tmp_path / "calls.jsonl", json.dumps(record()).encode()
    path.write_bytes(line[:50])
    tail = Tail(tmp_path)
    assert numbers(tail) == []
    path.write_bytes(line + b"\n")
    assert numbers(tail) == [1]
    with path.open("ab") as file:
        file.write(line[:50] + b"\n" + b"\xff{]\n[1]\n" + line + b"\n")
    assert numbers(tail) == [1]
    path.write_bytes(line + b"\n")  # somebody has emptied it
    assert numbers(tail) == [1]
    tail.close()


def test_from_now_on_and_before_there_is_a_file(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "new", at_end=True)
    ledger = Ledger(tmp_path / "new", 1 << 20, 1)
    ledger.write(outcome(1))
    ledger.flush()
    later = Tail(tmp_path / "new", at_end=True)
    ledger.write(outcome(2))
    ledger.close()
    assert (numbers(tail), numbers(later)) == ([1, 2], [2])
    for one in (tail, later):
        one.close()


# --- what is told -----------------------------------------------------------------------------------------------------


def test_the_events_of_a_call_that_much_happened_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    found = events.of_record(
        record(
            number=7,
            oom_kills=1,
            held_s=1.5,
            hint=parse("memory:8g"),
            steps=(Step("hold", 0.5, "agentcgroup.slice", 960 * MIB, 1024 * MIB, 0), Step("release", 2.0)),
            feedback=("[agentcgroup] Call 7 was ended: out of memory. Next: AGENT_RESOURCE_HINT=memory:1g pytest -x",),
        )
    )
    assert [one.line() for one in found] == [
        "2026-11-30 17:33:20.000+00:00  web/7  hint: memory:8g",
        "2026-11-30 17:33:20.500+00:00  web/7  hold: held at 500 ms: agentcgroup.slice had 960 MiB of 1 GiB in use",
        "2026-11-30 17:33:22.000+00:00  web/7  release: went on at 2 s",
        "2026-11-30 17:33:22.500+00:00  web/7  slowed: 1.5 s held for others",
        "2026-11-30 17:33:22.500+00:00  web/7  call: pytest -x (class pytest), ended for memory, peak 28 MiB,"
        " limit 256 MiB (default), after 2.5 s",
        "2026-11-30 17:33:22.500+00:00  web/7  feedback: Call 7 was ended: out of memory.",
    ]


@pytest.mark.parametrize("kept", ["off", "hash"])
def test_what_is_kept_of_feedback_names_no_command_where_the_policy_keeps_none(kept: Any) -> None:
    lines = ("[agentcgroup] Call 1 was ended.", "[agentcgroup] At the same time: call 2 secret. Next: run secret")
    assert record_of(outcome(feedback=lines), "first")["feedback"] == [
        "Call 1 was ended.",
        "At the same time: call 2 secret.",
    ]
    assert record_of(outcome(feedback=lines), kept)["feedback"] == ["Call 1 was ended."]


ENTRY = {
    "__REALTIME_TIMESTAMP": "1796060000500000",
    "MESSAGE": "box: process 7 (evil) has left",
    "AGENTCGROUP_CONTAINER": "c0ffee",
    "AGENTCGROUP_NAME": "box",
    "AGENTCGROUP_EVENT": "escape",
}


def test_entries_of_the_journal() -> None:
    whole = events.Event(1796060000.5, "escape", "c0ffee", "box", None, "box: process 7 (evil) has left")
    assert events.of_entry(ENTRY) == whole
    as_bytes = events.of_entry({**ENTRY, "MESSAGE": list(b"evil\x1b[2J" + b"\xff")})
    assert as_bytes is not None and as_bytes.text == "evil?[2J\ufffd"
    for other in ({"AGENTCGROUP_CONTAINER": None}, {"AGENTCGROUP_CALL": "7"}, {"AGENTCGROUP_RESULT": "governed"}):
        assert events.of_entry({**ENTRY, **other}) is None


def test_a_containers_events_are_picked_by_id_and_by_a_name_learned_on_the_way() -> None:
    def event(container: str, name: str) -> events.Event:
        return events.Event(0.0, "note", container, name, None, "x")

    some = [event("c0ffee1", "web"), event("c0ffee1", ""), event("beef2222", ""), event("beef2222", "db")]
    assert [e.name for e in events.Filter("web", {}).pick(iter(some))] == ["web", "web"]
    assert [e.name for e in events.Filter("beef", {}).pick(iter(some))] == ["", "db"]
    assert [e.name for e in events.Filter("db", {"beef2222": "db"}).pick(iter(some))] == ["db", "db"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(NASTY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(record())), json_values))
def test_no_damaged_record_raises_or_shows_control_characters(damaged: dict[str, Any]) -> None:
    assert all(one.line().isprintable() for one in events.of_record(record() | damaged))


@given(st.dictionaries(st.sampled_from(sorted([*ENTRY, "AGENTCGROUP_CALL", "AGENTCGROUP_RESULT"])), json_values))
def test_no_damaged_entry_raises_or_shows_control_characters(damaged: dict[str, Any]) -> None:
    found = events.of_entry({**ENTRY, **damaged})
    assert found is None or found.line().isprintable()


def test_since_is_a_span_or_a_date() -> None:
    assert parse_since("2h", 10000.0) == 2800.0
    assert parse_since("1970-01-01T01:00+00:00", 0.0) == 3600.0
    with pytest.raises(UserError, match='^"yesterdya" is no time: write 30min, 2h or "2026-11-30 17:30"$'):
        parse_since("yesterdya", 0.0)


# --- the command, as a process ----------------------------------------------------------------------------------------

MAIN = """import sys
from dataclasses import replace
from pathlib import Path
from agentcgroup import cli, config
loaded, folder = config.load(), Path(sys.argv.pop(1))
config.load = lambda: replace(loaded, records=replace(loaded.records, dir=folder))
sys.exit(cli.main())"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = Ledger(tmp_path / "log", 8000, 5)
    ledger.write(outcome(1, "true"))
    ledger.flush()
    yield ledger
    ledger.close()


def start(tmp_path: Path, *options: str) -> subprocess.Popen[str]:
    """`agentcgroup events` where there is no journalctl: the journal of this host is not ours to test with."""
    argv = [sys.executable, "-c", MAIN, str(tmp_path / "log"), "events", *options]
    env = {"PATH": str(tmp_path), "PYTHONPATH": str(RUNTIME), "LC_ALL": "C.UTF-8"}
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_what_was_is_listed_once(tmp_path: Path, ledger: Ledger) -> None:
    ledger.write(outcome(2, "true", started=time.time() - 60))
    ledger.flush()
    out, err = start(tmp_path, "--json").communicate(timeout=60)
    assert [(e["kind"], e["call"], e["name"]) for e in map(json.loads, out.splitlines())] == [
        ("call", 1, "web"),
        ("call", 2, "web"),
    ]
    assert err == "agentcgroup: there is no journalctl: only calls are shown\n"
    out, _ = start(tmp_path, "--since=10min", "c0ffee").communicate(timeout=60)
    assert out.count("\n") == 1 and "  web/2  call: true, ended normally, " in out
    assert start(tmp_path, "nobody").communicate(timeout=60)[0] == ""


def test_following_goes_over_rotations_and_ends_cleanly_on_sigint(tmp_path: Path, ledger: Ledger) -> None:
    following = start(tmp_path, "--follow", "--json", "--since=2026-11-01")
    assert following.stdout is not None and following.stderr is not None
    assert json.loads(following.stdout.readline())["call"] == 1
    for number in range(2, 41):
        ledger.write(outcome(number))
        if number % 10 == 0:
            ledger.flush()
            time.sleep(0.1)
    assert [json.loads(following.stdout.readline())["call"] for _ in range(39)] == list(range(2, 41))
    assert (tmp_path / "log/calls.jsonl.3").exists()
    following.send_signal(signal.SIGINT)
    out, err = following.communicate(timeout=60)
    assert (following.returncode, out) == (0, "")
    assert "Traceback" not in err


def test_following_ends_when_nobody_reads_though_nothing_happens(tmp_path: Path, ledger: Ledger) -> None:
    following = start(tmp_path, "--follow", "--since=2026-11-01")
    assert following.stdout is not None and following.stderr is not None
    assert "  web/1  call: true" in following.stdout.readline()
    following.stdout.close()
    assert following.wait(60) == 0
    assert "Traceback" not in following.stderr.read()
    following.stderr.close()


def test_a_ledger_that_may_not_be_read_is_said(
    tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if os.geteuid():
        pytest.skip("only root can become somebody else")
    loaded = config.load()
    monkeypatch.setattr(config, "load", lambda: replace(loaded, records=replace(loaded.records, dir=tmp_path / "log")))
    tmp_path.chmod(0o755)
    os.seteuid(65534)
    try:
        assert main(["events"]) == 1
    finally:
        os.seteuid(0)
    assert "Permission denied: run this as root\n" in capsys.readouterr().err
