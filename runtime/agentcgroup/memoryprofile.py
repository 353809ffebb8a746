"""A call's memory over time in a few points, from the looks at it that there are anyway."""

from __future__ import annotations

#: Points that are kept, and how far apart they are at first (ms). When there are too many, of two neighbours the
#: larger stays and the distance doubles: an hour is 32 points of two minutes, and its peak is among them.
MOST = 32
APART_MS = 100

#: Milliseconds since the call began, bytes then, milliseconds until then in which all of it waited for memory.
Point = tuple[int, int, int]


class Profile:
    """Points in the order of time; none for a call that ended before the first look at it."""

    __slots__ = ("_apart", "_since", "points")

    def __init__(self) -> None:
        self.points: list[Point] = []
        self._apart = APART_MS
        self._since = 0

    def add(self, age_s: float, size: int, waited_s: float) -> None:
        """What was seen now. Within the distance of the last point the larger of both stays."""
        point = (int(age_s * 1000), size, int(waited_s * 1000))
        if self.points and point[0] - self._since < self._apart:
            self.points[-1] = max(self.points[-1], point, key=_size)
            return
        if len(self.points) == MOST:
            self.points = [max(pair, key=_size) for pair in zip(self.points[::2], self.points[1::2], strict=True)]
            self._apart *= 2
        self.points.append(point)
        self._since = point[0]


def _size(point: Point) -> int:
    return point[1]
