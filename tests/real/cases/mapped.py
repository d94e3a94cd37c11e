#!/usr/bin/env python3
# One file mapped shared and writable by two processes: each sees the other's stores, read() sees them, they last.
# case: timeout_s=30 memory=logged,battery
import mmap
import os
import subprocess
import sys
import time

CHILD = """
import mmap, os, sys, time
size = int(sys.argv[1])
fd = os.open("shared", os.O_RDWR)
m = mmap.mmap(fd, size)
for step in range(1, 201):
    while m[0] != step % 256 or m[8] == step % 256:
        time.sleep(0)
    m[4096 + step] = step % 256
    m[size - step] = step % 256
    m[8] = step % 256
"""

for size in (64 << 10, 5 << 20):
    with open("shared", "wb") as file:
        file.truncate(size)
    fd = os.open("shared", os.O_RDWR)
    m = mmap.mmap(fd, size)
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(size)])
    for step in range(1, 201):
        m[0] = step % 256
        deadline = time.monotonic() + 10
        while m[8] != step % 256:
            assert child.poll() is None and time.monotonic() < deadline, f"step {step}: the other process was not seen"
            time.sleep(0)
        assert m[4096 + step] == step % 256
    assert child.wait(10) == 0
    want = bytearray(size)
    want[0] = want[8] = 200
    for step in range(1, 201):
        want[4096 + step] = want[size - step] = step
    assert os.pread(fd, size, 0) == want, "read() differs from the mapping"
    # A write() is seen through the mapping.
    os.pwrite(fd, b"written", 50000)
    want[50000:50007] = b"written"
    assert m[50000:50007] == b"written"
    m.flush()
    m.close()
    os.close(fd)
    fd = os.open("shared", os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, size, 0) == want, "after the cache was dropped"
    os.close(fd)

# Stores without msync are there after the mapping is gone, and after a rename and an unlink of the name.
fd = os.open("late", os.O_RDWR | os.O_CREAT)
os.ftruncate(fd, 1 << 20)
m = mmap.mmap(fd, 1 << 20)
os.rename("late", "later")
m[:] = bytes(range(256)) * 4096
m.close()
assert open("later", "rb").read() == bytes(range(256)) * 4096
m = mmap.mmap(fd, 1 << 20)
os.unlink("later")
m[77] = 1
assert os.pread(fd, 1, 77) == b"\1" and os.fstat(fd).st_nlink == 0
m.close()
os.close(fd)
# A private mapping changes nothing; a store behind the end of the file ends with SIGBUS.
open("private", "wb").write(b"a" * 10000)
fd = os.open("private", os.O_RDWR)
m = mmap.mmap(fd, 10000, flags=mmap.MAP_PRIVATE)
m[5] = 0
assert os.pread(fd, 1, 5) == b"a"
m.close()
bus = "import mmap,os;f=os.open('private',os.O_RDWR);m=mmap.mmap(f,10000);os.ftruncate(f,100);m[9000]=1"
assert subprocess.run([sys.executable, "-c", bus]).returncode == -7, "SIGBUS expected"
# A program is executed from the store.
subprocess.run(["cp", "/bin/true", "prog"], check=True)
subprocess.run(["./prog"], check=True)
