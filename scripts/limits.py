"""Limits that the benchmarks run under."""

import os
import sys
import time


def memory_cgroup(limit):
    """Moves this process, and so all that it starts, into a cgroup with `limit` bytes of memory."""
    root = "/sys/fs/cgroup"
    controllers = f"{root}/cgroup.controllers"
    if os.path.exists(controllers):
        with open(f"{root}/cgroup.subtree_control", "w") as file:
            file.write("+memory")
        parent, name = root, "memory.max"
    elif os.path.isdir(f"{root}/memory"):
        parent, name = f"{root}/memory", "memory.limit_in_bytes"
    else:
        sys.exit("no memory controller of cgroups is mounted; leave --memory out")
    # Those of earlier runs, which could not remove their own while they were in it.
    for earlier in os.listdir(parent):
        if earlier.startswith("shoal-bench-"):
            try:
                os.rmdir(f"{parent}/{earlier}")
            except OSError:
                pass
    group = f"{parent}/shoal-bench-{time.time_ns()}"
    os.mkdir(group)
    with open(f"{group}/{name}", "w") as file:
        file.write(str(limit))
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
