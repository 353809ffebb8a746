"""A command asks while something answers as a daemon on its control socket."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentcgroup import hookserver
from agentcgroup.cli import main
from agentcgroup.loop import Loop

Answer = Callable[[dict[str, Any]], dict[str, Any]]


def ask_a_daemon(run_dir: Path, answer: Answer, *argv: str) -> int:
    """The status of a command while a daemon's control socket answers so."""
    loop = Loop(lambda error: None)
    server = hookserver.MessageServer(loop, hookserver.listen(run_dir / "control.sock", 0o600), answer)
    status: list[int] = []
    asking = threading.Thread(target=lambda: status.append(main(argv)))
    asking.start()
    while asking.is_alive():
        loop.turn(0.05)
    server.close()
    loop.close()
    return status[0]
