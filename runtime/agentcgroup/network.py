"""network.egress and network.ingress: traffic control on the host's end of a container's veth pair. What the container
receives leaves the host there, so that a queue shapes it (tc-tbf(8)); what it sends arrives there, where there is no
queue: what is above the rate is dropped (tc-police(8)), and TCP slows down.

Nothing of the container is entered or asked: the kernel says which interfaces of ours are linked to its namespace.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from agentcgroup import journal
from agentcgroup.cgroup import mount_point
from agentcgroup.errors import UserError
from agentcgroup.peer import look
from agentcgroup.policy.model import Network as Rates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentcgroup.container import Container
    from agentcgroup.loop import Timer
    from agentcgroup.record import Record

#: Seconds until it is tried again: podman connects a container with a user namespace only after the hook.
RETRY = (0.5, 3.0, 10.0)
NONE = Rates()

# include/uapi/linux/pkt_sched.h
_ROOT, _INGRESS, _INGRESS_HANDLE = 0xFFFFFFFF, 0xFFFFFFF1, 0xFFFF0000
#: How ours are told from others': the handle of the queue, the priority of the filter.
_OURS, _PRIORITY = 0xAC60 << 16, 0xAC60
#: What may come at once: seconds at the rate, and bytes at least, for the kernel makes packets of up to 64 KiB.
_QUEUE_BURST, _POLICE_BURST, _LEAST_BURST = 0.02, 0.25, 128 << 10
#: The longest that a received packet waits (seconds), and what the queue holds at least.
_LATENCY, _LEAST_QUEUE = 0.1, 128 << 10
_LARGEST_PACKET = 128 << 10


class Network:
    """Of one container. `why`: in words, what keeps the rates of its policy from being in force."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._timer: Timer | None = None
        self._said = ""
        self.why = ""

    def apply(self, waits: tuple[float, ...] = RETRY) -> None:
        """Have the policy's rates set, or taken back. Nobody waits for it: a container starts without a network too."""
        container = self._container
        self.stop()
        rates = self._rates()
        if rates == NONE and not container.record.rated:
            self.why = ""
            return
        if not container.record.rated:
            container.record.rated = True
            container.governor.save(container)
        container.slowly(lambda: limit(container.record, rates), lambda why: self._done(why, waits))

    def _rates(self) -> Rates:
        policy = self._container.policy
        return policy.network if policy.mode == "enforce" else NONE

    def stop(self) -> None:
        """Try no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _done(self, why: str, waits: tuple[float, ...]) -> None:
        container = self._container
        self.why = why if self._rates() != NONE else ""
        if not self.why or container.closed:
            return
        if waits:
            self.stop()
            self._timer = container.loop.after(waits[0], lambda: self.apply(waits[1:]))
        elif why != self._said:
            self._said = why
            text = f"{container.record.name}: its network is not limited: {why}"
            journal.send(text, 4, AGENTCGROUP_CONTAINER=container.record.id)


def limit(record: Record, rates: Rates) -> str:
    """Set these rates on what connects the container, and on nothing that others use as well. It may take a while.
    Returns why that cannot be, in words.
    """
    try:
        from pyroute2 import IPRoute, NetlinkError  # half a second, and 20 MB
    except ImportError:
        return "the Python package pyroute2 is missing: install it"
    try:
        with _namespace(record) as namespace, IPRoute() as route:
            _look_for_others(record, os.fstat(namespace).st_ino)
            found = _host_ends(route, namespace)
            if not found:
                return "no veth pair connects it to this host: only bridge networks can be limited"
            return "; ".join(dict.fromkeys(filter(None, (_limit(route, index, rates) for index in found))))
    except (UserError, OSError) as error:
        return str(error)
    except NetlinkError as error:
        return f"the kernel refuses: {error}"


def _limit(route: Any, index: int, rates: Rates) -> str:
    """One direction does not wait for the other."""
    missed = []
    for key, act, rate in (("ingress", _shape, rates.ingress), ("egress", _police, rates.egress)):
        try:
            act(route, index, rate)
        except UserError as error:
            missed.append(f"network.{key}: {error}")
    return "; ".join(missed)


@contextmanager
def _namespace(record: Record) -> Iterator[int]:
    """Its network namespace. Raises UserError where it has none of its own."""
    with open(f"/proc/{record.pid}/ns/net", "rb") as file:
        init = look(record.pid)
        if init is None or init.start_time != record.start_time:
            raise UserError("it has ended")
        if os.path.samestat(os.fstat(file.fileno()), os.stat("/proc/self/ns/net")):
            raise UserError("it uses the host's network")
        yield file.fileno()


def _look_for_others(record: Record, namespace: int) -> None:
    """Raises UserError if another container is in its network, such as the rest of a pod: that one has not asked. What
    people start there from the host (nsenter(1)) does not count.
    """
    base = record.base.removeprefix(str(mount_point()))
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            if os.stat(f"/proc/{pid}/ns/net").st_ino != namespace or _shares_pids(pid):
                continue
            other = look(int(pid))
            if other is not None and not f"{other.cgroup}/".startswith(f"{base}/"):
                raise UserError(f"it shares its network with process {pid} ({other.comm}) of another container")


def _shares_pids(pid: str) -> bool:
    return os.path.samestat(os.stat(f"/proc/{pid}/ns/pid"), os.stat("/proc/self/ns/pid"))


def _host_ends(route: Any, namespace: int) -> list[int]:
    """Interfaces of ours whose other end is in that namespace. The kernel numbers the namespaces that ours is linked
    to, at the latest when it lists the links (rtnl_fill_link_netnsid).
    """
    links = [link for link in route.get_links() if link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") == "veth"]
    number = route.get_netnsid(fd=namespace)["nsid"]
    return [link["index"] for link in links if link.get_attr("IFLA_LINK_NETNSID") == number]


def _shape(route: Any, index: int, rate: int | None) -> None:
    """What leaves by that interface. Raises UserError where somebody else has put a queue there."""
    found = next((qdisc for qdisc in _queues(route, index) if qdisc["parent"] == _ROOT), None)
    handle = found["handle"] if found is not None else 0  # the kernel's own has none
    if handle not in (0, _OURS):
        raise UserError(f"{_taken(index, found)}: it is left alone")
    if rate is not None:
        burst = max(int(rate * _QUEUE_BURST), _LEAST_BURST)
        size = max(int(rate * _LATENCY), _LEAST_QUEUE)
        route.tc("replace", "tbf", index, _OURS, rate=rate, burst=burst, limit=size)
    elif handle:
        route.tc("del", index=index, handle=_OURS, parent=_ROOT)


def _police(route: Any, index: int, rate: int | None) -> None:
    """What comes in by that interface. Raises UserError where somebody else has filters there."""
    found = next((qdisc for qdisc in _queues(route, index) if qdisc["parent"] == _INGRESS), None)
    if found is not None:
        priorities = {each["info"] >> 16 for each in route.get_filters(index, parent=_INGRESS_HANDLE)}
        if found.get_attr("TCA_KIND") != "ingress" or priorities - {_PRIORITY}:
            raise UserError(f"{_taken(index, found)}: it is left alone")
        route.tc("del", index=index, handle=_INGRESS_HANDLE, parent=_INGRESS)
    if rate is not None:
        burst = max(int(rate * _POLICE_BURST), _LEAST_BURST)
        police = {"kind": "police", "action": "drop", "rate": rate, "burst": burst, "mtu": _LARGEST_PACKET}
        route.tc("add", "ingress", index)
        route.tc("add-filter", "matchall", index, parent=_INGRESS_HANDLE, prio=_PRIORITY, action=police)


def _queues(route: Any, index: int) -> list[Any]:
    return [qdisc for qdisc in route.get_qdiscs(index) if qdisc["index"] == index]


def _taken(index: int, qdisc: Any) -> str:
    return f"{socket.if_indextoname(index)} has a {qdisc.get_attr('TCA_KIND')} queue that is not ours"
