"""Console blocks of a document: commands behind `# `, gone on with behind `> `, and what they print."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_SIZE = re.compile(rf"\b(\d+(?:\.\d+)?) ({'|'.join(_UNITS)})\b")
#: What differs each time, and what stands for it.
_NAMES = (
    (re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b(call |calls/)\d+", re.IGNORECASE), r"\1N"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+\d\d:\d\d"), "WHEN"),
    (re.compile(r"\b\d+\.\d+\.\d+-\d+\b"), "VERSION"),
    (re.compile(r"\bfor \d+(\.\d+)? (ms|s|min)\b"), "for TIME"),  # as long as it took; other times are limits
    (re.compile(" +"), " "),
)
_NEAR_BYTES = 32 << 20


@dataclass
class Step:
    """A command, and its output as the document has it."""

    command: str
    output: str = ""


def steps(document: Path) -> list[Step]:
    """All of a document, in its order."""
    found: list[Step] = []
    for block in re.findall(r"^```console\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("# "):
                found.append(Step(line[2:]))
            elif line.startswith("> "):
                found[-1].command += "\n" + line[2:]
            else:
                found[-1].output += line + "\n"
    return found


class Shell:
    """One bash for all commands."""

    def __init__(self, folder: Path) -> None:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._bash = subprocess.Popen(["bash", "--norc"], text=True, cwd=folder, **pipes)  # type: ignore[call-overload]

    def run(self, command: str) -> str:
        """What it prints, on both streams; `$?` stays for the next."""
        end = "--- end of the output ---"
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null; (s=$?; echo; echo '{end}'; exit $s)\n")
        self._bash.stdin.flush()
        lines = []
        for line in self._bash.stdout:
            if line.strip() == end:
                return "".join(lines)[:-1]  # without the line that begins the mark
            lines.append(line)
        raise AssertionError(f"{command}: bash ended\n{''.join(lines)}")

    def close(self) -> None:
        """No command is left."""
        self._bash.stdin.close()
        self._bash.wait()


def same(expected: str, printed: str) -> bool:
    """Whether both say the same. A line `...` stands for any lines. Sizes may be 5 % or 32 MiB apart."""
    wanted, there = expected.splitlines(), printed.splitlines()
    if not wanted:
        return not there
    if wanted[0] == "...":
        return any(same("\n".join(wanted[1:]), "\n".join(there[skip:])) for skip in range(len(there) + 1))
    return bool(there) and _alike(wanted[0], there[0]) and same("\n".join(wanted[1:]), "\n".join(there[1:]))


def _alike(wanted: str, line: str) -> bool:
    if _plain(wanted) != _plain(line):
        return False
    return all(map(_near, _SIZE.findall(wanted), _SIZE.findall(line)))


def _plain(line: str) -> str:
    """Without what differs each time."""
    for pattern, name in _NAMES:
        line = pattern.sub(name, line)
    return _SIZE.sub("SIZE", line).strip()


def _near(wanted: tuple[str, str], found: tuple[str, str]) -> bool:
    a, b = (float(number) * _UNITS[unit] for number, unit in (wanted, found))
    return abs(a - b) <= max(a * 0.05, _NEAR_BYTES)
