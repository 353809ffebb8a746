"""Tries to change what is below /dev/agentcgroup, and to move or unmount it. Prints what was changed."""

import ctypes
import json
import os

ROOT = "/dev/agentcgroup"
LIBC = ctypes.CDLL(None, use_errno=True)
CHANNELS = (f"{ROOT}/sock", f"{ROOT}/tickets")  # made to be written to
changed = []


def attempt(what, action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    changed.append(what)


def open_for(path, flags):
    os.close(os.open(path, flags))


def unmount(path):
    if LIBC.umount2(path.encode(), 2):
        raise OSError(ctypes.get_errno(), "umount2")


def mount_over(path):
    if LIBC.mount(b"none", path.encode(), b"tmpfs", 0, None):
        raise OSError(ctypes.get_errno(), "mount")


for folder, _, files in os.walk(ROOT):
    for name in ("mine", ".new"):
        attempt(f"create {folder}/{name}", open_for, f"{folder}/{name}", os.O_CREAT | os.O_WRONLY)
    for path in [folder, *(f"{folder}/{name}" for name in files)]:
        attempt(f"chmod {path}", os.chmod, path, 0o777)
        attempt(f"chown {path}", os.chown, path, 1, 1)
        attempt(f"rename {path}", os.rename, path, path + ".old")
        attempt(f"unlink {path}", os.unlink, path)
        if path not in CHANNELS and path != folder:
            attempt(f"write {path}", open_for, path, os.O_WRONLY | os.O_NONBLOCK)
for path in (ROOT, f"{ROOT}/calls", f"{ROOT}/real/bash", "/usr/bin/bash", "/usr/bin/dash"):
    attempt(f"unmount {path}", unmount, path)
    attempt(f"mount over {path}", mount_over, path)
    attempt(f"write {path}", open_for, path, os.O_WRONLY)
attempt(f"rename {ROOT}", os.rename, ROOT, "/dev/elsewhere")
attempt(f"rmdir {ROOT}", os.rmdir, ROOT)
attempt("rename bash", os.rename, "/usr/bin/bash", "/usr/bin/bash.real")
attempt("unlink bash", os.unlink, "/usr/bin/bash")
print(json.dumps(changed))
