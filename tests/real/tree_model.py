"""What `life` knows of a tree: a writer that changes one directory at random, keeps every byte it wrote in memory, and compares.

An operation is one system call, or a few that no program could tell from one. It is noted before it is made; when the daemon dies below it, it is in
flight: after the next mount a name is there or not, and each byte of a changed file is the old one or the new one. All that had returned
is there. Under `-o writeback` each page of a file may also be one that it had since the file was closed or synced, and its size one of the sizes since.

Left out: times, owners, and what a power loss takes (`powercut`, `returns`).
"""

import ctypes
import errno
import mmap
import os
import random
import re
import shutil
import signal
import stat
from collections import deque

PAGE = 4096
FILE_BYTES_MAX = 3 << 20
TREE_BYTES_MAX = 10 << 20
NAMES_MAX = 60
KEPT_MAX = 4
HISTORY = 400
# What a mount answers whose daemon is gone, and to requests that it had taken. A read of pages says EIO.
DEAD = {errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED, errno.EIO}
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
NOREPLACE, EXCHANGE, AT_FDCWD, SYMLINK_FOLLOW = 1, 2, -100, 0x400
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
LIBC.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]


class Lost(Exception):
    """Something is not as the model says."""


def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def read(fd, length, at):
    """A read that met a dead daemon further on ends early: the next one says so."""
    found = b""
    while len(found) < length:
        piece = os.pread(fd, length - len(found), at + len(found))
        if not piece:
            break
        found += piece
    return found


class Node:
    """A file, directory ("d") or link ("l"). `data`: bytes, or the target. `pages`: under `writeback`, what each page was since the last close."""

    def __init__(self, kind, mode, data=b""):
        self.kind, self.mode, self.data, self.names, self.xattrs = kind, mode, bytearray(data), 1, {}
        self.pages, self.sizes = {}, set()

    def promised(self):
        self.pages, self.sizes = {}, set()

    def page(self, number):
        return bytes(self.data[number * PAGE : (number + 1) * PAGE]).ljust(PAGE, b"\0")

    def note(self, first, last):
        """Before a change of these bytes, or of the size."""
        self.sizes.add(len(self.data))
        for number in range(first // PAGE, -(-last // PAGE)):
            self.pages.setdefault(number, []).append(self.page(number))

    def replace(self, at, data):
        if at > len(self.data):
            self.data.extend(bytes(at - len(self.data)))
        self.data[at : at + len(data)] = data

    def resize(self, size):
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))


class Op:
    """`call` makes it, `apply` has the model follow, `settle` looks at what became of it when the daemon died."""

    def __init__(self, text, call, apply, settle=None, happened=None):
        self.text, self.call, self.apply = text, call, apply
        self.settle = settle or (lambda: apply() if happened() else None)


class Tree:
    def __init__(self, root, seed):
        self.root, self.rng = root, random.Random(seed)
        self.at, self.kept = {"": Node("d", 0o755)}, []
        self.pending, self.number, self.writeback = None, 0, False
        self.history = deque(maxlen=HISTORY)
        # The kernel's page cache and the daemon's files say the same, but mapped pages do so only from `munmap` on.
        os.umask(0)

    def path(self, name):
        return os.path.join(self.root, name) if name else self.root

    # Choices.

    def some(self, kind):
        found = [name for name, node in self.at.items() if node.kind == kind and name]
        return self.rng.choice(found) if found else None

    def directory(self):
        return self.rng.choice([name for name, node in self.at.items() if node.kind == "d"])

    def new_name(self):
        directory, self.number = self.directory(), self.number + 1
        long = "n" * 180 if self.rng.random() < 0.05 else ""
        return os.path.join(directory, f"{self.rng.choice('abcx')}{self.number}{long}")

    def bytes(self, length):
        kind = self.rng.random()
        if kind < 0.4:
            return self.rng.randbytes(length)
        if kind < 0.45:
            return bytes(length)
        line = f"{os.path.basename(self.root)} {self.number} {self.rng.getrandbits(40)} ".encode()
        return (line * (length // len(line) + 1))[:length]

    def length(self):
        low, high = self.rng.choice([(1, 200), (1, 200), (4000, 4200), (1, 20000), (1, 20000), (60000, 70000), (1, 300000), (1 << 20, (1 << 20) + 5000)])
        return self.rng.randrange(low, high)

    def place(self, size):
        """An offset for a change of a file of this size."""
        kind = self.rng.random()
        if kind < 0.25:
            return size
        if kind < 0.4:
            return size + self.rng.randrange(1, 150000)
        if kind < 0.6:
            return self.rng.randrange(size + 1) & -PAGE
        return self.rng.randrange(size + 1)

    def full(self):
        return sum(len(node.data) for node in set(self.at.values())) > TREE_BYTES_MAX

    # Making operations.

    def open_on(self, name, flags, work):
        """Through a descriptor that is kept, or one that is closed afterwards."""

        def call():
            for kept, fd, node in self.kept:
                if node is self.at[name] and not flags & (os.O_APPEND | os.O_SYNC):
                    return work(fd)
            fd = os.open(self.path(name), flags)
            try:
                work(fd)
            except BaseException:
                try:
                    os.close(fd)
                except OSError:
                    pass
                raise
            os.close(fd)
            closed.append(self.at[name])

        closed = []
        call.closed = closed
        return call

    def change(self, text, name, call, node, at, data, size, exact=False):
        """A change of a file's bytes from `at` on to `data`, after which it has `size` bytes. `exact`: the size is the old or the new one."""
        old_size, old = len(node.data), bytes(node.data)

        def apply():
            node.note(min(at, size, old_size), max(at + len(data), size, old_size))
            node.replace(at, data)
            node.resize(size)
            if not self.writeback or node in getattr(call, "closed", []):
                node.promised()

        def settle():
            node.note(min(at, size, old_size), max(at + len(data), size, old_size))
            node.replace(at, data)
            node.resize(size)
            new, found = bytes(node.data), self.found(name)
            sizes = {old_size, size} if exact else range(min(old_size, size), max(old_size, size) + 1)
            if len(found) not in sizes and not (self.writeback and min(node.sizes) <= len(found) <= max(node.sizes)):
                raise Lost(f"{name}: has {len(found)} bytes, not from {old_size} to {size}")
            self.mixed(name, node, found, [old, new])
            node.data = bytearray(found)
            self.renew(name, node)

        return Op(text, call, apply, settle)

    def found(self, name):
        """What the daemon has: pages that it refused (ENOSPC) may stay in the kernel, clean."""
        fd = os.open(self.path(name), os.O_RDONLY)
        try:
            try:
                os.fsync(fd)
            except OSError:
                pass
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            return b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
        finally:
            self.close_of_refused(fd)

    def close_of_refused(self, fd):
        """Each close of a file tells that a page of it was refused, until it is written again or cut off."""
        try:
            os.close(fd)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self.writeback:
                raise

    def adopt(self, node):
        """After a close or sync that failed: its file's pages are of some moment since the last one. What has no name is closed."""
        name = next((name for name, other in self.at.items() if other is node), None)
        for kept in [kept for kept in self.kept if kept[2] is node and not name]:
            self.kept.remove(kept)
            self.close_of_refused(kept[1])
        if name and node.kind == "f" and self.writeback:
            found = self.found(name)
            self.mixed(name, node, found, [bytes(node.data)])
            node.data = bytearray(found)
            self.renew(name, node)
        node.promised()

    def renew(self, name, node):
        """Under `writeback` the kernel keeps a size that the daemon refused: only a truncation brings the two together."""
        if self.writeback:
            os.truncate(self.path(name), 0)
            node.data = bytearray()
        node.promised()

    def mixed(self, name, node, found, versions):
        """Each byte must be of one of the versions."""
        for first in range(0, len(found), PAGE):
            piece = found[first : first + PAGE]
            choices = [version[first : first + PAGE].ljust(PAGE, b"\0") for version in versions]
            earlier = node.pages.get(first // PAGE, []) if self.writeback else []
            choices += [page.ljust(PAGE, b"\0") for page in earlier]
            if any(piece == choice[: len(piece)] for choice in choices):
                continue
            zeros = max(map(len, versions)) > len(versions[0]) and first + PAGE > len(versions[0])
            for at, byte in enumerate(piece):
                if not any(byte == choice[at] for choice in choices) and not (byte == 0 and zeros):
                    raise Lost(f"{name}: byte {first + at} is {byte}, which it never was; {piece[at : at + 32]}")

    def op_create(self):
        name, mode = self.new_name(), self.rng.choice([0o644, 0o600, 0o755, 0o4711])
        keep = len(self.kept) < KEPT_MAX and self.rng.random() < 0.3

        def call():
            fd = os.open(self.path(name), os.O_CREAT | os.O_EXCL | os.O_RDWR, mode)
            if keep:
                self.kept.append([name, fd, None])
            else:
                os.close(fd)

        def apply():
            self.at[name] = Node("f", mode)
            if keep and self.kept and self.kept[-1][2] is None:
                self.kept[-1][2] = self.at[name]

        return Op(f"create {name} {mode:o}", call, apply, happened=lambda: os.path.lexists(self.path(name)))

    def op_write(self):
        name = self.some("f")
        if not name:
            return self.op_create()
        node, length = self.at[name], self.length()
        flags = os.O_RDWR | self.rng.choice([0, 0, 0, 0, os.O_SYNC, os.O_DSYNC, os.O_APPEND, os.O_TRUNC])
        if flags & os.O_TRUNC:
            return self.op_rewrite(name)
        at = len(node.data) if flags & os.O_APPEND else self.place(len(node.data))
        if at + length > FILE_BYTES_MAX or self.full():
            return self.op_truncate()
        data = self.bytes(length)

        def work(fd):
            done = os.write(fd, data) if flags & os.O_APPEND else os.pwrite(fd, data, at)
            if done != length:
                raise OSError(errno.ENOSPC, "a short write")

        return self.change(
            f"write {name} {length} at {at} of {len(node.data)} flags {flags:o}", name, self.open_on(name, flags, work), node, at, data,
            max(len(node.data), at + length),
        )  # fmt: skip

    def op_rewrite(self, name):
        node = self.at[name]
        return self.change(f"open {name} of {len(node.data)} to truncate it", name, self.open_on(name, os.O_WRONLY | os.O_TRUNC | os.O_SYNC, lambda fd: None),
                           node, 0, b"", 0, exact=True)  # fmt: skip

    def op_truncate(self):
        name = self.some("f")
        if not name:
            return self.op_create()
        node = self.at[name]
        size = self.rng.choice([0, self.place(len(node.data)), self.rng.randrange(len(node.data) + 1), self.rng.randrange(len(node.data) + 1)])
        if size > FILE_BYTES_MAX or self.full():
            size = 0
        return self.change(f"truncate {name} of {len(node.data)} to {size}", name, lambda: os.truncate(self.path(name), size), node, size, b"", size,
                           exact=True)  # fmt: skip

    def op_fallocate(self):
        name = self.some("f")
        if not name or self.full():
            return self.op_truncate()
        node = self.at[name]
        old, at, length = len(node.data), self.place(len(node.data)), self.length()
        mode = self.rng.choice([0, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE])
        if at + length > FILE_BYTES_MAX:
            return self.op_truncate()
        size = old if mode & KEEP_SIZE else max(old, at + length)
        zeros = bytes(max(0, min(at + length, old) - at)) if mode & (PUNCH_HOLE | ZERO_RANGE) else b""
        call = self.open_on(name, os.O_RDWR, lambda fd: libc("fallocate", fd, mode, at, length))
        return self.change(f"fallocate {name} mode {mode} {length} at {at} of {old}", name, call, node, min(at, old), zeros, size)

    def op_copy(self):
        source, name = self.some("f"), self.some("f")
        if not source or source == name or self.at[source] is self.at[name] or self.full():
            return self.op_write()
        node, other = self.at[name], self.at[source]
        start, at, length = self.rng.randrange(len(other.data) + 1), self.place(len(node.data)), self.length()
        length = min(length, len(other.data) - start)
        if at + length > FILE_BYTES_MAX or length == 0:
            return self.op_truncate()
        data = bytes(other.data[start : start + length])

        def work(fd):
            from_fd = os.open(self.path(source), os.O_RDONLY)
            try:
                done = 0
                while done < length:
                    step = os.copy_file_range(from_fd, fd, length - done, start + done, at + done)
                    if step == 0:
                        raise Lost(f"copy_file_range of {source}: ended after {done} of {length}")
                    done += step
            finally:
                self.close_of_refused(from_fd)

        return self.change(f"copy {length} of {source} at {start} to {name} at {at} of {len(node.data)}", name, self.open_on(name, os.O_RDWR, work),
                           node, at, data, max(len(node.data), at + length))  # fmt: skip

    def op_map(self):
        name = self.some("f")
        if not name or not self.at[name].data:
            return self.op_write()
        node = self.at[name]
        at = self.rng.randrange(len(node.data))
        data, syncs = self.bytes(min(self.length(), len(node.data) - at)), self.rng.random() < 0.5

        def child():
            fd = os.open(self.path(name), os.O_RDWR)
            with mmap.mmap(fd, len(node.data)) as mapped:
                mapped[at : at + len(data)] = data
                if syncs:
                    mapped.flush()
            os.fsync(fd)
            os.close(fd)

        def call():
            # A store to a page of a dead mount is a SIGBUS. The child's end closes what is kept, too.
            pid = os.fork()
            if pid == 0:
                try:
                    signal.signal(signal.SIGTERM, signal.SIG_DFL)
                    child()
                    os._exit(0)
                except OSError as error:
                    os._exit(error.errno)
                except BaseException:
                    os._exit(255)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            if code != 0:
                raise OSError(errno.EIO if code < 0 else code, f"a mapped write ended with {code}")

        call.closed = [node]
        return self.change(f"map {name} of {len(node.data)} write {len(data)} at {at}", name, call, node, at, data, len(node.data))

    def op_rename(self):
        source = self.some(self.rng.choice("ffffdl"))
        if not source:
            return self.op_create()
        node, target = self.at[source], self.new_name()
        exchange = False
        if self.rng.random() < 0.4:
            over = self.some(node.kind if node.kind != "l" else "f")
            exchange = over is not None and self.rng.random() < 0.3
            if over and (exchange or not self.below(over)):
                target = over
        if target == source or target.startswith(source + "/") or source.startswith(target + "/") or self.at.get(target) is node:
            return self.op_link()
        flags = EXCHANGE if exchange else NOREPLACE if target not in self.at and self.rng.random() < 0.3 else 0
        inode = []

        def call():
            inode.append(os.lstat(self.path(source)).st_ino)
            libc("renameat2", AT_FDCWD, self.path(source).encode(), AT_FDCWD, self.path(target).encode(), flags)

        def apply():
            moved = {name: found for name, found in self.at.items() if name == source or name.startswith(source + "/")}
            back = {name: found for name, found in self.at.items() if name == target or name.startswith(target + "/")}
            for name in [*moved, *back]:
                del self.at[name]
            if flags == EXCHANGE:
                self.at.update({source + name[len(target) :]: found for name, found in back.items()})
            else:
                for found in back.values():
                    found.names -= 1
            self.at.update({target + name[len(source) :]: found for name, found in moved.items()})

        def happened():
            return bool(inode) and os.path.lexists(self.path(target)) and os.lstat(self.path(target)).st_ino == inode[0]

        return Op(f"rename {source} to {target} flags {flags}", call, apply, happened=happened)

    def below(self, name):
        return [other for other in self.at if other.startswith(name + "/")]

    def op_link(self):
        source, name = self.some("f"), self.new_name()
        if not source:
            return self.op_create()

        def apply():
            self.at[name] = self.at[source]
            self.at[name].names += 1

        return Op(f"link {source} to {name}", lambda: os.link(self.path(source), self.path(name)), apply, happened=lambda: os.path.lexists(self.path(name)))

    def op_unlink(self):
        name = self.some(self.rng.choice("fffl"))
        if not name:
            return self.op_create()

        def apply():
            self.at.pop(name).names -= 1

        return Op(f"unlink {name}", lambda: os.unlink(self.path(name)), apply, happened=lambda: not os.path.lexists(self.path(name)))

    def op_mkdir(self):
        name, mode = self.new_name(), self.rng.choice([0o755, 0o700, 0o1777])
        return Op(f"mkdir {name}", lambda: os.mkdir(self.path(name), mode), lambda: self.at.update({name: Node("d", mode)}),
                  happened=lambda: os.path.lexists(self.path(name)))  # fmt: skip

    def op_rmdir(self):
        name = self.some("d")
        if not name or self.below(name):
            return self.op_unlink()
        return Op(f"rmdir {name}", lambda: os.rmdir(self.path(name)), lambda: self.at.pop(name), happened=lambda: not os.path.lexists(self.path(name)))

    def op_symlink(self):
        name = self.new_name()
        target = "t" * self.rng.choice([1, 30, 59, 60, 61, 300, 4000])
        return Op(f"symlink {name} of {len(target)}", lambda: os.symlink(target, self.path(name)),
                  lambda: self.at.update({name: Node("l", 0o777, target.encode())}), happened=lambda: os.path.lexists(self.path(name)))  # fmt: skip

    def op_chmod(self):
        name, mode = self.some(self.rng.choice("fd")), self.rng.choice([0o644, 0o600, 0o755, 0o751])
        if not name:
            return self.op_create()

        def apply():
            self.at[name].mode = mode

        return Op(f"chmod {name} {mode:o}", lambda: os.chmod(self.path(name), mode), apply,
                  happened=lambda: stat.S_IMODE(os.stat(self.path(name)).st_mode) == mode)  # fmt: skip

    def op_xattr(self):
        name = self.some(self.rng.choice("fffd"))
        if not name:
            return self.op_create()
        node = self.at[name]
        if node.xattrs and self.rng.random() < 0.4:
            key = self.rng.choice(sorted(node.xattrs))
            return Op(f"removexattr {name} {key}", lambda: os.removexattr(self.path(name), key), lambda: node.xattrs.pop(key),
                      happened=lambda: key not in os.listxattr(self.path(name)))  # fmt: skip
        key, value = f"user.{self.rng.choice('abcdef')}", self.bytes(self.rng.choice([0, 1, 30, 300, 2000]))

        def apply():
            node.xattrs[key] = value

        def happened():
            return key in os.listxattr(self.path(name)) and os.getxattr(self.path(name), key) == value

        return Op(f"setxattr {name} {key} {len(value)}", lambda: os.setxattr(self.path(name), key, value), apply, happened=happened)

    def op_tmpfile(self):
        """A file without a name gets bytes, then a name: it is there whole, or not."""
        name, directory = self.new_name(), None
        directory = os.path.dirname(name)
        data = self.bytes(self.length())
        if self.full():
            return self.op_truncate()

        def call():
            fd = os.open(self.path(directory), os.O_TMPFILE | os.O_RDWR, 0o640)
            try:
                if os.pwrite(fd, data, 0) != len(data):
                    raise OSError(errno.ENOSPC, "a short write")
                if self.writeback:
                    os.fsync(fd)
                libc("linkat", AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, self.path(name).encode(), SYMLINK_FOLLOW)
            finally:
                os.close(fd)

        return Op(f"tmpfile {name} of {len(data)}", call, lambda: self.at.update({name: Node("f", 0o640, data)}),
                  happened=lambda: os.path.lexists(self.path(name)))  # fmt: skip

    def op_sync(self):
        name = self.some(self.rng.choice("fffd"))
        if not name:
            return self.op_create()
        node, only_data = self.at[name], self.rng.random() < 0.3

        def call():
            fd = os.open(self.path(name), os.O_RDONLY)
            try:
                (os.fdatasync if only_data else os.fsync)(fd)
            finally:
                os.close(fd)

        return Op(f"sync {name}", call, node.promised, settle=lambda: self.adopt(node))

    def op_keep(self):
        """Opens a file to keep it open, or closes one that was kept."""
        name = self.some("f")
        if not name or self.kept and self.rng.random() < 0.5:
            return self.op_close() if self.kept else self.op_create()
        if len(self.kept) >= KEPT_MAX:
            return self.op_close()
        node = self.at[name]
        return Op(f"keep {name} open", lambda: self.kept.append([name, os.open(self.path(name), os.O_RDWR), node]), lambda: None, settle=lambda: None)

    def op_close(self):
        place = self.rng.randrange(len(self.kept))
        node = self.kept[place][2]

        def call():
            os.close(self.kept.pop(place)[1])

        return Op("close what was kept", call, node.promised, settle=lambda: self.adopt(node))

    def op_read(self):
        """Also of a file that has no name any more."""
        if self.kept and self.rng.random() < 0.3:
            name, fd, node = self.rng.choice(self.kept)
            return Op(f"read kept {name}", lambda: self.compare(name, fd, node, 0, len(node.data) + 1), lambda: None, settle=lambda: None)
        name = self.some("f")
        if not name:
            return self.op_create()
        node = self.at[name]
        at, length, cold = self.rng.randrange(len(node.data) + 1), self.length(), self.rng.random() < 0.3

        def call():
            fd = os.open(self.path(name), os.O_RDONLY)
            try:
                if cold:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                self.compare(f"{name} from {at}", fd, node, at, length)
            finally:
                self.close_of_refused(fd)

        return Op(f"read {name} {length} at {at}", call, lambda: None, settle=lambda: None)

    def compare(self, name, fd, node, at, length):
        """Under `writeback` a full store may have refused pages since the last close or sync of the file, if it says so when it is asked."""
        found, want = read(fd, length, at), bytes(node.data[at : at + length])
        if found != want and self.writeback and node.pages:
            try:
                os.fsync(fd)
                os.close(os.dup(fd))
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    self.adopt(node)
                raise
        self.same(name, found, want)

    def op_list(self):
        name = self.directory()
        here = {os.path.basename(other) for other in self.at if other and os.path.dirname(other) == name}

        def call():
            found = set(os.listdir(self.path(name)))
            if found != here:
                raise Lost(f"{name or 'the directory'}: lacks {here - found}, has {found - here} besides")

        return Op(f"list {name}", call, lambda: None, settle=lambda: None)

    OPS = {
        "create": 6, "write": 16, "truncate": 3, "fallocate": 4, "copy": 3, "map": 1.5, "rename": 4, "link": 2, "unlink": 4, "mkdir": 1.2, "rmdir": 1,
        "symlink": 1, "chmod": 1, "xattr": 3, "tmpfile": 1.5, "sync": 2, "keep": 2, "read": 8, "list": 1,
    }  # fmt: skip

    def step(self):
        """One operation. It stays pending if it fails."""
        kind = self.rng.choices(list(self.OPS), list(self.OPS.values()))[0]
        if len(self.at) > NAMES_MAX and kind in ("create", "link", "mkdir", "symlink", "tmpfile"):
            kind = self.rng.choice(["unlink", "unlink", "rmdir"])
        self.pending = getattr(self, f"op_{kind}")()
        self.history.append(self.pending.text)
        self.pending.call()
        self.pending.apply()
        self.pending = None

    # What comes after.

    def close_all(self):
        while self.kept:
            _, fd, node = self.kept.pop()
            try:
                os.close(fd)
            except OSError as error:
                if error.errno != errno.ENOSPC or not self.writeback or not node:
                    raise
                self.adopt(node)
            if node:
                node.promised()

    def sync(self):
        """Each file, and the names."""
        for name, node in self.at.items():
            if node.kind in "df":
                fd = os.open(self.path(name), os.O_RDONLY)
                os.fsync(fd)
                os.close(fd)

    def begin_anew(self):
        """Reads what it can of what a power cut left, and begins anew."""
        # By descriptors: names that were to be changed may be together too long now.
        for top, _, files, directory in os.fwalk(self.root, onerror=self.fail):
            for name in files:
                try:
                    with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=directory), "rb") as file:
                        file.read()
                except OSError as error:
                    # A link; bytes that were never synced.
                    if error.errno not in (errno.ELOOP, errno.EIO):
                        raise OSError(error.errno, f"{top}/{name}: {error.strerror}") from error
        if os.path.exists(self.root):
            shutil.rmtree(self.root)
        os.mkdir(self.root, 0o755)
        self.at, self.pending, self.kept = {"": Node("d", 0o755)}, None, []

    def died(self):
        """The daemon is gone; descriptors lead nowhere."""
        for _, fd, _ in self.kept:
            try:
                os.close(fd)
            except OSError:
                pass
        self.kept = []

    def settle(self):
        """Looks what became of the operation in flight."""
        pending, self.pending = self.pending, None
        if pending:
            self.history.append(f"(in flight: {pending.text})")
            # What was opened within the call leads nowhere.
            self.kept = [kept for kept in self.kept if kept[2] is not None]
            pending.settle()

    @staticmethod
    def same(name, found, want):
        if found != want:
            at = next((i for i, (a, b) in enumerate(zip(found, want)) if a != b), min(len(found), len(want)))
            raise Lost(f"{name}: {len(found)} bytes, not {len(want)}; byte {at} is {found[at : at + 24]}, not {want[at : at + 24]}")

    def verify(self, killed):
        """All of the tree. `killed`: under `writeback` pages that were not closed or synced may be older."""
        found = set()
        for top, directories, files in os.walk(self.root, onerror=self.fail):
            found.update(os.path.relpath(os.path.join(top, name), self.root) for name in directories + files)
        want = set(self.at) - {""}
        if found != want:
            raise Lost(f"{self.root}: lacks {sorted(want - found)}, has {sorted(found - want)} besides")
        for name, node in self.at.items():
            path = self.path(name)
            seen = os.lstat(path)
            kind = {stat.S_IFDIR: "d", stat.S_IFREG: "f", stat.S_IFLNK: "l"}.get(stat.S_IFMT(seen.st_mode))
            if kind != node.kind or name and kind != "l" and stat.S_IMODE(seen.st_mode) != node.mode:
                raise Lost(f"{name}: is {seen.st_mode:o}, not {node.kind} {node.mode:o}")
            if kind == "f" and seen.st_nlink != node.names:
                raise Lost(f"{name}: has {seen.st_nlink} names, not {node.names}")
            if kind == "l":
                self.same(name, os.readlink(path).encode(), bytes(node.data))
                continue
            xattrs = {key: os.getxattr(path, key) for key in os.listxattr(path) if key.startswith("user.") and not key.startswith("user.shoal.")}
            if xattrs != node.xattrs:
                raise Lost(f"{name}: has attributes {sorted(xattrs)}, not {sorted(node.xattrs)}, or other values")
            if kind == "f":
                self.verify_file(name, path, node, killed)

    def verify_file(self, name, path, node, killed):
        fd = os.open(path, os.O_RDONLY)
        try:
            if self.rng.random() < 0.5:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            data = b"".join(iter(lambda: os.read(fd, 1 << 20), b""))
        finally:
            os.close(fd)
        want = bytes(node.data)
        if killed and self.writeback and data != want and node.sizes:
            low, high = min([*node.sizes, len(want)]), max([*node.sizes, len(want)])
            if not low <= len(data) <= high:
                raise Lost(f"{name}: has {len(data)} bytes, not {low} to {high}")
            self.mixed(name, node, data, [want])
            node.data = bytearray(data)
        else:
            self.same(name, data, want)
        if killed:
            node.promised()

    @staticmethod
    def fail(error):
        raise error


def serve(tree, connection, counter):
    """A writer's process: runs until it is told to stop, verifies when it is told to. Answers are (what went wrong, its errno), or twice None."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def guarded(work):
        try:
            work()
            return (None, None)
        except Lost as error:
            return (f"{error}", -1)
        except OSError as error:
            what = f" in: {tree.pending.text}" if tree.pending else ""
            return (f"{error}{what}", error.errno)
        except Exception as error:  # noqa: BLE001: told by the parent
            import traceback

            return (f"{error!r}\n{traceback.format_exc()}", -1)

    def run():
        while not connection.poll():
            tree.step()
            counter.value += 1

    while True:
        try:
            what, argument = connection.recv()
        except EOFError:
            os._exit(0)
        if what == "run":
            tree.writeback = argument
            connection.send(guarded(run))
        elif what == "stop":
            connection.send(None)
        elif what == "close":
            connection.send(guarded(tree.close_all))
        elif what == "died":
            tree.died()
            connection.send((None, None))
        elif what == "sync":
            connection.send(guarded(tree.sync))
        elif what == "begin anew":
            connection.send(guarded(tree.begin_anew))
        elif what == "settle":
            connection.send(guarded(tree.settle))
        elif what == "verify":
            connection.send(guarded(lambda: tree.verify(argument)))
        elif what == "history":
            connection.send([re.sub("n{20,}", "n..", text) for text in tree.history])
