#!/usr/bin/env python3
# Holes: SEEK_DATA and SEEK_HOLE, cp --sparse, punched holes, du, files far larger than the store.
# case: timeout_s=60 memory=logged,battery
import os
import subprocess
import sys

KIB, MIB = 1 << 10, 1 << 20


def segments(path):
    """Data ranges as the file system reports them; every byte outside must read as zero."""
    found, size = [], os.path.getsize(path)
    fd = os.open(path, os.O_RDONLY)
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == 6, error
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        assert start < end <= size, (path, at, start, end)
        found.append((start, end))
        at = end
    try:
        os.lseek(fd, size, os.SEEK_DATA)
        sys.exit(f"{path}: SEEK_DATA at the end must fail with ENXIO")
    except OSError as error:
        assert error.errno == 6, error
    os.close(fd)
    return found


def covered(path, pieces):
    found = segments(path)
    for start, end in pieces:
        assert any(s <= start and end <= e for s, e in found), f"{path}: data at {start} not in {found}"
    return found


def expect_holes(path, at):
    for s, e in segments(path):
        assert not s <= at < e, f"{path}: {at} is reported as data ({s}-{e}), expected a hole"


for name, size, pieces in [
    ("small", 900 * KIB, [(256 * KIB, 260 * KIB), (640 * KIB, 644 * KIB)]),
    ("large", 64 * MIB, [(8 * MIB, 9 * MIB), (40 * MIB, 40 * MIB + 64 * KIB)]),
    ("huge", 1 << 40, [(1 << 39, (1 << 39) + 4 * KIB)]),
]:
    with open(name, "wb") as file:
        file.truncate(size)
        for start, end in pieces:
            file.seek(start)
            file.write(os.urandom(end - start))
    covered(name, pieces)
    expect_holes(name, 0)
    expect_holes(name, size - 64 * KIB)
    blocks = os.stat(name).st_blocks * 512
    data = sum(e - s for s, e in pieces)
    assert data <= blocks <= data + 1 * MIB, f"{name}: {blocks} bytes allocated for {data} bytes of data"
    if size > 1 << 32:
        continue
    for how in ("always", "auto", "never"):
        subprocess.run(["cp", f"--sparse={how}", name, f"{name}.{how}"], check=True)
        subprocess.run(["cmp", name, f"{name}.{how}"], check=True)
    assert os.stat(f"{name}.always").st_blocks * 512 <= data + 1 * MIB
    assert os.stat(f"{name}.never").st_size == size
    kib = int(subprocess.run(["du", "-k", name], capture_output=True, text=True).stdout.split()[0])
    assert kib == -(-blocks // KIB), f"{name}: du says {kib} KiB, stat {blocks} bytes"
    apparent = int(subprocess.run(["du", "-b", name], capture_output=True, text=True).stdout.split()[0])
    assert apparent == size

# Punching gives room back; what is beside the hole stays.
body = os.urandom(16 * MIB)
open("punched", "wb").write(body)
before = os.stat("punched").st_blocks
subprocess.run(["fallocate", "-p", "-o", str(2 * MIB), "-l", str(8 * MIB), "punched"], check=True)
want = body[: 2 * MIB] + bytes(8 * MIB) + body[10 * MIB :]
os.sync()
assert os.stat("punched").st_blocks <= before - 7 * MIB // 512
# Before they are read: what of a hole is in the page cache may have been stored to.
expect_holes("punched", 5 * MIB)
assert open("punched", "rb").read() == want
# An odd hole zeroes bytes, whatever the block size.
subprocess.run(["fallocate", "-p", "-o", "12345", "-l", "777", "punched"], check=True)
want = want[:12345] + bytes(777) + want[12345 + 777 :]
assert open("punched", "rb").read() == want
# Zeroing, allocating behind the end with and without growing.
subprocess.run(["fallocate", "-z", "-o", "100", "-l", "100000", "punched"], check=True)
want = want[:100] + bytes(100000) + want[100100:]
assert open("punched", "rb").read() == want
subprocess.run(["fallocate", "-n", "-o", str(16 * MIB), "-l", str(MIB), "punched"], check=True)
assert os.path.getsize("punched") == 16 * MIB
subprocess.run(["fallocate", "-o", str(16 * MIB), "-l", str(MIB), "punched"], check=True)
assert open("punched", "rb").read() == want + bytes(MIB)
# A tail cut off and grown again reads as zeros, not as what was there.
for size, cut in ((3000, 1001), (70000, 40001), (3 * MIB, 2 * MIB + 77)):
    with open("tail", "wb") as file:
        file.write(b"\xaa" * size)
        file.truncate(cut)
        file.truncate(size)
    assert open("tail", "rb").read() == b"\xaa" * cut + bytes(size - cut), size
