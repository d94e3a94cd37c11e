#!/usr/bin/env python3
# O_TMPFILE: a file without a name, which gets one or is gone with its last descriptor; and times of birth.
# case: timeout_s=30 memory=logged,battery alone
import errno
import os
import subprocess
import time

AT_FDCWD_BY_FD = os.open(".", os.O_RDONLY | os.O_DIRECTORY)


def name(fd, path):
    """linkat with AT_SYMLINK_FOLLOW, which os.link uses only when it is given a directory."""
    os.link(f"/proc/self/fd/{fd}", path, dst_dir_fd=AT_FDCWD_BY_FD, follow_symlinks=True)


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, (error, code)
        return
    raise AssertionError(f"{call.__name__}{arguments}: expected {errno.errorcode[code]}")


def birth(path):
    out = subprocess.run(["stat", "-c", "%.W", path], check=True, capture_output=True, text=True, timeout=10).stdout
    return float(out)


os.umask(0o027)
os.mkdir("dir")
for size in (0, 5, 5000, 3 << 20):
    fd = os.open("dir", os.O_TMPFILE | os.O_RDWR, 0o666)
    content = os.urandom(size)
    assert os.write(fd, content) == size
    stat = os.fstat(fd)
    assert (stat.st_nlink, stat.st_size, stat.st_mode & 0o7777) == (0, size, 0o640), stat
    assert os.listdir("dir") == [], "it has no name"
    os.fsync(fd)
    assert os.pread(fd, size, 0) == content
    name(fd, f"dir/{size}")
    stat = os.fstat(fd)
    assert stat.st_nlink == 1 and os.stat(f"dir/{size}").st_ino == stat.st_ino
    os.close(fd)
    with open(f"dir/{size}", "rb") as file:
        assert file.read() == content
    os.unlink(f"dir/{size}")

# One that nobody may name, as O_EXCL asks for.
fd = os.open("dir", os.O_TMPFILE | os.O_WRONLY | os.O_EXCL, 0o600)
refused(errno.ENOENT, name, fd, "dir/never")
os.close(fd)
refused(errno.EEXIST, lambda: name(os.open("dir", os.O_TMPFILE | os.O_RDWR, 0o600), "dir"))

# Many at once, their room given back with them.
def in_use():
    # How many are free depends on what others leave of the host, too.
    told = os.statvfs(".")
    return told.f_files - told.f_ffree


before = in_use()
held = [os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600) for _ in range(200)]
assert in_use() >= before + 200
for fd in held:
    os.write(fd, b"x" * 20_000)
for fd in held:
    os.close(fd)
for _ in range(100):
    if in_use() <= before:
        break
    time.sleep(0.05)
assert in_use() <= before, "inodes without names are left"

# The group of a set-group-id directory is inherited.
if os.getuid() == 0:
    os.chown("dir", 0, 54321)
    os.chmod("dir", 0o2775)
    fd = os.open("dir", os.O_TMPFILE | os.O_RDWR, 0o600)
    assert os.fstat(fd).st_gid == 54321
    os.close(fd)

# A birth is told, and nothing changes it.
begin = time.time() - 1
with open("born", "w") as file:
    file.write("x")
born = birth("born")
assert begin <= born <= time.time() + 1, (begin, born)
time.sleep(0.02)
with open("born", "a") as file:
    file.write("y")
os.utime("born", (1, 1))
os.chmod("born", 0o600)
os.rename("born", "renamed")
assert birth("renamed") == born
assert os.stat("renamed").st_ctime > born
