"""Which OCI hooks an engine would inject into a container: oci-hooks(5), as the hook package of podman and CRI-O does it.

Where page and program differ the program counts (go.podman.io/common/pkg/hooks, before 2025 in
github.com/containers/common): its name is in the comments. A directory is read in the order of its file names:

    JSON or a value that cannot be read   broken: the whole set of hooks is refused
    hook.path does not exist              the file is passed over in silence, and *from there on so are broken ones of
                                          the same directory*, for only the first error of a directory is looked at
    the rest                              takes the place of a file of that name in an earlier directory
"""

from __future__ import annotations

import difflib
import enum
import functools
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OUR_HOOK = "agentcgroup-hook"
# containers.conf and crio.conf can name others (hooks_dir); of /etc both know only the name.
DEFAULT_DIRS = (Path("/usr/share/containers/oci/hooks.d"),)

# 1.0.0/hook.go, Validate. The engine adds stages of its own: podman runs those two itself (libpod, setupOCIHooks),
# CRI-O has none.
_STAGES = ("createContainer", "createRuntime", "prestart", "poststart", "poststop", "startContainer")
_OWN_STAGES = {"podman": ("precreate", "poststop"), "crio": ()}
ENGINES = tuple(_OWN_STAGES)


class Broken(ValueError):
    """A file that makes the engine refuse the whole set of hooks."""


class InvalidRegex(ValueError):
    """Go's regexp would not compile it."""


class UntranslatedRegex(ValueError):
    """RE2 knows it, and Python has nothing like it."""


@dataclass(frozen=True)
class Container:
    """What the conditions of a hook are about. `command` is argv[0], None when it is not known."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    command: str | None = None
    bind_mounts: bool = False


@dataclass(frozen=True)
class Hook:
    """One file, read. `timeout` is in seconds; a condition that is not set is None or empty."""

    schema: str
    path: str
    args: tuple[str, ...]
    env: tuple[str, ...]
    timeout: int | None
    stages: tuple[str, ...]
    always: bool | None
    has_bind_mounts: bool | None
    annotations: Mapping[str, str]
    commands: tuple[str, ...]

    @property
    def any_of(self) -> bool:
        """Whether one condition is enough: so it is in schema 0.1.0 only."""
        return self.schema == "0.1.0"


class State(enum.StrEnum):
    """What becomes of a file."""

    RUNS = "runs"
    UNMATCHED = "does not match"
    MASKED = "masked"
    NO_BINARY = "no binary"
    BROKEN = "broken"


@dataclass(frozen=True)
class Verdict:
    """What an engine does with one file, and why. `stages` is empty unless it runs."""

    file: Path
    state: State
    hook: Hook | None = None
    stages: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ours(self) -> bool:
        """Whether it is this product's hook."""
        return self.hook is not None and os.path.basename(self.hook.path) == OUR_HOOK


def judge(directories: Sequence[Path], container: Container, engine: str) -> list[Verdict]:
    """The verdict on each file of the directories, in the order in which hooks are injected. Of files with the same
    name the one in the last directory counts.
    """
    read = [file for directory in directories for file in _read_directory(directory, engine)]
    counts = {file.path.name: file for file in read if not file.error and not file.missing}
    verdicts = [_verdict(file, counts.get(file.path.name, file), container, engine) for file in read]
    # hooks.go, Hooks: lower case, by code point. (Until 2020 the order was that of the locale.)
    return sorted(verdicts, key=lambda verdict: (verdict.file.name.lower(), verdict.file.name))


def suggestions(hook: Hook, engine: str) -> list[str]:
    """The annotations of this product with which the hook would match, the usual one of the engine first."""
    keys = ["agentcgroup.policy", "agentcgroup.io/policy", "policy.agentcgroup.io/CONTAINER"]
    if engine == "crio":
        keys = keys[1:]
    return [
        f"{key}=NAME"
        for key in keys
        if hook.annotations and not any(_unmet_annotations(hook, Container({key: "NAME"})))
    ]


# -- one file ---------------------------------------------------------------------------------------------------------


@dataclass
class _File:
    path: Path
    hook: Hook | None = None
    error: str = ""
    missing: str = ""  # hook.path, when there is nothing
    tolerated_by: str = ""  # the file of the same directory whose missing binary hides this error
    warnings: list[str] = field(default_factory=list)


def _read_directory(directory: Path, engine: str) -> list[_File]:
    """Its files. A directory that is not there has none; podman fails on a path that is none, CRI-O skips it."""
    try:
        names = sorted((name for name in os.listdir(directory) if name.endswith(".json")), key=os.fsencode)
    except FileNotFoundError:
        return []
    except OSError as error:
        skipped = engine == "crio" and isinstance(error, NotADirectoryError)
        return [] if skipped else [_File(directory, error=f"cannot be read: {error.strerror}")]
    files = [file for name in names if (file := _read(directory / name, engine))]
    faults = [file for file in files if file.error or file.missing]
    if faults and faults[0].missing:
        for file in faults[1:]:
            file.tolerated_by = faults[0].path.name
    return files


def _read(path: Path, engine: str) -> _File | None:
    """One file, or None for a link to nothing, which the engine passes over."""
    file = _File(path)
    try:
        hook = _parse(path.read_bytes(), file.warnings)
        file.hook = hook
        if not _exists(hook.path, engine, file.warnings):
            file.missing = hook.path
        else:
            _validate(hook, engine, file.warnings)
    except FileNotFoundError:
        return None
    except OSError as error:
        file.error = f"cannot be read: {error.strerror}"
    except Broken as error:
        file.error = str(error)
    return file


def _verdict(file: _File, counts: _File, container: Container, engine: str) -> Verdict:
    warnings = tuple(file.warnings)
    if file.error:
        return Verdict(file.path, State.BROKEN, file.hook, (), (file.error, _consequence(file, engine)), warnings)
    assert file.hook
    if file.missing:
        why = f"hook.path {file.missing} does not exist, and then the engine passes the file over without a word"
        return Verdict(file.path, State.NO_BINARY, file.hook, (), (why,), warnings)
    if counts is not file:
        return Verdict(file.path, State.MASKED, file.hook, (), (f"{counts.path} has the same name",), warnings)
    unmet = _unmet(file.hook, container, engine)
    if unmet:
        return Verdict(file.path, State.UNMATCHED, file.hook, (), unmet, warnings)
    if not file.hook.stages:
        return Verdict(file.path, State.UNMATCHED, file.hook, (), ("stages is empty: add a stage",), warnings)
    return Verdict(file.path, State.RUNS, file.hook, file.hook.stages, (), warnings)


def _consequence(file: _File, engine: str) -> str:
    if file.tolerated_by:
        return f"passed over only because the binary of {file.tolerated_by}, read before it, is missing"
    if engine == "crio":  # at its start hooks.New, later monitor.go
        return "CRI-O does not start with such a file, and one that runs goes on without this hook"
    return "podman starts no container at all until it is mended or removed"


def where(stage: str, engine: str) -> str:
    """Who runs a stage, or in what place, when that is not what its name says; else ""."""
    if stage in _OWN_STAGES[engine]:
        return f"by {engine} itself"
    return "as createRuntime, by older engines as prestart" if stage == "prestart" else ""


# -- the schemas ------------------------------------------------------------------------------------------------------


def _parse(content: bytes, warnings: list[str]) -> Hook:
    """The hook of a file. Raises Broken; what the engine accepts and nobody means is a warning."""
    try:
        data = json.loads(content.decode(errors="replace"), parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise Broken(f"line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise Broken(f"not JSON: {error}") from None
    version = _fields(data, "the file", ("version",), None).get("version", "")
    if not isinstance(version, str):
        raise Broken(f"version must be a string, not {json.dumps(version)}")
    if version not in ("", "0.1.0", "1.0.0"):
        raise Broken(f'version "{version}" is unknown: it must be "1.0.0" or, for the old schema, "0.1.0"')
    return _parse_current(data, warnings) if version == "1.0.0" else _parse_old(data, warnings)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no value")


def _parse_current(data: Any, warnings: list[str]) -> Hook:
    top = _fields(data, "the file", ("version", "hook", "when", "stages"), warnings)
    hook = _fields(top.get("hook"), "hook", ("path", "args", "env", "timeout"), warnings)
    when = _fields(top.get("when"), "when", ("always", "annotations", "commands", "hasBindMounts"), warnings)
    path = _typed(hook, "path", "a string", "hook.")
    if not path:
        raise Broken("hook.path is missing")
    if "stages" not in top:
        raise Broken("stages is missing")
    timeout = _typed(hook, "timeout", "a whole number", "hook.")
    if timeout is not None and timeout <= 0:
        warnings.append(f"hook.timeout is {timeout} s: the runtime specification wants more than 0")
    env = _strings(hook, "env", "hook.")
    warnings += [f'hook.env: "{entry}" has no "="' for entry in env if "=" not in entry]
    return Hook(
        schema="1.0.0",
        path=path,
        args=_strings(hook, "args", "hook."),
        env=env,
        timeout=timeout,
        stages=_strings(top, "stages"),
        always=_typed(when, "always", "true or false", "when."),
        has_bind_mounts=_typed(when, "hasBindMounts", "true or false", "when."),
        annotations={
            key: value or ""
            for key, value in (_typed(when, "annotations", "an object of strings", "when.") or {}).items()
        },
        commands=_strings(when, "commands", "when."),
    )


_OLD = ("version", "hook", "arguments", "stages", "stage", "cmds", "cmd", "annotations", "annotation", "hasbindmounts")


def _parse_old(data: Any, warnings: list[str]) -> Hook:
    top = _fields(data, "the file", _OLD, warnings)
    if isinstance(top.get("hook"), dict):
        raise Broken('hook must be a string without a version, which means schema 0.1.0: add "version": "1.0.0"')
    path = _typed(top, "hook", "a string")
    arguments = _strings(top, "arguments")
    found = {name: _synonym(top, name) for name in ("stages", "cmds", "annotations")}
    if not path:
        raise Broken("hook is missing")
    if found["stages"] is None:
        raise Broken("stages is missing")
    warnings.append('schema 0.1.0 is deprecated: write "version": "1.0.0"')
    patterns = found["annotations"]
    return Hook(
        schema="0.1.0",
        path=path,
        args=(path, *arguments) if "arguments" in top else (),
        env=(),
        timeout=None,
        stages=tuple(item or "" for item in found["stages"]),
        always=None,
        has_bind_mounts=_typed(top, "hasbindmounts", "true or false"),
        # 0.1.0/hook.go, Read: one expression for all values, so that [] matches any annotation
        annotations={} if patterns is None else {".*": "|".join(item or "" for item in patterns)},
        commands=tuple(item or "" for item in found["cmds"] or ()),
    )


def _synonym(top: Mapping[str, Any], name: str) -> list[str | None] | None:
    """The value of `stages`, `cmds` or `annotations`, each of which may be written without its s."""
    if name in top and name[:-1] in top:
        raise Broken(f"both {name} and {name[:-1]} are set: leave one of them out")
    found: list[str | None] | None = _typed(top, name if name in top else name[:-1], "an array of strings")
    return found


def _fields(value: Any, what: str, known: Sequence[str], warnings: list[str] | None) -> dict[str, Any]:
    """An object as Go reads it into a struct: names in upper or lower case, null as if absent, the rest ignored."""
    if value is not None and not isinstance(value, dict):
        raise Broken(f"{what} must be an object, not {json.dumps(value)[:40]}")
    names = {name.casefold(): name for name in known}
    found = {}
    for key, item in (value or {}).items():
        name = names.get(key.casefold())
        if name and item is not None:
            found[name] = item
        elif not name and warnings is not None:
            near = difflib.get_close_matches(key, known, n=1)
            warnings.append(f'"{key}" is ignored: {f"did you mean {near[0]}?" if near else "there is no such key"}')
    return found


def _are_strings(values: Any) -> bool:
    return all(item is None or isinstance(item, str) for item in values)  # Go reads null as ""


_TYPES: dict[str, Callable[[Any], bool]] = {
    "a string": lambda value: isinstance(value, str),
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": lambda value: type(value) is int and -(2**63) <= value < 2**63,
    "an array of strings": lambda value: isinstance(value, list) and _are_strings(value),
    "an object of strings": lambda value: isinstance(value, dict) and _are_strings(value.values()),
}


def _typed(fields: Mapping[str, Any], name: str, type_: str, prefix: str = "") -> Any:
    value = fields.get(name)
    if value is not None and not _TYPES[type_](value):
        raise Broken(f"{prefix}{name} must be {type_}, not {json.dumps(value)[:40]}")
    return value


def _strings(fields: Mapping[str, Any], name: str, prefix: str = "") -> tuple[str, ...]:
    return tuple(item or "" for item in _typed(fields, name, "an array of strings", prefix) or ())


def _exists(path: str, engine: str, warnings: list[str]) -> bool:
    """Whether hook.path is there. The engine asks no more; what the runtime will not bear is a warning."""
    if not path.startswith("/"):
        warnings.append(f"hook.path {path} is relative: it must be absolute")
    try:
        found = os.stat(os.path.join("/" if engine == "crio" else os.getcwd(), path))
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise Broken(f"hook.path {path}: {getattr(error, 'strerror', error)}") from None
    if not stat.S_ISREG(found.st_mode) or not found.st_mode & 0o111:
        warnings.append(f"hook.path {path} is no program: the runtime fails every container that matches")
    return True


def _validate(hook: Hook, engine: str, warnings: list[str]) -> None:
    """1.0.0/hook.go, Validate, which 0.1.0 goes through too."""
    for key, value in hook.annotations.items():
        _validate_regex(key, "annotation key", warnings)
        _validate_regex(value, "annotation value", warnings)
    for command in hook.commands:
        _validate_regex(command, "command", warnings)
    valid = (*_STAGES, *_OWN_STAGES[engine])
    for stage in hook.stages:
        if stage not in valid:
            near = difflib.get_close_matches(stage.lower(), {name.lower(): name for name in valid}, n=1)
            advice = [name for name in valid if name.lower() in near] or sorted(set(valid))
            raise Broken(f'stage "{stage}" is unknown to {engine}: {" or ".join(advice)}')
    warnings += [f"stage {stage} is named twice: the hook runs twice" for stage in _twice(hook.stages)]


def _twice(stages: Sequence[str]) -> list[str]:
    return [stage for stage in dict.fromkeys(stages) if stages.count(stage) > 1]


def _validate_regex(source: str, what: str, warnings: list[str]) -> None:
    try:
        compile_re2(source)
    except InvalidRegex as error:
        raise Broken(f'{what} "{source}": {error}') from None
    except UntranslatedRegex as error:
        warnings.append(f'{what} "{source}": {error}')
    if "(?<" in source:
        warnings.append(f'{what} "{source}": an engine built with Go before 1.22 refuses (?<NAME>: write (?P<NAME>')


# -- the conditions ---------------------------------------------------------------------------------------------------


def _unmet(hook: Hook, container: Container, engine: str) -> tuple[str, ...]:
    """Why the hook stays out, one line for each condition; empty when it is injected (1.0.0/when.go, Match)."""
    checks = list(_conditions(hook, container, engine))
    failed = tuple(check for check in checks if check)
    if not checks:
        return ('it has no condition, and then it never runs: "when": {"always": true} is for all containers',)
    return () if hook.any_of and len(failed) < len(checks) else failed


def _conditions(hook: Hook, container: Container, engine: str) -> Iterator[str]:
    """For each condition that is set "", or in words why it is not met. One that is set to false is never met."""
    if hook.always is not None:
        yield "" if hook.always else "always is false, which matches nothing: leave it out"
    if hook.has_bind_mounts is not None:
        yield _unmet_mounts(hook, container, engine)
    yield from _unmet_annotations(hook, container)
    if hook.commands:
        yield _unmet_commands(hook, container)


def _unmet_mounts(hook: Hook, container: Container, engine: str) -> str:
    if not hook.has_bind_mounts:
        return f"{'hasbindmounts' if hook.any_of else 'hasBindMounts'} is false, which matches nothing: leave it out"
    # len(containerConfig.GetMounts()) > 0 in CRI-O, len(UserVolumes) > 0 in podman
    whose = "those of kubelet count, /etc/hosts too" if engine == "crio" else "volumes count too"
    return "" if container.bind_mounts else f"hasBindMounts: there are none, or say --bind-mounts ({whose})"


def _unmet_annotations(hook: Hook, container: Container) -> Iterator[str]:
    for key, value in hook.annotations.items():
        named = [name for name in container.annotations if _search(key, name)]
        if any(_search(value, container.annotations[name]) for name in named):
            yield ""
        elif named:
            got = ", ".join(f'"{container.annotations[name]}"' for name in named)
            yield f'annotations: the value of {", ".join(named)} must match "{value}", and is {got}'
        else:
            yield f'annotations: no key matches "{key}"'


def _unmet_commands(hook: Hook, container: Container) -> str:
    name, patterns = "cmds" if hook.any_of else "commands", ", ".join(f'"{item}"' for item in hook.commands)
    if container.command is None:
        return f"{name}: argv[0] must match {patterns}: say --command ARGV0"
    met = any(_search(pattern, container.command) for pattern in hook.commands)
    return "" if met else f'{name}: "{container.command}" does not match {patterns}'


def _search(source: str, text: str) -> bool:
    try:
        return compile_re2(source).search(text) is not None
    except UntranslatedRegex:  # of which a warning tells
        return False


# -- RE2 --------------------------------------------------------------------------------------------------------------


@functools.cache
def compile_re2(source: str) -> re.Pattern[str]:
    """A Python pattern whose `search` finds a match where Go's regexp.MatchString does. Which text it finds may differ,
    as greed makes no difference to that. Raises InvalidRegex and UntranslatedRegex. https://pkg.go.dev/regexp/syntax
    """
    try:
        return re.compile(_Translation(source).text)
    except RecursionError:
        raise InvalidRegex("it is nested too deeply") from None


_MAX_REPEAT = 1000
_REPEAT = re.compile(r"(?:[*+?]|\{(0|[1-9][0-9]*)(?:(,)(0|[1-9][0-9]*)?)?\})\??")
_FLAGS = re.compile(r"\?([imsU]*)(?:-([imsU]+))?([:)])")
_NAME = re.compile(r"\?P?<(\w+)>", re.ASCII)
_POSIX = re.compile(r"\[:(\^?)(.*?):\]", re.DOTALL)
_HEX = re.compile(r"x(?:\{([0-9A-Fa-f]+)\}|([0-9A-Fa-f]{2}))")
_OCTAL = re.compile(r"0[0-7]{0,2}|[1-7][0-7]{1,2}")
_CONTROL = dict(zip("afnrtv", "\a\f\n\r\t\v", strict=True))
# `$` without (?m) is the end of the text, before no newline; \b knows ASCII words only. Each is a group, so that it
# can be repeated.
_ASSERTIONS = {"A": r"(?:\A)", "z": r"(?:\Z)", "b": r"(?a:\b)", "B": r"(?!(?a:\b))"}
# pairs of first and last
_CLASSES = {
    "alnum": "09AZaz", "alpha": "AZaz", "ascii": "\0\x7f", "blank": "\t\t  ", "cntrl": "\0\x1f\x7f\x7f", "digit": "09",
    "graph": "!~", "lower": "az", "print": " ~", "punct": "!/:@[`{~", "space": "\t\r  ", "upper": "AZ",
    "word": "09AZ__az", "xdigit": "09AFaf",
    "d": "09", "s": "\t\n\f\r  ", "w": "09AZ__az",
}  # fmt: skip
_LACKING = {
    "?=": "lookahead", "?!": "lookahead", "?<=": "lookbehind", "?<!": "lookbehind", "?>": "an atomic group",
    "?#": "a comment", "?(": "a condition", "?P=": "a backreference", "?P>": "a call of a group",
}  # fmt: skip

_Ranges = list[tuple[int, int]]
_Atom = tuple[str, int]  # Python's text, and how often its innermost part is counted out


class _Translation:
    """One expression, read once from left to right. Flags are written at each atom, not where they are set."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.flags: frozenset[str] = frozenset()
        self.names: set[str] = set()
        self.text, _ = self._alternatives()
        if self.at < len(source):
            raise InvalidRegex('")" closes nothing')

    def _sees(self, text: str) -> bool:
        return self.source.startswith(text, self.at)

    def _take(self, text: str) -> bool:
        found = self._sees(text)
        self.at += len(text) * found
        return found

    def _takes(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self.source, self.at)
        self.at = found.end() if found else self.at
        return found

    def _alternatives(self) -> _Atom:
        """Up to the end of the group, with which flags end that were set in it."""
        flags = self.flags
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self.flags = flags
        return "|".join(text for text, _ in branches), max(count for _, count in branches)

    def _sequence(self) -> _Atom:
        atoms: list[_Atom] = []
        repeated = ""
        while self.at < len(self.source) and self.source[self.at] not in "|)":
            repeat = self._takes(_REPEAT)
            if not repeat:
                atoms += self._atoms()
                repeated = ""
                continue
            if not atoms:
                raise InvalidRegex(f'"{repeat[0]}" repeats nothing')
            if repeated:
                raise InvalidRegex(f'"{repeated}{repeat[0]}" repeats a repetition')
            repeated = repeat[0]
            atoms[-1] = _repeat(*atoms[-1], repeat)
        return "".join(text for text, _ in atoms), max((count for _, count in atoms), default=1)

    def _atoms(self) -> list[_Atom]:
        char = self.source[self.at]
        self.at += 1
        if char == "(":
            return self._group()
        if char == "[":
            return [(self._bracket(), 1)]
        if char == "\\":
            return self._escaped()
        if char == ".":
            return [("(?s:.)" if "s" in self.flags else ".", 1)]
        if char in "^$":
            line, text = ("(?m:^)", "A") if char == "^" else ("(?m:$)", "z")
            return [(line if "m" in self.flags else _ASSERTIONS[text], 1)]
        return [self._literal(char)]

    def _literal(self, char: str) -> _Atom:
        return (f"(?i:{re.escape(char)})" if "i" in self.flags else re.escape(char)), 1

    def _group(self) -> list[_Atom]:
        flags = self.flags
        if self._sees("?"):
            name = self._takes(_NAME)
            if name and name[1] in self.names:
                raise InvalidRegex(f"two groups are called {name[1]}")
            self.names.update({name[1]} if name else ())
            if not name and self._set_flags() == ")":
                return []
        text, count = self._alternatives()
        self.flags = flags
        if not self._take(")"):
            raise InvalidRegex('a "(" is not closed')
        return [(f"(?:{text})", count)]

    def _set_flags(self) -> str:
        """What ends the flags: ":" with a group to come, or ")"."""
        found = self._takes(_FLAGS)
        if found:
            self.flags = (self.flags | set(found[1])) - set(found[2] or "")
            return found[3]
        lacking = next((what for start, what in _LACKING.items() if self._sees(start)), "such a group")
        raise InvalidRegex(
            f'RE2 has no {lacking.removeprefix("a ").removeprefix("an ")}: "({self.source[self.at :][:3]}"'
        )

    def _escaped(self) -> list[_Atom]:
        char = self.source[self.at : self.at + 1]
        if char in _ASSERTIONS:
            self.at += 1
            return [(_ASSERTIONS[char], 1)]
        if self._take("Q"):
            literal, _, _ = self.source[self.at :].partition("\\E")
            self.at = min(self.at + len(literal) + 2, len(self.source))
            return [self._literal(char) for char in literal]
        ranges = self._perl_class()
        return [(self._any_of(ranges), 1)] if ranges else [self._literal(self._escape())]

    def _perl_class(self) -> _Ranges:
        """The characters of \\d, \\S and the like, none if this is another escape: the backslash is taken."""
        char = self.source[self.at : self.at + 1]
        if char and char in "pP":
            raise UntranslatedRegex(f"\\{char} is not understood here, so the engine may match where this says no")
        if not char or char not in "dswDSW":
            return []
        self.at += 1
        return self._named(char.lower(), char.isupper())

    def _escape(self) -> str:
        """One character after its backslash."""
        if self.at == len(self.source):
            raise InvalidRegex("it ends with a backslash")
        if digits := self._takes(_HEX):
            code = int(digits[1] or digits[2], 16)
            if code <= 0x10FFFF:
                return chr(code)
            raise InvalidRegex(f"\\{digits[0]} is no character")
        if octal := self._takes(_OCTAL):
            return chr(int(octal[0], 8))
        char = self.source[self.at]
        self.at += 1
        if char in _CONTROL or (char.isascii() and not char.isalnum()):
            return _CONTROL.get(char, char)
        raise InvalidRegex(f"RE2 has no {'backreference ' if char in '123456789' else ''}\\{char}")

    def _bracket(self) -> str:
        negated = self._take("^")
        ranges: _Ranges = []
        while not ranges or not self._sees("]"):
            ranges += self._named_class() or self._range()
        self.at += 1
        return self._any_of(ranges, "^" if negated else "")

    def _named_class(self) -> _Ranges:
        """[:alpha:] and \\d, or nothing."""
        if found := self._takes(_POSIX):
            if len(found[2]) < 2 or found[2] not in _CLASSES:
                raise InvalidRegex(f"RE2 has no class {found[0]}")
            return self._named(found[2], bool(found[1]))
        start = self.at
        if self._take("\\") and (ranges := self._perl_class()):
            return ranges
        self.at = start
        return []

    def _named(self, name: str, negated: bool) -> _Ranges:
        """A class by name. Where case does not count, k and s have a third form: the Kelvin sign and the long s."""
        folds = "i" in self.flags
        ranges = _ranges("alpha" if folds and name in ("lower", "upper") else name)
        return _complement(ranges + [(0x17F, 0x17F), (0x212A, 0x212A)] * folds) if negated else ranges

    def _range(self) -> _Ranges:
        start = self.at
        low = high = self._bracket_char()
        if self._sees("-") and self.source[self.at + 1 : self.at + 2] not in ("", "]"):
            self.at += 1
            high = self._bracket_char()
        if high < low:
            raise InvalidRegex(f'"{self.source[start : self.at]}" is no range')
        return [(ord(low), ord(high))]

    def _bracket_char(self) -> str:
        if self.at == len(self.source):
            raise InvalidRegex('a "[" is not closed')
        char = self.source[self.at]
        self.at += 1
        return self._escape() if char == "\\" else char

    def _any_of(self, ranges: _Ranges, negation: str = "") -> str:
        inside = "".join(f"\\U{low:08x}-\\U{high:08x}" for low, high in ranges)
        return f"(?{'i' if 'i' in self.flags else ''}:[{negation}{inside}])"


def _repeat(text: str, count: int, repeat: re.Match[str]) -> _Atom:
    """An atom with its repetition, of which RE2 counts out no more than 1000, nested ones multiplied."""
    least, comma, most = repeat[1], repeat[2], repeat[3]
    if least is None:
        return f"(?:{text}){repeat[0][0]}", count
    bounds = [int(number[:5]) for number in (least, most) if number]
    times = bounds[-1] if comma is None or most else bounds[0]
    if max(*bounds, times, times * count) > _MAX_REPEAT or bounds != sorted(bounds):
        raise InvalidRegex(f'"{repeat[0]}" is no valid count: RE2 takes up to {_MAX_REPEAT}')
    return f"(?:{text}){repeat[0].removesuffix('?')}", max(1, times * count)


def _ranges(name: str) -> _Ranges:
    pairs = _CLASSES[name]
    return [(ord(low), ord(high)) for low, high in zip(pairs[::2], pairs[1::2], strict=True)]


def _complement(ranges: _Ranges) -> _Ranges:
    """All other characters; `ranges` is in order."""
    starts = [0, *(high + 1 for _, high in ranges)]
    ends = [*(low - 1 for low, _ in ranges), 0x10FFFF]
    return [(start, end) for start, end in zip(starts, ends, strict=True) if start <= end]
