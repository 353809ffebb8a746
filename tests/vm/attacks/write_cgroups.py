"""Tries to write cgroup files through every path that a container has to them. Prints what it tried and what it did."""

import ctypes
import glob
import json
import os

LIBC = ctypes.CDLL(None, use_errno=True)
VIEW, OWN = "/dev/agentcgroup/calls", "/sys/fs/cgroup"
MS_RDONLY, MS_REMOUNT, MS_BIND = 1, 32, 4096
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
AT_FDCWD, AT_EMPTY_PATH, AT_RECURSIVE, OPEN_TREE_CLONE = -100, 0x1000, 0x8000, 1
SYS_OPEN_TREE, SYS_MOUNT_SETATTR = 428, 442
FILES = ("memory.max", "memory.high", "memory.oom.group", "pids.max", "cpu.max", "cgroup.procs", "cgroup.freeze",
         "cgroup.kill", "cgroup.subtree_control", "cgroup.max.depth")  # fmt: skip
tried, done = 0, []


def attempt(what, action, *arguments, **options):
    global tried
    tried += 1
    try:
        action(*arguments, **options)
    except OSError:
        return
    done.append(what)


def write(path, dir_fd=None):
    fd = os.open(path, os.O_WRONLY, dir_fd=dir_fd)
    os.close(fd)


def write_below(folder, how):
    for name in FILES:
        attempt(f"{how}: {folder}/{name}", write, f"{folder}/{name}")
    attempt(f"{how}: mkdir in {folder}", os.mkdir, f"{folder}/mine")


def through_descriptors(folder):
    paths = ("memory.max", "../memory.max", "../../memory.max", "../../../../cgroup.procs", "../../../../memory.max")
    for flags in (os.O_PATH, os.O_RDONLY):
        fd = os.open(folder, flags | os.O_DIRECTORY)
        for up in paths:
            attempt(f"descriptor of {folder}: {up}", write, up, dir_fd=fd)
            attempt(f"/proc/self/fd of {folder}: {up}", write, f"/proc/self/fd/{fd}/{up}")
        os.close(fd)


def mount(target, flags):
    if LIBC.mount(None, target.encode(), None, flags, None):
        raise OSError(ctypes.get_errno(), "mount")


def clear_readonly(tree_fd):
    attributes = (ctypes.c_uint64 * 4)(0, 1, 0, 0)  # attr_set, attr_clr = MOUNT_ATTR_RDONLY
    if LIBC.syscall(SYS_MOUNT_SETATTR, tree_fd, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes, 32):
        raise OSError(ctypes.get_errno(), "mount_setattr")


def as_if_privileged(how):
    """With whatever rights this process has over its mounts."""
    for target in (VIEW, "/dev/agentcgroup", OWN):
        attempt(f"{how}: remount {target}", mount, target, MS_REMOUNT | MS_BIND)
        tree = LIBC.syscall(SYS_OPEN_TREE, AT_FDCWD, target.encode(), OPEN_TREE_CLONE)
        if tree >= 0:
            attempt(f"{how}: clone of {target}", clear_readonly, tree)
            attempt(f"{how}: clone of {target}: write", write, "memory.max", dir_fd=tree)
            attempt(f"{how}: clone of {target}: mkdir", os.mkdir, "mine", dir_fd=tree)
    write_below(VIEW, how)
    write_below(f"{OWN}/agentcgroup/calls", how)


def in_a_user_namespace():
    reader, writer = os.pipe()
    if os.fork() == 0:
        if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS):
            os._exit(1)
        for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        as_if_privileged("in a user namespace")
        os.write(writer, json.dumps([tried, done]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        return json.loads(pipe.read() or "[0, []]")


def shims():
    """Directories that the shims of running calls hold open."""
    for link in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            if "/calls/" in os.readlink(link):
                yield link
        except OSError:
            continue


for folder in [VIEW, *glob.glob(f"{VIEW}/*/"), f"{OWN}/agentcgroup", f"{OWN}/agentcgroup/agent", OWN]:
    write_below(folder.rstrip("/"), "as root")
for folder in (VIEW, f"{VIEW}/fallback", f"{OWN}/agentcgroup/agent"):
    through_descriptors(folder)
held = list(shims())
for link in held:
    for name in ("memory.max", "../memory.max", "../../memory.max"):
        attempt(f"the shim's {link}/{name}", write, f"{link}/{name}")
as_if_privileged("as root")
more, also = in_a_user_namespace()
print(json.dumps({"tried": tried + more, "namespace": more, "shims": len(held), "done": done + also}))
