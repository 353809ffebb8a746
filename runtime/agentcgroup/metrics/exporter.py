"""The figures in Prometheus' text format. Read on the thread that serves them, so what is asked of cgroup files costs
calls nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from agentcgroup import __version__
from agentcgroup.admission import PRIORITIES

if TYPE_CHECKING:
    from agentcgroup.container import Container
    from agentcgroup.governor import Governor
    from agentcgroup.metrics.counts import Counts, Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: Containers with figures of their own, those with most memory; each is seven lines.
CONTAINERS_SHOWN = 256


class Exporter:
    """A collector (prometheus_client) of one daemon's figures."""

    def __init__(self, governor: Governor, counts: Counts) -> None:
        self._governor = governor
        self._counts = counts
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        """All of it."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """One family after the other."""
        yield _labelled(GaugeMetricFamily, "build_info", "Version of the daemon.", {"version": __version__}, 1)
        yield from self._state()
        yield from self._containers(list(self._governor.containers.values()))
        yield from self._budgets()
        yield from self._calls()
        yield from self._limits()

    def _state(self) -> Iterator[Metric]:
        ours = self._governor
        mode = ours.scheduling.mode if ours.scheduling is not None else "off"
        yield _gauge("bpf_attached", "Whether programs in the kernel account for calls.", ours.kernel is not None)
        yield _labelled(GaugeMetricFamily, "scheduler_info", "The sched_ext scheduler at work.", {"mode": mode}, 1)
        yield _counter("records_lost", "Records of calls that could not be written.", ours.ledger.lost)
        yield _counter("complaints", "Odd things that containers did.", self._counts.complaints)

    def _containers(self, found: list[Container]) -> Iterator[Metric]:
        calls = [call for one in found for call in list(one.calls.values())]
        containers = GaugeMetricFamily(_name("containers"), "Governed containers.", labels=["priority"])
        running = GaugeMetricFamily(_name("running_calls"), "Calls that run now.", labels=["priority"])
        for priority in PRIORITIES:
            containers.add_metric([priority], sum(one.policy.priority == priority for one in found))
            running.add_metric([priority], sum(call.grant.priority == priority for call in calls))
        yield containers
        yield running
        yield _gauge("held_calls", "Calls that are held now.", sum(call.held_since is not None for call in calls))
        yield from _each(found)

    def _budgets(self) -> Iterator[Metric]:
        budgets = self._governor.budgets.shared if self._governor.budgets is not None else []
        rooms = [(budget.name, room) for budget in budgets if (room := budget.room()) is not None]
        for name, text, value in (
            ("budget_memory_bytes", "Memory in use of a budget that containers share.", "used"),
            ("budget_memory_limit_bytes", "Limit of that budget.", "limit"),
        ):
            family = GaugeMetricFamily(_name(name), text, labels=["budget"])
            for budget, room in rooms:
                family.add_metric([budget], getattr(room, value))
            yield family

    def _calls(self) -> Iterator[Metric]:
        counts = self._counts
        family = CounterMetricFamily(
            _name("calls"), "Finished calls by what came of them.", labels=["policy", "result"]
        )
        for labels, count in list(counts.calls.items()):
            family.add_metric(labels, count)
        yield family
        yield _histogram("call_duration_seconds", "From a call's admission to its shell's end.", counts.duration)
        yield _histogram("call_peak_memory_bytes", "The most memory that a call had.", counts.peak)
        yield _histogram("call_setup_seconds", "The daemon's work when a call begins.", counts.setup)
        yield _histogram("hook_duration_seconds", "The hook's work when a container starts.", counts.hook)
        yield _counter("call_cpu_seconds", "CPU time of finished calls.", counts.cpu_s)

    def _limits(self) -> Iterator[Metric]:
        counts = self._counts
        steps = CounterMetricFamily(
            _name("ladder_steps"), "What was done to finished calls because memory was short.", labels=["step"]
        )
        for step in ("hold", "release", "enomem", "end"):
            steps.add_metric([step], counts.steps[step])
        yield steps
        yield _counter("held_seconds", "Time that finished calls were held.", counts.held_s)
        yield _counter("throttled_seconds", "Time that finished calls waited for memory.", counts.throttled_s)
        yield _counter("oom_kills", "Processes of calls that the kernel killed for memory.", counts.oom_kills)
        yield _counter("processes_refused", "Forks refused at a call's pids.max.", counts.processes_refused)
        yield _counter("orphans", "Processes that outlived their call's shell.", counts.orphans)


def _each(found: list[Container]) -> Iterator[Metric]:
    rows = sorted((one.row() for one in found), key=lambda row: -(row["memory"] or 0))
    shown = rows[:CONTAINERS_SHOWN]
    for name, text, key in (
        ("container_memory_bytes", "Memory of a container's subtree.", "memory"),
        ("container_memory_limit_bytes", "Limit of a container's subtree.", "memory_max"),
        ("container_agent_memory_bytes", "Memory of a container outside of its calls.", "agent_memory"),
        ("container_running_calls", "A container's calls that run now.", "calls"),
    ):
        family = GaugeMetricFamily(_name(name), text, labels=["id", "name"])
        for row in shown:
            if row[key] is not None:
                family.add_metric([row["id"][:12], row["name"]], row[key])
        yield family
    yield _gauge("containers_omitted", "Containers without figures of their own.", len(rows) - len(shown))


def _name(name: str) -> str:
    return f"agentcgroup_{name}"


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(_name(name), text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(_name(name), text, value=float(value))


def _labelled(family: type[GaugeMetricFamily], name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    found = family(_name(name), text, labels=list(labels))
    found.add_metric(list(labels.values()), value)
    return found


def _histogram(name: str, text: str, values: Histogram) -> Metric:
    bounds = [*map(str, values.bounds), "+Inf"]
    buckets = list(zip(bounds, map(float, accumulate(values.counts)), strict=True))
    return HistogramMetricFamily(_name(name), text, buckets=buckets, sum_value=values.total)
