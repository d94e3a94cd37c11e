#!/usr/bin/env python3
# Hard and symbolic links, FIFOs, sockets, devices, rename in all its forms, open files without a name.
# case: timeout_s=40
import ctypes
import errno
import os
import socket
import stat
import threading

libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4


def renameat2(old, new, flags):
    if libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), old)


def refused(code, call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == code, (error, errno.errorcode[code])
        return
    raise AssertionError(f"{call.__name__}{arguments}: expected {errno.errorcode[code]}")


# Hard links share everything; the last one frees.
open("a", "w").write("body")
for k in range(200):
    os.link("a", f"link{k}")
assert os.stat("a").st_nlink == 201
open("link7", "a").write(" more")
assert open("a").read() == "body more" and os.stat("a").st_ino == os.stat("link199").st_ino
for k in range(200):
    os.unlink(f"link{k}")
assert os.stat("a").st_nlink == 1
refused(errno.EPERM, os.link, ".", "dirlink")
# Two names of one file: rename does nothing.
os.link("a", "b")
os.rename("a", "b")
assert os.path.exists("a") and os.path.exists("b")
# Symbolic links up to the longest target, dangling, and in loops.
os.symlink("x" * 4095, "long")
assert os.readlink("long") == "x" * 4095 and os.lstat("long").st_size == 4095
os.symlink("loop2", "loop1")
os.symlink("loop1", "loop2")
refused(errno.ELOOP, os.stat, "loop1")
os.symlink("a", "soft")
os.link("soft", "hardsoft", follow_symlinks=False)
assert os.readlink("hardsoft") == "a" and os.lstat("soft").st_nlink == 2
# FIFO, socket, devices.
os.mkfifo("fifo", 0o600)
reader = threading.Thread(target=lambda: got.append(open("fifo").read()))
got = []
reader.start()
with open("fifo", "w") as pipe:
    pipe.write("through")
reader.join(10)
assert got == ["through"]
server = socket.socket(socket.AF_UNIX)
server.bind("socket")
server.listen()
client = socket.socket(socket.AF_UNIX)
client.connect("socket")
server.accept()[0].send(b"hello")
assert client.recv(5) == b"hello" and stat.S_ISSOCK(os.stat("socket").st_mode)
for name, kind, major, minor in (("char", stat.S_IFCHR, 1, 3), ("block", stat.S_IFBLK, 259, 65535), ("wide", stat.S_IFCHR, 4095, 1048575)):
    os.mknod(name, kind | 0o600, os.makedev(major, minor))
    found = os.stat(name)
    assert stat.S_IFMT(found.st_mode) == kind and found.st_rdev == os.makedev(major, minor), name
# rename: replaces, exchanges, refuses.
os.mkdir("d1")
os.mkdir("d2")
open("d1/f", "w").write("1")
open("d2/f", "w").write("2")
refused(errno.EEXIST, renameat2, "d1/f", "d2/f", NOREPLACE)
renameat2("d1/f", "d2/f", EXCHANGE)
assert (open("d1/f").read(), open("d2/f").read()) == ("2", "1")
os.mkdir("d1/sub")
renameat2("d1/sub", "d2/f", EXCHANGE)
assert open("d1/sub").read() == "1" and os.path.isdir("d2/f")
assert (os.stat("d1").st_nlink, os.stat("d2").st_nlink) == (2, 3), "link counts after a directory changed places"
refused(errno.ENOENT, renameat2, "d1/f", "none", EXCHANGE)
refused(errno.EINVAL, os.rename, "d2", "d2/f/below")
refused(errno.EINVAL, renameat2, "d2", "d2/f", EXCHANGE)
refused(errno.ENOTEMPTY, os.rename, "d1", "d2")
refused(errno.EISDIR, os.rename, "d1/f", "d2/f")
refused(errno.ENOTDIR, os.rename, "d2/f", "d1/f")
renameat2("d1/f", "d2/new", NOREPLACE)
# Open files outlive their names.
held = open("held", "w+")
held.write("still here")
held.flush()
os.unlink("held")
held.seek(0)
assert held.read() == "still here" and os.fstat(held.fileno()).st_nlink == 0
over = open("b", "r+")
open("other", "w").write("new")
os.rename("other", "b")
assert over.read() == "body more" and open("b").read() == "new"
over.close()
held.close()
here = os.open("d2/f", os.O_RDONLY)
os.rmdir("d2/f")
assert os.listdir(here) == []
refused(errno.ENOENT, lambda: os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=here))
os.close(here)
# O_TMPFILE where the file system has it (ext4 does; FUSE since Linux 6.2).
try:
    fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600)
except OSError as error:
    assert error.errno in (errno.EOPNOTSUPP, errno.EISDIR), error
    print("no O_TMPFILE here")
else:
    os.write(fd, b"nameless")
    # AT_SYMLINK_FOLLOW: the link goes to the file itself.
    assert libc.linkat(-100, b"/proc/self/fd/%d" % fd, -100, b"named", 0x400) == 0, os.strerror(ctypes.get_errno())
    os.close(fd)
    assert open("named").read() == "nameless"
