"""Limits that the benchmarks run under."""

import os
import sys


def memory_cgroup(limit):
    """Moves this process, and so all that it starts, into a cgroup with `limit` bytes of memory."""
    root = "/sys/fs/cgroup"
    controllers = f"{root}/cgroup.controllers"
    if os.path.exists(controllers):
        with open(f"{root}/cgroup.subtree_control", "w") as file:
            file.write("+memory")
        group, name = f"{root}/shoal-bench-{os.getpid()}", "memory.max"
    elif os.path.isdir(f"{root}/memory"):
        group, name = f"{root}/memory/shoal-bench-{os.getpid()}", "memory.limit_in_bytes"
    else:
        sys.exit("no memory controller of cgroups is mounted; leave --memory out")
    os.mkdir(group)
    with open(f"{group}/{name}", "w") as file:
        file.write(str(limit))
    with open(f"{group}/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
