"""`observe` sets no limit and says with numbers what one would have done; `enforce` then does exactly that.

One container; its policy is changed between the two, and the same calls are made.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pytest
from podman import Container, Engine, Result, fill, set_policy, wait_for

MIB = 1 << 20
POLICY = {
    "memory": {"max": "300M", "swap_max": 0, "agent_min": "50M"},
    "call": {
        "memory": {"low": "64M", "default": "100M", "medium": "100M", "high": "200M", "max": "200M"},
        "pids_max": 30,
        "time_max": "4s",
        "grace": "1s",
        "orphans": "kill",
        "fork_rate": 1000,
    },
    "pids_max": 500,
    "cpu": {"max": 1.5, "weight": 50},
    "io": {"weight": 50},
}
MANY = (
    'python3 -c "import threading, time; all = [threading.Thread(target=time.sleep, args=(1,)) for _ in range(40)]; '
    "[one.start() for one in all]; print('all')\""
)
LOADS = {
    "memory": fill(150),
    "time": "sleep 5; echo late",
    "pids": MANY,
    "orphans": "sleep 1000 >/dev/null 2>&1 </dev/null & sleep 0.3; echo left",
}


def govern(mode: str) -> None:
    set_policy("observation", json.dumps({"mode": mode, **POLICY}))


@pytest.fixture(scope="module")
def box(file_engine: Engine) -> Container:
    govern("observe")
    return file_engine.start("--memory=400m", policy="observation")


@pytest.fixture(scope="module")
def observed(box: Container) -> dict[str, tuple[Result, dict[str, Any]]]:
    """What came of each load, and its record."""
    return each_load(box)


def each_load(box: Container) -> dict[str, tuple[Result, dict[str, Any]]]:
    found = {}
    for name, text in LOADS.items():
        known = len(box.ledger())
        result = box.call(text)
        if name == "orphans":
            for group in (box.tree / "calls").glob("[0-9]*"):
                with contextlib.suppress(OSError):  # ended by us, and gone
                    (group / "cgroup.kill").write_text("1")
        found[name] = result, box.settled(known + 1)[-1]
    return found


def limits(box: Container) -> dict[str, str]:
    """The limits of the subtree's cgroups that are not the kernel's own."""
    usual = {"max", "max 100000", "0", "100", "default 100", ""}
    names = ("memory.max", "memory.high", "memory.min", "memory.swap.max", "memory.oom.group", "pids.max", "cpu.max")
    names += ("cpu.weight", "io.weight", "io.max")
    files = [path for name in names for path in box.tree.rglob(name)]
    return {str(p.relative_to(box.tree)): text for p in files if (text := p.read_text().strip()) not in usual}


def test_no_limit_is_set(box: Container, observed: object) -> None:
    assert limits(box) == {}
    calls = [box.hold(), box.hold()]
    assert limits(box) == {}
    assert [call.finish().rc for call in calls] == [7, 7]


def test_every_call_ends_as_it_would_without_us(observed: dict[str, tuple[Result, dict[str, Any]]]) -> None:
    assert {name: (result.rc, result.out, result.err) for name, (result, _) in observed.items()} == {
        "memory": (0, "150\n", ""),
        "time": (0, "late\n", ""),
        "pids": (0, "all\n", ""),
        "orphans": (0, "left\n", ""),
    }


def test_the_record_says_with_numbers_what_would_have_happened(
    observed: dict[str, tuple[Result, dict[str, Any]]],
) -> None:
    would = {name: record["would"] for name, (_, record) in observed.items()}
    assert [re.sub(r"[\d.]+", "N", phrase) for phrases in would.values() for phrase in phrases] == [
        "memory: peak N MiB is above the limit N MiB",
        "time: N s is above the limit N s",
        "pids: peak N is above the limit N",
        "orphans: N would have been ended with the call",
    ]
    assert re.search(r"peak 15\d(\.\d)? MiB is above the limit 100 MiB", would["memory"][0])
    assert re.search(r"time: [5-9](\.\d)? s is above the limit 4 s", would["time"][0])
    assert would["pids"] == ["pids: peak 41 is above the limit 30"]
    assert would["orphans"] == ["orphans: 1 would have been ended with the call"]
    assert all(record["mode"] == "observe" and record["result"] == "ok" for _, record in observed.values())


def test_calls_that_are_too_large_only_together_are_found(box: Container) -> None:
    known = len(box.ledger())
    calls = [box.background(fill(95, 4)) for _ in range(3)]
    assert [call.result().out for call in calls] == ["95\n"] * 3
    phrases = [phrase for record in box.settled(known + 3)[known:] for phrase in record["would"]]
    found = [
        re.fullmatch(r"container: (\d+)(\.\d)? MiB of all calls together are above the limit 250 MiB", p)
        for p in phrases
    ]
    assert any(match and int(match[1]) > 280 for match in found), phrases


def test_a_kill_by_the_container_s_own_limit_is_told_though_the_call_ends_well(box: Container) -> None:
    """A pipe hides the status of what was killed: 0 is the last command's."""
    result = box.call(f"{fill(500)} | cat; echo the end")
    assert (result.rc, result.out) == (0, "the end\n")
    assert f"Call {result.number} went on after an out-of-memory kill, its result is not whole. Peak" in result.err
    assert " Killed: python3. Next: run a smaller part of it." in result.err
    assert box.record_of(result.number)["result"] == "container limit"


def test_enforce_does_to_the_same_calls_what_was_foretold(
    box: Container, observed: dict[str, tuple[Result, dict[str, Any]]]
) -> None:
    govern("enforce")
    wait_for(lambda: limits(box).get("calls/memory.max") == str(250 * MIB), 10, "the limits")
    enforced = each_load(box)
    assert {name: (result.rc, result.out) for name, (result, _) in enforced.items()} == {
        "memory": (-9, ""),
        "time": (-15, ""),
        "pids": (1, ""),
        "orphans": (0, "left\n"),
    }
    said = {name: result.err for name, (result, _) in enforced.items()}
    for name, limit in (("memory", "limit 100 MiB"), ("time", "limit of 4 s"), ("pids", "limit of 30 processes")):
        assert limit in said[name], said
    assert "1 background process (sleep), ended with the call" in said["orphans"]
    records = {name: record for name, (_, record) in enforced.items()}
    assert records["memory"]["result"] == "oom" and records["time"]["result"] == "time"
    assert records["pids"]["pids_peak"] == 30 and records["pids"]["pids_denied"] > 0
    assert records["orphans"]["orphan_action"] == "kill"
    assert [record["would"] for record in records.values()] == [[]] * 4
    govern("observe")
    wait_for(lambda: limits(box) == {}, 10, "the limits are taken back")
