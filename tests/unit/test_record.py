"""The record of a container survives crashes, and a broken one says what is wrong with it."""

import json
from pathlib import Path

import pytest
from agentcgroup import record
from agentcgroup.errors import UserError

GOOD = {"v": 1, "id": "abc123", "pid": 42, "base": "/sys/fs/cgroup/x.scope/container", "future": [1]}


def test_a_record_is_stored_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "abc123.json"
    record.store(record.parse(json.dumps(GOOD), "x"), path)
    loaded = record.load(path)
    assert (loaded.id, loaded.pid, loaded.tree) == ("abc123", 42, "/sys/fs/cgroup/x.scope/container/agentcgroup")
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_the_name_is_the_engines_or_the_short_id() -> None:
    named = record.parse(json.dumps({**GOOD, "annotations": {"io.kubernetes.container.name": "web"}}), "x")
    assert named.name == "web"
    assert record.parse(json.dumps({**GOOD, "called": "vigorous_curie"}), "x").name == "vigorous_curie"
    assert record.parse(json.dumps({**GOOD, "id": "f" * 64}), "x").name == "f" * 12


def test_a_person_may_name_a_container_by_its_id_or_its_names() -> None:
    both = record.parse(json.dumps({**GOOD, "called": "box", "annotations": {"agentcgroup.name": "mine"}}), "x")
    assert [name for name in ("abc", "abc123", "box", "mine", "", "bo", "c123") if both.answers_to(name)] == [
        "abc", "abc123", "box", "mine",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", "r: not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("[1]", "r: a JSON object is expected, not list"),
        (json.dumps({**GOOD, "pid": "42"}), 'r: "pid" is "42", expected int'),
        (json.dumps({**GOOD, "pid": True}), 'r: "pid" is true, expected int'),
        (json.dumps({**GOOD, "id": "../../etc"}), 'r: "../../etc" is no container id'),
        (json.dumps({"id": "a", "pid": 1}), 'r: "base" is missing'),
    ],
)
def test_a_broken_record_names_the_fault(text: str, error: str) -> None:
    with pytest.raises(UserError) as caught:
        record.parse(text, "r")
    assert str(caught.value) == error
