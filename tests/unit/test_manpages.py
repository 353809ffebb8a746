"""The manual pages say what the programs' --help says, no less and no more."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentcgroup import cli

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "man").glob("*.md"))
HELP = {"--help", "-h"}


def leaves(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands that do something, by what is written for them."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, child in action.choices.items():
                yield from leaves(child, f"{name} {word}".strip())
            return
    yield name, parser


COMMANDS = dict(leaves(cli.parser()))


def options(parser: argparse.ArgumentParser) -> set[str]:
    return {word for action in parser._actions for word in action.option_strings}


def operands(parser: argparse.ArgumentParser) -> str:
    found = [action for action in parser._actions if not action.option_strings]
    return " ".join(str(action.metavar or action.dest.upper()) for action in found)


def described(text: str) -> set[str]:
    """The options that have an entry."""
    return set(re.findall(r"\*\*(--?[\w-]+)=?\*\*", text))


def sections() -> dict[str, str]:
    """Of agentcgroup(1): what stands under each command's heading."""
    text = (ROOT / "docs/man/agentcgroup.1.md").read_text().split("## COMMANDS")[1].split("\n## ")[0]
    return dict(part.split("\n", 1) for part in text.split("\n### ")[1:])


def test_every_command_has_its_entry_and_there_is_no_other() -> None:
    assert set(sections()) == {f"{name} {operands(parser)}".strip() for name, parser in COMMANDS.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commands_entry_has_its_options_and_no_other(name: str) -> None:
    parser = COMMANDS[name]
    entry = sections()[f"{name} {operands(parser)}".strip()]
    assert described(entry) == options(parser) - HELP


def test_the_command_itself_has_its_options_and_no_other() -> None:
    text = (ROOT / "docs/man/agentcgroup.1.md").read_text()
    assert described(text.split("## OPTIONS")[1].split("\n## ")[0]) == options(cli.parser())


def test_the_daemons_page_has_its_options_and_no_other() -> None:
    helped = subprocess.run([sys.executable, "-m", "agentcgroup.daemon", "--help"], text=True, capture_output=True)
    words = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", helped.stdout.split("options:")[1]))
    text = (ROOT / "docs/man/agentcgroupd.8.md").read_text()
    assert described(text.split("## OPTIONS")[1].split("\n## ")[0]) == words


def test_the_runtimes_page_has_its_option() -> None:
    [option] = re.findall(r'#define OPTION "(--[\w-]+)="', (ROOT / "hooks/runtime/main.c").read_text())
    assert described((ROOT / "docs/man/agentcgroup-runtime.8.md").read_text()) == {option}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_is_made_and_groff_finds_no_fault(page: Path) -> None:
    tools = [tool for tool in ("go-md2man", "groff") if shutil.which(tool) is None]
    assert not tools, f"{tools} missing: make setup"
    maker = [sys.executable, str(ROOT / "docs/man/manpage.py"), str(page)]
    text = subprocess.run(maker, text=True, capture_output=True, check=True).stdout
    assert not re.search(r"^[@|]", text, re.MULTILINE), "a line was left as it was"
    roff = subprocess.run(["go-md2man"], input=text, text=True, capture_output=True, check=True).stdout
    shown = subprocess.run(["groff", "-man", "-Tutf8", "-ww"], input=roff, text=True, capture_output=True)
    assert (shown.returncode, shown.stderr) == (0, "")
    name, _, section = page.stem.rpartition(".")
    assert f"{name}({section})" in shown.stdout and f"{name} - " in text


def test_pages_refer_to_pages_that_exist() -> None:
    ours = {page.stem for page in PAGES}
    for page in PAGES:
        for name, section in re.findall(r"\*\*(agentcgroup[\w.-]*)\*\*\((\d)\)", page.read_text()):
            assert f"{name}.{section}" in ours, f"{page.name}: {name}({section})"
    for unit in (ROOT / "oci-config" / "systemd").iterdir():
        for name, section in re.findall(r"man:([\w.-]+)\((\d)\)", unit.read_text()):
            assert f"{name}.{section}" in ours, f"{unit.name}: {name}({section})"
