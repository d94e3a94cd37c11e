#!/usr/bin/env python3
# How many requests the kernel makes for what programs do often: the table of docs/design/fuse.md, counted by the daemon. A change
# that makes the kernel ask more than it must shows here, where no test of behaviour would.
# case: timeout_s=60 alone
import json
import os
import subprocess
import sys

FILES = 50

if "SHOAL" not in os.environ:
    print("there is no daemon whose requests could be counted")
    sys.exit(77)


def counts():
    command = [os.environ["SHOAL"], "status", "--json", os.environ["MOUNT"]]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=20).stdout)
    for of in report["requests"]:
        assert 0 < of["p50_ns"] <= of["p99_ns"] <= of["max_ns"] <= of["total_ns"], of
    # What the kernel drops, it drops when it likes; and asking for the status looks at the mount point.
    idle = ("FORGET", "BATCH_FORGET", "STATFS")
    return {of["name"]: of["count"] for of in report["requests"] if of["name"] not in idle}


failures = []


def expect(what, work, **most):
    """At most so many requests of each kind for each of FILES files, and none of any other."""
    before = counts()
    for number in range(FILES):
        work(number)
    made = {name: count - before.get(name, 0) for name, count in counts().items() if count > before.get(name, 0)}
    told = ", ".join(f"{name} {count / FILES:.2f}" for name, count in sorted(made.items()))
    print(f"{what}: {told or 'none'}")
    for name, count in made.items():
        # A few are the ways' own: the case's directory, or the first of their kind.
        if count > FILES * most.get(name, 0) + 3:
            failures.append(f"{what}: {count / FILES:.2f} {name}, {most.get(name, 0)} expected")


def create(number, prefix="f", flags=0):
    fd = os.open(f"{prefix}{number}", os.O_CREAT | os.O_WRONLY | flags, 0o644)
    os.write(fd, b"x" * 1024)
    os.close(fd)


def opened(path, flags, work=lambda fd: None):
    fd = os.open(path, flags)
    work(fd)
    os.close(fd)


os.mkdir("other")
os.symlink("f0", "symlink")
os.readlink("symlink")
expect("a name looked up in vain", lambda n: os.path.exists(f"f{n}"), LOOKUP=1)
expect("and once more", lambda n: os.path.exists(f"f{n}"))
# O_EXCL makes the kernel look the name up anew, and so do mkdir, link and the target of a rename.
expect("create, write, close", create, GETATTR=1, MKNOD=1, GETXATTR=1, WRITE=1)
expect("create exclusively", lambda n: create(n, "e", os.O_EXCL), GETATTR=1, LOOKUP=1, MKNOD=1, GETXATTR=1, WRITE=1)
expect("read back what was just written", lambda n: opened(f"e{n}", os.O_RDONLY, lambda fd: os.read(fd, 4096)), GETATTR=1, READ=1)
expect("stat after a write", lambda n: os.stat(f"f{n}"), GETATTR=1)
expect("stat", lambda n: os.stat(f"f{n}"))
expect("open and close", lambda n: opened(f"f{n}", os.O_RDONLY))
expect("first read of a small file", lambda n: opened(f"f{n}", os.O_RDONLY, lambda fd: os.read(fd, 4096)), READ=1)
expect("read again", lambda n: opened(f"f{n}", os.O_RDONLY, lambda fd: os.read(fd, 4096)), READ=0)
expect("overwrite", lambda n: opened(f"f{n}", os.O_WRONLY, lambda fd: os.write(fd, b"y")), GETXATTR=1, WRITE=1)
expect("fsync", lambda n: opened(f"f{n}", os.O_WRONLY, os.fsync), FSYNC=1)
expect("chmod", lambda n: os.chmod(f"f{n}", 0o600), SETATTR=1)
expect("utime", lambda n: os.utime(f"f{n}"), SETATTR=1)
expect("readlink", lambda n: os.readlink("symlink"))
expect("rename", lambda n: os.rename(f"f{n}", f"other/g{n}"), GETATTR=2, LOOKUP=1, RENAME=1)
expect("link", lambda n: os.link(f"other/g{n}", f"h{n}"), GETATTR=1, LOOKUP=1, LINK=1)
expect("unlink", lambda n: os.unlink(f"h{n}"), GETATTR=1, UNLINK=1)
expect("mkdir", lambda n: os.mkdir(f"d{n}"), GETATTR=1, LOOKUP=1, MKDIR=1)
expect("rmdir", lambda n: os.rmdir(f"d{n}"), GETATTR=1, RMDIR=1)
expect("an unnamed file", lambda n: opened(".", os.O_TMPFILE | os.O_RDWR), GETATTR=1, TMPFILE=1)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
