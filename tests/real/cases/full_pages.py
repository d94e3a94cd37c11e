#!/usr/bin/env python3
# Pages that the kernel writes back to a store without room, under `writeback` and of a map: the program is told, and what it was not told of is there.
# case: timeout_s=60
import errno
import json
import mmap
import os
import subprocess
import sys

if "SHOAL" not in os.environ:
    print("there is no store that could be filled")
    sys.exit(77)
SHOAL, BASE = os.environ["SHOAL"], os.environ["SCRATCH"]
STORE, MOUNT = os.path.join(BASE, "store"), os.path.join(BASE, "mnt")
BLOCK = 65536


def shoal(*arguments):
    return subprocess.run([SHOAL, *arguments], check=True, stdout=subprocess.PIPE, timeout=60).stdout


def fill(blocks):
    """All room for large files but for so many blocks."""
    free = json.loads(shoal("df", MOUNT, "--json"))["bulk"]["free_bytes"]
    with open(os.path.join(MOUNT, "filler"), "wb", 0) as file:
        file.write(os.urandom(free - blocks * BLOCK))
        os.fsync(file.fileno())


def written(path, data):
    """Closes without an error?"""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def mapped(path, data):
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.ftruncate(fd, len(data))
        with mmap.mmap(fd, len(data)) as pages:
            pages[:] = data
            pages.flush()
        os.fsync(fd)
    finally:
        os.close(fd)


os.mkdir(MOUNT)
for options, write in (("writeback", written), ("threads=4", mapped)):
    shoal("format", "--force", STORE, "--memory-size", "48M", "--bulk-size", "16M", "--threshold", "64K")
    shoal("mount", STORE, MOUNT, "-o", f"{options},cache_size=0")
    try:
        fill(5)
        path, data = os.path.join(MOUNT, "file"), os.urandom(11 * BLOCK - 900)
        try:
            write(path, data)
            told = False
        except OSError as error:
            assert error.errno in (errno.ENOSPC, errno.EIO), error
            told = True
    finally:
        shoal("umount", MOUNT)
    shoal("mount", STORE, MOUNT)
    try:
        with open(path, "rb") as file:
            found = file.read()
        assert told or found == data, f"{options}: no error, and of {len(data)} bytes {len(found)} are there, the same: {found == data[: len(found)]}"
        assert told, f"{options}: there was room"
    finally:
        shoal("umount", MOUNT)
    shoal("check", STORE)
print("every page that was refused was told")
