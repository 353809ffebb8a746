"""The hint grammar: what is forgiven, what is ignored, and how that is said."""

import time
from typing import Any

import pytest
from agentcgroup.hint import MAX_MEMORY, MAX_TEXT, Hint, Percent, clean, merge, parse, render, render_size
from hypothesis import example, given
from hypothesis import strategies as st

MIB, GIB = 1024**2, 1024**3

UNDERSTOOD: list[tuple[str, dict[str, Any]]] = [
    ("", {}),
    (" , ; ", {}),
    ("memory:low", {"memory": "low"}),
    ("memory=high", {"memory": "high"}),
    ("MEMORY:Max", {"memory": "max"}),
    ("memory: 2g", {"memory": 2 * GIB}),
    ("memory = 2g", {"memory": 2 * GIB}),
    ("memory:2gb", {"memory": 2 * GIB}),
    ("memory:2GiB", {"memory": 2 * GIB}),
    ("memory:512MiB", {"memory": 512 * MIB}),
    ("memory:1.5g", {"memory": 1536 * MIB}),
    ("memory:08g", {"memory": 8 * GIB}),
    ("memory:0.5G", {"memory": 512 * MIB}),
    ("memory:2048k", {"memory": 2 * MIB}),
    ("memory:536870912", {"memory": 512 * MIB}),
    ("memory:536870912b", {"memory": 512 * MIB}),
    ("memory:1p", {"memory": MAX_MEMORY}),
    ("memory:50%", {"memory": Percent(50.0)}),
    ("memory:100%", {"memory": Percent(100.0)}),
    ("memory:2g,cpu:high", {"memory": 2 * GIB, "cpu": "high"}),
    ("memory:2g;cpu:1.5 pids:100", {"memory": 2 * GIB, "cpu": 1.5, "pids": 100}),
    ("cpu:2", {"cpu": 2.0}),
    ("time:90s", {"time": 90.0}),
    ("time:90", {"time": 90.0}),
    ("time:5m", {"time": 300.0}),
    ("time:5min", {"time": 300.0}),
    ("time:1h30m", {"time": 5400.0}),
    ("time:500ms", {"time": 0.5}),
    ("time:1d", {"time": 86400.0}),
    ("priority:batch", {"priority": "batch"}),
    ("memory:2g,memory:2g", {"memory": 2 * GIB}),
]


@pytest.mark.parametrize(("text", "keys"), UNDERSTOOD)
def test_what_is_understood(text: str, keys: dict[str, Any]) -> None:
    assert parse(text) == Hint(**keys)


SIZE_HELP = "write low, medium, high, max, a size such as 512m or 2g, or a share such as 50%"
IGNORED = [
    ("memory:0", '"memory:0": less than 1 MiB, write a unit such as 512m'),
    ("memory:0g", '"memory:0g": less than 1 MiB, write a unit such as 512m'),
    ("memory:512", '"memory:512": less than 1 MiB, write a unit such as 512m'),
    ("memory:-2g", f'"memory:-2g": {SIZE_HELP}'),
    ("memory:nan", f'"memory:nan": {SIZE_HELP}'),
    ("memory:inf", f'"memory:inf": {SIZE_HELP}'),
    ("memory:1e9", f'"memory:1e9": {SIZE_HELP}'),
    ("memory:0x10g", f'"memory:0x10g": {SIZE_HELP}'),
    ("memory:2_000m", f'"memory:2_000m": {SIZE_HELP}'),
    ("memory:\u0662g", f'"memory:\u0662g": {SIZE_HELP}'),
    ("memory:2x", f'"memory:2x": {SIZE_HELP}'),
    ("memory:lots", f'"memory:lots": {SIZE_HELP}'),
    ("memory:$(id)", f'"memory:$(id)": {SIZE_HELP}'),
    ("memory:2p", '"memory:2p": more than 1 PiB'),
    ("memory:99999999999999999999t", '"memory:99999999999999999999t": more than 1 PiB'),
    ("memory:0%", '"memory:0%": a share is from 1% to 100%'),
    ("memory:101%", '"memory:101%": a share is from 1% to 100%'),
    ("memory:", "memory has no value"),
    ("memory", "memory has no value"),
    ("cpu:0", '"cpu:0": cores are between 0.01 and 4096'),
    ("cpu:50%", '"cpu:50%": write low, normal, high, or a number of cores such as 1.5'),
    ("cpu:max", '"cpu:max": write low, normal, high, or a number of cores such as 1.5'),
    ("pids:0", '"pids:0": write a whole number from 1 to 4194304'),
    ("pids:1.5", '"pids:1.5": write a whole number from 1 to 4194304'),
    ("pids:99999999999999999999", '"pids:99999999999999999999": write a whole number from 1 to 4194304'),
    ("time:0", '"time:0": a duration is between 1 ms and 30 days'),
    ("time:99d", '"time:99d": a duration is between 1 ms and 30 days'),
    ("time:1h30", '"time:1h30": write a duration such as 90s, 5m or 1h30m'),
    ("time:soon", '"time:soon": write a duration such as 90s, 5m or 1h30m'),
    ("priority:urgent", '"priority:urgent": write interactive, normal, batch'),
    ("memroy:2g", '"memroy:2g": there is no such key, did you mean memory?'),
    ("mem:2g", '"mem:2g": there is no such key, did you mean memory?'),
    ("gpu:1", '"gpu:1": there is no such key, did you mean cpu?'),
    ("xyzzy:1", '"xyzzy:1": there is no such key, only memory, cpu, pids, time, priority'),
    ("2g", '"2g" is not key:value, write memory:2g'),
    ("=", "a key without a value"),
    ("memory:2g:3", f'"memory:2g:3": {SIZE_HELP}'),
    ("memory\x1b[m:2g", '"memory?[m:2g": there is no such key, did you mean memory?'),
]


@pytest.mark.parametrize(("text", "problem"), IGNORED)
def test_what_is_ignored_is_said(text: str, problem: str) -> None:
    assert parse(text) == Hint(problems=(problem,))


def test_of_a_key_given_twice_the_last_usable_value_holds() -> None:
    twice = parse("memory:1g memory:2g")
    assert (twice.memory, twice.problems) == (2 * GIB, ('memory is given more than once, "memory:2g" holds',))
    assert parse("memory:1g memory:nan").memory == GIB


def test_one_bad_key_spoils_no_other() -> None:
    mixed = parse("memory:lots,cpu:high,x:y,time:90s")
    assert (mixed.memory, mixed.cpu, mixed.time, len(mixed.problems)) == (None, "high", 90.0, 2)


def test_many_problems_are_summed_up() -> None:
    assert parse(",".join("abcdefg")).problems[-1] == "and 3 more"


def test_a_text_beyond_the_bound_is_ignored_whole() -> None:
    assert parse("memory:2g," + "x" * MAX_TEXT) == Hint(problems=("longer than 1024 characters, ignored",))


def test_the_first_hint_wins_key_by_key() -> None:
    merged = merge(parse("memory:1g,x:1"), parse("memory:2g,cpu:high"), Hint(), parse("cpu:low,time:9,x:1"))
    assert merged == Hint(memory=GIB, cpu="high", time=9.0, problems=parse("x:1").problems)
    assert merge() == Hint()


def test_a_hint_is_true_if_it_asks_for_something() -> None:
    assert not Hint() and not parse("x:1") and parse("pids:1")


@given(st.text(max_size=80) | st.text(st.sampled_from("memorycpuids:=,; 0123456789.gGkKiIbB%$(-"), max_size=80))
@example("memory:" + "9" * 900 + "g")
@example(":" * 1000)
def test_no_text_raises_or_gives_a_limit_of_zero(text: str) -> None:
    hint = parse(text)
    if isinstance(hint.memory, int):
        assert MIB <= hint.memory <= MAX_MEMORY
    assert hint.pids is None or hint.pids > 0
    assert hint.time is None or hint.time > 0
    assert not isinstance(hint.cpu, float) or hint.cpu > 0
    assert all(problem.isprintable() and len(problem) < 200 for problem in hint.problems)


sizes = st.integers(MIB, MAX_MEMORY)
hints = st.builds(
    Hint,
    memory=st.none()
    | st.sampled_from(["low", "medium", "high", "max"])
    | sizes
    | st.integers(1, 100).map(lambda n: Percent(float(n))),
    cpu=st.none() | st.sampled_from(["low", "normal", "high"]) | st.integers(1, 409600).map(lambda n: n / 100),
    pids=st.none() | st.integers(1, 4194304),
    time=st.none() | st.integers(1, 30 * 86400000).map(lambda n: n / 1000),
    priority=st.none() | st.sampled_from(["interactive", "normal", "batch"]),
)


@given(hints)
def test_a_rendered_hint_reads_back_as_itself(hint: Hint) -> None:
    assert parse(render(hint)) == hint


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (512 * MIB, "512m"),
        (1536 * MIB, "1.5g"),
        (1280 * MIB, "1.25g"),
        (GIB, "1g"),
        (1000 * MIB, "1000m"),
        (1048577, "1048577b"),
    ],
)
def test_a_size_is_rendered_short_and_exact(count: int, text: str) -> None:
    assert render_size(count) == text
    assert parse(f"memory:{text}").memory == count


def test_a_shown_text_is_on_one_line_and_bounded() -> None:
    assert clean("a\nb\x1b[0m\u202e\udcff", 40) == "a?b?[0m??"
    assert clean("x" * 50, 10) == "xxxxxxx..."


@pytest.mark.parametrize("piece", ["a", ":", "a:", " ", "memory:2g ", "9", "time:1h", "%", "a :", ": "])
def test_reading_takes_no_longer_for_hostile_text(piece: str) -> None:
    text = (piece * MAX_TEXT)[:MAX_TEXT]
    began = time.process_time()
    parse(text)
    parse("time:" + ("1h" * MAX_TEXT)[: MAX_TEXT - 5])
    assert time.process_time() - began < 0.2
