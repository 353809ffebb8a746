"""`agentcgroup trace`: what the processes of a container's calls spend their time on, while one looks."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator

from agentcgroup import client, trace
from agentcgroup.cgroup import Cgroup
from agentcgroup.errors import UserError
from agentcgroup.units import format_seconds

_TOP = 8
_LOOK_S = 0.1  # a ready directory lies there for longer before its call begins, unless calls come in a burst
_END = (signal.SIGINT, signal.SIGTERM)


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "trace",
        help="where calls spend their time",
        description="Count page faults, waits and syscalls of a container's calls, and add up their time. The time "
        "of a fault or a syscall includes what was waited in it. Needs root, bcc and the running kernel's headers.",
    )
    parser.add_argument("container", metavar="CONTAINER", help="id, beginning of an id, or name")
    parser.add_argument("--call", type=int, metavar="N", help="only this call (default: all, and those that begin)")
    parser.add_argument("--seconds", type=_positive, default=10.0, metavar="S", help="for so long (default: 10)")
    parser.add_argument("--json", action="store_true", help="as JSON, with all syscalls")
    parser.set_defaults(run=run)


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError
    return seconds


def run(options: argparse.Namespace) -> int:
    """Trace, and print what was seen."""
    if os.geteuid():
        raise UserError("agentcgroup trace puts programs into the kernel: run this as root")
    record = client.find_record(options.container)
    calls = Cgroup(record.tree).child("calls")
    if not calls.exists():
        raise UserError(f'container "{options.container}" is not running')
    if options.call is not None and not calls.child(str(options.call)).exists():
        listing = f"agentcgroup calls {options.container} lists those that run"
        raise UserError(f"{record.name} has no call {options.call} now: {listing}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python would hear of it only after the compiler
    found = _watch(trace.Tracer(calls, options.call, options.debug), options.seconds)
    if found.lost:
        print(f"agentcgroup: too much for the tables: {found.lost} events are missing here", file=sys.stderr)
    if options.json:
        print(json.dumps({"container": record.id, **as_json(found)}, indent=2))
    else:
        print("\n".join(text(found, record.name)))
    return 0


def _watch(tracer: trace.Tracer, seconds: float) -> trace.Trace:
    """Until the time is over, the container has ended or a signal comes."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _END)
    print(f"agentcgroup: tracing for {format_seconds(seconds)}, end with ^C", file=sys.stderr, flush=True)
    end = time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0 and signal.sigtimedwait(_END, min(left, _LOOK_S)) is None:
            tracer.look()
    except FileNotFoundError:
        print("agentcgroup: the container has ended", file=sys.stderr)
    return tracer.end()


def as_json(found: trace.Trace) -> dict[str, object]:
    """The trace as the command prints it; times are seconds, and a call without a name is null."""
    calls = []
    for call in found.calls:
        fields = dataclasses.asdict(call)
        name = fields.pop("name")
        off_cpu = {"off_cpu_s": call.blocked_s + call.runnable_s}
        calls.append({"call": int(name) if name.isdecimal() else name or None, **off_cpu, **fields})
    return {"seconds": found.seconds, "lost": found.lost, "calls": calls}


def text(found: trace.Trace, name: str) -> Iterator[str]:
    """The lines for people."""
    if not found.calls:
        yield f"no call of {name} did anything in {format_seconds(found.seconds)}"
    for call in found.calls:
        yield f"call {call.name or '?'} of {name}, in {format_seconds(found.seconds)}"
        yield f"  faults   {call.faults} in {_span(call.fault_s)}"
        off_cpu = _span(call.blocked_s + call.runnable_s)
        yield f"  off CPU  {off_cpu}: {_span(call.blocked_s)} blocked, {_span(call.runnable_s)} waiting for a CPU"
        for place, syscall in enumerate(call.syscalls[:_TOP]):
            label = "" if place else "syscalls"
            yield f"  {label:8} {syscall.name}: {syscall.count} in {_span(syscall.seconds)}"
        if more := call.syscalls[_TOP:]:
            count, seconds = sum(one.count for one in more), sum(one.seconds for one in more)
            yield f"           {len(more)} others: {count} in {_span(seconds)}"


def _span(seconds: float) -> str:
    """As elsewhere, but microseconds where milliseconds say nothing."""
    return format_seconds(seconds) if seconds >= 0.0095 or not seconds else f"{seconds * 1e6:.0f} us"
