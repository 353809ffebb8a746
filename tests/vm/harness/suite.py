"""Runs pytest inside VMs and brings the results back."""

from __future__ import annotations

import multiprocessing
import shlex
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

from .boot import booted
from .image import Image
from .machine import Machine, MachineError
from .product import CHECKOUT, GUEST_CHECKOUT, sync
from .progress import phase, say
from .qemu import Settings
from .spec import ONE_KERNEL

RESULTS = CHECKOUT / "build" / "vm"
TESTS = Path("tests/vm")
SECOND_TRIES = 5  # more failures than these are no accident

_DESTRUCTIVE = "test_destructive_*.py"
_GUEST_XML = "/run/agentcgroup-junit.xml"
_AGAIN = ("--last-failed", "--last-failed-no-failures=none")
_GUEST_CACHE = "/run/agentcgroup-pytest"
_NO_TESTS = 5
_ENVIRONMENT = "PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1"
_COUNTS = ("tests", "failures", "errors", "skipped")


@dataclass(frozen=True)
class Run:
    """One pytest run in one boot: `paths` to collect, relative to the checkout."""

    settings: Settings
    name: str
    paths: tuple[str, ...]
    arguments: tuple[str, ...]


@dataclass
class Result:
    """Counts of one or more runs; a run that ended without a verdict counts as one failure."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    names: tuple[str, ...] = ()
    """Of what failed, each with its kernel."""

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed."""
        return bool(self.passed or self.skipped) and not self.failed

    def __add__(self, other: Result) -> Result:
        counts = (self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)
        return Result(*counts, self.names + other.names)

    def __str__(self) -> str:
        counts = f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        return "\n".join([*(f"failed: {name}" for name in self.names), counts])


def plan(settings: Settings, kernels: Sequence[str], arguments: Sequence[str]) -> list[Run]:
    """Divide the tests into boots: all ordinary ones of a kernel in one, each destructive file in its own."""
    chosen = [a for a in arguments if (CHECKOUT / a.split("::")[0]).exists() and not a.startswith("-")]
    options = tuple(a for a in arguments if a not in chosen)
    paths = chosen or [str(TESTS)]
    destructive = [p for p in paths if Path(p.split("::")[0]).match(_DESTRUCTIVE)]
    ordinary = tuple(p for p in paths if p not in destructive)
    for folder in ordinary:
        destructive += [str(p.relative_to(CHECKOUT)) for p in sorted((CHECKOUT / folder).rglob(_DESTRUCTIVE))]
    runs = []
    for kernel in kernels:
        boot = replace(settings, kernel=kernel)
        divided = len(kernels) > 1 and not chosen
        left_out = _elsewhere(kernel) if divided else ()
        if ordinary:
            runs.append(Run(boot, "main", ordinary, (f"--ignore-glob=*/{_DESTRUCTIVE}", *left_out, *options)))
        here = [p for p in destructive if not divided or ONE_KERNEL.get(Path(p).name, kernel) == kernel]
        runs += [Run(boot, Path(p.split("::")[0]).stem, (p,), options) for p in here]
    return runs


def _elsewhere(kernel: str) -> tuple[str, ...]:
    """Options that leave out the files that another kernel runs, when all kernels run everything between them."""
    return tuple(f"--ignore={TESTS / file}" for file, home in ONE_KERNEL.items() if home != kernel)


def run_all(image: Image, stage: Path, runs: Sequence[Run], jobs: int, deadline: float) -> Result:
    """Run everything, `jobs` VMs at a time; `deadline` is the seconds that pytest may take in one boot."""
    # Processes, not threads: an interrupt then unwinds each run, and with it ends each VM.
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as pool:
        try:
            outcomes = [pool.submit(_run, image, stage, run, deadline) for run in runs]
            return sum((outcome.result() for outcome in outcomes), Result())
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(image: Image, stage: Path, run: Run, deadline: float) -> Result:
    results = RESULTS / run.settings.kernel / run.name
    results.mkdir(parents=True, exist_ok=True)
    try:
        with booted(image, run.settings) as machine:
            sync(machine, stage)
            with phase(f"pytest {run.name}", run.settings.kernel):
                result = _pytest(machine, run, results, deadline)
            if result.failed:
                _collect(machine, results)
    except MachineError as error:
        say(str(error), run.settings.kernel)
        return Result(failed=1, names=(f"{run.settings.kernel} {run.name}: {error}",))
    say(f"{run.name}: {result}" + (f"; logs in {results.relative_to(CHECKOUT)}" if result.failed else ""),
        run.settings.kernel)  # fmt: skip
    return replace(result, names=tuple(f"{run.settings.kernel} {name}" for name in result.names))


def _pytest(machine: Machine, run: Run, results: Path, deadline: float) -> Result:
    """Run the tests, and those that failed once more: an emulated CPU on a busy host misses deadlines now and then.
    What passes only then is said to; what fails twice has failed.
    """
    first = _attempt(machine, run, results / "junit.xml", deadline, ())
    if not 0 < first.failed <= SECOND_TRIES or not machine.alive():
        return first
    say(f"{run.name}: {first}; the failed ones once more", run.settings.kernel)
    second = _attempt(machine, run, results / "junit-again.xml", deadline, _AGAIN)
    if not second.failed:
        say(f"{run.name}: UNSTABLE: {first.failed} passed only at the second try", run.settings.kernel)
    failed = second.failed or first.failed - second.passed
    return replace(first, passed=first.passed + second.passed, failed=failed, names=second.names if failed else ())


def _attempt(machine: Machine, run: Run, xml: Path, deadline: float, extra: tuple[str, ...]) -> Result:
    pytest = ["python3", "-m", "pytest", "-v", "--timeout=300", "--durations=25", "-o", f"cache_dir={_GUEST_CACHE}",
              f"--junitxml={_GUEST_XML}", *extra, *run.arguments, *run.paths]  # fmt: skip
    remote = f"rm -f {_GUEST_XML}; cd {GUEST_CHECKOUT} && {_ENVIRONMENT} exec {shlex.join(pytest)} 2>&1"
    status = _stream(machine, remote, run.settings.kernel, deadline)
    if status == _NO_TESTS:
        return Result()
    with xml.open("wb") as output:
        fetched = machine.ssh.run(["cat", _GUEST_XML], stdout=output, stderr=subprocess.DEVNULL)
    if fetched.returncode:
        cause = machine.panic() or ("the VM ended" if not machine.alive() else f"pytest ended with {status}")
        say(f"{run.name} left no results: {cause}", run.settings.kernel)
        return Result(failed=1, names=(f"{run.name} left no results: {cause}",))
    result = read_junit(xml)
    return replace(result, failed=max(result.failed, int(status != 0)))


def _stream(machine: Machine, remote: str, tag: str, deadline: float) -> int:
    """Run a command in the VM and print its lines as they come; one past its deadline is ended."""
    with subprocess.Popen(machine.ssh.command(remote), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        timer = threading.Timer(deadline, _give_up, (process, tag, deadline))
        timer.start()
        try:
            for line in process.stdout:
                sys.stdout.write(f"{tag}| {line.decode(errors='replace')}")
                sys.stdout.flush()
        finally:
            timer.cancel()
    return process.returncode


def _give_up(process: subprocess.Popen[bytes], tag: str, deadline: float) -> None:
    say(f"pytest still runs after {deadline:.0f} s: ended", tag)
    process.kill()


def read_junit(path: Path) -> Result:
    """Count what pytest's XML reports, and name what failed."""
    root = ElementTree.parse(path).getroot()
    counts = [[int(suite.get(name, "0")) for name in _COUNTS] for suite in root.iter("testsuite")]
    tests, failures, errors, skipped = (sum(column) for column in zip(*counts, strict=True))
    failed = (case for case in root.iter("testcase") if {part.tag for part in case} & {"failure", "error"})
    names = tuple(f"{case.get('classname')}::{case.get('name')}" for case in failed)
    return Result(tests - failures - errors - skipped, failures + errors, skipped, names)


def _collect(machine: Machine, results: Path) -> None:
    """Save what explains a failure: journal, kernel log, console."""
    if machine.serial.exists():
        (results / "serial.log").write_bytes(machine.serial.read_bytes())
    for name, command in (("journal.log", "journalctl -b -o short-monotonic --no-pager"), ("dmesg.log", "dmesg")):
        with (results / name).open("wb") as output:
            machine.ssh.run(command.split(), stdout=output, stderr=subprocess.STDOUT)
