"""Lists open files of the container's processes whose mount is none of the container's own."""

import json
import os

foreign, comms = [], []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/comm") as file:
            comm = file.read().strip()
        with open(f"/proc/{pid}/mountinfo") as file:
            mounts = {line.split()[0] for line in file}
        comms.append(comm)
        for fd in os.listdir(f"/proc/{pid}/fd"):
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
            with open(f"/proc/{pid}/fdinfo/{fd}") as file:
                mount = next(line.split()[1] for line in file if line.startswith("mnt_id:"))
            if mount not in mounts and ":[" not in link and not link.startswith("anon_inode:"):
                foreign.append([comm, fd, link])
    except OSError:
        continue
print(json.dumps({"foreign": foreign, "processes": sorted(comms)}))
