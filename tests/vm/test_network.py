"""Rates of a policy hold on the host's end of a container's veth pair, for real transfers, and on nobody else's. The
tests share a container and go on from each other.
"""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import service
from conftest import Journal
from podman import POLICIES, Container, Engine, run, set_policy, wait_for

KIB = 1 << 10
SECONDS = 2.5
BRIDGE = "--network=podman"
#: Sends or receives at full speed for a while.
CLIENT = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as stream:
    end = time.monotonic() + float(sys.argv[4])
    while time.monotonic() < end:
        stream.send(bytes(65536)) if sys.argv[3] == "send" else stream.recv(65536)
"""


@pytest.fixture(scope="module")
def free(file_engine: Engine) -> Container:
    """A container that has not asked for anything."""
    return file_engine.start(BRIDGE, policy=None)


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Iterator[Container]:
    set_policy("rated", "network: {egress: 1M, ingress: 2M}\n")
    container = file_engine.start(BRIDGE, policy="rated")
    wait_for(lambda: policed(container), 10, "the limits")
    yield container


def host_end(container: Container) -> str:
    """The interface on the host that a container's own is linked to."""
    [own] = json.loads(run("nsenter", f"--net=/proc/{container.pid}/ns/net", "ip", "-j", "link", "show", "eth0").stdout)
    [link] = [link for link in json.loads(run("ip", "-j", "link").stdout) if link["ifindex"] == own["link_index"]]
    return str(link["ifname"])


def queues(container: Container) -> dict[str, dict[str, Any]]:
    """The queues of its host's end by kind, with their figures; of no kind there are two."""
    found = json.loads(run("tc", "-j", "-s", "qdisc", "show", "dev", host_end(container)).stdout)
    assert len({queue["kind"] for queue in found}) == len(found)
    return {queue["kind"]: queue for queue in found}


def policed(container: Container) -> list[str]:
    """The lines of its filter that say what it does."""
    text = run("tc", "-s", "filter", "show", "dev", host_end(container), "ingress").stdout
    return [line.strip() for line in text.splitlines() if " police " in line or "overlimits" in line]


def rate(container: Container, direction: str) -> float:
    """Bytes a second of a transfer between the container and the bridge's address on the host, as the host sees it."""
    with socket.create_server(("10.88.0.1", 0)) as server:
        argv = ["python3", "-c", CLIENT, "10.88.0.1", str(server.getsockname()[1]), direction, str(SECONDS)]
        done = container.background_spawn(argv)
        server.settimeout(120)
        stream, _ = server.accept()
        with stream:
            began, count = time.monotonic(), 0
            with contextlib.suppress(ConnectionError):
                while piece := stream.send(bytes(65536)) if direction == "recv" else len(stream.recv(65536)):
                    count += piece
            took = time.monotonic() - began
        assert done.result().rc == 0, done.result()
    return count / took


def why(container: Container) -> str:
    return next(row["network"] for row in service.ask(op="ps")["containers"] if row["id"] == container.id)


def test_what_it_sends_and_receives_is_limited_and_others_are_not(box: Container, free: Container) -> None:
    for direction, most in (("send", 1024 * KIB), ("recv", 2048 * KIB)):
        limited, unlimited = rate(box, direction), rate(free, direction)
        assert most / 4 < limited < most * 1.5, f"{direction}: {limited:.0f} bytes/s"
        assert unlimited > limited * 4
    assert queues(box)["tbf"]["options"]["rate"] == 2048 * KIB
    assert queues(box)["tbf"]["overlimits"] > 0
    action, figures = policed(box)
    assert "rate 8388Kbit" in action and "action drop" in action
    assert "overlimits 0 " not in figures
    assert set(queues(free)) == {"noqueue"} and not policed(free)
    assert why(box) == ""


def test_a_killed_daemon_leaves_them_and_the_next_one_adds_none(box: Container) -> None:
    sent, daemon = queues(box)["tbf"]["bytes"], service.pid()
    run("systemctl", "kill", "--signal=KILL", service.SERVICE)
    assert set(queues(box)) == {"tbf", "ingress"}
    wait_for(lambda: service.pid() not in (0, daemon) and service.governs(box.id), 20, "the next daemon")
    set_policy("rated", "network: {egress: 1M, ingress: 3M}\n")
    wait_for(lambda: queues(box)["tbf"]["options"]["rate"] == 3072 * KIB, 10, "the new rate")
    assert queues(box)["tbf"]["bytes"] >= sent  # it is the same queue
    assert (len(policed(box)), why(box)) == (2, "")


def test_limits_go_with_a_reload_or_a_restart(box: Container) -> None:
    set_policy("rated", "network: {egress: 512K}\n")
    wait_for(lambda: set(queues(box)) == {"noqueue", "ingress"}, 10, "no limit of what it receives")
    wait_for(lambda: policed(box) and "rate 4194Kbit" in policed(box)[0], 10, "the new rate")
    (POLICIES / "rated.yaml").write_text("network: {ingress: 2M}\nmode: observe\n")
    run("systemctl", "restart", service.SERVICE)
    wait_for(lambda: set(queues(box)) == {"noqueue"}, 10, "no limits")
    set_policy("rated", "network: {egress: 1M, ingress: 2M}\n")
    wait_for(lambda: set(queues(box)) == {"tbf", "ingress"}, 10, "the limits")


def test_a_container_that_is_connected_after_the_hook_is_limited(engine: Engine, box: Container) -> None:
    mapped = ("--uidmap=0:100000:65536", "--gidmap=0:100000:65536")
    late = engine.start(BRIDGE, *mapped, policy="rated")
    wait_for(lambda: set(queues(late)) == {"tbf", "ingress"}, 15, "the limits")


def test_where_there_is_nothing_to_limit_it_is_said_once_and_the_container_goes_on(
    engine: Engine, box: Container, free: Container, journal: Journal
) -> None:
    reasons = {
        "--network=host": "it uses the host's network",
        "--network=none": "no veth pair connects it",
        f"--network=container:{free.id}": f"it shares its network with process {free.pid} (python3) of another",
    }
    found = {
        engine.run(option, policy="rated", command=("sleep", "1000")).id: (option, reason)
        for option, reason in reasons.items()
    }
    for id_, (option, reason) in found.items():
        wait_for(lambda reason=reason: reason in journal.text(), 4, f"the reason with {option}")
        assert journal.text().count(reason) == 1
        rows = run("agentcgroup", "ps").stdout.splitlines()
        assert any(row.startswith(id_[:12]) and f"network not limited: {reason}" in row for row in rows), rows
    assert set(queues(free)) == {"noqueue"}


def test_somebody_elses_queue_is_left_alone(box: Container) -> None:
    device = host_end(box)
    run("tc", "qdisc", "replace", "dev", device, "root", "pfifo", "limit", "77")
    run("systemctl", "reload", service.SERVICE)
    text = f"network.ingress: {device} has a pfifo queue that is not ours: it is left alone"
    wait_for(lambda: why(box) == text, 4, "the reason")
    assert queues(box)["pfifo"]["options"] == {"limit": 77} and policed(box)
    run("tc", "qdisc", "del", "dev", device, "root")
    run("systemctl", "reload", service.SERVICE)
    wait_for(lambda: set(queues(box)) == {"tbf", "ingress"}, 10, "the limits")
    assert why(box) == ""


def test_they_go_with_the_container(box: Container) -> None:
    device = host_end(box)
    box.podman("rm", "-f", "-t", "0", box.id)
    assert device not in run("ip", "link").stdout
    assert "tbf" not in run("tc", "qdisc").stdout
