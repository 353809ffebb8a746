"""`agentcgroup bench`: agents' memory over time replayed in real containers, and what came of it."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
from pathlib import Path

from agentcgroup.bench import figures, pictures, replay, traces
from agentcgroup.bench.arms import ARMS
from agentcgroup.cli import verb
from agentcgroup.errors import UserError

ROLES = ("HIGH", "LOW1", "LOW2")


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    bench = commands.add_parser(
        "bench",
        help="replay agents under memory pressure",
        description="Replay what agents do to memory, in real containers, under several ways to share it.",
    )
    verbs = bench.add_subparsers(title="commands", metavar="COMMAND", required=True)
    run = verb(verbs, "replay", "run cells and add what came of them to a result file", run_replay)
    run.add_argument(
        "--traces", type=Path, help="recorded runs (.jsonl, .jsonl.gz); else they are drawn from distributions"
    )
    run.add_argument("--scale", type=float, default=1.0, help="of the sizes of drawn agents")
    run.add_argument("--calls", type=int, help="of each drawn agent; else as many as such agents made")
    run.add_argument(
        "--paper-units", action="store_true", help="read MB as MiB and add 100 MiB, as the AgentCgroup paper"
    )
    run.add_argument(
        "--cells", nargs="+", default=["1000x50", "1100x50"], metavar="MIBxSPEED", help="default: %(default)s"
    )
    run.add_argument("--arms", nargs="+", default=["none", "memory.high", "ours-files", "ours"], choices=[*ARMS])
    run.add_argument("-n", type=int, default=10, help="rounds of each cell, at most")
    run.add_argument(
        "--narrow", type=float, metavar="SHARE", help="end a cell when each arm's makespan is known so well"
    )
    run.add_argument("--jitter", type=float, default=0.0, metavar="S", help="agents begin within so many seconds")
    run.add_argument(
        "--results", type=Path, default=Path("replay.jsonl"), help="a line a run; what is there is not run again"
    )
    run.add_argument("--image", default="localhost/debian", help="with bash (default: %(default)s)")
    run.add_argument("--seed", type=int, default=1, help="of the arms' order, the jitter and the drawn agents")
    dense = verb(verbs, "density", "how many drawn agents a budget bears, by adding more", run_density)
    dense.add_argument("--budget", type=int, default=384, metavar="MIB", help="of them all (default: %(default)s)")
    dense.add_argument("--scale", type=float, default=0.125, help="of all sizes (default: %(default)s)")
    dense.add_argument("--calls", type=int, default=12, help="of each agent (default: %(default)s)")
    dense.add_argument("--speed", type=float, default=10.0)
    dense.add_argument("--agents", type=int, nargs="+", default=[3, 5, 7, 9, 11, 13, 15], help="default: %(default)s")
    dense.add_argument("--arms", nargs="+", default=["static", "ours"], choices=[*ARMS])
    dense.add_argument("-n", type=int, default=10, help="rounds, each with agents of its own")
    dense.add_argument("--results", type=Path, default=Path("density.jsonl"))
    dense.add_argument("--image", default="localhost/debian", help="with bash (default: %(default)s)")
    dense.add_argument("--seed", type=int, default=1)
    report = verb(verbs, "report", "figures of a result file as Markdown, and pictures", run_report)
    report.add_argument("results", type=Path)
    report.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw them there, PNG and SVG")


def run_replay(options: argparse.Namespace) -> int:
    """Rounds of all arms in random order."""
    _clean_end()
    agents, cells = _agents(options), {cell: _cell(cell) for cell in options.cells}
    done = {_key(run) for run in _read(options.results)} if options.results.exists() else set()
    with replay.Daemon() as daemon, open(options.results, "a") as file:
        for cell, (budget, speed) in cells.items():
            for number in range(1, options.n + 1):
                if options.narrow and _is_known(_read(options.results), budget, speed, options):
                    print(f"{cell}: known well enough after {number - 1} rounds")
                    break
                dice = random.Random(f"{options.seed} {cell} {number}")
                offsets = tuple(dice.uniform(0, options.jitter) for _ in agents)
                for name in dice.sample(options.arms, len(options.arms)):
                    if (budget, speed, name, number) in done:
                        continue
                    daemon.use(ARMS[name])
                    setting = replay.Setting(options.image, speed, offsets)
                    run = replay.run(ARMS[name], agents, budget << 20, setting).as_json() | {"round": number}
                    file.write(json.dumps(run) + "\n")
                    file.flush()
                    print(_in_short(run), flush=True)
    return 0


def _clean_end() -> None:
    """Told to end, once or more, we end what was started and put back what was changed."""

    def end(received: int, _frame: object) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        sys.exit(128 + received)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def run_density(options: argparse.Namespace) -> int:
    """Rounds of each arm in random order: ever more agents, until they are too many."""
    _clean_end()
    runs = _read(options.results) if options.results.exists() else []
    done = {(*_key(run), len(run["agents"])): run for run in runs}
    with replay.Daemon() as daemon, open(options.results, "a") as file:
        for number in range(1, options.n + 1):
            dice = random.Random(f"{options.seed} {number}")
            agents = list(traces.drawn(max(options.agents), dice.randrange(1 << 30), options.scale, options.calls))
            for name in dice.sample(options.arms, len(options.arms)):
                first = None
                for count in sorted(options.agents):
                    run = done.get((options.budget, options.speed, name, number, count))
                    if run is None:
                        daemon.use(ARMS[name])
                        setting = replay.Setting(options.image, options.speed, (0.0,) * count)
                        found = replay.run(ARMS[name], agents[:count], options.budget << 20, setting)
                        run = found.as_json() | {"round": number}
                        file.write(json.dumps(run) + "\n")
                        file.flush()
                        print(f"{count} agents, {_in_short(run)}", flush=True)
                    first = first or run
                    if figures.too_many(run, first):
                        break
    return 0


def _agents(options: argparse.Namespace) -> list[traces.Trace]:
    if options.traces:
        found = traces.load(options.traces, options.paper_units)
    else:
        found = list(traces.drawn(len(ROLES), options.seed, options.scale, options.calls))
    if not found[0].role:
        found = [traces.Trace(t.name, t.own, t.calls, role) for t, role in zip(found, ROLES, strict=False)]
    return found


def _cell(text: str) -> tuple[int, float]:
    budget, x, speed = text.partition("x")
    if not x or not budget.isdecimal() or not speed.replace(".", "", 1).isdecimal() or float(speed) <= 0:
        raise UserError(f"cell {text!r}: MiB and speed are expected, such as 1100x50")
    return int(budget), float(speed)


def _key(run: figures.Record) -> tuple[int, float, str, int]:
    return run["budget_mib"], run["speed"], run["arm"], run["round"]


def _is_known(runs: list[figures.Record], budget: int, speed: float, options: argparse.Namespace) -> bool:
    arms = figures.cells(runs)[budget, speed]
    return all(figures.narrow(arms[name], "HIGH", options.narrow) for name in options.arms)


def _read(path: Path) -> list[figures.Record]:
    try:
        return [json.loads(line) for line in path.read_text().splitlines()]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{path}: not a result file: {error}") from None


def _in_short(run: figures.Record) -> str:
    names = [(agent["role"] or agent["name"].removeprefix("agent-"), agent) for agent in run["agents"]]
    agents = ", ".join(f"{name} {a['makespan_s']:.1f} s" if a["survived"] else f"{name} died" for name, a in names)
    lost = sum(a["lost"] for a in run["agents"])
    where = f"{run['budget_mib']}x{run['speed']:g} round {run['round']}"
    return f"{where} {run['arm']:11} {agents}; {lost} calls lost, {run['oom_kills']} OOM kills"


def run_report(options: argparse.Namespace) -> int:
    """Print the table; draw the pictures."""
    runs = _read(options.results)
    print(figures.density(runs) if "" in {a["role"] for run in runs for a in run["agents"]} else figures.table(runs))
    if options.pictures:
        for path in pictures.draw(runs, options.pictures):
            print(path, file=sys.stderr)
    return 0
