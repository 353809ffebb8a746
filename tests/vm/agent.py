"""The agent of the tests: PID 1 or a child in a container, it starts tool calls when it is told to and stays alive.

Requests come over a unix socket in a bind-mounted directory, one JSON object a line; each is served by a thread
of its own.
`{"argv": [...], "env": {...}, "stdin": "...", "cwd": "/"}` -> `{"rc", "out", "err", "pid", "seconds"}`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time


def serve(connection):
    with connection, connection.makefile("rw") as stream:
        for line in stream:
            request = json.loads(line)
            print(json.dumps(call(request)), file=stream, flush=True)


def call(request):
    began = time.monotonic()
    env = {**os.environ, **request.get("env", {})}
    try:
        child = subprocess.Popen(
            request["argv"],
            env=env,
            cwd=request.get("cwd"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=request.get("session", False),
        )
    except OSError as error:
        return {"rc": None, "out": "", "err": str(error), "pid": os.getpid(), "seconds": 0.0}
    out, err = child.communicate(request.get("stdin", "").encode())
    return {
        "rc": child.returncode,
        "out": out.decode(errors="replace"),
        "err": err.decode(errors="replace"),
        "pid": os.getpid(),
        "seconds": time.monotonic() - began,
    }


def main():
    path = sys.argv[1]
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # a container that is restarted finds the socket of its last run
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    os.chmod(path, 0o777)
    listener.listen(64)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()


main()
