"""A record in words for operators: `agentcgroup why`. It works from the record alone, however old it is.

A record may come from another version or a damaged file: a key that is missing or of another type is left unsaid.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from agentcgroup.hint import clean
from agentcgroup.units import format_bytes, format_seconds

Record = Mapping[str, Any]

NOTABLE_S = 0.2
_EVENTS = ("ended", "oom_kills", "refusals", "pids_denied", "orphans", "clamps", "hint_problems", "would")


def notable(record: Record) -> bool:
    """Whether anything happened beyond a command that ended by itself, successful or not."""
    slow = any(number_of(record, key) > NOTABLE_S for key in ("held_s", "throttled_s", "queued_s"))
    return slow or any(record.get(key) for key in _EVENTS) or text_of(record, "result").startswith("SIG")


def why(record: Record) -> str:
    """A headline and a line for each thing that is known, without a final newline.

    The line `enforced` is what enforce mode would have acted on where the policy only observes.
    """
    name = text_of(record, "name") or text_of(record, "container")[:12] or "?"
    policy = f" (policy {text_of(record, 'policy')})" if text_of(record, "policy") else ""
    headline = f"call {count_of(record, 'number')} of {name}{policy}: {result_words(record)}"
    return "\n".join([headline, *(f"  {label:<9}{text}" for label, text in _details(record) if text)])


def result_words(record: Record) -> str:
    """How it ended."""
    result = text_of(record, "result")
    limit, deadline = seconds_of(record, "time_limit_s"), seconds_of(record, "stall_deadline_s")
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
    yield "command", command_words(record)
    yield "memory", memory_words(record)
    yield "killed", _names(record, "oom_kills", "oom_victims")
    yield "beside", ", ".join(_neighbours(record))
    yield "slowed", slowed_words(record)
    yield from (("step", step_words(step)) for step in steps_of(record))
    yield "refused", f"memory {count_of(record, 'refusals')} times (ENOMEM)" if number_of(record, "refusals") else ""
    yield "cpu, io", _usage(record)
    yield "pids", _pids(record)
    yield "orphans", " ".join(filter(None, (_names(record, "orphans", "orphan_names"), _orphan_action(record))))
    yield "hint", hint_words(record)
    yield (
        "repeated",
        f"failed for memory {count_of(record, 'repeat_failures')} times in a row"
        if number_of(record, "repeat_failures") > 1
        else "",
    )
    yield "limits", "cooperative: this container can change them" if record.get("cooperative") else ""
    changed = ", ".join(clean(str(name), 32) for name in list_of(record, "changed")[:8])
    yield "changed", f"{changed}: by somebody else, put back" if changed else ""
    yield "enforced", "; ".join(clean(str(item), 160) for item in list_of(record, "would")[:8])


def _when(record: Record) -> str:
    duration = seconds_of(record, "duration_s") or "0 ms"
    try:
        began = datetime.fromtimestamp(number_of(record, "started")).astimezone().isoformat(" ", "seconds")
    except (ValueError, OverflowError, OSError):
        return f"for {duration}"
    return f"{began}, for {duration}"


def command_words(record: Record) -> str:
    """The stored text, and the class unless it says the same."""
    command, of_class = text_of(record, "command"), text_of(record, "command_class")
    kind = text_of(record, "kind")
    shown = command if of_class in ("", command) else f"{command} (class {of_class})"
    return " ".join(filter(None, (shown or "not recorded", f"[{kind}]" if kind not in ("", "call", "command") else "")))


def memory_words(record: Record) -> str:
    """Its peak and its limits."""
    parts = []
    if record.get("peak_bytes") is not None:
        parts.append(f"peak {format_bytes(int(number_of(record, 'peak_bytes')))}")
    if record.get("limit_bytes") is not None:
        source = text_of(record, "limit_source")
        parts.append(f"limit {format_bytes(int(number_of(record, 'limit_bytes')))}{f' ({source})' if source else ''}")
    if record.get("container_limit_bytes") is not None:
        parts.append(f"all calls together {format_bytes(int(number_of(record, 'container_limit_bytes')))}")
    if number_of(record, "high_events"):
        parts.append(f"{count_of(record, 'high_events')} times above memory.high")
    return ", ".join(parts)


def _names(record: Record, count: str, names: str) -> str:
    if not number_of(record, count):
        return ""
    shown = ", ".join(clean(str(name), 32) for name in list_of(record, names)[:16])
    return f"{count_of(record, count)}{f' ({shown})' if shown else ''}"


def _neighbours(record: Record) -> Iterator[str]:
    for other in list_of(record, "others")[:8]:
        if isinstance(other, dict):
            size = format_bytes(int(number_of(other, "bytes")))
            yield " ".join(filter(None, (f"call {count_of(other, 'number')}", text_of(other, "first_word"), size)))


def slowed_words(record: Record) -> str:
    """What it waited for, and how long."""
    shown = (
        ("throttled_s", "waiting for memory"),
        ("held_s", "held for others"),
        ("queued_s", "queued before the start"),
        ("cpu_throttled_s", "stopped by cpu.max"),
    )
    return ", ".join(f"{seconds_of(record, key)} {what}" for key, what in shown if number_of(record, key) >= 0.001)


def steps_of(record: Record) -> Sequence[Record]:
    """What was done to it because memory was short."""
    return [step for step in list_of(record, "steps") if isinstance(step, dict)][:16]


def step_words(step: Record) -> str:
    """One of these, and what was short."""
    words = {"hold": "held", "release": "went on", "enomem": "refused more", "end": "told to end"}
    text = f"{words.get(text_of(step, 'step'), '?')} at {seconds_of(step, 'at_s') or '0 ms'}"
    if number_of(step, "limit"):
        used, limit, claimed = (format_bytes(int(number_of(step, key))) for key in ("used", "limit", "claimed"))
        text += f": {text_of(step, 'budget') or 'all calls together'} had {used} of {limit} in use"
        text += f", {claimed} promised" if number_of(step, "claimed") else ""
    return text


def _usage(record: Record) -> str:
    cpu, moved = seconds_of(record, "cpu_s"), int(number_of(record, "io_bytes"))
    traffic = [
        f"{format_bytes(int(number_of(record, key)))} {what}"
        for key, what in (("egress_bytes", "sent"), ("ingress_bytes", "received"))
        if number_of(record, key)
    ]
    return ", ".join(filter(None, (cpu, format_bytes(moved) if moved else "", *traffic)))


def _pids(record: Record) -> str:
    parts = []
    if record.get("pids_peak") is not None:
        limit = f" of {count_of(record, 'pids_limit')}" if record.get("pids_limit") is not None else ""
        parts.append(f"peak {count_of(record, 'pids_peak')}{limit}")
    for key, what in (("processes", "ended"), ("pids_denied", "refused"), ("zombies", "zombies")):
        if number_of(record, key):
            parts.append(f"{count_of(record, key)} {what}")
    return ", ".join(parts)


def _orphan_action(record: Record) -> str:
    words = {"kill": "ended with the call", "keep": "left running", "report": "left running and reported"}
    return words.get(text_of(record, "orphan_action"), "") if number_of(record, "orphans") else ""


def hint_words(record: Record) -> str:
    """What was asked for, and what of that was not granted or not understood."""
    clamped = [
        f"{text_of(clamp, 'key')} clamped from {_amount(clamp, 'asked')} to {_amount(clamp, 'granted')}"
        for clamp in list_of(record, "clamps")[:8]
        if isinstance(clamp, dict)
    ]
    ignored = [f"not understood: {clean(str(item), 160)}" for item in list_of(record, "hint_problems")[:8]]
    return "; ".join(filter(None, (text_of(record, "hint"), *clamped, *ignored)))


def _amount(clamp: Record, which: str) -> str:
    key, value = text_of(clamp, "key"), clamp.get(which)
    if isinstance(value, str):
        return clean(value, 24)
    if key == "memory":
        return format_bytes(int(number_of(clamp, which)))
    return seconds_of(clamp, which) if key == "time" else f"{number_of(clamp, which):g}"


def number_of(record: Record, key: str) -> float:
    """A number of the record; 0 where there is none."""
    value = record.get(key)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 else 0


def count_of(record: Record, key: str) -> str:
    """A count of the record in digits."""
    return str(int(number_of(record, key)))


def seconds_of(record: Record, key: str) -> str:
    """Seconds of the record in words; "" for none."""
    return format_seconds(number_of(record, key)) if number_of(record, key) else ""


def text_of(record: Record, key: str) -> str:
    """A text of the record, printable and cut."""
    value = record.get(key)
    return clean(value, 300) if isinstance(value, str) else ""


def list_of(record: Record, key: str) -> list[Any]:
    """A list of the record; empty where there is none."""
    value = record.get(key)
    return value if isinstance(value, list) else []
