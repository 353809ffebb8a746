"""Runs inside a container: many_calls.py FILE WORKERS makes the calls of the JSON list in FILE, [[argv, status], ...],
so many at a time. FILE.done grows by a byte with each call that has ended; prints those that ended otherwise.
"""

import json
import os
import sys
import threading

path, workers = sys.argv[1], int(sys.argv[2])
with open(path) as file:
    calls = json.load(file)
lock = threading.Lock()
spoiled = []


def work(progress):
    while True:
        with lock:
            if not calls:
                return
            argv, status = calls.pop()
        pid = os.posix_spawnp(argv[0], argv, os.environ)
        ended = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with lock:
            os.write(progress, b".")
            if ended != status:
                spoiled.append([argv, status, ended])


fd = os.open(path + ".done", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
threads = [threading.Thread(target=work, args=(fd,)) for _ in range(workers)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps(spoiled))
