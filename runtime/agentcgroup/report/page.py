"""The report as one HTML file that loads nothing and runs nothing."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence

from agentcgroup.events import stamp
from agentcgroup.policy.load import NAME
from agentcgroup.records import Record
from agentcgroup.report import fit, svg
from agentcgroup.report.gather import DRAWN, Figures, Gathered
from agentcgroup.report.svg import text
from agentcgroup.units import format_bytes, format_seconds
from agentcgroup.why import command_words, memory_words, number_of, result_words, slowed_words, text_of

SHOWN = 40  # classes in the picture; the table has all

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em }
body { color: #222; background: #fff }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2em; border-bottom: 1px solid #ccc }
table { border-collapse: collapse; font-size: 13px }
th, td { padding: 2px 10px 2px 0; text-align: right; white-space: nowrap }
th:first-child, td:first-child, table.text td { text-align: left }
table.text td { white-space: normal; vertical-align: top }
tr:nth-child(even) { background: #f5f5f5 } pre { background: #f5f5f5; padding: 1em; overflow: auto }
svg { width: 100%; max-width: 640px; display: block }
svg text { font-size: 10px; fill: #555 } figure { margin: 1.5em 0 }
figcaption { font-size: 13px; overflow-wrap: anywhere } .note { color: #666; font-size: 13px }
polyline.memory { fill: none; stroke: #1f77b4; stroke-width: 1.5 } circle.memory { fill: #1f77b4 }
line.limit { stroke: #d62728; stroke-dasharray: 5 3 } line.peak { stroke: #888; stroke-dasharray: 1 3 }
rect.throttled { fill: #ff9f1c; opacity: .3 } rect.held { fill: #7b4fd6; opacity: .3 }
path.end { stroke: #d62728; stroke-width: 2 }
path.frame { fill: none; stroke: #999 } line.grid { stroke: #ddd }
line.usual { stroke: #1f77b4; stroke-width: 6 } line.most { stroke: #a9cbe6; stroke-width: 2 }
.key { display: inline-block; width: 1em; height: .8em; opacity: .5 }
"""


def page(found: Gathered, what: str) -> str:
    """The file's text; `what` names what was asked for."""
    fitting = fit.fit(found)
    title = text(f"agentcgroup: {what}")
    sections = (_summary(found), _numbers(found, fitting), _classes(found), _calls(found), _feedback(found))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n"
        + "\n".join(line for section in sections for line in section)
        + "\n</body></html>\n"
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], kind: str = "") -> Iterator[str]:
    """Cells are texts, not markup."""
    yield f'<table class="{kind}"><tr>{"".join(f"<th>{text(cell)}</th>" for cell in header)}</tr>'
    for row in rows:
        yield f"<tr>{''.join(f'<td>{text(cell, 500)}</td>' for cell in row)}</tr>"
    yield "</table>"


def _summary(found: Gathered) -> Iterator[str]:
    span = f"{found.calls} calls, {stamp(found.first)} to {stamp(found.last)}"
    yield f"<p>{text(span)}</p>"
    names = list(found.containers.values())
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    yield f"<p>Containers: {text(', '.join(names[:10]) + more, 500)}.</p>"
    yield f"<p>Policies: {text(_counted(found.policies.most_common(8)))}.</p>"
    yield f"<p>How they ended: {text(_counted(found.results.most_common(12)), 500)}.</p>"
    if found.together:
        most = format_bytes(int(found.together))
        yield f"<p>Calls of one container at the same time: {text(most)} at most, as the sum of their peaks.</p>"


def _counted(pairs: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{name or '?'} {count}" for name, count in pairs)


def _numbers(found: Gathered, fitting: fit.Fit) -> Iterator[str]:
    yield "<h2>Policy numbers that would fit</h2>"
    if not found.whole.needs:
        yield "<p>No call has a recorded peak.</p>"
        return
    yield f"<pre>{html.escape(fit.policy(fitting, _base(found)))}</pre>"
    yield (
        f'<p class="note">Of {found.whole.count} calls, {found.whole.cut} were cut off at a limit and needed more than '
        "their peak. How these numbers come about and when not to trust them: docs/policy.md, &quot;Choosing numbers "
        "from a report&quot;.</p>"
    )


def _base(found: Gathered) -> str:
    """The policy that most calls ran under, if it can be one and limits anything."""
    name = found.policies.most_common(1)[0][0]
    return name if NAME.fullmatch(name) and name != "observe" else "coding-agent"


def _classes(found: Gathered) -> Iterator[str]:
    classes = sorted(found.classes.items(), key=lambda pair: -fit.quantile(pair[1].needs, fit.SHARE))
    yield "<h2>Peak memory by command class</h2>"
    yield '<p class="note">Dot: the median. The thick line ends at the 95th percentile, the thin one at the most.</p>'
    shown = [(name, _peaks(one, (0.5, 0.95, 1.0))) for name, one in classes if one.peaks]
    yield svg.ranges(shown[:SHOWN])
    header = (
        "class",
        "calls",
        "failed",
        "cut off",
        "p50",
        "p90",
        "p95",
        "p99",
        "most",
        "would fit",
        "p95 time",
        "processes",
    )
    yield from _table(header, [_class_row(name, one) for name, one in classes])


def _class_row(name: str, one: Figures) -> tuple[str, ...]:
    peaks = [format_bytes(int(peak)) if one.peaks else "-" for peak in _peaks(one, (0.5, 0.9, 0.95, 0.99, 1.0))]
    few = " (few)" if one.count < fit.FEW else ""
    fits = format_bytes(fit.size_for(one)) + few if one.needs else "-"
    longest = format_seconds(fit.quantile(one.seconds, 0.95))
    return (name, str(one.count), str(one.failed), str(one.cut), *peaks, fits, longest, str(one.pids))


def _peaks(one: Figures, shares: Sequence[float]) -> list[float]:
    return [fit.quantile(one.peaks, share) for share in shares]


def _calls(found: Gathered) -> Iterator[str]:
    yield "<h2>Calls over time</h2>"
    more = ""
    if found.with_profile > DRAWN:
        more = f" {DRAWN} of {found.with_profile} are shown: those that something happened to, then the largest."
    yield (
        '<p class="note">Calls that lasted longer than half a second. '
        '<span class="key" style="background:#ff9f1c"></span> waited for memory, '
        '<span class="key" style="background:#7b4fd6"></span> held, red line: ended, or refused memory; '
        f"dashed: the limit, dotted: the peak.{more}</p>"
    )
    for record in found.drawn:
        yield f"<figure>{svg.memory(record)}<figcaption>{_caption(record)}</figcaption></figure>"


def _caption(record: Record) -> str:
    name = text_of(record, "name") or text_of(record, "container")[:12]
    facts = (command_words(record), result_words(record), memory_words(record), slowed_words(record))
    who = f"{name}/{int(number_of(record, 'number'))}"
    return (
        f"<b>{text(who)}</b> {text(stamp(number_of(record, 'started')))}: {text('; '.join(filter(None, facts)), 1000)}"
    )


def _feedback(found: Gathered) -> Iterator[str]:
    yield "<h2>What agents were told</h2>"
    if not found.told:
        yield "<p>Nothing.</p>"
        return
    if found.told_total > len(found.told):
        yield f'<p class="note">The latest {len(found.told)} of {found.told_total} lines.</p>'
    rows = [
        (stamp(time), f"{found.containers.get(identity, '?')}/{number}", line)
        for time, identity, number, line in found.told
    ]
    yield from _table(("when", "call", "line"), rows, "text")
