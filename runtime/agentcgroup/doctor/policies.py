"""The configuration and the policies: whether each can be read."""

from __future__ import annotations

from collections.abc import Iterator

from agentcgroup import config, paths
from agentcgroup.doctor.finding import AGAIN, Finding, error, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError
from agentcgroup.units import quoted

_RELOAD = "mend that, then: systemctl reload agentcgroupd"


def configuration(host: Host) -> Iterator[Finding]:
    """agentcgroup.yaml."""
    try:
        config.load(paths.CONFIG_FILE)
    except UserError as problem:
        for line in str(problem).splitlines():
            yield error(
                line, "agentcgroupd does not start with it; one that runs goes on with what it read before", _RELOAD
            )
    for name in host.config.allowed_policies or ():
        if name not in host.policies.policies and name not in host.policies.errors:
            what = f"allowed_policies names {quoted(name)}, and there is no such policy"
            yield warning(what, "containers that ask for it are not governed", "agentcgroup policy list")


def policies(host: Host) -> Iterator[Finding]:
    """All of them: each mistake is one finding."""
    for name, problem in host.policies.errors.items():
        for line in str(problem).splitlines():
            yield error(line, f"containers of policy {quoted(name)} are not governed, or do not start", _RELOAD)
    if not host.policies.policies and not host.policies.errors:
        where = ", ".join(map(str, paths.POLICY_DIRS))
        yield error(f"there is no policy in {where}", "no container can be governed", AGAIN)
