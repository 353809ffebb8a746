"""Checkers of whole files: shell scripts, and links between documents."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked() -> list[Path]:
    """The files of the checkout, also those that are not added yet."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, text=True, capture_output=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def is_script(path: Path) -> bool:
    with path.open("rb") as file:
        return path.suffix in (".sh", ".bash") or re.match(rb"#! ?/bin/(ba)?sh\b", file.readline()) is not None


SCRIPTS = [path for path in tracked() if is_script(path)]
DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_shellcheck_finds_nothing(path: Path) -> None:
    assert shutil.which("shellcheck"), "shellcheck is missing: make setup"
    shell = ["--shell=bash"] if path.suffix == ".bash" else []
    # SC2016: a text in single quotes for sh -c is meant as it stands.
    done = subprocess.run(["shellcheck", "--exclude=SC2016", *shell, path], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr


def without_code(text: str) -> str:
    """Indented blocks, fences and code spans name no links."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^(    |\t).*$", "", text, flags=re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub and GitLab make them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = path.parent / file if file else path
        assert there.exists(), f"{target}: there is no such file"
        assert not anchor or anchor in anchors(there), f"{target}: there is no such heading"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_of_the_checkout_that_a_document_names_exist(path: Path) -> None:
    """Those below tests/, docs/ and the other folders of the sources, by their path from the root."""
    folders = "bench|bpf|docs|hooks|oci-config|packaging|runtime|tests"
    named = re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*[\w/])", path.read_text())
    known = {str(path.relative_to(ROOT)) for path in tracked()}
    gone = [name for name in named if name not in known and not (ROOT / name).is_dir()]
    assert not gone


def test_the_architecture_names_every_folder_and_module() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    sources = {path.relative_to(ROOT) for path in tracked() if path.suffix in (".py", ".c", ".h")}
    folders = {f"{path.parent}/" for path in sources}
    assert not [folder for folder in folders if f"`{folder}`" not in text and not folder.startswith("tests/vm/")]
    modules = {path.stem for path in sources if str(path.parent) == "runtime/agentcgroup"} - {"__init__"}
    table = text.split("Modules of `runtime/agentcgroup/`")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", table)) == modules
