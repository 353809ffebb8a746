"""Metrics of the real daemon: over both kinds of sockets, and equal to what was recorded."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import service
from conftest import Journal
from podman import Container, Engine, run, wait_for
from prometheus_client.parser import text_string_to_metric_families

CONFIG = Path("/etc/agentcgroup/agentcgroup.yaml")
SOCKET = Path("/run/agentcgroup/metrics.sock")
PORT = "127.0.0.1:9753"


def configure(line: str) -> None:
    """Have the daemon read its configuration with this line, and know that it has."""
    CONFIG.write_text(f"ack_ms: 2000\n{line}\n")
    run("systemctl", "reload", service.SERVICE)


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Iterator[Container]:
    before = CONFIG.read_text()
    configure(f"metrics: unix:{SOCKET}")
    yield file_engine.start("--name=measured", policy="coding-agent")
    CONFIG.write_text(before)
    run("systemctl", "reload", service.SERVICE)


def figures(text: str) -> dict[str, float]:
    return {
        " ".join([sample.name, *(sample.labels[key] for key in sorted(sample.labels))]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_figures_are_those_of_the_records(box: Container) -> None:
    for command in ("true", "exit 3", "kill -9 $$"):
        box.call(command)
    box.call("head -c 100M /dev/zero | tail -c 90M | wc -c", env={"AGENT_RESOURCE_HINT": "memory:64m"})
    records = box.settled(4)
    assert [record["result"] for record in records[:3]] == ["ok", "exit 3", "SIGKILL"]
    found = figures(run("agentcgroup", "metrics").stdout)
    for result in ("ok", "failed", "signal", "oom"):
        assert found[f"agentcgroup_calls_total coding-agent {result}"] == 1, result
    assert found["agentcgroup_call_peak_memory_bytes_count"] == 4
    assert found["agentcgroup_call_peak_memory_bytes_sum"] == sum(record["peak_bytes"] for record in records)
    assert found["agentcgroup_call_cpu_seconds_total"] == pytest.approx(sum(record["cpu_s"] for record in records))
    assert found["agentcgroup_oom_kills_total"] == sum(record["oom_kills"] for record in records) >= 1
    assert found["agentcgroup_call_setup_seconds_count"] >= 4
    assert 0 < found["agentcgroup_hook_duration_seconds_sum"] < 30
    row = next(row for row in service.ask(op="ps")["containers"] if row["id"] == box.id)
    assert found[f"agentcgroup_container_memory_limit_bytes {box.id[:12]} measured"] == row["memory_max"]
    assert (found["agentcgroup_containers normal"], found["agentcgroup_running_calls normal"]) == (1, 0)
    assert found["agentcgroup_bpf_attached"] == 1
    assert found["process_resident_memory_bytes"] < 80 << 20


def test_the_socket_is_roots_and_its_groups(box: Container) -> None:
    assert SOCKET.stat().st_mode & 0o007 == 0 and SOCKET.stat().st_uid == 0
    denied = run("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "agentcgroup", "metrics", check=False)
    assert denied.returncode == 1 and "Permission denied" in denied.stderr


def test_a_scraper_that_does_not_read_holds_up_no_call(box: Container) -> None:
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(str(SOCKET))
        assert box.call("exit 7").rc == 7
        assert box.settled(5)[-1]["exit"] == 7


def test_they_move_and_end_with_the_configuration(box: Container, journal: Journal) -> None:
    configure(f"metrics: {PORT}")
    assert not SOCKET.exists()
    with urllib.request.urlopen(f"http://{PORT}/metrics", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert figures(answer.read().decode())["agentcgroup_containers normal"] == 1
    configure("metrics: 0.0.0.0:9753")  # refused: the old ones stay
    wait_for(lambda: "neither a socket nor a loopback port" in journal.text(), 10, "the reason")
    assert "agentcgroup_build_info" in urllib.request.urlopen(f"http://{PORT}/", timeout=30).read().decode()
    configure("")
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://{PORT}/metrics", timeout=30)
    refused = run("agentcgroup", "metrics", check=False)
    assert (refused.returncode, refused.stdout) == (1, "") and "metrics are off: write metrics: unix:" in refused.stderr
