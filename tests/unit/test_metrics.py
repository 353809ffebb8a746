"""Metrics: what is counted, where it is served, and that documents and dashboard speak of nothing else."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from agentcgroup.commandline import analyse
from agentcgroup.config import MetricsAddress
from agentcgroup.errors import UserError
from agentcgroup.loop import Loop
from agentcgroup.metrics.counts import Counts, Histogram
from agentcgroup.metrics.exporter import Exporter
from agentcgroup.metrics.server import SCRAPES, Server
from agentcgroup.outcome import Outcome, Step
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]


def outcome(**changed: object) -> Outcome:
    return Outcome("c" * 64, 1, "coding-agent", analyse(["bash", "-c", "make"], False), **changed)  # type: ignore[arg-type]


def exporter(counts: Counts) -> Exporter:
    idle = SimpleNamespace(containers={}, kernel=None, budgets=None, scheduling=None, ledger=SimpleNamespace(lost=3))
    return Exporter(idle, counts)  # type: ignore[arg-type]


def samples(text: bytes) -> dict[str, float]:
    return {
        f"{s.name}{dict(sorted(s.labels.items())) or ''}": s.value
        for family in text_string_to_metric_families(text.decode())
        for s in family.samples
    }


def test_a_histogram_counts_a_value_at_its_bound_below_it() -> None:
    found = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        found.add(value)
    assert (found.counts, found.total) == ([2, 1, 1], 12.0)


def test_results_are_of_a_closed_set() -> None:
    counts = Counts()
    for found in (
        outcome(status=0), outcome(status=2 << 8), outcome(status=77 << 8), outcome(status=9), outcome(status=70),
        outcome(ended="stall"), outcome(oom_kills=1), outcome(),
    ):  # fmt: skip
        counts.finished(found)
    words = {word: count for (_, word), count in counts.calls.items()}
    assert words == {"ok": 1, "failed": 2, "signal": 2, "stall": 1, "oom": 1, "unknown": 1}


def test_what_is_served_is_what_was_counted() -> None:
    counts = Counts()
    steps = (Step("hold", 1.0), Step("release", 2.0))
    counts.finished(outcome(status=0, duration_s=0.3, peak_bytes=20 << 20, held_s=1.5, steps=steps))
    counts.finished(outcome(status=1 << 8, duration_s=30.0, peak_bytes=5, throttled_s=0.25, orphans=2))
    found = samples(exporter(counts).text())
    assert found["agentcgroup_calls_total{'policy': 'coding-agent', 'result': 'ok'}"] == 1
    assert found["agentcgroup_call_duration_seconds_bucket{'le': '0.5'}"] == 1
    assert found["agentcgroup_call_duration_seconds_bucket{'le': '+Inf'}"] == 2
    assert found["agentcgroup_call_duration_seconds_sum"] == 30.3
    assert found["agentcgroup_ladder_steps_total{'step': 'hold'}"] == 1
    assert found["agentcgroup_ladder_steps_total{'step': 'end'}"] == 0
    assert (found["agentcgroup_held_seconds_total"], found["agentcgroup_throttled_seconds_total"]) == (1.5, 0.25)
    assert (found["agentcgroup_orphans_total"], found["agentcgroup_records_lost_total"]) == (2, 3)
    assert found["process_resident_memory_bytes"] > 1 << 20


def families() -> set[str]:
    text = exporter(Counts()).text().decode()
    return {name for name in re.findall(r"^# HELP (\S+)", text, re.MULTILINE) if name.startswith("agentcgroup_")}


def test_the_document_lists_every_metric_and_no_other() -> None:
    documented = re.findall(r"^\| `(agentcgroup_\w+)`", (ROOT / "docs/metrics.md").read_text(), re.MULTILINE)
    assert sorted(documented) == sorted(families())


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    board = json.loads((ROOT / "packaging/grafana/agentcgroup.json").read_text())
    asked = {
        re.sub(r"_bucket$", "", name)
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"agentcgroup_\w+", target["expr"])
    }
    assert asked and asked <= families()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert {panel["datasource"]["uid"] for panel in board["panels"]} == {"${datasource}"}


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop(lambda error: pytest.fail(str(error)))
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.post(loop.stop)
    thread.join(5)


def get(path: Path, request: bytes = b"GET /metrics HTTP/1.0\r\n\r\n") -> bytes:
    """The answer, empty where one is hung up on."""
    with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(ConnectionError):
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(4096), b""))
    return b""


def scrapes() -> int:
    return sum(thread.name == "metrics" for thread in threading.enumerate())


def test_who_does_not_read_holds_up_nobody_and_too_many_are_hung_up_on(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "m.sock"
    server = Server(loop, MetricsAddress(path=path), lambda: b"x" * (4 << 20))
    assert stat.S_IMODE(path.stat().st_mode) & 0o007 == 0
    stuck = [socket.socket(socket.AF_UNIX) for _ in range(SCRAPES - 1)]
    for connection in stuck:
        connection.connect(str(path))
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
    assert get(path).endswith(b"x" * (4 << 20))
    assert b"404" in get(path, b"GET /etc/passwd HTTP/1.0\r\n\r\n").splitlines()[0]
    while scrapes() > len(stuck):
        time.sleep(0.01)
    last = socket.socket(socket.AF_UNIX)
    last.connect(str(path))
    while scrapes() < SCRAPES:
        time.sleep(0.01)
    assert get(path) == b""
    for connection in (*stuck, last):
        connection.close()
    server.close()
    assert not path.exists()


def test_a_file_that_is_no_socket_is_left_alone(loop: Loop, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    with pytest.raises(UserError, match="is no socket: name another path"):
        Server(loop, MetricsAddress(path=path), bytes)
    assert path.read_text() == "mine"
