"""`agentcgroup doctor`: what is wrong on this host."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from agentcgroup import __version__


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="what is wrong on this host, and what mends it",
        description="Look at the kernel, cgroups, engines, policies, the daemon and the containers that run. Of each "
        "thing that is wrong it says what, why it matters, and the command that mends it; it changes nothing. Exit "
        "status: 0 nothing is broken (there may be warnings), 1 something is, 2 wrong usage.",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the findings."""
    from agentcgroup.doctor.examine import examine  # with YAML and JSON schema, which no other command should load
    from agentcgroup.doctor.finding import Level
    from agentcgroup.doctor.host import Host

    findings = examine(Host())
    status = int(any(found.level is Level.ERROR for found in findings))
    if options.json:
        plain = [dataclasses.asdict(found) for found in findings]
        print(json.dumps({"version": __version__, "status": status, "findings": plain}, indent=2))
        return status
    for level in Level:
        for found in findings:
            if found.level is level:
                told = [("why", found.why), ("fix", found.fix)]
                print(
                    f"{level} ({found.check}): {found.what}",
                    *(f"  {key}: {text}" for key, text in told if text),
                    sep="\n",
                )
    print(_summary([str(found.level) for found in findings]))
    return status


def _summary(levels: Sequence[str]) -> str:
    counts = [(levels.count(level), level) for level in ("error", "warning")]
    said = [f"{count} {level}{'s' * (count > 1)}" for count, level in counts if count]
    return ", ".join(said) or "nothing is wrong"
