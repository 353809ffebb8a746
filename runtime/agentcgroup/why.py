"""A record in words for operators: `agentcgroup why`. It works from the record alone, however old it is.

A record may come from another version or a damaged file: a key that is missing or of another type is left unsaid.
"""

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from agentcgroup.hint import clean
from agentcgroup.units import format_bytes, format_seconds

Record = Mapping[str, Any]

NOTABLE_S = 0.2
_EVENTS = ("ended", "oom_kills", "refusals", "pids_denied", "orphans", "clamps", "hint_problems", "would")


def notable(record: Record) -> bool:
    """Whether anything happened beyond a command that ended by itself, successful or not."""
    slow = any(_number(record, key) > NOTABLE_S for key in ("held_s", "throttled_s", "queued_s"))
    return slow or any(record.get(key) for key in _EVENTS) or _text(record, "result").startswith("SIG")


def why(record: Record) -> str:
    """A headline and a line for each thing that is known, without a final newline.

    The line `enforced` is what enforce mode would have acted on where the policy only observes.
    """
    name = _text(record, "name") or _text(record, "container")[:12] or "?"
    policy = f" (policy {_text(record, 'policy')})" if _text(record, "policy") else ""
    headline = f"call {_count(record, 'number')} of {name}{policy}: {_result(record)}"
    return "\n".join([headline, *(f"  {label:<9}{text}" for label, text in _details(record) if text)])


def _result(record: Record) -> str:
    result = _text(record, "result")
    limit, deadline = _seconds(record, "time_limit_s"), _seconds(record, "stall_deadline_s")
    words = {
        "ok": "ended normally",
        "oom": "ended for memory",
        "time": f"ended at its time limit{f' of {limit}' if limit else ''}",
        "stall": f"ended at the stall deadline{f' of {deadline}' if deadline else ''}",
        "fork storm": "ended for a fork storm",
        "container limit": "ended for memory, at a limit above its own",
        "unknown": "its end was not seen",
        "SIGKILL": "ended by SIGKILL, with no memory OOM recorded and not by agentcgroup",
    }
    if result.startswith("exit "):
        return f"exited with {result.removeprefix('exit ')}"
    return words.get(result, f"ended by {result}" if result else "result not recorded")


def _details(record: Record) -> Iterator[tuple[str, str]]:
    yield "when", _when(record)
    yield "command", _command(record)
    yield "memory", _memory(record)
    yield "killed", _names(record, "oom_kills", "oom_victims")
    yield "beside", ", ".join(_neighbours(record))
    yield "slowed", _slowed(record)
    yield from (("step", step) for step in _steps(record))
    yield "refused", f"memory {_count(record, 'refusals')} times (ENOMEM)" if _number(record, "refusals") else ""
    yield "cpu, io", _usage(record)
    yield "pids", _pids(record)
    yield "orphans", " ".join(filter(None, (_names(record, "orphans", "orphan_names"), _orphan_action(record))))
    yield "hint", _hint(record)
    yield (
        "repeated",
        f"failed for memory {_count(record, 'repeat_failures')} times in a row"
        if _number(record, "repeat_failures") > 1
        else "",
    )
    yield "limits", "cooperative: this container can change them" if record.get("cooperative") else ""
    changed = ", ".join(clean(str(name), 32) for name in _list(record, "changed")[:8])
    yield "changed", f"{changed}: by somebody else, put back" if changed else ""
    yield "enforced", "; ".join(clean(str(item), 160) for item in _list(record, "would")[:8])


def _when(record: Record) -> str:
    duration = _seconds(record, "duration_s") or "0 ms"
    try:
        began = datetime.fromtimestamp(_number(record, "started")).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"for {duration}"
    return f"{began}, for {duration}"


def _command(record: Record) -> str:
    """The stored text, and the class unless it says the same."""
    command, of_class = _text(record, "command"), _text(record, "command_class")
    kind = _text(record, "kind")
    shown = command if of_class in ("", command) else f"{command} (class {of_class})"
    return " ".join(filter(None, (shown or "not recorded", f"[{kind}]" if kind not in ("", "call", "command") else "")))


def _memory(record: Record) -> str:
    parts = []
    if record.get("peak_bytes") is not None:
        parts.append(f"peak {format_bytes(int(_number(record, 'peak_bytes')))}")
    if record.get("limit_bytes") is not None:
        source = _text(record, "limit_source")
        parts.append(f"limit {format_bytes(int(_number(record, 'limit_bytes')))}{f' ({source})' if source else ''}")
    if record.get("container_limit_bytes") is not None:
        parts.append(f"all calls together {format_bytes(int(_number(record, 'container_limit_bytes')))}")
    if _number(record, "high_events"):
        parts.append(f"{_count(record, 'high_events')} times above memory.high")
    return ", ".join(parts)


def _names(record: Record, count: str, names: str) -> str:
    if not _number(record, count):
        return ""
    shown = ", ".join(clean(str(name), 32) for name in _list(record, names)[:16])
    return f"{_count(record, count)}{f' ({shown})' if shown else ''}"


def _neighbours(record: Record) -> Iterator[str]:
    for other in _list(record, "others")[:8]:
        if isinstance(other, dict):
            size = format_bytes(int(_number(other, "bytes")))
            yield " ".join(filter(None, (f"call {_count(other, 'number')}", _text(other, "first_word"), size)))


def _slowed(record: Record) -> str:
    shown = (
        ("throttled_s", "waiting for memory"),
        ("held_s", "held for others"),
        ("queued_s", "queued before the start"),
        ("cpu_throttled_s", "stopped by cpu.max"),
    )
    return ", ".join(f"{_seconds(record, key)} {what}" for key, what in shown if _number(record, key) >= 0.001)


def _steps(record: Record) -> Iterator[str]:
    words = {"hold": "held", "release": "went on", "enomem": "refused more", "end": "told to end"}
    for step in [step for step in _list(record, "steps") if isinstance(step, dict)][:16]:
        text = f"{words.get(_text(step, 'step'), '?')} at {_seconds(step, 'at_s') or '0 ms'}"
        if _number(step, "limit"):
            used, limit, claimed = (format_bytes(int(_number(step, key))) for key in ("used", "limit", "claimed"))
            text += f": {_text(step, 'budget') or 'all calls together'} had {used} of {limit} in use"
            text += f", {claimed} promised" if _number(step, "claimed") else ""
        yield text


def _usage(record: Record) -> str:
    cpu, moved = _seconds(record, "cpu_s"), int(_number(record, "io_bytes"))
    traffic = [
        f"{format_bytes(int(_number(record, key)))} {what}"
        for key, what in (("egress_bytes", "sent"), ("ingress_bytes", "received"))
        if _number(record, key)
    ]
    return ", ".join(filter(None, (cpu, format_bytes(moved) if moved else "", *traffic)))


def _pids(record: Record) -> str:
    parts = []
    if record.get("pids_peak") is not None:
        limit = f" of {_count(record, 'pids_limit')}" if record.get("pids_limit") is not None else ""
        parts.append(f"peak {_count(record, 'pids_peak')}{limit}")
    for key, what in (("processes", "ended"), ("pids_denied", "refused"), ("zombies", "zombies")):
        if _number(record, key):
            parts.append(f"{_count(record, key)} {what}")
    return ", ".join(parts)


def _orphan_action(record: Record) -> str:
    words = {"kill": "ended with the call", "keep": "left running", "report": "left running and reported"}
    return words.get(_text(record, "orphan_action"), "") if _number(record, "orphans") else ""


def _hint(record: Record) -> str:
    clamped = [
        f"{_text(clamp, 'key')} clamped from {_amount(clamp, 'asked')} to {_amount(clamp, 'granted')}"
        for clamp in _list(record, "clamps")[:8]
        if isinstance(clamp, dict)
    ]
    ignored = [f"not understood: {clean(str(item), 160)}" for item in _list(record, "hint_problems")[:8]]
    return "; ".join(filter(None, (_text(record, "hint"), *clamped, *ignored)))


def _amount(clamp: Record, which: str) -> str:
    key, value = _text(clamp, "key"), clamp.get(which)
    if isinstance(value, str):
        return clean(value, 24)
    if key == "memory":
        return format_bytes(int(_number(clamp, which)))
    return _seconds(clamp, which) if key == "time" else f"{_number(clamp, which):g}"


def _number(record: Record, key: str) -> float:
    value = record.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 else 0


def _count(record: Record, key: str) -> str:
    return str(int(_number(record, key)))


def _seconds(record: Record, key: str) -> str:
    return format_seconds(_number(record, key)) if _number(record, key) else ""


def _text(record: Record, key: str) -> str:
    value = record.get(key)
    return clean(value, 300) if isinstance(value, str) else ""


def _list(record: Record, key: str) -> list[Any]:
    value = record.get(key)
    return value if isinstance(value, list) else []
