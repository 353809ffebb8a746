"""Policies from directories: who wins, who extends whom, and what was wrong, file by file.

A policy's name is its file's stem. A later directory wins. `extends: NAME` means the winning NAME, or, in NAME.yaml
itself, the one of an earlier directory: /etc may extend the packaged policy of the same name.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentcgroup.errors import UserError
from agentcgroup.policy.build import Resolved, build
from agentcgroup.policy.document import Document, FileError, read
from agentcgroup.policy.model import Policy
from agentcgroup.policy.schema import Problem, nearest
from agentcgroup.units import quoted

NAME = re.compile(r"[a-zA-Z0-9._-]{1,64}", re.ASCII)
MAX_CHAIN = 8


@dataclass(frozen=True, slots=True)
class PolicySet:
    """`policies` and `errors` by policy name; a name is in one of them. An error's text has a line for each problem."""

    policies: Mapping[str, Policy]
    errors: Mapping[str, UserError]
    dirs: tuple[Path, ...] = ()

    def get(self, name: str) -> Policy:
        """The policy of that name. Raises UserError: it is broken (with its problems), or there is none."""
        if name in self.errors:
            raise UserError(str(self.errors[name]))
        if name not in self.policies:
            raise UserError(f"no policy {quoted(name)} in {', '.join(map(str, self.dirs))}: {self._advice(name)}")
        return self.policies[name]

    def _advice(self, name: str) -> str:
        near = nearest(name, sorted({*self.policies, *self.errors}))
        return f"did you mean {quoted(near)}?" if near else "see `agentcgroup policy list`"


def load_policies(dirs: Sequence[Path]) -> PolicySet:
    """Every policy in the directories; a broken file hides no other. Missing directories are skipped."""
    reader = _Reader(dirs)
    policies: dict[str, Policy] = {}
    errors: dict[str, UserError] = dict(reader.misnamed)
    for name in reader.files:
        try:
            policies[name] = reader.policy(name)
            errors.pop(name, None)
        except UserError as error:
            errors[name] = error.with_traceback(None)  # whose frames would keep every document
    return PolicySet(dict(sorted(policies.items())), errors, tuple(dirs))


def load_file(path: Path, dirs: Sequence[Path]) -> Policy:
    """One file, as if it stood in the last directory; what it extends may be beside it. Raises UserError."""
    if problem := _misnamed(path):
        raise problem
    beside = path.parent.resolve()
    reader = _Reader(dirs if beside in [place.resolve() for place in dirs] else [*dirs, path.parent])
    others = [file for file in reader.files.get(path.stem, []) if file.resolve() != path.resolve()]
    reader.files[path.stem] = [*others, path]
    return reader.policy(path.stem)


class _Reader:
    """`files`: the files of each name, a later directory's after an earlier one's. A file is read and built once."""

    def __init__(self, dirs: Sequence[Path]) -> None:
        self.files: dict[str, list[Path]] = {}
        self.misnamed: dict[str, UserError] = {}
        self._documents: dict[Path, Document] = {}
        self._built: dict[Path, tuple[Policy, Resolved] | FileError] = {}
        for place in dirs:
            self._list(place)

    def policy(self, name: str) -> Policy:
        """The winning policy of that name. Raises FileError."""
        return self._resolve(self.files[name][-1])[0]

    def _list(self, place: Path) -> None:
        try:
            paths = sorted(place.iterdir()) if place.exists() else []
        except OSError as error:
            self.misnamed[str(place)] = FileError([f"{place}: cannot be listed: {error.strerror}"])
            return
        for path in paths:
            if path.name.startswith(".") or path.suffix not in (".yaml", ".yml"):
                continue  # an editor's or a package manager's left-over
            if problem := _misnamed(path):
                self.misnamed[path.stem] = problem
            else:
                self.files.setdefault(path.stem, []).append(path)

    def _resolve(self, path: Path) -> tuple[Policy, Resolved]:
        if path not in self._built:
            try:
                document = self._read(path)
                base, problems = self._base(path, document)
                self._built[path] = build(path.stem, document, base, problems)
            except FileError as error:
                self._built[path] = error
        result = self._built[path]
        if isinstance(result, FileError):
            raise FileError(result.problems)  # the kept one would gather a traceback each time
        return result

    def _read(self, path: Path) -> Document:
        if path not in self._documents:
            self._documents[path] = read(path)
        return self._documents[path]

    def _base(self, path: Path, document: Document) -> tuple[Resolved, list[Problem]]:
        """What the document inherits, or why it cannot."""
        wanted = document.data.get("extends")
        if not isinstance(wanted, str) or not NAME.fullmatch(wanted):
            return Resolved(), []  # nothing, or the schema has refused it
        above = self._above(path, wanted)
        if above is None:
            problem = self._missing(path, wanted)
        elif not (problem := self._circle(path)):
            try:
                return self._resolve(above)[1], []
            except FileError:
                problem = f"policy {quoted(wanted)} has errors itself: run `agentcgroup policy check {above}`"
        return Resolved(), [Problem("extends", f"extends: {problem}")]

    def _above(self, path: Path, wanted: str) -> Path | None:
        """The file that `wanted` means in `path`."""
        files = self.files.get(wanted, [])
        earlier = files[: files.index(path)] if wanted == path.stem else files
        return earlier[-1] if earlier else None

    def _missing(self, path: Path, wanted: str) -> str:
        if wanted == path.stem:
            return f"{quoted(wanted)} is this policy, and no earlier directory has one: name another"
        near = nearest(wanted, sorted(self.files))
        return f"no policy {quoted(wanted)}: {f'did you mean {quoted(near)}?' if near else 'add it, or drop this line'}"

    def _circle(self, start: Path) -> str:
        """Why the chain that begins here has no end, or is too long; empty: it is sound."""
        chain = [start]
        while (path := self._next(chain[-1])) is not None:
            if path == start:
                return f"a circle: {' -> '.join(link.stem for link in (*chain, start))}: take one `extends` out"
            if path in chain:
                return ""  # a circle above this file: its members say so
            chain.append(path)
            if len(chain) > MAX_CHAIN:
                return f"more than {MAX_CHAIN} policies extend each other: write some of them out"
        return ""

    def _next(self, path: Path) -> Path | None:
        try:
            wanted = self._read(path).data.get("extends")
        except FileError:
            return None
        return self._above(path, wanted) if isinstance(wanted, str) else None


def _misnamed(path: Path) -> FileError | None:
    if path.suffix != ".yaml":
        return FileError([f"{path}: a policy's file name ends in .yaml: rename it"])
    if not NAME.fullmatch(path.stem):
        return FileError([f"{path}: a policy's name is 1 to 64 letters, digits, dots, dashes, underscores: rename it"])
    return None
