"""A record in words, for whoever asks later."""

import json
import time
from typing import Any

import pytest
from agentcgroup.commandline import analyse
from agentcgroup.hint import parse
from agentcgroup.outcome import Clamp, Neighbour, Outcome, Step
from agentcgroup.records import notable, record_of, why
from hypothesis import given
from hypothesis import strategies as st

MIB, GIB = 1024**2, 1024**3


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def record(**changes: Any) -> dict[str, Any]:
    command = analyse(["sh", "-c", "cd /x && npm run test"], False)
    plain = {"container": "c0ffee" * 10, "name": "web", "number": 7, "policy": "coding-agent", "command": command}
    more = {"command_class": command.command_class, "started": 1796060000.0, "duration_s": 12.3, "status": 0}
    stored = record_of(Outcome(**{**plain, **more, **changes}))
    return dict(json.loads(json.dumps(stored)))


def test_a_call_that_nothing_happened_to() -> None:
    plain = record(peak_bytes=28 * MIB, limit_bytes=2 * GIB, cpu_s=3.0, pids_peak=4, pids_limit=1024)
    assert why(plain) == (
        "call 7 of web (policy coding-agent): ended normally\n"
        "  when     2026-11-30 17:33:20+00:00, for 12.3 s\n"
        "  command  npm (class npm run test)\n"
        "  memory   peak 28 MiB, limit 2 GiB (default)\n"
        "  cpu, io  3 s\n"
        "  pids     peak 4 of 1024"
    )
    assert not notable(plain)


def test_a_call_that_much_happened_to() -> None:
    full = record(
        status=9,
        peak_bytes=2 * GIB,
        limit_bytes=2 * GIB,
        limit_source="hint 8g",
        container_limit_bytes=4 * GIB,
        high_events=3,
        oom_kills=2,
        oom_victims=("node", "npm"),
        others=(Neighbour(5, "cargo", GIB),),
        throttled_s=4.0,
        held_s=1.5,
        queued_s=2.0,
        io_bytes=5 * MIB,
        egress_bytes=2 * MIB,
        ingress_bytes=3 * GIB,
        processes=300,
        steps=(
            Step("hold", 2.5, "agentcgroup.slice", 960 * MIB, GIB, 64 * MIB, 0.002),
            Step("release", 4.0, "agentcgroup.slice", 512 * MIB, GIB, 0),
            Step("enomem", 5.0),
        ),
        refusals=3,
        pids_peak=256,
        pids_limit=256,
        pids_denied=9,
        orphans=1,
        orphan_names=("esbuild",),
        orphan_action="kill",
        hint=parse("memory:8g,cpu:high,x:1"),
        clamps=(Clamp("memory", 8 * GIB, 2 * GIB), Clamp("time", 7200.0, 600.0)),
        repeat_failures=2,
        cooperative=True,
    )
    assert why(full) == (
        "call 7 of web (policy coding-agent): ended for memory\n"
        "  when     2026-11-30 17:33:20+00:00, for 12.3 s\n"
        "  command  npm (class npm run test)\n"
        "  memory   peak 2 GiB, limit 2 GiB (hint 8g), all calls together 4 GiB, 3 times above memory.high\n"
        "  killed   2 (node, npm)\n"
        "  beside   call 5 cargo 1 GiB\n"
        "  slowed   4 s waiting for memory, 1.5 s held for others, 2 s queued before the start\n"
        "  step     held at 2.5 s: agentcgroup.slice had 960 MiB of 1 GiB in use, 64 MiB promised\n"
        "  step     went on at 4 s: agentcgroup.slice had 512 MiB of 1 GiB in use\n"
        "  step     refused more at 5 s\n"
        "  refused  memory 3 times (ENOMEM)\n"
        "  cpu, io  5 MiB, 2 MiB sent, 3 GiB received\n"
        "  pids     peak 256 of 256, 300 ended, 9 refused\n"
        "  orphans  1 (esbuild) ended with the call\n"
        "  hint     memory:8g,cpu:high; memory clamped from 8 GiB to 2 GiB; time clamped from 2 h to 10 min;"
        ' not understood: "x:1": there is no such key, only memory, cpu, pids, time, priority\n'
        "  repeated failed for memory 2 times in a row\n"
        "  limits   cooperative: this container can change them"
    )
    assert notable(full)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": 3 << 8}, "exited with 3"),
        ({"status": None}, "its end was not seen"),
        ({"status": 9}, "ended by SIGKILL, with no memory OOM recorded and not by agentcgroup"),
        ({"status": 15}, "ended by SIGTERM"),
        ({"ended": "time", "time_limit_s": 600.0}, "ended at its time limit of 10 min"),
        ({"ended": "stall", "stall_deadline_s": 30.0}, "ended at the stall deadline of 30 s"),
        ({"ended": "fork storm"}, "ended for a fork storm"),
        ({"ended": "container limit", "oom_kills": 1}, "ended for memory, at a limit above its own"),
        ({"ended": "orphans", "orphans": 1}, "ended normally"),
    ],
)
def test_the_headline(changes: dict[str, Any], words: str) -> None:
    assert why(record(**changes)).splitlines()[0] == f"call 7 of web (policy coding-agent): {words}"


def test_what_observe_mode_saw() -> None:
    text = why(record(mode="observe", would=("memory: peak 3 GiB is above the limit 2 GiB",)))
    assert "  enforced memory: peak 3 GiB is above the limit 2 GiB" in text.splitlines()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(record())), json_values))
def test_no_damaged_record_raises_or_shows_control_characters(damaged: dict[str, Any]) -> None:
    text = why(record() | damaged)
    assert all(line.isprintable() for line in text.split("\n"))
    notable(damaged)
