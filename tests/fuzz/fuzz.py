#!/usr/bin/env python3
"""Fuzzers of everything that reads what others wrote, by hand: `make fuzz TIME=60` (seconds in all), or
`tests/fuzz/fuzz.py --time 60 --seed 7 TARGET...`. Nothing may crash, raise what its caller does not expect, take longer
than linear time, or answer differently to the same bytes. A finding is kept in build/fuzz/ and ends the run with 1.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "runtime"))

from agentcgroup import commandline, hint, kmsg, record, request  # noqa: E402
from agentcgroup import config as configs  # noqa: E402
from agentcgroup.errors import UserError  # noqa: E402
from agentcgroup.policy import annotations, load  # noqa: E402

FINDINGS = ROOT / "build" / "fuzz"
DRIVER = ROOT / "build" / "hook-driver"
#: Seconds that one input may take: the longest are 16 KiB, and the host may be busy.
SLOW = 1.0
BATCH = 500  # inputs for one run of the driver
LONGEST = 20_000

Check = Callable[[bytes], object]


class Mutator:
    """New inputs from seeds and a dictionary: bytes are flipped, cut, doubled, swapped, and words put in between."""

    def __init__(self, seeds: list[bytes], words: list[bytes], rng: random.Random) -> None:
        self.pool = list(seeds)
        self.words = words
        self.rng = rng

    def __iter__(self) -> Iterator[bytes]:
        while True:
            data = bytearray(self.rng.choice(self.pool))
            for _ in range(self.rng.choice((1, 1, 2, 4, 16, 64))):
                self._mutate(data)
            del data[LONGEST:]
            if self.rng.random() < 0.02:
                self.pool.append(bytes(data))
            yield bytes(data)

    def _mutate(self, data: bytearray) -> None:
        rng, at = self.rng, self.rng.randint(0, len(data))
        length = rng.choice((1, 1, 2, 8, 64))
        kind = rng.randrange(7)
        if kind == 0 and data:
            data[at - 1] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at:at] = rng.choice(self.words)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at:at] = data[at : at + length] * rng.choice((1, 2, 50))
        elif kind == 4:
            data[at:at] = rng.randbytes(length)
        elif kind == 5:
            data[at:at] = rng.choice(self.words) * rng.choice((2, 10, 400))
        else:
            other = self.rng.choice(self.pool)
            data[at:] = other[rng.randint(0, len(other)) :]


def words(text: str) -> list[bytes]:
    return [word.encode() for word in text.split()] + [b" ", b"\n", b"\0", b"\xff", b"\xf0\x9f\xa6\x80"]


def seeds_in(*patterns: str) -> list[bytes]:
    return [path.read_bytes() for pattern in patterns for path in sorted(ROOT.glob(pattern))]


def expecting(*errors: type[Exception]) -> Callable[[Check], Check]:
    """`check`, where these errors are answers as well; everything is asked twice and must be answered alike."""

    def wrap(check: Check) -> Check:
        def once(data: bytes) -> str:
            try:
                return repr(check(data))
            except errors as error:
                text = str(error)
                assert text and len(text) < 20_000, "an error without a text, or with too much of it"
                return f"{type(error).__name__}: {text}"

        def twice(data: bytes) -> None:
            assert once(data) == once(data), "two answers to the same input"

        return twice

    return wrap


@expecting()
def check_message(data: bytes) -> object:
    return request.parse(data)


@expecting()
def check_hint(data: bytes) -> object:
    found = hint.parse(data.decode(errors="replace"))
    again = hint.parse(hint.render(found))
    assert again == hint.Hint() or not again.problems, "what is written is not what can be read"
    return found, hint.merge(found, again)


@expecting()
def check_command(data: bytes) -> object:
    argv = [part.decode(errors="surrogateescape") for part in data.split(b"\0")]
    command = commandline.analyse(argv, truncated=len(data) % 2 == 1)
    assert len(command.first_word) <= 64 and len(command.command_class) <= 256
    assert command.hint is None or f"{commandline.HINT_NAME}" in command.text
    return command, command.bare, command.with_hint("memory:2g")


@expecting(UserError)
def check_record(data: bytes) -> object:
    return record.parse(data, "record")


def in_a_file(name: str, read: Callable[[Path], object]) -> Check:
    """A check of what reads files of that name."""
    folder = Path(tempfile.mkdtemp(prefix="agentcgroup-fuzz-"))

    @expecting(UserError)
    def check(data: bytes) -> object:
        (folder / name).write_bytes(data)
        return read(folder / name)

    return check


def read_policy(path: Path) -> object:
    found = load.load_policies([path.parent])
    return sorted(found.policies), [str(error) for error in found.errors.values()]


@expecting(UserError)
def check_annotations(data: bytes) -> object:
    pairs = (line.partition("=") for line in data.decode(errors="replace").splitlines())
    return annotations.choose({key: value for key, _, value in pairs}, "podman", configs.Config())


LOG = kmsg.OomLog()


@expecting()
def check_kernel_log(data: bytes) -> object:
    for line in data.split(b"\n"):
        LOG.feed(line[:1024])  # a record is no longer: PRINTKRB_RECORD_MAX
    return None


def build_driver() -> None:
    """The hook's own parsers, with the sanitizers where the compiler has them."""
    sources = [str(path) for path in (ROOT / "hooks").glob("*.c") if path.name != "main.c"]
    command = ["cc", "-g", "-O1", "-std=gnu11", "-o", str(DRIVER), *sources, str(ROOT / "tests/unit/hook_driver.c")]
    DRIVER.parent.mkdir(exist_ok=True)
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    if subprocess.run([*command, *sanitizers], capture_output=True).returncode:
        subprocess.run(command, check=True)


def driver(mode: str) -> Callable[[list[bytes]], str]:
    """Runs a batch through the driver; its complaint, or ""."""

    def run(inputs: list[bytes]) -> str:
        framed = b"".join(b"%d\n%s" % (len(data), data) for data in inputs)
        try:
            done = subprocess.run([DRIVER, mode], input=framed, capture_output=True, timeout=SLOW * len(inputs))
        except subprocess.TimeoutExpired:
            return "it does not end"
        lines = done.stdout.count(b"\n")
        if done.returncode or lines != len(inputs):
            return f"exit {done.returncode} after {lines} answers\n{done.stderr.decode(errors='replace')}"
        return ""

    return run


YAML = words(
    "extends: description: mode: observe enforce memory: max: high: agent_min: 1G 50% -1 1e9 {} [] & * ! | > <<: null ~"
    " call: default: low: rules: match: hint: as: helper agent regex ^(a+)+$ cpu: io: pids_max: required: true shells:"
    " budget: records: ack_ms: pool: overrides: allowed_policies: any none - ? 0x10 2026-01-01 %YAML --- ..."
)
JSON = words('{ } [ ] : , " \\ \\u0000 \\ud800 \\n true false null 0 -1 1e999 {"a": [[[[ "annotations": "pid": "root":')
SHELL = words(
    "bash sh -c -lc -o pipefail -- - + AGENT_RESOURCE_HINT=memory:2g AGENT_RESOURCE_HINT= && || ; | & ( ) { } $( ` ' \""
    " \\ ${ $(( [[ ]] << <<- <<< >file 2>&1 for do done case esac if then fi function time env sudo timeout 5 xargs #"
)
HINT = words(
    "memory cpu pids time priority : = , ; low normal medium high max interactive batch 2g 512MiB 1.5g 08g 50% 90s -1 0"
    " nan inf 1e9"
)
MESSAGE = words("AGC1 t=1 t=0 h=memory:2g x=1 a=bash a=-c a=true m=7 e=256 s=15 n=memory:1g = a=")
STATE = [b'{"ociVersion":"1.0","id":"abc","pid":7,"root":"/r","bundle":"/b","annotations":{"agentcgroup.policy":"x"}}']
MOUNTS = [Path("/proc/self/mountinfo").read_bytes()]

PAIRS = [b"agentcgroup.policy=coding-agent\nagentcgroup.memory.max=1G\nio.kubernetes.container.name=x"]
RECORD = [b'{"v":1,"id":"abc","pid":7,"base":"/sys/fs/cgroup/x","annotations":{"a":"b"},"injected":["/bin/sh"]}']
OOM = [b"6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),oom_memcg=/a,task_memcg=/a/b,task=sh,pid=1,uid=0"]
CALL = [b"AGC1\0t=7\0h=memory:2g\0a=bash\0a=-c\0a=true\0"]
COMMAND = [b"bash\0-c\0AGENT_RESOURCE_HINT=memory:2g pytest -x | tee log && echo ok"]
POLICIES = seeds_in("oci-config/policies.d/*.yaml", "tests/vm/policies/*.yaml")

#: name: (seeds, words, check of one input or mode of the driver)
TARGETS: dict[str, tuple[list[bytes], list[bytes], Check | str]] = {
    "message": (CALL, MESSAGE, check_message),
    "hint": ([b"memory:2g,cpu=high time:90s; pids 5"], HINT, check_hint),
    "command": (COMMAND, SHELL, check_command),
    "policy": (POLICIES, YAML, in_a_file("fuzz.yaml", read_policy)),
    "config": (seeds_in("oci-config/agentcgroup.yaml"), YAML, in_a_file("agentcgroup.yaml", configs.load)),
    "record": (RECORD, JSON, check_record),
    "annotations": (PAIRS, YAML, check_annotations),
    "kernel-log": (OOM, words("oom-kill: constraint= task= pid= , ; task_memcg= oom_memcg= uid="), check_kernel_log),
    "hook-json": ([*STATE, *seeds_in("oci-config/schemas/*.json")], JSON, "json"),
    "hook-string": (STATE, JSON, "string"),
    "hook-mountinfo": (MOUNTS, words("- shared:1 master:2 rw ro cgroup2 \\040 / 25 30 0:26 , cgroup2"), "mountinfo"),
}


def found(name: str, data: bytes, why: str) -> None:
    """Keep a finding and end."""
    FINDINGS.mkdir(parents=True, exist_ok=True)
    path = FINDINGS / f"{name}-{abs(hash(data)) % 10**8}"
    path.write_bytes(data)
    print(f"{name}: {why}\n{name}: the input is in {path.relative_to(ROOT)}")
    sys.exit(1)


def run_check(name: str, check: Check, inputs: Iterator[bytes], end: float) -> int:
    count = 0
    while time.monotonic() < end:
        data = next(inputs)
        began = time.thread_time()
        try:
            check(data)
        except Exception:  # whatever it is, it is a finding
            found(name, data, traceback.format_exc())
        if time.thread_time() - began > SLOW:
            found(name, data, f"took {time.thread_time() - began:.1f} s for {len(data)} bytes")
        count += 1
    return count


def run_driver(name: str, mode: str, inputs: Iterator[bytes], end: float) -> int:
    count, run = 0, driver(mode)
    while time.monotonic() < end:
        batch = [data if mode == "json" else data.replace(b"\0", b"") for data in (next(inputs) for _ in range(BATCH))]
        if run(batch):
            for data in batch:
                if complaint := run([data]):
                    found(name, data, complaint)
            found(name, b"".join(batch), "only the inputs together fail")
        count += len(batch)
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", type=float, default=60, help="seconds in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the random inputs (default: the time)")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)")
    options = parser.parse_args()
    chosen = options.targets or list(TARGETS)
    build_driver()
    print(f"seed {options.seed}")
    for name in chosen:
        seeds, vocabulary, check = TARGETS[name]
        inputs = iter(Mutator(seeds, vocabulary, random.Random(options.seed)))
        end = time.monotonic() + options.time / len(chosen)
        run = run_driver if isinstance(check, str) else run_check
        count = run(name, check, inputs, end)  # type: ignore[arg-type]
        print(f"{name}: {count} inputs, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
