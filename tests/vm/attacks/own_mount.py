"""Runs in new user, cgroup and mount namespaces: mounts a cgroup2 of its own, which begins at its leaf, and tries to
get above and below it. Prints what it reached.
"""

import ctypes
import json
import os

LIBC = ctypes.CDLL(None, use_errno=True)
TOP = "/tmp/own-cgroup2"
CLONE_NEWCGROUP, CLONE_NEWNS = 0x02000000, 0x00020000

os.makedirs(TOP, exist_ok=True)
mounted = LIBC.mount(b"none", TOP.encode(), b"cgroup2", 0, None) == 0
above, directories = [], []


def attempt(found, what, action, *arguments):
    try:
        action(*arguments)
    except OSError:
        return
    found.append(what)


def write(path, text):
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def mount_again(path):
    os.makedirs(path, exist_ok=True)
    if LIBC.mount(b"none", path.encode(), b"cgroup2", 0, None):
        raise OSError(ctypes.get_errno(), "mount")
    if os.path.exists(f"{path}/agentcgroup"):
        write(f"{path}/agentcgroup/calls/memory.max", "max")
    else:
        raise OSError("the same leaf again")


def join(namespace, flag):
    fd = os.open(f"/proc/1/ns/{namespace}", os.O_RDONLY)
    try:
        if LIBC.setns(fd, flag):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(fd)


leaf = os.listdir(TOP)
attempt(directories, "mkdir", os.mkdir, f"{TOP}/below")
attempt(directories, "mkdir twice", os.makedirs, f"{TOP}/below/more")
for name, text in (("cgroup.max.depth", "10"), ("cgroup.subtree_control", "+memory"), ("cgroup.procs", "1")):
    attempt(above, f"../{name}", write, f"{TOP}/../{name}", text)
    attempt(above, f"view ../{name}", write, f"/dev/agentcgroup/calls/{name}", text)
attempt(above, "mount again", mount_again, "/tmp/again")
attempt(above, "cgroup namespace of init", join, "cgroup", CLONE_NEWCGROUP)
attempt(above, "mount namespace of init", join, "mnt", CLONE_NEWNS)
attempt(above, "move init here", write, f"{TOP}/cgroup.procs", "1")
for below in ("below/more", "below"):
    if os.path.isdir(f"{TOP}/{below}"):
        os.rmdir(f"{TOP}/{below}")
print(json.dumps({"mounted": mounted, "leaf": sorted(leaf), "above": above, "directories": directories}))
