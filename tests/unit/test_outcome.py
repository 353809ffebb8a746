"""The wait status of a call comes from inside the container: any number is read without an exception."""

from typing import Any

import pytest
from agentcgroup.commandline import Command
from agentcgroup.outcome import Outcome, exit_code, result
from hypothesis import given
from hypothesis import strategies as st


def outcome(**changes: Any) -> Outcome:
    return Outcome(container="c", number=1, policy="p", command=Command("shell"), **changes)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"status": 0}, "ok"),
        ({"status": 3 << 8}, "exit 3"),
        ({"status": 9}, "SIGKILL"),
        ({"status": 9 | 128}, "SIGKILL"),
        ({"status": 40}, "signal 40"),
        ({"status": None}, "unknown"),
        ({"status": 0x137F}, "unknown"),
        ({"status": 9, "oom_kills": 1}, "oom"),
        ({"status": 15, "oom_kills": 1, "ended": "time"}, "time"),
        ({"status": 0, "ended": "orphans"}, "ok"),
    ],
)
def test_the_result_in_one_word(changes: dict[str, Any], word: str) -> None:
    assert result(outcome(**changes)) == word


@given(st.integers(-(2**40), 2**40))
def test_no_status_raises(status: int) -> None:
    assert isinstance(result(outcome(status=status)), str)
    exit_code(outcome(status=status))
