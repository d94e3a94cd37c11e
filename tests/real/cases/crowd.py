#!/usr/bin/env python3
# 40,000 files in one directory: while one process lists it, another removes, creates and renames. An entry that is
# there all the time is seen exactly once in every pass; one that is removed at most once.
# case: timeout_s=150
import collections
import os
import subprocess
import sys
import threading
import time

COUNT = 40_000
here = "crowd"
os.mkdir(here)
started = time.monotonic()


def phase(name):
    print(f"{time.monotonic() - started:.1f} s: {name}", flush=True)


fd = os.open(here, os.O_RDONLY)
for k in range(COUNT):
    os.close(os.open(f"file{k}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=fd))
phase("made")
assert len(os.listdir(here)) == COUNT

stay = {f"file{k}" for k in range(COUNT) if k % 3 == 0}
CHANGE = """
import os, sys
fd = os.open("crowd", os.O_RDONLY)
for k in range(int(sys.argv[1])):
    if k % 3 == 1:
        os.unlink(f"file{k}", dir_fd=fd)
    elif k % 6 == 2:
        os.rename(f"file{k}", f"renamed{k}", src_dir_fd=fd, dst_dir_fd=fd)
    elif k % 6 == 5:
        os.close(os.open(f"new{k}", os.O_CREAT, dir_fd=fd))
"""


def one_pass():
    with os.scandir(here) as entries:
        seen = collections.Counter(entry.name for entry in entries)
    missing = [n for n in stay if seen[n] != 1]
    assert not missing, f"{len(missing)} entries that stayed were not seen exactly once, as {missing[0]}: {seen[missing[0]]}"
    twice = [n for n, times in seen.items() if times > 1]
    assert not twice, f"seen twice: {twice[:3]}"
    return seen


changer = subprocess.Popen([sys.executable, "-c", CHANGE, str(COUNT)])
passes = 0
while changer.poll() is None or passes == 0:
    one_pass()
    passes += 1
    # Breath for the other side: on two processors a listing that never ends would take half of it.
    time.sleep(0.1)
assert changer.returncode == 0
want = set(stay)
want |= {f"renamed{k}" for k in range(COUNT) if k % 6 == 2}
want |= {f"file{k}" for k in range(COUNT) if k % 6 == 5} | {f"new{k}" for k in range(COUNT) if k % 6 == 5}
assert set(one_pass()) == want
phase(f"changed, {passes} passes meanwhile")

# A listing that is interrupted by telldir and seekdir (rewinddir) gives the same set.
os.lseek(fd, 0, os.SEEK_SET)
assert set(os.listdir(fd)) == want

# rm -rf while another process lists: both end, nothing is left.
stop = threading.Event()


def watch():
    while not stop.is_set():
        try:
            for _, _, files in os.walk(here):
                pass
        except FileNotFoundError:
            pass
        time.sleep(0.1)


watcher = threading.Thread(target=watch)
watcher.start()
done = subprocess.run(["rm", "-rf", here])
stop.set()
watcher.join()
phase("rm -rf beside a listing is done")
assert done.returncode == 0 and not os.path.lexists(here)
os.close(fd)
# The same with a tree, and with two rm at once.
for top in range(20):
    for sub in range(20):
        os.makedirs(f"tree/{top}/{sub}")
        for k in range(10):
            open(f"tree/{top}/{sub}/{k}", "w").close()
lister = subprocess.Popen("while find tree >/dev/null 2>&1; do :; done", shell=True)
both = [subprocess.Popen(["rm", "-rf", "tree"], stderr=subprocess.DEVNULL) for _ in range(2)]
for process in both:
    process.wait(60)
lister.wait(20)
phase("two rm -rf beside find are done")
subprocess.run(["rm", "-rf", "tree"], check=True)
assert not os.path.lexists("tree")
