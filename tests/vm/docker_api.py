"""dockerd as the tests use it: the requests of its HTTP API that `docker run`, `exec`, `stop` and `restart` make."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from podman import AGENT, HERE, Container, alive, wait_for

SOCKET = "/run/docker.sock"
VERSION = "/v1.43"  # the first with annotations (docker 24)
#: What of the test image an agent needs: the whole would be copied for minutes.
LEFT_OUT = (
    "usr/lib/jvm", "usr/share", "usr/lib/git-core", "usr/lib/systemd", "usr/sbin", "var",
    *(f"usr/lib/*/{name}" for name in ("libnode*", "libicu*", "perl*", "gconv", "systemd")),
)  # fmt: skip


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(300)
        self.sock.connect(SOCKET)


class DockerError(Exception):
    """dockerd refused; its own words."""


def ask(method: str, path: str, body: Any = None) -> bytes:
    """One request; a body that is no file is sent as JSON. Raises DockerError."""
    connection = _Connection("docker")
    with contextlib.closing(connection):
        sent = body if hasattr(body, "read") else json.dumps(body)
        kind = "application/x-tar" if hasattr(body, "read") else "application/json"
        connection.request(method, VERSION + path, None if body is None else sent, {"Content-Type": kind})
        response = connection.getresponse()
        text = response.read()
        if response.status >= 400:
            raise DockerError(json.loads(text)["message"])
        return text


def import_image(rootfs: Path, name: str) -> None:
    """An image of the files in `rootfs` but those LEFT_OUT."""
    left_out = [f"--exclude=./{pattern}" for pattern in LEFT_OUT]
    with subprocess.Popen(["tar", "-C", str(rootfs), *left_out, "-c", "."], stdout=subprocess.PIPE) as tar:
        said = ask("POST", f"/images/create?fromSrc=-&repo={name}", tar.stdout)
    assert b"sha256:" in said, said


class DockerContainer(Container):
    """A container of dockerd's; what Container does by podman is done by the API here."""

    @property
    def pid(self) -> int:
        return int(self.inspect()["State"]["Pid"])

    def inspect(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(ask("GET", f"/containers/{self.id}/json"))
        return found

    def exec(self, *argv: str, **_: Any) -> subprocess.CompletedProcess[str]:
        """`docker exec`."""
        wanted = {"AttachStdout": True, "AttachStderr": True, "Cmd": argv}
        number = json.loads(ask("POST", f"/containers/{self.id}/exec", wanted))["Id"]
        streams = {1: b"", 2: b""}
        for stream, data in _frames(ask("POST", f"/exec/{number}/start", {})):
            streams[stream] += data
        status = json.loads(ask("GET", f"/exec/{number}/json"))["ExitCode"]
        return subprocess.CompletedProcess(argv, status, streams[1].decode(), streams[2].decode())

    def post(self, action: str, body: Any = None) -> None:
        """`start`, `stop?t=1`, `restart?t=1`, `update` and what else there is."""
        ask("POST", f"/containers/{self.id}/{action}", body)


def _frames(text: bytes) -> list[tuple[int, bytes]]:
    """Output of a command without a terminal: (stream, data), as the API multiplexes them."""
    found = []
    while text:
        size = int.from_bytes(text[4:8])
        found.append((text[0], text[8 : 8 + size]))
        text = text[8 + size :]
    return found


class Docker:
    """Starts containers, and removes them at the end of the test."""

    def __init__(self) -> None:
        self._containers: list[DockerContainer] = []

    def create(
        self,
        image: str = "debian",
        runtime: str | None = "agentcgroup",
        command: Sequence[str] = AGENT,
        name: str = "",
        host: dict[str, Any] | None = None,
        **annotations: str,
    ) -> DockerContainer:
        """`docker create --runtime=... --annotation ... --name=...`; `host`: more of the API's HostConfig."""
        shared = Path(tempfile.mkdtemp(prefix="agent-"))
        shared.chmod(0o777)
        shutil.copy(HERE / "agent.py", shared)
        wanted: dict[str, Any] = {"Binds": [f"{shared}:/agent"], "Annotations": annotations, **(host or {})}
        if runtime:
            wanted["Runtime"] = runtime
        made = ask("POST", f"/containers/create?name={name}", {"Image": image, "Cmd": command, "HostConfig": wanted})
        container = DockerContainer(json.loads(made)["Id"], shared, ())
        alive.add(container.id)
        self._containers.append(container)
        return container

    def run(self, **options: Any) -> DockerContainer:
        """`docker run -d`; the agent answers."""
        container = self.create(**options)
        container.post("start")
        wait_for(container.answers, 10, "the agent")
        return container

    def clean(self) -> None:
        """Remove the containers and their directories."""
        for container in self._containers:
            with contextlib.suppress(DockerError):
                ask("DELETE", f"/containers/{container.id}?force=1&v=1")
            alive.discard(container.id)
            shutil.rmtree(container.agent, ignore_errors=True)
        self._containers.clear()
