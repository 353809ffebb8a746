"""What each engine would do with the hook: the directories that it reads by its own configuration, and their files."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentcgroup import ocihooks, paths
from agentcgroup.doctor.finding import AGAIN, Finding, error, note, warning
from agentcgroup.doctor.host import Host
from agentcgroup.errors import UserError
from agentcgroup.ocihooks import OUR_HOOK, Container, State, Verdict

#: Where `make install` and the packages put the hook's JSON.
OURS = paths.SHARE_DIR.parent / "containers/oci/hooks.d"
DAEMON_JSON = Path("/etc/docker/daemon.json")
_ASKING = Container(annotations={"agentcgroup.policy": "NAME"})
_UNGOVERNED = "containers start, and are not governed"


@dataclass(frozen=True, slots=True)
class HookDirs:
    """What an engine reads, and the file that says so; None: nothing does."""

    directories: tuple[Path, ...] = ocihooks.DEFAULT_DIRS
    origin: Path | None = None


def podman(_host: Host) -> Iterator[Finding]:
    """podman's containers.conf, and the hooks that it would run."""
    if shutil.which("podman"):
        yield from _engine("podman", podman_files(), "engine")


def crio(_host: Host) -> Iterator[Finding]:
    """CRI-O's crio.conf, and the hooks that it would run."""
    if shutil.which("crio"):
        yield from _engine("crio", _with_drop_ins(Path("/etc/crio/crio.conf")), "crio.runtime")


def docker(_host: Host, path: Path = DAEMON_JSON) -> Iterator[Finding]:
    """Docker has no hooks; our runtime stands in for them."""
    if not shutil.which("dockerd"):
        return
    try:
        runtimes = json.loads(path.read_text()).get("runtimes", {}) if path.exists() else {}
        named = [str(runtime.get("path", "")) for runtime in runtimes.values()]
    except (ValueError, AttributeError) as problem:
        yield error(f"{path}: {problem}", "dockerd does not start", "mend it, then: systemctl restart docker")
        return
    ours = [name for name in named if os.path.basename(name) == "agentcgroup-runtime"]
    if not ours:
        copy = f"cp {paths.SHARE_DIR}/examples/docker/daemon.json {path} && systemctl reload docker"
        yield note(
            f"{path} names no agentcgroup-runtime",
            "containers of Docker are not governed",
            f"{copy}  # where there is one, write its runtimes into that",
        )
    for name in ours:
        if not os.access(name, os.X_OK):
            runtime = paths.LIBEXEC_DIR / "agentcgroup-runtime"
            why = "a container with that --runtime does not start"
            yield error(f"{path} names {name}, which is no program", why, f"write {runtime} there: docs/install.md")


# -- which directories ------------------------------------------------------------------------------------------------


def podman_files() -> list[Path]:
    """The files that podman merges, in this order (containers.conf(5))."""
    if only := os.environ.get("CONTAINERS_CONF"):
        found = [Path(only)]
    else:
        home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        found = [Path("/usr/share/containers/containers.conf")]
        for path in (Path("/etc/containers/containers.conf"), home / "containers/containers.conf"):
            found += _with_drop_ins(path)
    last = os.environ.get("CONTAINERS_CONF_OVERRIDE")
    return [*found, *([Path(last)] if last else [])]


def _with_drop_ins(path: Path) -> list[Path]:
    return [path, *sorted(path.with_name(path.name + ".d").glob("*.conf"))]


def hook_dirs(files: Sequence[Path], table: str) -> HookDirs:
    """hooks_dir of the files together. Raises UserError for one that is broken, by which the engine does not start."""
    found, append = HookDirs(), False
    for path in files:
        value = _value(path, table)
        if value is None:
            continue
        # {append = true} among the values: they come after those of earlier files (containers.conf(5))
        for item in value:
            append = bool(item.get("append", append)) if isinstance(item, dict) else append
        named = tuple(Path(item) for item in value if isinstance(item, str))
        found = HookDirs((*found.directories, *named) if append else named, path)
    return found


def _value(path: Path, table: str) -> list[Any] | None:
    """hooks_dir of one file; None where it is not set."""
    try:
        data: Any = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, OSError) as problem:
        raise UserError(f"{path}: {problem}") from None
    for name in table.split("."):
        data = data.get(name, {})
    value = data.get("hooks_dir")
    if value is not None and not isinstance(value, list):
        raise UserError(f"{path}: hooks_dir is no list")
    return value


# -- what is in them --------------------------------------------------------------------------------------------------


def _engine(engine: str, files: Sequence[Path], table: str) -> Iterator[Finding]:
    try:
        dirs = hook_dirs(files, table)
    except UserError as problem:
        yield error(str(problem), f"{engine} does not start with such a file", "mend that line")
        return
    verdicts = ocihooks.judge(dirs.directories, _ASKING, engine)
    for verdict in verdicts:
        if verdict.state is State.BROKEN:
            yield _broken(verdict)
        elif verdict.state is State.NO_BINARY and not verdict.ours:
            yield _without_program(verdict)
    if not any(verdict.ours and verdict.state is State.RUNS for verdict in verdicts):
        yield from _not_run([verdict for verdict in verdicts if verdict.ours], engine, dirs)


def _broken(verdict: Verdict) -> Finding:
    out = f"mv {verdict.file} {verdict.file}.off"
    fix = AGAIN if verdict.file.parent == OURS and verdict.ours else out
    return error(f"{verdict.file} is broken: {verdict.reasons[0]}", verdict.reasons[-1], fix)


def _without_program(verdict: Verdict) -> Finding:
    assert verdict.hook
    return warning(
        f"{verdict.file} names {verdict.hook.path}, which does not exist",
        "the engine passes it over without a word, and with it what is broken in later files of that directory",
        f"mv {verdict.file} {verdict.file}.off  # or install what it is of",
    )


def _not_run(ours: Sequence[Verdict], engine: str, dirs: HookDirs) -> Iterator[Finding]:
    """Why not. A JSON of ours that is broken, and a hook that is not where it was installed, are told already."""
    if not ours:
        yield _not_read(engine, dirs)
        return
    last = ours[-1]
    installed = last.hook and last.hook.path == str(paths.LIBEXEC_DIR / OUR_HOOK)
    if last.state is State.BROKEN or (last.state is State.NO_BINARY and installed):
        return
    fix = f"{AGAIN}  # agentcgroup match --engine {engine} --annotation agentcgroup.policy=NAME"
    yield error(f"{engine} does not run {last.file}: {last.reasons[0]}", _UNGOVERNED, fix)


def _not_read(engine: str, dirs: HookDirs) -> Finding:
    read = ", ".join(map(str, dirs.directories)) or "no directory"
    what = f"{engine} reads hooks of {read}, and no file there names {OUR_HOOK}"
    if OURS in dirs.directories or not any(OURS.glob("*.json")):
        return error(what, _UNGOVERNED, f"{AGAIN}  # its JSON belongs in {OURS}")
    if dirs.origin:
        return error(
            f"{what} ({dirs.origin})", _UNGOVERNED, f'add "{OURS}" to hooks_dir in {dirs.origin}{_then(engine)}'
        )
    directories = ", ".join(f'"{directory}"' for directory in (*dirs.directories, OURS))
    folder = "/etc/containers/containers.conf.d" if engine == "podman" else "/etc/crio/crio.conf.d"
    table = "engine" if engine == "podman" else "crio.runtime"
    text = f"printf '[{table}]\\nhooks_dir = [{directories}]\\n'"
    return error(
        what, _UNGOVERNED, f"{text} | install -D -m 644 /dev/stdin {folder}/50-agentcgroup.conf{_then(engine)}"
    )


def _then(engine: str) -> str:
    return "" if engine == "podman" else " && systemctl restart crio"
