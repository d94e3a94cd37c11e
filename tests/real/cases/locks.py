#!/usr/bin/env python3
# flock, POSIX and open-file-description locks between two processes: exclusion, shared locks, ranges, release by death.
# case: timeout_s=30
import fcntl
import os
import struct
import subprocess
import sys

PROBE = """
import fcntl, os, sys, struct
how, path, start, length, kind = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
fd = os.open(path, os.O_RDWR)
try:
    if how == "flock":
        fcntl.flock(fd, {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX}[kind] | fcntl.LOCK_NB)
    elif how == "posix":
        fcntl.lockf(fd, {"r": fcntl.LOCK_SH, "w": fcntl.LOCK_EX}[kind] | fcntl.LOCK_NB, length, start)
    else:
        kinds = {"r": fcntl.F_RDLCK, "w": fcntl.F_WRLCK}
        fcntl.fcntl(fd, 37, struct.pack("hhqqi4x", kinds[kind], 0, start, length, 0))
    print("got", flush=True)
except (BlockingIOError, PermissionError):
    print("busy", flush=True)
if len(sys.argv) > 6:
    sys.stdin.read()
"""


def probe(how, start=0, length=0, kind="w"):
    return subprocess.run(
        [sys.executable, "-c", PROBE, how, "file", str(start), str(length), kind], capture_output=True, text=True, timeout=10
    ).stdout.strip()


def hold(how, start=0, length=0, kind="w"):
    process = subprocess.Popen(
        [sys.executable, "-c", PROBE, how, "file", str(start), str(length), kind, "hold"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline().strip() == "got", how
    return process


def expect(found, wanted, what):
    assert found == wanted, f"{what}: {found}, expected {wanted}"


open("file", "w").write("x" * 1000)
for how in ("flock", "posix", "ofd"):
    holder = hold(how)
    expect(probe(how), "busy", f"{how}: a second exclusive lock")
    expect(probe(how, kind="r"), "busy", f"{how}: a shared lock beside an exclusive one")
    holder.kill()
    holder.wait()
    expect(probe(how), "got", f"{how}: after the holder was killed")
    shared = hold(how, kind="r")
    expect(probe(how, kind="r"), "got", f"{how}: two shared locks")
    expect(probe(how), "busy", f"{how}: an exclusive lock beside a shared one")
    shared.stdin.close()
    shared.wait()
for how in ("posix", "ofd"):
    holder = hold(how, 100, 50)
    expect(probe(how, 0, 100), "got", f"{how}: the range before")
    expect(probe(how, 150, 10), "got", f"{how}: the range behind")
    expect(probe(how, 149, 1), "busy", f"{how}: the last byte")
    expect(probe(how, 0, 0), "busy", f"{how}: the whole file")
    holder.stdin.close()
    holder.wait()
# POSIX locks of one process merge and split, and go away with any close of the file.
fd = os.open("file", os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX, 100, 0)
fcntl.lockf(fd, fcntl.LOCK_UN, 20, 40)
expect(probe("posix", 40, 20), "got", "the hole cut into a range")
expect(probe("posix", 39, 1), "busy", "the byte before the hole")
expect(probe("posix", 60, 1), "busy", "the byte behind the hole")
os.close(os.open("file", os.O_RDONLY))
expect(probe("posix"), "got", "after a close by the same process")
# F_GETLK names the holder.
holder = hold("posix", 5, 5)
answer = fcntl.fcntl(fd, fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))
kind, _, start, length, pid = struct.unpack("hhqqi4x", answer)
assert (kind, start, length, pid) == (fcntl.F_WRLCK, 5, 5, holder.pid), (kind, start, length, pid, holder.pid)
# A blocking lock gets its turn.
waiter = subprocess.Popen(
    [sys.executable, "-c", "import fcntl;f=open('file','r+');fcntl.lockf(f,fcntl.LOCK_EX);print('turn')"],
    stdout=subprocess.PIPE, text=True,
)  # fmt: skip
try:
    waiter.wait(0.3)
    sys.exit("a blocking lock did not block")
except subprocess.TimeoutExpired:
    pass
holder.kill()
assert waiter.communicate(timeout=10)[0].strip() == "turn"
# Two processes add to a counter under a lock: no increment is lost.
ADD = """
import fcntl
for _ in range(300):
    with open("counter", "r+") as f:
        fcntl.%s(f, fcntl.LOCK_EX)
        n = int(f.read() or 0); f.seek(0); f.write(str(n + 1)); f.flush()
"""
for how in ("flock", "lockf"):
    open("counter", "w").write("0")
    both = [subprocess.Popen([sys.executable, "-c", ADD % how]) for _ in range(2)]
    assert [p.wait(25) for p in both] == [0, 0]
    expect(open("counter").read(), "600", f"{how}: counter")
os.close(fd)
