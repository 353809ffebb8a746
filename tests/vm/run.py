#!/usr/bin/env python3
"""Boots test VMs and runs the product, its tests or a shell inside. See `run.py --help`."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
from types import FrameType

from harness import named, suite
from harness.boot import booted
from harness.build import ImageError
from harness.image import get_image
from harness.machine import MachineError
from harness.product import GUEST_CHECKOUT, ProductError, staged, sync
from harness.progress import say
from harness.qemu import Settings
from harness.spec import KERNELS

INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Carry out one command and return the exit status."""
    options, rest = _parser().parse_known_args(argv)
    if rest and options.command != "test":
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return int(options.run(options))
    except (ImageError, MachineError, ProductError) as error:
        say(f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, run: object, text: str, boots: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, description=text)
        command.set_defaults(run=run)
        if boots:
            choices = [*KERNELS, "all"] if name == "test" else list(KERNELS)
            default = "all" if name == "test" else next(iter(KERNELS))
            command.add_argument("--kernel", choices=choices, default=default)
            command.add_argument("--memory", default=Settings.memory, help="as QEMU reads it (default %(default)s)")
            command.add_argument("--smp", type=int, default=Settings.smp, help="CPUs (default %(default)s)")
        return command

    add("image", _image, "build the base image if the cache has none, and print its folder", boots=False)
    test = add("test", _test, "run tests/vm in fresh VMs; other arguments (paths, -k ...) go to pytest")
    test.add_argument("--jobs", type=int, default=2, help="VMs at a time (default %(default)s)")
    test.add_argument("--deadline", type=float, default=3900, help="seconds for pytest in one boot")
    add("shell", _shell, "boot a VM with the product installed and open a shell in it")
    run_one = add("exec", _exec, "boot a VM with the product installed, run one command, exit with its status")
    run_one.add_argument("argv", nargs="+", metavar="-- CMD")
    up = add("up", _up, "boot a VM with the product installed that stays up under a name")
    for command in (
        up,
        add("sync", _sync, "install the product as it is now into a VM that is up", boots=False),
        add("down", _down, "end a VM that is up", boots=False),
        ssh := add("ssh", _ssh, "open a shell or run a command in a VM that is up", boots=False),
    ):
        command.add_argument("name")
    ssh.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    return Settings(options.kernel, options.memory, options.smp)


def _image(options: argparse.Namespace) -> int:
    print(get_image().folder)
    return 0


def _test(options: argparse.Namespace) -> int:
    kernels = list(KERNELS) if options.kernel == "all" else [options.kernel]
    runs = suite.plan(_settings(options), kernels, options.rest)
    with staged() as stage:
        result = suite.run_all(get_image(), stage, runs, options.jobs, options.deadline)
    print(result, flush=True)
    return 0 if result.ok else 1


def _shell(options: argparse.Namespace) -> int:
    return _in_fresh_vm(options, ["-t"], [])


def _exec(options: argparse.Namespace) -> int:
    return _in_fresh_vm(options, [], options.argv)


def _in_fresh_vm(options: argparse.Namespace, ssh_options: list[str], argv: list[str]) -> int:
    with staged() as stage, booted(get_image(), _settings(options)) as machine:
        sync(machine, stage)
        return machine.ssh.call(argv, ssh_options, cwd=GUEST_CHECKOUT)


def _up(options: argparse.Namespace) -> int:
    machine = named.up(get_image(), _settings(options), options.name)
    say(f"VM {options.name} is up: run.py ssh {options.name} [CMD] | sync {options.name} | down {options.name}")
    # After the boot: a product that does not build just now should not cost its developer the VM.
    with staged() as stage:
        sync(machine, stage)
    return 0


def _sync(options: argparse.Namespace) -> int:
    with staged() as stage:
        sync(named.find(options.name), stage)
    return 0


def _ssh(options: argparse.Namespace) -> int:
    machine = named.find(options.name)
    return machine.ssh.call(options.argv, [] if options.argv else ["-t"], cwd=GUEST_CHECKOUT)


def _down(options: argparse.Namespace) -> int:
    named.down(options.name)
    return 0


def _interrupt(number: int, frame: FrameType | None) -> None:
    for worker in multiprocessing.active_children():
        worker.terminate()
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
