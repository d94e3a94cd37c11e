#!/usr/bin/env python3
# chattr's flags on a mount with the kernel's write-back cache: what returned before a flag was set is kept, appends to an append-only file
# arrive, and what an immutable or append-only file may not take is refused. On a store of its own, in memory and on bulk storage.
# case: timeout_s=120 alone
import array
import fcntl
import os
import subprocess
import sys

if "SHOAL" not in os.environ:
    print("there is no mount with a write-back cache")
    sys.exit(77)
SHOAL, BASE = os.environ["SHOAL"], os.environ["SCRATCH"]
STORE, MOUNT = os.path.join(BASE, "store"), os.path.join(BASE, "mnt")
GET_FLAGS, SET_FLAGS, IMMUTABLE, APPEND_ONLY = 0x80086601, 0x40086602, 0x10, 0x20


def shoal(*arguments):
    subprocess.run([SHOAL, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


def chattr(flags, name):
    subprocess.run(["chattr", flags, name], check=True, timeout=20)


def path(name):
    return os.path.join(MOUNT, name)


def remount():
    shoal("umount", MOUNT)
    shoal("check", STORE)
    shoal("mount", STORE, MOUNT, "-o", "writeback")


def has(name, expected):
    with open(path(name), "rb") as file:
        found = file.read()
    assert found == expected, f"{name}: {len(found)} bytes, expected {len(expected)}; the same up to {len(os.path.commonprefix([found, expected]))}"


os.mkdir(MOUNT)
shoal("format", STORE, "--memory-size", "64M", "--bulk-size", "256M", "--threshold", "64K")
shoal("mount", STORE, MOUNT, "-o", "writeback")
expected, seen = {}, {}
try:
    for size in (0, 100, 5000, 65_000, 200_000, 6_000_000):
        # Appended to after it became append-only: by short and long writes, with and without an fsync.
        name, data = f"appended{size}", os.urandom(size)
        with open(path(name), "wb", 0) as file:
            file.write(data)
        chattr("+a", path(name))
        for part in (b"a", b"b" * 100, b"c" * 9000, os.urandom(3_000_000)):
            with open(path(name), "ab", 0) as file:
                file.write(part)
                file.write(part)
                os.fsync(file.fileno())
            data += part * 2
            with open(path(name), "ab", 0) as file:
                file.write(part)
            data += part
        seen[name] = os.stat(path(name)).st_mtime_ns
        expected[name] = data
        # Bytes before the end are refused as before.
        if size:
            kept = f"refused{size}"
            expected[kept] = data
            with open(path(kept), "wb", 0) as file:
                file.write(data)
            chattr("+a", path(kept))
            with open(path(kept), "r+b", 0) as file:
                try:
                    os.pwrite(file.fileno(), bytes([data[0] ^ 1]), 0)
                    os.fsync(file.fileno())
                    sys.exit(f"{kept}: an append-only file was written over")
                except PermissionError:
                    pass

        # Written to before it had its flag, and not yet written back; another program has it open.
        for flag in ("+i", "+a"):
            name, data = f"before{flag}{size}", os.urandom(size)
            holder = os.open(path(name), os.O_RDWR | os.O_CREAT)
            os.write(holder, data)
            os.fsync(holder)
            data = b"Z" * 50 + data[50:] + b"z" * 3000
            os.pwrite(holder, data, 0)
            chattr(flag, path(name))
            os.fsync(holder)
            expected[name] = data
            # From now on it obeys.
            try:
                os.pwrite(holder, b"late", 10)
                os.fsync(holder)
                sys.exit(f"{name}: written to with its flag")
            except PermissionError:
                pass
            try:
                os.close(holder)
            except PermissionError:
                pass

        # Flagged by a program that goes on and closes late.
        name = f"own{size}"
        own = os.open(path(name), os.O_RDWR | os.O_CREAT)
        os.write(own, b"o" * (size + 1))
        flags = array.array("i", [0])
        fcntl.ioctl(own, GET_FLAGS, flags)
        flags[0] |= IMMUTABLE
        fcntl.ioctl(own, SET_FLAGS, flags)
        os.close(own)
        expected[name] = b"o" * (size + 1)
    remount()
    for name, data in expected.items():
        has(name, data)
    flagged = subprocess.run(["lsattr", MOUNT], check=True, capture_output=True, text=True, timeout=20).stdout
    assert all(("i" if "+i" in line or "own" in line else "a") in line.split()[0] for line in flagged.splitlines()), flagged
    for name, then in seen.items():
        now = os.stat(path(name)).st_mtime_ns
        assert now == then, f"{name}: the time of the last append is {then}, now {now}"
    subprocess.run(["chattr", "-R", "-ia", MOUNT], check=True, timeout=20)
    for name in expected:
        os.unlink(path(name))
finally:
    shoal("umount", MOUNT)
shoal("check", STORE)
