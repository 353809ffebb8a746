"""Markdown of a manual page as go-md2man takes it: manpage.py docs/man/PAGE.md | go-md2man >PAGE

A line `@FILE`, the path from the checkout's root, stands for the beginning of that document, `@FILE HEADING` for one of
its sections, so that nothing is written twice. Tables become lists, for they would not fit; links become their text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_LINK = re.compile(r"(?<!!)\[([^]]+)\]\([^)]+\)")
_BULLETS = ("- ", "* ")
_CELLS = re.compile(r"(?<!\\)\|")


def page(path: Path) -> str:
    """The whole page. Raises ValueError where a section that it names is not there."""
    return "\n".join(_plain(_included(path.read_text().splitlines()))) + "\n"


def _included(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if not line.startswith("@"):
            yield line
            continue
        file, _, heading = line[1:].partition(" ")
        yield from _section((ROOT / file).read_text().splitlines(), heading, file)


def _section(lines: list[str], heading: str, file: str) -> Iterator[str]:
    """The lines below the title, or below `## HEADING` and with it, until the next such heading."""
    starts = [number for number, line in enumerate(lines) if line.startswith("## ")] + [len(lines)]
    if not heading:
        yield from lines[1 : starts[0]]
        return
    if f"## {heading}" not in lines:
        raise ValueError(f'{file} has no section "{heading}"')
    first = lines.index(f"## {heading}")
    yield from lines[first : starts[starts.index(first) + 1]]


def _plain(lines: Iterator[str]) -> Iterator[str]:
    """Sections in capitals, tables as lists, no links, room before a list; what is indented or fenced stays."""
    header: list[str] = []
    fenced = False
    before = ""
    for line in lines:
        if line.startswith(_BULLETS) and before and not before.startswith((*_BULLETS, " ")):
            yield ""
        before = line
        if line.startswith("```"):
            fenced = not fenced
            yield ""
            continue
        if fenced or line.startswith("    "):
            yield f"    {line}" if fenced else line
            continue
        if not line.startswith("|"):
            header = []
            text = _LINK.sub(r"\1", line)
            yield text.upper() if text.startswith("## ") else text
            continue
        cells = [_LINK.sub(r"\1", cell.strip().replace(r"\|", "|")) for cell in _CELLS.split(line)[1:-1]]
        if not header:
            header = cells
        elif set(cells[0]) != {"-"}:
            yield from _item(header, cells)


def _item(header: list[str], cells: list[str]) -> Iterator[str]:
    """The first cell, what stands between, and the last below."""
    between = [f"{name}: {cell}" for name, cell in zip(header[1:-1], cells[1:-1], strict=True) if cell]
    term = f"**{cells[0].replace('`', '')}**" if cells[0] else ""
    yield from ("", f"{term} ({'; '.join(between)})".strip() if between else term, f": {cells[-1]}")


if __name__ == "__main__":
    sys.stdout.write(page(Path(sys.argv[1])))
