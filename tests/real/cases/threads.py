#!/usr/bin/env python3
# System calls of the daemon's serving threads fail (strace injects it), on mounts of a store of its own, over /dev/fuse and io_uring.
# What passes is tried again and no program notices. What does not pass ends the whole mount with a line in the log: programs get
# an error instead of waiting for ever, and the store is shut down cleanly.
# case: timeout_s=120 alone
import os
import shutil
import subprocess
import sys
import threading
import time

SWITCH = "/sys/module/fuse/parameters/enable_uring"
if "SHOAL" not in os.environ:
    print("there is no daemon to be disturbed")
    sys.exit(77)
if not shutil.which("strace"):
    print("no strace to make system calls fail")
    sys.exit(77)
SHOAL, BASE = os.environ["SHOAL"], os.environ["SCRATCH"]
STORE, MOUNT = os.path.join(BASE, "store"), os.path.join(BASE, "mnt")
LOG = os.path.join(STORE, "shoal.log")
CLIENTS = 4


def shoal(*arguments):
    subprocess.run([SHOAL, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


def pid():
    with open(os.path.join(STORE, "pid")) as file:
        return int(file.readline())


def exists(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Client:
    """Makes, reads and removes files in a process of its own; each step adds a byte to its output."""

    CODE = """
import os, sys
where, number = sys.argv[1], sys.argv[2]
if hasattr(os, "sched_setaffinity"):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [cpus[int(number) % len(cpus)]])
for step in range(1 << 60):
    name = os.path.join(where, f"c{number}-{step % 7}")
    with open(name, "wb", 0) as file:
        file.write(b"%d" % step * 100)
    with open(name, "rb", 0) as file:
        assert file.read() == b"%d" % step * 100
    os.unlink(name)
    sys.stdout.buffer.write(b".")
    sys.stdout.buffer.flush()
"""

    def __init__(self, number):
        self.out = open(os.path.join(BASE, f"client{number}"), "wb+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.CODE, MOUNT, str(number)], stdout=self.out, stderr=subprocess.DEVNULL
        )

    def steps(self):
        return os.fstat(self.out.fileno()).st_size

    def end(self):
        self.process.kill()
        self.process.wait(20)


def disturbed(transport, injected):
    """Mounts, and makes calls of the daemon fail under clients; returns them, the daemon's number and what strace runs in."""
    shoal("mount", STORE, MOUNT, "-o", f"transport={transport}")
    daemon = pid()
    clients = [Client(number) for number in range(CLIENTS)]
    wait(lambda: all(client.steps() > 20 for client in clients), "clients begin")
    call = injected.partition(":")[0]
    where = ["-P", "/dev/fuse"] if call != "io_uring_enter" else []
    command = ["strace", "-f", "-qq", "-o", os.path.join(BASE, "traced"), *where, "-e", f"trace={call}", "-e", f"inject={injected}", "-p", str(daemon)]
    return clients, daemon, subprocess.Popen(command, stderr=subprocess.DEVNULL)


def wait(condition, what, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def said(begin):
    with open(LOG) as file:
        file.seek(begin)
        return file.read()


def injections():
    if not os.path.exists(os.path.join(BASE, "traced")):
        return 0
    with open(os.path.join(BASE, "traced"), errors="replace") as file:
        return sum("INJECTED" in line for line in file)


def passes(transport, injected, count):
    """`count` calls fail, and everybody goes on."""
    clients, daemon, strace = disturbed(transport, injected)
    try:
        wait(lambda: injections() >= count, f"{injected} is injected")
        # A call from which strace is taken away fails with ENOSYS: it stays until all calls have failed that are to fail.
        before = [client.steps() for client in clients]
        wait(lambda: all(client.steps() > old + 10 for client, old in zip(clients, before)), f"clients go on after {injected}")
        assert all(client.process.poll() is None for client in clients)
    finally:
        for client in clients:
            client.end()
        strace.terminate()
        strace.wait(20)
    shoal("umount", MOUNT)
    wait(lambda: not exists(daemon), "the daemon ends")


def ends(transport, injected):
    """A call fails for good: the mount ends, and says so."""
    begin = os.path.getsize(LOG) if os.path.exists(LOG) else 0
    clients, daemon, strace = disturbed(transport, injected)
    try:
        wait(lambda: all(client.process.poll() is not None for client in clients), f"clients get an error after {injected}")
        # strace ends with the daemon: told to leave one that is ending, it may wait for ever.
        wait(lambda: not exists(daemon), f"the daemon ends after {injected}")
        strace.wait(20)
        try:
            os.stat(MOUNT + "/x")
            sys.exit("the dead mount answers")
        except OSError as error:
            assert error.errno in (107, 103), error
        told = [line for line in said(begin).splitlines() if "ERROR" in line]
        assert any("the mount ends" in line and "request-" in line for line in told), said(begin)
    finally:
        for client in clients:
            client.end()
        strace.kill()
        strace.wait(20)
        subprocess.run(["umount", "-l", MOUNT], check=False, timeout=20)
    # It was shut down, not killed.
    told = subprocess.run([SHOAL, "check", STORE], check=True, capture_output=True, text=True, timeout=60).stdout
    assert "not unmounted cleanly" not in told, told


os.mkdir(MOUNT)
shoal("format", STORE, "--memory-size", "64M")
before = None
try:
    passes("dev", "read:error=ENOMEM:when=30..45", 10)
    passes("dev", "writev:error=EAGAIN:when=30..45", 10)
    ends("dev", "read:error=EIO:when=30")
    if os.access(SWITCH, os.W_OK):
        with open(SWITCH) as file:
            before = file.read()
        with open(SWITCH, "w") as file:
            file.write("Y")
        for error in ("EAGAIN", "EBUSY", "ENOMEM", "EINTR"):
            passes("uring", f"io_uring_enter:error={error}:when=30..35", 5)
        ends("uring", "io_uring_enter:error=EPERM:when=30")
    else:
        print("no FUSE over io_uring on this machine: /dev/fuse only")
finally:
    if before:
        with open(SWITCH, "w") as file:
            file.write(before)
    subprocess.run(["umount", "-l", MOUNT], check=False, capture_output=True, timeout=20)
