#!/usr/bin/env python3
# Stores through shared maps that the kernel has not written back yet: nothing of them is a hole, whichever way the bytes under
# them came to be zero, so cp, tar and SEEK_DATA see them. What nobody can have stored to stays a hole.
# case: timeout_s=90 memory=logged,battery
import mmap
import os
import subprocess

KIB, MIB = 1 << 10, 1 << 20
PAGE = mmap.PAGESIZE

# Started before any file is open: a child that closes what it inherits would have it written back.
SHELL = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def beside(command):
    """Runs a command in another process, which has no file of ours open."""
    SHELL.stdin.write(f"({command}) >&2; echo $?\n")
    SHELL.stdin.flush()
    assert SHELL.stdout.readline() == "0\n", command



def data(fd):
    """Ranges that are not holes, in pages."""
    found, at, size = [], 0, os.fstat(fd).st_size
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == 6, error
            break
        assert at <= start < size
        end = os.lseek(fd, start, os.SEEK_HOLE)
        assert start < end <= size, (start, end)
        assert os.lseek(fd, (start + end) // 2, os.SEEK_DATA) == (start + end) // 2
        found.append((start, end))
        at = end
    return found


def stored(name, fd, size, places):
    """Stores at the places, and copies before anything is written back."""
    with mmap.mmap(fd, size) as m:
        for number, place in enumerate(places):
            m[place] = 1 + number
        told = data(fd)
        for place in places:
            assert any(start <= place < end for start, end in told), f"{name}: {place} is a hole among {told}"
        beside(f"cp {name} {name}.copy")
        beside(f"tar -cSf {name}.tar {name} && mkdir {name}.d && tar -xSf {name}.tar -C {name}.d")
        os.rename(f"{name}.d/{name}", f"{name}.untarred")
        os.rmdir(f"{name}.d")
        for copy in (f"{name}.copy", f"{name}.untarred"):
            with open(copy, "rb") as file:
                for number, place in enumerate(places):
                    file.seek(place)
                    assert file.read(1) == bytes([1 + number]), f"{copy}: the byte at {place} was lost"
    beside(f"cmp {name} {name}.copy")
    for copy in (".copy", ".untarred", ".tar"):
        os.unlink(name + copy)
    return told


def new(name):
    return os.open(name, os.O_CREAT | os.O_EXCL | os.O_RDWR)


# A file that is one hole, of either tier.
for size in (64 * KIB, MIB, 16 * MIB):
    for places in ([0], [size - 1], [100, size // 2 + 3, size - 5000]):
        fd = new("f")
        os.ftruncate(fd, size)
        stored("f", fd, size, places)
        os.close(fd)
        os.unlink("f")

# A small file with some bytes, made longer: the rest of its first page is behind the room that it has.
for size in (MIB, 16 * MIB):
    fd = new("f")
    os.write(fd, b"some")
    assert os.pread(fd, 10, 0) == b"some"
    os.ftruncate(fd, size)
    stored("f", fd, size, [2000, 5000])
    os.close(fd)
    os.unlink("f")

# One that is a hole shorter than a page, in the cache before it grows.
fd = new("f")
os.ftruncate(fd, 100)
assert os.pread(fd, 100, 0) == bytes(100)
os.ftruncate(fd, MIB)
stored("f", fd, MIB, [3000])
os.close(fd)
os.unlink("f")

# Zeros that were written are in the cache without having been read. The file changes its tier under them.
fd = new("f")
os.pwrite(fd, bytes(256 * KIB), 0)
os.ftruncate(fd, 32 * MIB)
stored("f", fd, 32 * MIB, [5 * PAGE + 1, 200 * KIB])
os.close(fd)
os.unlink("f")

# Punched, whole and in part; cut in the middle of a page, and grown again.
fd = new("f")
os.pwrite(fd, b"\xaa" * (4 * MIB), 0)
os.close(fd)
fd = os.open("f", os.O_RDWR)
assert os.pread(fd, 4 * MIB, 0) == b"\xaa" * (4 * MIB)
beside(f"fallocate -p -o {MIB + 10} -l {MIB} f")
stored("f", fd, 4 * MIB, [MIB + 20, MIB + 5 * PAGE, 2 * MIB + 5])
os.ftruncate(fd, 3 * MIB + 50)
os.ftruncate(fd, 4 * MIB)
stored("f", fd, 4 * MIB, [3 * MIB + 60, 3 * MIB + 5 * PAGE])
os.close(fd)
os.unlink("f")

# Holes that no program has looked into stay holes, also beside stores; a copy of them takes no room.
fd = new("f")
os.ftruncate(fd, 96 * MIB)
os.pwrite(fd, b"a" * MIB, 16 * MIB)
assert data(fd) == [(16 * MIB, 17 * MIB)], data(fd)
told = stored("f", fd, 96 * MIB, [64 * MIB])
assert len(told) == 2 and sum(end - start for start, end in told) < 8 * MIB, told
os.close(fd)
os.unlink("f")
with open("f", "wb") as file:
    file.truncate(96 * MIB)
    file.seek(16 * MIB)
    file.write(b"a" * MIB)
subprocess.run(["cp", "f", "g"], check=True)
assert os.stat("g").st_blocks * 512 < 8 * MIB, os.stat("g").st_blocks
