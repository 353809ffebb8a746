"""Pictures as inline SVG. Every text goes through `text`, so that nothing in it is markup or a control character."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from agentcgroup.hint import clean
from agentcgroup.memoryprofile import Point
from agentcgroup.records import Record
from agentcgroup.report.gather import points
from agentcgroup.units import format_bytes, format_seconds
from agentcgroup.why import number_of, steps_of, text_of

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 640, 130, 70, 18, 8
_THROTTLED = 0.05  # share of the time between two points that it waited
#: The end of a call that is marked: all but its own.
_OWN_END = ("ok", "unknown", "")


def text(value: str, limit: int = 200) -> str:
    """Text from anywhere as it may stand in HTML: cut, printable, escaped."""
    return html.escape(clean(value, limit), quote=True)


def memory(record: Record) -> str:
    """A call's memory over time: its limit, where it waited for memory, was held, and ended."""
    found = points(record)
    span = max(number_of(record, "duration_s") * 1000, found[-1][0] if found else 0, 1)
    peak, limit = number_of(record, "peak_bytes"), number_of(record, "limit_bytes")
    most = max(peak, max((size for _, size, _ in found), default=0), 1)
    shown = limit if 0 < limit <= 1.5 * most else 0  # else it would flatten the curve
    scale = _Scale(span, 1.05 * max(most, shown))
    parts = [*_throttled(found, scale), *_held(record, scale)]
    parts += [scale.line(peak, "peak"), scale.line(shown, "limit")]
    line = " ".join(f"{scale.x(ms):.1f},{scale.y(size):.1f}" for ms, size, _ in found)
    parts += [f'<polyline class="memory" points="{line}"/>']
    parts += [
        f'<circle class="memory" cx="{scale.x(ms):.1f}" cy="{scale.y(size):.1f}" r="1.5"/>' for ms, size, _ in found
    ]
    parts += _ends(record, scale)
    axis = f"{scale.label(most)}<text x='{_LEFT}' y='{_HEIGHT - 3}'>0</text>"
    axis += f"<text x='{_WIDTH - 4}' y='{_HEIGHT - 3}' text-anchor='end'>{text(format_seconds(span / 1000))}</text>"
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}{scale.frame()}{axis}</svg>'


class _Scale:
    """Where a moment (ms) and a size (bytes) lie."""

    def __init__(self, span: float, most: float) -> None:
        self._span, self._most = span, most

    def x(self, ms: float) -> float:
        return _LEFT + min(max(ms / self._span, 0.0), 1.0) * (_WIDTH - _LEFT - 4)

    def y(self, size: float) -> float:
        return _TOP + (1 - min(max(size / self._most, 0.0), 1.0)) * (_HEIGHT - _TOP - _BOTTOM)

    def line(self, size: float, kind: str) -> str:
        """A level; none for 0."""
        at = f"{self.y(size):.1f}"
        return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - 4}" y1="{at}" y2="{at}"/>' if size else ""

    def band(self, start: float, end: float, kind: str) -> str:
        """From one moment to another."""
        left, width = self.x(start), max(self.x(end) - self.x(start), 1)
        height = _HEIGHT - _TOP - _BOTTOM
        return f'<rect class="{kind}" x="{left:.1f}" y="{_TOP}" width="{width:.1f}" height="{height}"/>'

    def label(self, size: float) -> str:
        return (
            f"<text x='{_LEFT - 4}' y='{self.y(size) + 4:.1f}' text-anchor='end'>{text(format_bytes(int(size)))}</text>"
        )

    def frame(self) -> str:
        bottom = _HEIGHT - _BOTTOM
        return f'<path class="frame" d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - 4}"/>'


def _throttled(found: Sequence[Point], scale: _Scale) -> list[str]:
    pairs = zip([(0, 0, 0), *found], found, strict=False)
    return [
        scale.band(before[0], after[0], "throttled")
        for before, after in pairs
        if after[2] - before[2] > _THROTTLED * max(after[0] - before[0], 1)
    ]


def _held(record: Record, scale: _Scale) -> list[str]:
    """From each hold to the next release, or to the end."""
    bands, since = [], None
    for step in steps_of(record):
        at, kind = number_of(step, "at_s") * 1000, text_of(step, "step")
        if kind == "hold" and since is None:
            since = at
        elif kind in ("release", "end") and since is not None:
            bands.append(scale.band(since, at, "held"))
            since = None
    return bands if since is None else [*bands, scale.band(since, number_of(record, "duration_s") * 1000, "held")]


def _ends(record: Record, scale: _Scale) -> list[str]:
    marks = [
        (number_of(step, "at_s") * 1000, text_of(step, "step"))
        for step in steps_of(record)
        if text_of(step, "step") in ("end", "enomem")
    ]
    result = text_of(record, "result")
    if result not in _OWN_END and not result.startswith("exit "):
        marks.append((number_of(record, "duration_s") * 1000, result))
    return [
        f'<path class="end" d="M{scale.x(ms):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"><title>{text(what)}</title></path>'
        for ms, what in marks
    ]


def ranges(rows: Sequence[tuple[str, Sequence[float]]]) -> str:
    """For each row a line from the median over the 95th percentile to the most, on a logarithmic scale of bytes.
    rows: a name, and median, 95th percentile and most.
    """
    values = [value for _, figures in rows for value in figures if value > 0]
    if not values:
        return ""
    low, high = math.log2(min(values)) - 0.2, math.log2(max(values)) + 0.2
    left, width, step = 200, 640, 18

    def x(value: float) -> float:
        return left + (math.log2(max(value, 1)) - low) / (high - low) * (width - left - 10)

    parts = []
    for power in range(math.ceil(low), math.floor(high) + 1, max(int(high - low) // 6, 1)):
        at, bottom = f"{x(2.0**power):.1f}", len(rows) * step + 4
        parts.append(f'<line class="grid" x1="{at}" x2="{at}" y1="0" y2="{bottom}"/>')
        parts.append(f"<text x='{at}' y='{bottom + 12}' text-anchor='middle'>{text(format_bytes(2**power))}</text>")
    for number, (name, (median, high_share, most)) in enumerate(rows):
        y = number * step + step / 2
        parts.append(f"<text x='{left - 6}' y='{y + 4}' text-anchor='end'>{text(name, 34)}</text>")
        parts.append(f'<line class="most" x1="{x(high_share):.1f}" x2="{x(most):.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<line class="usual" x1="{x(median):.1f}" x2="{x(high_share) + 1:.1f}" y1="{y}" y2="{y}"/>')
        parts.append(f'<circle class="memory" cx="{x(median):.1f}" cy="{y}" r="3"/>')
    height = len(rows) * step + 22
    return f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg>'
