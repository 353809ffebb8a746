"""Which OCI hooks an engine would inject into a container: oci-hooks(5), as podman and CRI-O understand it.

Where the page and their common program differ the program counts (go.podman.io/common/pkg/hooks, before that
github.com/containers/common): comments name its files. A directory is read in the order of its file names:

    JSON or a value that cannot be read   broken: the whole set of hooks is refused
    hook.path does not exist              the file is passed over in silence, and *from there on so are broken ones of
                                          the same directory*, for only the first error of a directory is looked at
    the rest                              takes the place of a file of that name in an earlier directory
"""

from __future__ import annotations

import difflib
import enum
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentcgroup.re2 import InvalidRegex, UntranslatedRegex, compile_re2

OUR_HOOK = "agentcgroup-hook"
# The default of containers.conf and crio.conf, whose hooks_dir can name others.
DEFAULT_DIRS = (Path("/usr/share/containers/oci/hooks.d"),)

# 1.0.0/hook.go, Validate. The engine adds stages of its own: podman runs those two itself (libpod, setupOCIHooks),
# CRI-O has none.
_STAGES = ("createContainer", "createRuntime", "prestart", "poststart", "poststop", "startContainer")
_OWN_STAGES = {"podman": ("precreate", "poststop"), "crio": ()}
ENGINES = tuple(_OWN_STAGES)


class Broken(ValueError):
    """A file that makes the engine refuse the whole set of hooks."""


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


def suggestions(hook: Hook, container: Container, engine: str) -> list[str]:
    """The annotations of this product with each of which the hook would run, the usual one of the engine first."""
    keys = ("agentcgroup.policy", "agentcgroup.io/policy", "policy.agentcgroup.io/CONTAINER")
    changed = {key: replace(container, annotations={**container.annotations, key: "NAME"}) for key in keys}
    fitting = [f"{key}=NAME" for key in keys if hook.annotations and not _unmet(hook, changed[key], engine)]
    return [*fitting[1:], *fitting[:1]] if engine == "crio" else fitting


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
        late = ("a CRI-O that read the file while the binary was there fails every container that matches",)
        return Verdict(file.path, State.NO_BINARY, file.hook, (), (why, *late * (engine == "crio")), warnings)
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
