"""One pass over records: figures by command class, the calls that are worth a picture, what agents were told.

Records may be damaged and their texts come from inside containers: what is kept here is checked and bounded.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentcgroup.events import ended
from agentcgroup.memoryprofile import MOST, Point
from agentcgroup.records import Record
from agentcgroup.why import NOTABLE_S, list_of, notable, number_of, text_of

CLASSES = 200  # command classes with figures of their own; further ones are added up as OTHERS
OTHERS = "(others)"
UNKNOWN = "(not recorded)"
DRAWN = 60  # calls with a picture
TOLD = 200  # lines of feedback, the latest
#: A call that was cut off at its limit needs more than its peak: so much more is tried first, as feedback advises.
CUT_FACTOR = 1.5
_NEAR = 0.9  # of its limit


@dataclass
class Figures:
    """Calls of one class. needs: bytes, more than the peak where a call was cut off; seconds; processes."""

    count: int = 0
    failed: int = 0
    cut: int = 0
    peaks: array[float] = field(default_factory=lambda: array("d"))
    needs: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    pids: int = 0

    def add(self, record: Record) -> None:
        """Take in one call."""
        self.count += 1
        self.failed += text_of(record, "result") != "ok"
        self.seconds.append(max(number_of(record, "duration_s"), 0.0))
        self.pids = max(self.pids, int(number_of(record, "pids_peak")))
        peak = max(number_of(record, "peak_bytes"), 0.0)
        if peak:
            short = was_cut(record)
            self.cut += short
            self.peaks.append(peak)
            self.needs.append(peak * CUT_FACTOR if short else peak)


@dataclass
class Gathered:
    """Everything that the report shows. drawn: records, oldest first. told: time, container, call, line."""

    calls: int = 0
    first: float = 0.0
    last: float = 0.0
    containers: dict[str, str] = field(default_factory=dict)
    policies: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    whole: Figures = field(default_factory=Figures)
    classes: dict[str, Figures] = field(default_factory=dict)
    drawn: list[Record] = field(default_factory=list)
    with_profile: int = 0
    told: deque[tuple[float, str, int, str]] = field(default_factory=lambda: deque(maxlen=TOLD))
    told_total: int = 0
    together: float = 0.0


def gather(found: Iterable[Record]) -> Gathered:
    """Over records in any order."""
    result = Gathered()
    heap: list[tuple[bool, float, int, Record]] = []
    spans: dict[str, array[float]] = {}
    for order, record in enumerate(found):
        _count(result, record)
        if text_of(record, "kind") in ("call", "command", "shell", ""):
            _figure(result, record)
        span = (number_of(record, "started"), ended(record), number_of(record, "peak_bytes"))
        spans.setdefault(text_of(record, "container"), array("d")).extend(span)
        if points(record):
            result.with_profile += 1
            entry = (notable(record), number_of(record, "peak_bytes"), order, record)
            if len(heap) < DRAWN:
                heapq.heappush(heap, entry)
            else:
                heapq.heappushpop(heap, entry)
    result.drawn = [entry[3] for entry in sorted(heap, key=lambda entry: number_of(entry[3], "started"))]
    result.together = max((_together(span) for span in spans.values()), default=0.0)
    return result


def _count(result: Gathered, record: Record) -> None:
    began, end = number_of(record, "started"), ended(record)
    result.first = min(result.first or began, began)
    result.last = max(result.last, end)
    result.calls += 1
    identity = text_of(record, "container")
    result.containers[identity] = text_of(record, "name") or identity[:12]
    result.policies[text_of(record, "policy")] += 1
    result.results[_result(record)] += 1
    for line in list_of(record, "feedback")[:6]:
        result.told_total += 1
        result.told.append((end, identity, int(number_of(record, "number")), str(line)))


def _result(record: Record) -> str:
    word = text_of(record, "result") or "unknown"
    return "failed" if word.startswith("exit ") else word


def _figure(result: Gathered, record: Record) -> None:
    name = text_of(record, "command_class") or UNKNOWN
    if name not in result.classes and len(result.classes) >= CLASSES:
        name = OTHERS
    result.classes.setdefault(name, Figures()).add(record)
    result.whole.add(record)


def was_cut(record: Record) -> bool:
    """Whether it was ended, refused or slowed at its limit, so that its peak says less than it needed."""
    if (
        number_of(record, "oom_kills")
        or number_of(record, "refusals")
        or record.get("ended") in ("stall", "container limit")
    ):
        return True
    limit = number_of(record, "limit_bytes")
    near = limit > 0 and number_of(record, "peak_bytes") >= _NEAR * limit
    return near and number_of(record, "throttled_s") > NOTABLE_S


def points(record: Record) -> list[Point]:
    """The call's memory over time, as far as it can be read; at most as many points as a call has."""
    found: list[Point] = []
    for point in list_of(record, "profile")[:MOST]:
        if isinstance(point, list) and len(point) == 3:
            plain = dict(zip("abc", point, strict=True))
            ms, size, waited = (int(max(number_of(plain, key), 0)) for key in "abc")
            if not found or ms >= found[-1][0]:
                found.append((ms, size, waited))
    return found


def _together(span: array[float]) -> float:
    """The most bytes that calls of one container may have had at the same time: the sum of the peaks of those that
    overlap.
    """
    triples = list(zip(span[::3], span[1::3], span[2::3], strict=True))
    changes = itertools.chain(
        ((began, 1, peak) for began, _, peak in triples), ((end, 0, -peak) for _, end, peak in triples)
    )
    return max(itertools.accumulate(change[2] for change in sorted(changes)), default=0.0)
