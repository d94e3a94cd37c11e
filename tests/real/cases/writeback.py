#!/usr/bin/env python3
# A mount with the kernel's write-back cache, of a store of its own: few requests for small writes, sizes and times as programs expect
# them, and what was closed or synced survives a killed daemon.
# case: timeout_s=120 alone
import json
import mmap
import os
import signal
import subprocess
import sys
import time

if "SHOAL" not in os.environ:
    print("there is no daemon to be killed")
    sys.exit(77)
SHOAL, BASE = os.environ["SHOAL"], os.environ["SCRATCH"]
STORE, MOUNT = os.path.join(BASE, "store"), os.path.join(BASE, "mnt")


def shoal(*arguments):
    subprocess.run([SHOAL, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


def mount():
    shoal("mount", STORE, MOUNT, "-o", "writeback")


# Started before any file is open: a child that closes what it inherits would have it written back.
SHELL = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def beside(command):
    """Runs a command in another process, which has no file of ours open."""
    SHELL.stdin.write(f"(cd {MOUNT} && {command}) >&2; echo $?\n")
    SHELL.stdin.flush()
    assert SHELL.stdout.readline() == "0\n", command


def requests():
    report = json.loads(subprocess.run([SHOAL, "status", "--json", MOUNT], check=True, capture_output=True, timeout=20).stdout)
    return {of["name"]: of["count"] for of in report["requests"]}


def pid():
    with open(os.path.join(STORE, "pid")) as file:
        return int(file.readline())


def check():
    shoal("check", STORE)


os.mkdir(MOUNT)
shoal("format", STORE, "--memory-size", "64M")
mount()
try:
    os.chdir(MOUNT)
    before = requests()
    with open("appended", "ab", 0) as file:
        for number in range(5000):
            file.write(b"%039d\n" % number)
            if number % 1000 == 7:
                assert os.stat("appended").st_size == 40 * (number + 1), "the size is that of the writes so far"
    made = {name: count - before.get(name, 0) for name, count in requests().items()}
    assert made.get("WRITE", 0) <= 10 and made.get("READ", 0) == 0 and made.get("GETATTR", 0) <= 10, made
    with open("appended", "rb") as file:
        assert file.read() == b"".join(b"%039d\n" % number for number in range(5000))

    # Times are those of the writes, before and after the kernel has forgotten the file.
    with open("timed", "wb", 0) as file:
        file.write(b"a")
        time.sleep(0.05)
        file.write(b"b")
        written = os.fstat(file.fileno())
    time.sleep(1.5)
    old = (1_000_000_000_123_456_789, 1_100_000_000_987_654_321)
    with open("stamped", "wb", 0) as file:
        file.write(b"c" * 10_000)
        os.utime("stamped", ns=old)
        stamped = os.fstat(file.fileno())

    # What the kernel has not sent yet is no hole: for cp, which looks for holes, nor for tar, which believes a file without blocks.
    with open("fresh", "wb", 0) as file:
        file.truncate(1 << 20)
        file.seek(300_000)
        file.write(b"f" * 50_000)
        beside("cp fresh fresh.copy")
    with open("fresh", "r+b") as file, mmap.mmap(file.fileno(), 1 << 20) as m:
        m[900_000] = 7
        beside("cp fresh fresh.mapped")
    with open("fresh.copy", "rb") as file:
        assert file.read() == bytes(300_000) + b"f" * 50_000 + bytes((1 << 20) - 350_000), "cp of an open file"
    beside("cmp fresh fresh.mapped")
    with open("archived", "wb", 0) as file:
        file.write(b"a" * 5000)
        beside("tar -cSf archive archived && mkdir from && tar -xSf archive -C from")
    with open("from/archived", "rb") as file:
        assert file.read() == b"a" * 5000, "tar of an open file"
    os.chdir("/")
    shoal("umount", MOUNT)
    check()
    mount()
    os.chdir(MOUNT)
    for name, then in (("timed", written), ("stamped", stamped)):
        now = os.stat(name)
        assert (now.st_size, now.st_mtime_ns) == (then.st_size, then.st_mtime_ns), (name, then, now)
        assert now.st_ctime_ns == then.st_ctime_ns, (name, then.st_ctime_ns, now.st_ctime_ns)
    assert os.stat("stamped").st_mtime_ns == old[1]

    # The daemon dies while one file is open and the others were closed or synced.
    for number in range(300):
        with open(f"closed{number}", "wb", 0) as file:
            for part in range(number % 7 + 1):
                file.write(b"%d" % part * (number * 37 % 3000 + 1))
    # The time that a program sees is the one that fsync keeps, also where the file was made in the same tick of the clock.
    seen = {}
    for number in range(60):
        synced = os.open(f"synced{number}", os.O_CREAT | os.O_RDWR)
        os.write(synced, b"t" * 100)
        if number % 3 == 1:
            os.posix_fallocate(synced, 0, 5000)
        seen[number] = os.fstat(synced).st_mtime_ns, os.fstat(synced).st_ctime_ns
        time.sleep(0.006)
        os.fsync(synced)
        os.close(synced)
    opened = os.open("open", os.O_CREAT | os.O_RDWR)
    os.write(opened, b"s" * 5000)
    os.fsync(opened)
    os.write(opened, b"u" * 5000)
    os.kill(pid(), signal.SIGKILL)
    os.chdir("/")
    time.sleep(0.5)
    try:
        os.close(opened)
        sys.exit("close says that all is well, and the daemon is dead")
    except OSError:
        pass
    subprocess.run(["umount", "-l", MOUNT], check=False, timeout=20)
    mount()
    os.chdir(MOUNT)
    for number in range(300):
        expected = b"".join(b"%d" % part * (number * 37 % 3000 + 1) for part in range(number % 7 + 1))
        with open(f"closed{number}", "rb") as file:
            assert file.read() == expected, f"closed{number}"
    for number, then in seen.items():
        now = os.stat(f"synced{number}")
        assert (now.st_mtime_ns, now.st_ctime_ns) == then, f"synced{number}: {then}, now {now.st_mtime_ns}, {now.st_ctime_ns}"
    with open("open", "rb") as file:
        bytes_now = file.read()
    assert bytes_now[:5000] == b"s" * 5000 and bytes_now[5000:] in (b"", b"u" * 5000), len(bytes_now)
    os.chdir("/")
finally:
    os.chdir("/")
    subprocess.run(["umount", "-l", MOUNT], check=False, timeout=20)
for _ in range(100):
    if subprocess.run([SHOAL, "check", STORE], capture_output=True, timeout=60).returncode == 0:
        sys.exit(0)
    time.sleep(0.1)
check()
