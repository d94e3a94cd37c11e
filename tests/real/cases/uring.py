#!/usr/bin/env python3
# A mount whose requests come by io_uring, of a store of its own: many clients at once, large requests, syncs side by side, little
# memory, no work while idle, a daemon killed with requests on their way; and the way back to /dev/fuse where the kernel refuses.
# case: timeout_s=120 alone
import mmap
import os
import signal
import subprocess
import sys
import threading
import time

SWITCH = "/sys/module/fuse/parameters/enable_uring"
if "SHOAL" not in os.environ:
    print("there is no daemon to be killed")
    sys.exit(77)
if not os.access(SWITCH, os.W_OK):
    print("no FUSE over io_uring on this machine")
    sys.exit(77)
SHOAL, BASE = os.environ["SHOAL"], os.environ["SCRATCH"]
STORE, MOUNT = os.path.join(BASE, "store"), os.path.join(BASE, "mnt")


def shoal(*arguments):
    subprocess.run([SHOAL, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


def said_by_mounting():
    """Mounts; what the daemon's log says of it."""
    log = os.path.join(STORE, "shoal.log")
    begin = os.path.getsize(log) if os.path.exists(log) else 0
    shoal("mount", STORE, MOUNT, "-o", "transport=uring")
    with open(log) as file:
        file.seek(begin)
        return file.read()


def switch(value):
    with open(SWITCH, "w") as file:
        file.write(value)


def pid():
    with open(os.path.join(STORE, "pid")) as file:
        return int(file.readline())


def in_threads(count, work):
    errors = []

    def guarded(number):
        try:
            work(number)
        except Exception as error:
            errors.append((number, error))

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert not any(thread.is_alive() for thread in threads), "clients hang"
    return errors


def resident_mib():
    """Memory of the daemon, without held writes: these lie in shared memory and have a bound of their own, `cache_size`."""
    with open(f"/proc/{pid()}/status") as file:
        kib = {line.split()[0]: int(line.split()[1]) for line in file if line.startswith(("VmRSS:", "RssShmem:"))}
    return kib["VmRSS:"] - kib["RssShmem:"] >> 10


def processor_ticks():
    with open(f"/proc/{pid()}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def large(number):
    """Requests of 1 MiB, written and read back past the page cache."""
    name, data = f"large{number}", bytes([number + 1]) * (1 << 20)
    with open(name, "wb", 0) as file:
        for _ in range(3):
            assert file.write(data) == len(data)
    fd = os.open(name, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 1 << 20) as room:
        for _ in range(3):
            assert os.readv(fd, [room]) == len(data)
            assert room[:] == data, "other bytes came back"
    os.close(fd)


def synced(number):
    for round in range(20):
        fd = os.open(f"synced{number}.{round}", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"%d" % number)
        os.fsync(fd)
        os.close(fd)


before = open(SWITCH).read().strip()
os.mkdir(MOUNT)
shoal("format", STORE, "--memory-size", "256M")
try:
    switch("N")
    said = said_by_mounting()
    assert "enable_uring" in said, said
    with open(f"{MOUNT}/plain", "w") as file:
        file.write("by /dev/fuse")
    shoal("umount", MOUNT)

    switch("Y")
    said = said_by_mounting()
    assert "requests come by io_uring" in said, said
    os.chdir(MOUNT)
    assert open("plain").read() == "by /dev/fuse"
    idle = resident_mib()
    errors = in_threads(64, large)
    assert not errors, errors
    assert resident_mib() < idle + 160, f"{idle} MiB before, {resident_mib()} MiB now"
    errors = in_threads(16, synced)
    assert not errors, errors
    os.setxattr("plain", "user.long", b"v" * 60000)
    assert os.getxattr("plain", "user.long") == b"v" * 60000
    os.mkdir("n" * 255)
    os.symlink("t" * 4000, "link")
    assert os.readlink("link") == "t" * 4000
    assert len(os.listdir(".")) == 64 + 16 * 20 + 3
    time.sleep(3)
    ticks = processor_ticks()
    time.sleep(2)
    assert processor_ticks() - ticks <= 4, "an idle mount works"

    # Killed with requests of twelve clients on their way: what had returned is there.
    returned = [0] * 12

    def append(number):
        with open(f"log{number}", "wb", 0) as file:
            while True:
                file.write(b"%07d\n" % returned[number])
                returned[number] += 1

    threading.Timer(1, os.kill, (pid(), signal.SIGKILL)).start()
    errors = in_threads(12, append)
    assert len(errors) == 12 and all(isinstance(error, OSError) for _, error in errors), errors
    os.chdir("/")
    subprocess.run(["umount", "-l", MOUNT], check=True, timeout=20)
    said_by_mounting()
    for number, count in enumerate(returned):
        with open(f"{MOUNT}/log{number}", "rb") as file:
            data = file.read()
        lines = data.split(b"\n")[:-1]
        assert count > 0 and count <= len(lines) <= count + 1, (number, count, len(lines))
        assert lines == [b"%07d" % n for n in range(len(lines))], number
finally:
    os.chdir("/")
    switch(before)
    subprocess.run(["umount", "-l", MOUNT], timeout=20, stderr=subprocess.DEVNULL)
for _ in range(100):
    if subprocess.run([SHOAL, "check", STORE], capture_output=True, timeout=60).returncode == 0:
        break
    time.sleep(0.1)
else:
    shoal("check", STORE)
