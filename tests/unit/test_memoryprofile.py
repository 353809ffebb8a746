"""Few points however long a call lives, and the peak among them."""

from agentcgroup.memoryprofile import APART_MS, MOST, Profile
from hypothesis import given
from hypothesis import strategies as st

steps = st.lists(st.tuples(st.floats(0, 1000), st.integers(0, 2**40)), max_size=300)


@given(steps)
def test_points_are_few_in_order_and_hold_the_peak(steps: list[tuple[float, int]]) -> None:
    profile, age = Profile(), 0.0
    for later, size in steps:
        age += later
        profile.add(age, size, age / 2)
    points = profile.points
    assert len(points) <= MOST and bool(points) == bool(steps)
    assert points == sorted(points, key=lambda point: point[0])
    assert max((point[1] for point in points), default=0) == max((size for _, size in steps), default=0)
    assert all(waited <= ms for ms, _, waited in points)


def test_what_is_seen_twice_at_once_is_one_point_the_larger() -> None:
    profile = Profile()
    for size in (5, 9, 7):
        profile.add(0.5, size, 0.25)
    assert profile.points == [(500, 9, 250)]


def test_an_hour_is_covered_evenly() -> None:
    profile = Profile()
    for second in range(3600):
        profile.add(second, second, 0)
    apart = [later[0] - before[0] for before, later in zip(profile.points, profile.points[1:], strict=False)]
    assert MOST / 2 <= len(profile.points) <= MOST
    assert max(apart) <= 4 * APART_MS * 2**11 and profile.points[-1][0] >= 3_300_000
