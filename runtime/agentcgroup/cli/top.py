"""`agentcgroup top`: what is at work now, looked at again and again. A table that stays in its place needs rich, the
extra `top`; otherwise it is lines of text.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import select
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator, Sequence
from typing import Any

from agentcgroup import client, top
from agentcgroup.cli.show import print_table

_KEYS = {key[0]: key for key in top.SORTS}
_FIRST_S = 0.5  # the first look at a container has no earlier one to compare with
_NUMBERS = 3, 8  # the columns of numbers


def register(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "top",
        help="containers and calls at work, as they go",
        description="Show containers and their calls again and again. On a terminal with rich: m c p a n sort by "
        "memory, cpu, pressure, age, name; q ends. PRESSURE is the share of the time in which some of its tasks waited "
        "for memory, CPU is of one CPU, AGE of a container that of its oldest call.",
    )
    parser.add_argument("--sort", choices=top.SORTS, default="memory", help="by what (default: %(default)s)")
    parser.add_argument(
        "-d", "--interval", type=_positive, default=2.0, metavar="S", help="seconds between looks (default: 2)"
    )
    parser.add_argument("-n", "--count", type=_count, metavar="N", help="so many looks, then end")
    parser.set_defaults(run=run)


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds < 1e6:
        raise ValueError
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def run(options: argparse.Namespace) -> int:
    """Show until the count is reached, or ^C, or q."""
    sampler = top.Sampler()
    sampler.look(client.ask({"op": "top"}))
    time.sleep(min(_FIRST_S, options.interval))
    with contextlib.suppress(KeyboardInterrupt):
        if sys.stdout.isatty() and importlib.util.find_spec("rich") is not None:
            _live(options, sampler)
        else:
            _lines(options, sampler)
    return 0


def _looks(options: argparse.Namespace) -> Iterator[None]:
    left = options.count
    while left is None or left > 0:
        yield
        left = None if left is None else left - 1


def _title(answer: dict[str, Any], sort: str) -> str:
    shown = f"{answer['total']} containers, {answer['total_calls']} calls, by {sort}"
    cut = len(answer["containers"]) < answer["total"] or len(answer["calls"]) < answer["total_calls"]
    return f"agentcgroup top  {time.strftime('%H:%M:%S')}  {shown}{', not all shown' if cut else ''}"


def _lines(options: argparse.Namespace, sampler: top.Sampler) -> None:
    for number, _ in enumerate(_looks(options)):
        if number:
            time.sleep(options.interval)
            print()
        answer = client.ask({"op": "top"})
        print(_title(answer, options.sort))
        print_table(top.HEADER, [row.cells() for row in top.ordered(sampler.look(answer), options.sort)])
        sys.stdout.flush()


def _live(options: argparse.Namespace, sampler: top.Sampler) -> None:
    from rich.console import Console
    from rich.live import Live

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the terminal is to be put back
    console, sort = Console(highlight=False), options.sort
    with _keys() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        for _ in _looks(options):
            answer = client.ask({"op": "top"})
            groups, until = sampler.look(answer), time.monotonic() + options.interval
            while (left := until - time.monotonic()) > 0:
                rows = top.ordered(groups, sort)[: max(console.height - 4, 1)]
                live.update(_table(_title(answer, sort), rows), refresh=True)
                key = _key(keyboard, left)
                if key == "q":
                    return
                sort = _KEYS.get(key, sort)


def _table(title: str, rows: Sequence[top.Row]) -> Any:
    """Cells are Text: what is in a name is no markup."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, title=Text(title), title_justify="left", pad_edge=False)
    for number, name in enumerate(top.HEADER):
        table.add_column(name, justify="right" if _NUMBERS[0] <= number < _NUMBERS[1] else "left", no_wrap=True)
    styles = {"held": "yellow", "slowed": "magenta"}
    for row in rows:
        style = "bold" if row.call is None else styles.get(row.state, "red" if row.state.startswith("ending") else "")
        table.add_row(*(Text(cell) for cell in row.cells()), style=style)
    return table


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """The terminal's keys as they are pressed, not shown; None where stdin is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _key(keyboard: int | None, seconds: float) -> str:
    """A key if one is pressed within that time."""
    ready, _, _ = select.select([] if keyboard is None else [keyboard], [], [], seconds)
    return os.read(ready[0], 1).decode("ascii", "replace") if ready else ""
