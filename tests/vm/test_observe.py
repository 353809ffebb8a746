"""`observe` limits nothing and records, with numbers, what `enforce` does to the same load."""

from collections.abc import Iterator

import pytest
from podman import Container, Engine, fill, set_policy

LOAD = {
    "light": (fill(20), ()),
    "memory": (fill(300), ("memory",)),
    "time": ("sleep 17", ("time",)),
    "pids": ("for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 1 & done; wait", ("pids",)),
}
POLICY = """
extends: test
mode: {mode}
call: {{time_max: 15s, grace: 1s, pids_max: 10}}
"""


@pytest.fixture(scope="module")
def both(file_engine: Engine) -> Iterator[dict[str, Container]]:
    for mode in ("observe", "enforce"):
        set_policy(f"as-{mode}", POLICY.format(mode=mode))
    yield {mode: file_engine.start(policy=f"as-{mode}") for mode in ("observe", "enforce")}


def test_observe_writes_no_limit(both: dict[str, Container]) -> None:
    tree = both["observe"].tree
    call = both["observe"].hold()
    for group in (tree, tree / "agent", tree / "calls", call.directory):
        assert (group / "memory.max").read_text() == "max\n"
        assert (group / "pids.max").read_text() == "max\n"
    assert (call.directory / "memory.oom.group").read_text() == "0\n"
    assert call.finish().rc == 7


@pytest.mark.parametrize("name", LOAD)
def test_what_observe_says_is_what_enforce_does(both: dict[str, Container], name: str) -> None:
    text, hit = LOAD[name]
    before = {mode: len(container.ledger()) for mode, container in both.items()}
    observed, enforced = both["observe"].call(text), both["enforce"].call(text)
    seen = both["observe"].settled(before["observe"] + 1)[-1]
    done = both["enforce"].settled(before["enforce"] + 1)[-1]
    assert observed.rc == 0 and observed.feedback == [], observed.err
    assert tuple(phrase.partition(":")[0] for phrase in seen["would"]) == hit, seen
    hits = {"memory": done["oom_kills"] > 0, "time": done["ended"] == "time", "pids": done["pids_denied"] > 0}
    assert tuple(kind for kind, was in hits.items() if was) == hit, done
    assert bool(enforced.feedback) == bool(hit)
    if name == "memory":
        assert "above the limit 256 MiB" in seen["would"][0] and seen["peak_bytes"] > 300 << 20
