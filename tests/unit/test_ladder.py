"""Who is held, let go on or ended, by what is known of the calls."""

from agentcgroup.ladder import Standing, decide

RUNGS = ("throttle", "hold", "end")


def call(size: int, waited: float = 0.0, priority: int = 1, **state: object) -> Standing:
    return Standing(**{"burden": (priority, size), "deadline": 30.0, "rungs": RUNGS, "waited": waited, **state})  # type: ignore[arg-type]


def test_nothing_is_done_while_nobody_waits() -> None:
    assert decide([call(100), call(50)]) == []
    assert decide([call(100), call(50, 2.9, stalled=True)]) == []


def test_the_largest_is_held_that_the_others_may_finish() -> None:
    assert decide([call(50, 3, stalled=True), call(100), call(10)]) == [(1, "hold")]


def test_a_lower_priority_gives_way_before_a_larger_call() -> None:
    assert decide([call(100, 3, stalled=True), call(10, priority=2)]) == [(1, "hold")]


def test_a_call_alone_is_not_held() -> None:
    assert decide([call(100, 20, stalled=True)]) == []
    assert decide([call(100, 20, stalled=True), call(10, idle=True)]) == []


def test_a_call_that_handles_a_signal_is_not_held() -> None:
    assert decide([call(100, spared=True), call(50, 3, stalled=True), call(10)]) == [(1, "hold")]


def test_a_held_call_goes_on_when_the_others_are_gone_or_idle() -> None:
    assert decide([call(100, 5, held=True)]) == [(0, "release")]
    assert decide([call(100, 5, held=True), call(50, idle=True)]) == [(0, "release")]
    assert decide([call(100, 5, held=True), call(50)]) == []


def test_a_held_call_goes_on_at_its_deadline_though_others_are_at_work() -> None:
    assert decide([call(100, 30, held=True), call(50)]) == [(0, "release")]


def test_at_the_deadline_the_largest_is_ended_whoever_waited() -> None:
    assert decide([call(50, 30, stalled=True), call(100)]) == [(1, "end")]
    assert decide([call(50, 30, stalled=True), call(100, 29, held=True)]) == [(1, "end")]


def test_one_end_at_a_time() -> None:
    assert decide([call(50, 30, stalled=True), call(100, ending=True), call(60)]) == []


def test_a_late_call_that_gets_on_is_left_alone() -> None:
    assert decide([call(100, 31), call(50)]) == []


def test_rungs_that_the_policy_leaves_out_are_not_taken() -> None:
    assert decide([call(50, 3, stalled=True), call(100, rungs=("throttle", "end"))]) == [(0, "hold")]
    assert decide([call(50, 30, stalled=True, rungs=()), call(100, rungs=("throttle",))]) == []
