"""Containers without an engine: a bundle made by hand, which crun or runc runs directly."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from podman import CGROUPFS, run

HOOK = "/usr/libexec/agentcgroup/agentcgroup-hook"
PARENT = "/agentcgroup-bundles"


class Bundle:
    """`config` may be changed before `start`; the container sleeps until `delete`. runtime: with options, if any."""

    def __init__(self, runtime: str, rootfs: Path, annotations: dict[str, str]) -> None:
        self.runtime = runtime.split()
        self.folder = Path(tempfile.mkdtemp(prefix="bundle-"))
        self.id = self.folder.name
        self.indent: int | None = None
        run(*self.runtime, "spec", cwd=self.folder)
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        self.config["process"] |= {"terminal": False, "args": ["sleep", "1000"]}
        self.config["root"] = {"path": str(rootfs), "readonly": True}
        self.config["annotations"] = {"io.container.manager": "libpod", **annotations}
        self.config["linux"]["cgroupsPath"] = f"{PARENT}/{self.id}"
        self.hook(HOOK, "agentcgroup-hook")

    def hook(self, path: str, *args: str) -> None:
        """Run this at the start and after the end."""
        hook = {"path": path, "args": list(args), "timeout": 60}
        self.config["hooks"] = {"createRuntime": [hook], "poststop": [hook]}

    def start(self) -> subprocess.CompletedProcess[str]:
        """Create and start it."""
        (self.folder / "config.json").write_text(json.dumps(self.config, indent=self.indent))
        with (self.folder / "output").open("w+") as output:  # no pipe: the container keeps it open
            command = [*self.runtime, "run", "--detach", "--bundle", str(self.folder), self.id]
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, text=True)
        done.stdout = (self.folder / "output").read_text()
        return done

    def exec(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it."""
        return run(*self.runtime, "exec", self.id, *argv, check=False)

    def delete(self) -> None:
        """Remove the container; its cgroup's parent goes with the last one."""
        run(*self.runtime, "delete", "--force", self.id, check=False)
        with contextlib.suppress(OSError):
            (CGROUPFS / PARENT[1:]).rmdir()
