"""What root in a container can do to us and to others: nothing. It may spoil its own calls' domains; those are
cooperative, and what holds the container as a whole lies out of its reach.
"""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path

import pytest
import service
from bpftool import counter, dumped, opened
from churn import come_to_rest
from podman import Background, Container, Engine, Result, wait_for

WHERE = "cat /proc/self/cgroup"
LIMIT = "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/memory.max"
CALL = re.compile(r"0::/agentcgroup/calls/\d+\n")
MIB = 1 << 20
HINT = {"AGENT_RESOURCE_HINT": "memory:low"}


@pytest.fixture(scope="module")
def attacker(file_engine: Engine) -> Container:
    """root with the default capabilities and seccomp profile, and no LSM in the way."""
    container = file_engine.start("--security-opt=apparmor=unconfined")
    for script in (Path(__file__).parent / "attacks").glob("*.py"):
        (container.agent / script.name).write_text(script.read_text())
    return container


@pytest.fixture(scope="module")
def bystander(file_engine: Engine) -> Container:
    return file_engine.start()


def attack(container: Container, script: str, *arguments: str) -> Result:
    """Run one of tests/vm/attacks/ as the agent's child, outside of any call."""
    return container.spawn(["python3", f"/agent/{script}", *arguments])


def fine(container: Container) -> None:
    """A call has its own domain, and one whose hint the daemon must hear gets what it asks for."""
    assert CALL.fullmatch(container.call(WHERE).out)
    limit = container.call(LIMIT, env=HINT)
    assert limit.out == f"{64 * MIB}\n", limit


def knobs(tree: Path) -> dict[str, str]:
    """What limits the container, the agent and all calls together."""
    names = ("memory.max", "memory.high", "memory.min", "pids.max", "cpu.max", "cgroup.max.depth")
    return {f"{d}/{n}": (tree / d / n).read_text() for d in ("", "agent", "calls", "helpers") for n in names}


def test_no_cgroup_file_of_ours_can_be_written(attacker: Container) -> None:
    before = knobs(attacker.tree)
    result = attack(attacker, "write_cgroups.py")
    assert result.rc == 0, result.err
    written = json.loads(result.out)
    assert written["tried"] > 50
    assert written["done"] == [], written
    assert knobs(attacker.tree) == before


def test_nothing_below_dev_agentcgroup_can_be_changed(attacker: Container) -> None:
    result = attack(attacker, "change_dev.py")
    assert (result.rc, result.out) == (0, "[]\n"), result


def test_a_cgroup_namespace_of_its_own_reaches_no_further_than_its_own_leaf(attacker: Container) -> None:
    before = knobs(attacker.tree)
    namespaces = ["unshare", "--user", "--map-root-user", "--cgroup", "--mount", "python3", "/agent/own_mount.py"]
    from_agent = attacker.spawn(namespaces)
    from_call = attacker.spawn(["bash", "-c", 'exec "$@"', "-", *namespaces])
    agents, calls = json.loads(from_agent.out), json.loads(from_call.out)
    assert agents["mounted"] and calls["mounted"], "the attack itself did not work"
    assert agents["above"] == ["move init here"]  # which is where it was
    assert calls["above"] == [] and calls["directories"] == [], calls
    assert knobs(attacker.tree) == before


def test_no_descriptor_of_the_host_is_open_in_the_container(attacker: Container) -> None:
    call = attacker.hold()
    result = attack(attacker, "descriptors.py")
    call.finish()
    found = json.loads(result.out)
    assert "agc-witness" in found["processes"], found
    assert found["processes"].count("bash") == 2, "the shim and its shell"
    assert found["foreign"] == [], found


@pytest.mark.parametrize(
    "mode", ["connections", "garbage", "starts", "hints", "tickets", "drain", "stuff", "squat", "tiny"]
)  # fmt: skip
def test_a_flood_hurts_nobody_but_its_own_container(attacker: Container, bystander: Container, mode: str) -> None:
    fine(bystander)
    before, pid = service.resident_kib(), service.pid()
    stop = attacker.agent / f"stop-{mode}"
    flood = Background(lambda: attack(attacker, "flood.py", mode, f"/agent/{stop.name}"))
    peak = before
    for _ in range(3):
        fine(bystander)
        peak = max(peak, service.resident_kib())
    hurt = attacker.call("exit 5")
    assert flood.running, flood.result()
    stop.touch()
    result = flood.result()
    assert result.rc == 0 and int(result.out) > 0, result
    assert hurt.rc == 5
    assert service.pid() == pid
    assert peak < before + 24 * 1024, f"{before} KiB grew to {peak} KiB"
    come_to_rest(attacker, 60)
    # The dead connections that still wait are worked off at call_rate, and it alone waits for that.
    wait_for(lambda: attacker.call(LIMIT, env=HINT).out == f"{64 * MIB}\n", 20, "its own backlog")
    fine(attacker)
    wait_for(lambda: service.calls(bystander.id) == [], 10, "the other container's calls to end")


def test_tiny_calls_by_the_hundred_take_nothing_from_the_account_of_another(
    attacker: Container, bystander: Container
) -> None:
    ended, dropped, known = counter(attacker, "ended"), counter(bystander, "dropped"), len(bystander.ledger())
    stop = attacker.agent / "stop-account"
    flood = Background(lambda: attack(attacker, "flood.py", "tiny", f"/agent/{stop.name}"))
    wait_for(lambda: counter(attacker, "ended") > ended + 300, 60, "the flood")
    for _ in range(5):
        assert bystander.call("/bin/true; exit 3").rc == 3
    assert len(dumped("calls")) <= 4
    stop.touch()
    assert flood.result().rc == 0
    assert [record["processes"] for record in bystander.settled(known + 5)[known:]] == [2] * 5
    assert counter(bystander, "dropped") == dropped


def test_who_has_had_his_share_of_the_events_is_not_heard_and_others_are(
    attacker: Container, bystander: Container
) -> None:
    """The share of each second is spent here without an emulated CPU that is fast enough; in a new second an event may
    come before that.
    """
    spent, over = threading.Event(), threading.Event()

    def spend() -> None:
        with opened() as kernel:
            while not over.is_set():
                slot = kernel.slot(attacker.tree.stat().st_ino)
                slot.window, slot.events = int(time.monotonic()), 500  # EVENT_RATE
                spent.set()
                time.sleep(0.001)

    thread = threading.Thread(target=spend)
    thread.start()
    spent.wait()
    dropped = counter(attacker, "dropped")
    try:
        heard = [counted(box) for box in (attacker, bystander) for _ in range(5)]
    finally:
        over.set()
        thread.join()
    assert None in heard[:5] and None not in heard[5:]
    assert counter(attacker, "dropped") > dropped


def counted(box: Container) -> int | None:
    """Processes of a call in its record; None where its event was not heard."""
    known = len(box.ledger())
    assert box.call("/bin/true; exit 3").rc == 3
    return box.settled(known + 1)[-1]["processes"]


def test_afterwards_both_containers_are_as_before(attacker: Container, bystander: Container, journal) -> None:
    assert service.answers()
    wait_for(lambda: dumped("calls") == dumped("refusals") == [], 10, "nothing of a call to be in the kernel's maps")
    for container in (attacker, bystander):
        come_to_rest(container)
        fine(container)
