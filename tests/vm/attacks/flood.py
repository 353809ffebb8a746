"""flood.py MODE FILE: keeps the daemon as busy as a container can, until FILE exists. Prints how often it did what it
does.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import time

ROOT = "/dev/agentcgroup"
MESSAGE = 16 << 10
LIBC = ctypes.CDLL(None, use_errno=True)
mode, stop = sys.argv[1:]
count = 0


def goes_on():
    return not os.path.exists(stop)


def connect():
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.setblocking(False)
    connection.connect(f"{ROOT}/sock")
    return connection


def connections():
    """Hold what is accepted and go on connecting."""
    global count
    held = []
    while goes_on():
        with contextlib.suppress(OSError):
            held.append(connect())
            count += 1
        if len(held) > 900:
            held.pop(0).close()


def messages(*texts):
    """The same messages over and over, on as many connections as there are."""
    global count
    held = []
    while goes_on():
        with contextlib.suppress(OSError):
            held.append(connect())
        if len(held) > 300:
            held.pop(0).close()
        for connection in held[-50:]:
            for text in texts:
                with contextlib.suppress(OSError):
                    connection.send(text)
                    count += 1


def fields(*parts):
    return b"\0".join((b"AGC1", *parts))[: MESSAGE - 1] + b"\0"


def drain():
    global count
    fd = os.open(f"{ROOT}/tickets", os.O_RDONLY | os.O_NONBLOCK)
    while goes_on():
        try:
            count += len(os.read(fd, 4096)) // 4
        except BlockingIOError:
            time.sleep(0.001)


def stuff():
    """Numbers that are none, and a torn one; at the end everything is taken out again."""
    global count
    fd = os.open(f"{ROOT}/tickets", os.O_RDWR | os.O_NONBLOCK)
    while goes_on():
        try:
            count += os.write(fd, b"\xff\xff\xff\x7f" * 64 + b"\x01")
        except BlockingIOError:
            time.sleep(0.01)
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def fork_into(fd):
    """clone3 with CLONE_INTO_CGROUP."""
    request = (ctypes.c_uint64 * 11)(0x200000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd)
    return LIBC.syscall(435, request, ctypes.sizeof(request))


def squat():
    """A process in each directory of calls/ that there is: to fork into them asks nobody."""
    global count
    children = []
    while goes_on():
        for name in os.listdir(f"{ROOT}/calls"):
            with contextlib.suppress(OSError):
                fd = os.open(f"{ROOT}/calls/{name}", os.O_PATH | os.O_DIRECTORY)
                pid = fork_into(fd)
                if pid == 0:
                    signal.pause()
                os.close(fd)
                if pid > 0:
                    count += 1
                    children.append(pid)
        time.sleep(0.2)
        while len(children) > 60:
            os.kill(children[0], signal.SIGKILL)
            os.waitpid(children.pop(0), 0)
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def tiny():
    """Calls that nobody asked for and that end at once: for the kernel each is one."""
    global count
    fd = os.open(f"{ROOT}/calls/fallback", os.O_PATH | os.O_DIRECTORY)
    while goes_on():
        pid = fork_into(fd)
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        count += 1


words = b"'x' \"y\" $z `w` " * 1100
{
    "connections": connections,
    "drain": drain,
    "garbage": lambda: messages(os.urandom(MESSAGE), b"AGC1", b"\0" * 100, os.urandom(MESSAGE * 4)),
    "hints": lambda: messages(fields(b"n=" + b"memory:99999g," * 1200), fields(b"n=" + b"9" * MESSAGE)),
    "squat": squat,
    "starts": lambda: messages(fields(b"t=0", b"a=bash", b"a=-c", b"a=" + words), fields(b"t=0", *[b"a=-o"] * 5000)),
    "stuff": stuff,
    "tiny": tiny,
    "tickets": lambda: messages(*[fields(b"t=%d" % n, b"a=bash", b"e=9", b"m=%d" % n) for n in range(1, 40)]),
}[mode]()
print(count)
