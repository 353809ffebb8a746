"""Who is held, let go on or ended, by what is known of the calls."""

import hypothesis.strategies as st
from agentcgroup.ladder import Room, Standing, decide
from hypothesis import given

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


# --- a budget that becomes short --------------------------------------------------------------------------------------

SHORT, FREE = Room(950, 1000, 60), Room(800, 1000, 60)


def test_with_room_for_all_nobody_is_held() -> None:
    assert decide([call(400), call(300, priority=2)], FREE) == []


def test_all_but_the_first_are_held_before_it_is_used_up() -> None:
    assert decide([call(400), call(300), call(100, priority=2)], SHORT) == [(0, "hold"), (2, "hold")]


def test_who_is_alone_or_waits_for_the_idle_goes_on() -> None:
    assert decide([call(900)], SHORT) == []
    assert decide([call(500), call(400, idle=True)], SHORT) == []


def test_what_a_higher_priority_was_promised_is_not_there_for_a_lower_one() -> None:
    """The prototype's case: 421 of 1100 promised to one, two others grow."""
    room = Room(used=700, limit=1100, margin=68, claims=(340, 0, 0))
    fleet = [call(80, priority=0), call(310, priority=2), call(300, priority=2)]
    assert decide(fleet, room) == [(1, "hold"), (2, "hold")]
    assert decide(fleet, Room(used=600, limit=1100, margin=68, claims=(340, 0, 0))) == []
    assert decide([fleet[0], call(310, priority=1), fleet[2]], Room(700, 1100, 68, (0, 340, 0))) == [(2, "hold")]


def test_who_uses_no_more_than_it_was_promised_goes_on() -> None:
    assert decide([call(400, priority=0), call(300, reserved=True)], SHORT) == []


def test_who_may_not_be_held_is_not() -> None:
    others = [call(1, waited=30), call(2, spared=True), call(3, rungs=("end",)), call(4, ending=True)]
    assert decide([call(0, priority=0), *others], SHORT) == []


def test_a_held_call_goes_on_once_there_is_more_room_than_it_took_to_hold_it() -> None:
    held = call(300, priority=2, held=True, crowded_out=True)
    assert decide([call(100), held], Room(900, 1000, 60)) == []
    assert decide([call(100), held], Room(880, 1000, 60)) == [(1, "release")]
    assert decide([call(100), held], Room(800, 1000, 60, (0, 90, 0))) == []


def test_who_is_held_because_others_stood_still_waits_for_them_whatever_room_there_is() -> None:
    """At memory.high, say, which is far below the hard limit."""
    assert decide([call(100), call(300, held=True)], Room(500, 1000, 60)) == []


def test_where_nobody_else_works_the_first_of_the_held_goes_on_and_the_others_wait_for_it() -> None:
    held = [call(300, priority=2, held=True), call(200, priority=2, held=True), call(50, held=True)]
    assert decide([*held, call(10, idle=True)], SHORT) == [(2, "release")]


def test_the_last_one_at_work_makes_way_for_the_largest_of_those_that_wait_for_it() -> None:
    """Two batch calls that come to 100 each: one was held at 98, and the other would take what it needs to end."""
    held = [call(98, priority=2, held=True, crowded_out=True), call(90, priority=2, held=True, crowded_out=True)]
    brink = Room(used=1075, limit=1100, margin=68)
    assert decide([call(60, priority=2), *held], Room(used=1060, limit=1100, margin=68)) == []
    assert decide([call(60, priority=2), *held], brink) == [(0, "hold"), (1, "release")]
    assert decide([call(60, priority=2), call(10, priority=2, idle=True), *held], brink) == [
        (0, "hold"),
        (2, "release"),
    ]


def test_the_last_one_at_work_goes_on_where_that_is_the_better() -> None:
    brink = Room(used=1075, limit=1100, margin=68)
    larger = call(98, priority=2, held=True, crowded_out=True)
    assert decide([call(99, priority=2), larger], brink) == []
    assert decide([call(60), larger], brink) == []
    assert decide([call(60, priority=2, reserved=True), larger], brink) == []
    assert decide([call(60, priority=2, rungs=("end",)), larger], brink) == []
    assert decide([call(60, priority=2), call(98, priority=2, held=True)], brink) == []
    assert decide([call(60, priority=2), call(50, priority=2), larger], brink) == [(0, "hold")]
    late = call(98, 30, priority=2, held=True, crowded_out=True)
    assert decide([call(60, priority=2), late], brink) == [(1, "release")]


@given(
    sizes=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 500), st.booleans(), st.booleans(), st.booleans()), min_size=1
    ),
    limit=st.integers(1, 3000),
    claims=st.tuples(*[st.integers(0, 300)] * 3),
)
def test_whatever_is_there_somebody_can_go_on(
    sizes: list[tuple[int, int, bool, bool, bool]], limit: int, claims: tuple[int, int, int]
) -> None:
    calls = [call(size, priority=p, held=held, idle=idle, crowded_out=out) for p, size, held, idle, out in sizes]
    steps = decide(calls, Room(sum(one.burden[1] for one in calls), limit, limit // 16, claims))
    assert len({n for n, _ in steps}) == len(steps)
    held = {n for n, one in enumerate(calls) if one.held} | {n for n, step in steps if step == "hold"}
    assert held - {n for n, step in steps if step == "release"} != set(range(len(calls)))


def test_who_has_asked_for_it_is_refused_memory_before_it_is_ended() -> None:
    rungs = ("hold", "enomem", "end")
    assert decide([call(50, 30, stalled=True), call(100, rungs=rungs, refused=False)]) == [(1, "enomem")]
    assert decide([call(50, 30, stalled=True), call(100, rungs=rungs)]) == [(1, "end")]
    assert decide([call(50, 30, stalled=True), call(100, refused=False)]) == [(1, "end")]
