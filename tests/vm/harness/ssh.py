"""One ssh connection to a VM, shared by every command that runs there."""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_OPTIONS = (
    "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes",
    "BatchMode=yes", "ServerAliveInterval=30", "ServerAliveCountMax=20", "ConnectTimeout=60",
    # Post-quantum key exchange, the default, costs seconds under TCG.
    "KexAlgorithms=curve25519-sha256",
)  # fmt: skip


@dataclass(frozen=True)
class Ssh:
    """How to reach root in a VM; `control` is the socket of the shared connection."""

    port: int
    key: Path
    control: Path

    def command(self, *arguments: str) -> list[str]:
        """Return the ssh command line; what follows the host are `arguments` as the remote shell will read them."""
        options = [item for option in _OPTIONS for item in ("-o", option)]
        reach = ["-F", "none", "-i", str(self.key), "-p", str(self.port), "-S", str(self.control)]
        return ["ssh", *reach, *options, "root@127.0.0.1", *arguments]

    def run(self, arguments: Sequence[str], **options: object) -> subprocess.CompletedProcess[str]:
        """Run one command in the VM; keyword arguments are those of `subprocess.run`."""
        return subprocess.run(self.command(shlex.join(arguments)), text=True, **options)  # type: ignore[call-overload,no-any-return]

    def call(self, argv: Sequence[str], options: Sequence[str], cwd: str) -> int:
        """Run a command on this terminal and return its status: one argument is a shell's text, none is a shell."""
        text = argv[0] if len(argv) == 1 else shlex.join(argv)
        command = self.command(f"cd {shlex.quote(cwd)} 2>/dev/null; {text or 'exec bash -l'}")
        command[1:1] = options
        return subprocess.run(command).returncode

    def answers(self) -> bool:
        """Say whether an ssh server greets on the port (QEMU accepts connections long before the VM does)."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as probe:
                probe.settimeout(10)
                return probe.recv(4) == b"SSH-"
        except OSError:
            return False

    def open(self) -> bool:
        """Start the shared connection in the background; False if the server did not let us in."""
        master = self.command()
        master[1:1] = ["-M", "-N", "-f"]
        return subprocess.run(master, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0  # fmt: skip

    def is_open(self) -> bool:
        """Say whether the shared connection is there."""
        return self._control("check")

    def close(self) -> None:
        """End the shared connection."""
        self._control("exit")

    def _control(self, order: str) -> bool:
        command = self.command()
        command[1:1] = ["-O", order]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
