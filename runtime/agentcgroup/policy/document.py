"""A YAML file as plain values plus the line each one stands on. Used for policies and for agentcgroup.yaml.

Plain scalars follow the core schema of YAML 1.2: only true and false are booleans, so `off`, `no` and the device `8:0`
are the strings that they look like. Aliases, anchors and tags are refused: they expand without bound, and `extends`
does their work. Mapping keys are always strings.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import yaml

from agentcgroup.errors import UserError

MAX_FILE = 256 * 1024  # bytes
MAX_DEPTH = 8  # a policy needs 4; the composer recurses
MAX_NODES = 4096  # a packaged policy has some 150; PyYAML reads 25,000 a second

# A reader that PyYAML cannot take by surprise: plain values only.
Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]


class FileError(UserError):
    """All that is wrong with one file. `problems` holds one line each; the text is all of them."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Document:
    """`lines` maps a dotted key (`call.memory.max`, `rules[0].match`) to its line, counted from 1."""

    path: Path
    data: dict[str, Value]
    lines: dict[str, int] = field(default_factory=dict)

    def where(self, key: str) -> str:
        """`file:line` of a dotted key, or of the nearest of its parents that is in the file."""
        return f"{self.path}:{self.line(key)}"

    def line(self, key: str) -> int:
        """The line of `where`."""
        while key not in self.lines and key:
            key = parent(key)
        return self.lines.get(key, 1)


def parent(key: str) -> str:
    """The dotted key one step up: `rules` of `rules[0]`, `call` of `call.grace`, "" of `call`."""
    return re.sub(r"(\.[^.\[\]]+|\[\d+\]|^[^.\[\]]+)$", "", key)


def read(path: Path) -> Document:
    """The document in `path`; an empty file is an empty mapping.

    Raises FileError if it cannot be read, is too large, is not UTF-8 or not YAML, repeats a key, or is no mapping.
    """
    text = _text(path)
    try:
        root = _Loader(text).get_single_node()
    except yaml.YAMLError as error:
        raise FileError([_yaml_problem(path, text, error)]) from None
    if root is None:
        return Document(path, {})
    if not isinstance(root, yaml.MappingNode):
        raise FileError([f"{path}:{_line(root)}: the file must hold `key: value` lines: see docs/policy.md"])
    return _Builder(path).document(root)


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise FileError([f"{path}: not a regular file: put the YAML text there"])
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except OSError as error:
        raise FileError([f"{path}: cannot be read: {error.strerror}"]) from None
    if len(raw) > MAX_FILE:
        raise FileError([f"{path}: larger than 256 KiB: split it, or drop what is not a setting"])
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise FileError([f"{path}:{line}: byte {raw[error.start]:#04x} is not UTF-8: save the file as UTF-8"]) from None


class _Loader(yaml.SafeLoader):
    """Composes nodes only; the constructors of SafeLoader never run."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    depth = nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.NodeEvent = self.peek_event()  # type: ignore[no-untyped-call]
        if event.anchor is not None:
            raise _Refused("anchors and aliases (& and *) are not taken: write the value out, or use `extends`", event)
        if tag := getattr(event, "tag", None):
            raise _Refused(
                f"the tag {tag.replace('tag:yaml.org,2002:', '!!')} is not taken: write the plain value", event
            )
        self.nodes += 1
        if self.depth >= MAX_DEPTH or self.nodes > MAX_NODES:
            raise _Refused(f"deeper than {MAX_DEPTH} levels or more than {MAX_NODES} values: make it smaller", event)
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def plain(text: str) -> Value:
    """The value of a plain scalar: `true`, `12` and `1.5` are what they look like, the rest is text."""
    kind = str(_Loader("").resolve(yaml.ScalarNode, text, (True, False)))  # type: ignore[no-untyped-call]
    return _scalar(kind.rpartition(":")[2], text)


class _Refused(yaml.MarkedYAMLError):
    def __init__(self, text: str, event: yaml.Event) -> None:
        super().__init__(problem=text, problem_mark=event.start_mark)  # type: ignore[arg-type]


# YAML 1.2.2, section 10.3.2, less the octal and hexadecimal integers.
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]{1,30}", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)


def _yaml_problem(path: Path, text: str, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        if isinstance(error, _Refused):
            return f"{path}:{line}: {error.problem}"
        if "but found another document" in (error.problem or ""):
            return f"{path}:{line}: a second document (`---`): write one policy a file"
        cause = ", ".join(part for part in (error.context, error.problem) if part)
        return f"{path}:{line}: not YAML: {cause}: check indentation, colons and quotes"
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        return f"{path}:{line}: the character {int(error.character):#x} is not allowed in YAML: remove it"
    return f"{path}: not YAML: {error}"


class _Builder:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: dict[str, int] = {}
        self._problems: list[str] = []

    def document(self, root: yaml.MappingNode) -> Document:
        data = self._mapping(root, "")
        if self._problems:
            raise FileError(self._problems)
        return Document(self._path, data, self._lines)

    def _value(self, node: yaml.Node, key: str) -> Value:
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, key)
        if isinstance(node, yaml.SequenceNode):
            return list(self._items(node, key))
        return _scalar(node.tag.rpartition(":")[2], node.value)

    def _items(self, node: yaml.SequenceNode, key: str) -> Iterator[Value]:
        for index, item in enumerate(node.value):
            path = f"{key}[{index}]"
            self._lines[path] = _line(item)
            yield self._value(item, path)

    def _mapping(self, node: yaml.MappingNode, key: str) -> dict[str, Value]:
        result: dict[str, Value] = {}
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                self._problems.append(f"{self._path}:{_line(name)}: a key must be a word, not a list or a mapping")
                continue
            path = f"{key}.{name.value}" if key else name.value
            if name.value in result:
                self._problems.append(
                    f"{self._path}:{_line(name)}: {path}: given before, in line {self._lines[path]}: keep one"
                )
                continue
            self._lines[path] = _line(name)
            result[name.value] = self._value(value, path)
        return result


def _scalar(kind: str, text: str) -> Value:
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() == "true"
    if kind == "int":
        return int(text)
    if kind == "float" and isfinite(number := float(text)):
        return number
    return text


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
