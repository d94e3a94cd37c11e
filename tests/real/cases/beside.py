#!/usr/bin/env python3
# One long request beside others, on mounts of a store of its own whose requests all have one thread (or one for each processor, by
# io_uring): while a large file is copied within the store, cut, or given room, other programs go on, and the copy ends when it is killed.
# case: timeout_s=90 alone
import os
import subprocess
import sys
import time

SWITCH = "/sys/module/fuse/parameters/enable_uring"
MIB = 1 << 20
if "SHOAL" not in os.environ:
    print("there is no daemon of one thread")
    sys.exit(77)
SHOAL, BASE = os.environ["SHOAL"], os.environ["SCRATCH"]
STORE, MOUNT = os.path.join(BASE, "store"), os.path.join(BASE, "mnt")

COPY = """
import os, sys
source, target = os.open(sys.argv[1], os.O_RDONLY), os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY)
sys.stdout.buffer.write(b".")
sys.stdout.buffer.flush()
left = os.fstat(source).st_size
while left:
    left -= os.copy_file_range(source, target, left)
"""


def shoal(*arguments):
    subprocess.run([SHOAL, *arguments], check=True, stdout=subprocess.DEVNULL, timeout=60)


def steps_beside(process):
    """Makes and removes files until the process ends; how long each took."""
    took = []
    while process.poll() is None:
        begin = time.monotonic()
        os.close(os.open("step", os.O_CREAT | os.O_WRONLY))
        os.unlink("step")
        took.append(time.monotonic() - begin)
        time.sleep(0.001)
    assert process.returncode == 0
    return took


def copies(options):
    shoal("mount", STORE, MOUNT, "-o", options)
    try:
        os.chdir(MOUNT)
        # Of holes, but the copy is written all the same.
        with open("source", "wb") as file:
            file.truncate(400 * MIB)
        # On the processor of the copy, whose queue its requests have.
        cpu = {min(os.sched_getaffinity(0))}
        os.sched_setaffinity(0, cpu)
        copy = subprocess.Popen([sys.executable, "-c", COPY, "source", "target"], stdout=subprocess.PIPE)
        copy.stdout.read(1)
        begin = time.monotonic()
        took = steps_beside(copy)
        seconds = time.monotonic() - begin
        print(f"{options}: {seconds:.2f} s, {len(took)} steps beside it, the longest {max(took) * 1e3:.1f} ms")
        assert len(took) >= 10 and max(took) < seconds / 3, f"{options}: {len(took)} steps in {seconds:.2f} s, the longest {max(took):.2f} s"
        assert os.path.getsize("target") == 400 * MIB
        # Killed in the middle: what it asked for last is done first, but no more.
        os.truncate("target", 0)
        copy = subprocess.Popen([sys.executable, "-c", COPY, "source", "target"], stdout=subprocess.PIPE)
        copy.stdout.read(1)
        time.sleep(seconds / 10)
        copy.kill()
        begin = time.monotonic()
        copy.wait(30)
        assert time.monotonic() - begin < max(seconds / 3, 0.5), f"{options}: the copy went on for {time.monotonic() - begin:.2f} s"
        os.unlink("target")
    finally:
        os.sched_setaffinity(0, EVERYWHERE)
        os.chdir("/")
        shoal("umount", MOUNT)


EVERYWHERE = os.sched_getaffinity(0)
os.mkdir(MOUNT)
shoal("format", STORE, "--memory-size", "256M", "--bulk", f"file:{BASE}/bulk", "--bulk-size", "2G")
before = None
try:
    copies("transport=dev,threads=1")
    if os.access(SWITCH, os.W_OK):
        with open(SWITCH) as file:
            before = file.read()
        with open(SWITCH, "w") as file:
            file.write("Y")
        copies("transport=uring")
    else:
        print("no FUSE over io_uring on this machine: /dev/fuse only")
finally:
    if before:
        with open(SWITCH, "w") as file:
            file.write(before)
shoal("check", STORE)
