"""`agentcgroup bpf`: what is in the kernel, put it there, take it out. With `bpf: true` in agentcgroup.yaml the daemon
attaches by itself at its start.
"""

from __future__ import annotations

import argparse
import dataclasses
import json

from agentcgroup.bpf import loader, memcg_ops, scheduler
from agentcgroup.bpf.libbpf import Libbpf
from agentcgroup.cli import verb
from agentcgroup.paths import BPF_DIR


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    bpf = commands.add_parser("bpf", help="kernel programs: status, attach, detach", description=__doc__)
    verbs = bpf.add_subparsers(title="commands", metavar="COMMAND", required=True)
    status = verb(verbs, "status", "what is at work, and what is not and why", _status)
    status.add_argument("--json", action="store_true", help="print JSON")
    verb(verbs, "attach", "put this version's programs into the kernel", _attach)
    verb(verbs, "detach", "take them out of the kernel; a running daemon puts them back when it is restarted", _detach)


def _status(options: argparse.Namespace) -> int:
    lib = Libbpf()
    build, found = loader.loaded(), [*loader.status(lib, BPF_DIR), memcg_ops.feature(lib)]
    mode, why = scheduler.loaded(), scheduler.why_not()
    if options.json:
        features = [dataclasses.asdict(feature) for feature in found]
        print(json.dumps({"build": build, "features": features, "scheduler": {"mode": mode, "why": why}}, indent=2))
        return 0
    print(f"build {build}" if build else "nothing is attached")
    for feature in found:
        print(f"  {feature.name:10}  {feature.target:32}  {feature.state}{feature.why and f': {feature.why}'}")
    print(f"scheduler: {mode}{why and f': {why}'}")
    return 0


def _attach(_options: argparse.Namespace) -> int:
    loader.attach(Libbpf(), BPF_DIR)
    return 0


def _detach(_options: argparse.Namespace) -> int:
    if not loader.detach():
        print("nothing was attached")
    return 0
