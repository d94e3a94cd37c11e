"""What `returns` knows of hosts, bulk devices and files: where they are, and what may be read of them.

A write fills whole blocks with the file's number and its own, so each block tells whose it is and which write it is from. A file knows
for each block which writes may be there now, and which after the loss of all that was not synced. Left out: when which of it happens.
"""

import errno
import fcntl
import hashlib
import os
import socket
import struct
import subprocess
import time

from stores import MKFS, ShoalError, run, shoal_binary, system

BLOCK = 4096
UNIT = 16  # Blocks of a block of bulk storage.
DEVICE = "24M"  # Small: blocks are used again soon, with another file's bytes in them.
EXT4_IOC_SHUTDOWN, NOLOGFLUSH = 0x8004587D, 2


class Lost(Exception):
    """Something is not as the model says."""


def make_durable(path):
    """For whatever host it is on: what the test does is not lost with its power."""
    for place in (path, os.path.dirname(path)):
        if os.path.exists(place):
            fd = os.open(place, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)


def copy_file(source, target):
    system("cp", "--sparse=always", source, target)
    make_durable(target)


def move(source, target):
    os.rename(source, target)
    make_durable(target)


class Host:
    """A file system of its own, which can go down as with its power."""

    def __init__(self, base, name):
        self.image, self.at, self.loop = os.path.join(base, name + ".image"), os.path.join(base, name), None
        os.mkdir(self.at)
        with open(self.image, "wb") as file:
            file.truncate(768 << 20)
        system(*MKFS["ext4"], self.image)
        self.up()

    def up(self):
        # A loop device of its own each time: one that is still in use has the file system that went down.
        code, loop, err = run(["losetup", "--find", "--show", self.image], 30)
        if code != 0:
            raise ShoalError(f"losetup: {err}")
        self.loop = loop.strip()
        system("mount", self.loop, self.at)

    def down(self):
        """What only this kernel knows is lost."""
        place = os.open(self.at, os.O_RDONLY)
        fcntl.ioctl(place, EXT4_IOC_SHUTDOWN, struct.pack("I", NOLOGFLUSH))
        os.close(place)
        self.leave()

    def leave(self):
        if run(["umount", self.at], 30)[0] != 0:
            # Its user has it open: what the disk has is another disk from now on.
            system("umount", "-l", self.at)
            copy_file(self.image, self.image + ".next")
            move(self.image + ".next", self.image)
        run(["losetup", "-d", self.loop], 30)

    def end(self):
        run(["umount", "-l", self.at], 30)
        run(["losetup", "-d", self.loop], 30)


class Device:
    """A bulk device. `right`: what is in its place is it; `open`: the store uses it; `cached`: with a cache in front; `is_old`: its copy is older.
    `failed`: while it was in use."""

    def __init__(self, number, place, socket=None, on_b=False):
        self.number, self.place, self.socket, self.on_b = number, place, socket, on_b
        self.aside, self.copy, self.server = place + ".aside", None, None
        self.right, self.open, self.cached, self.is_old, self.failed = True, False, False, False, False
        self.wrong = None  # Digest and time of what is in its place instead.

    def name(self):
        return f"nbd+unix:///?socket={self.socket}&lost-after=1" if self.socket else self.place

    def is_there(self):
        return self.right and (not self.socket or self.server is not None)

    def is_movable(self):
        """An export's file is exchanged only while nobody serves it."""
        return not self.socket or self.server is None

    def in_use(self, writes=True):
        self.open, self.failed = self.is_there(), False
        # An opening for writing gives it another mark.
        self.is_old = self.is_old or writes and self.open and self.copy is not None

    def start(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        serve = [shoal_binary(), "serve", f"file:{self.place}", "--nbd", f"unix:{self.socket}"]
        quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.server = subprocess.Popen(serve, start_new_session=True, **quiet)
        for _ in range(1500):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(self.socket) == 0:
                    return
            time.sleep(0.02)
        raise ShoalError(f"the server of device {self.number} does not listen")

    def stop(self):
        if self.server:
            self.server.kill()
            self.server.wait()
            self.server = None

    def digest(self):
        with open(self.place, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def take_away(self):
        move(self.place, self.aside)
        self.right = False

    def put_instead(self, source, bytes_instead=None):
        """Another file, or an empty one of this length."""
        if source:
            copy_file(source, self.place)
        else:
            with open(self.place, "wb") as file:
                file.truncate(bytes_instead)
        make_durable(self.place)
        self.wrong = (self.digest(), os.stat(self.place).st_mtime_ns)

    def refuse_written(self, thoroughly=False):
        if self.wrong and (os.stat(self.place).st_mtime_ns != self.wrong[1] or thoroughly and self.digest() != self.wrong[0]):
            raise Lost(f"what is in the place of device {self.number} was written")

    def bring_back(self):
        self.refuse_written(thoroughly=True)
        if self.wrong:
            os.unlink(self.place)
        move(self.aside, self.place)
        self.right, self.wrong = True, None

    def remove(self):
        self.stop()
        for path in filter(os.path.exists, [self.place, self.aside, self.copy or self.aside]):
            os.unlink(path)


class File:
    """What is known of a file. `may`: writes that a block may have; `since`: those it may fall back to; both {0} where nothing is noted.
    `left`: units of which something may have left the cache since the last sync; the others are held whole. `doubt`: units that a failed flush may
    have left in doubt. `low` and `high` bound the blocks after a power loss, `least` and `most` those of now; `doubtful`: it may be gone."""

    def __init__(self, uid):
        self.uid, self.name = uid, f"f{uid}"
        self.may, self.since, self.left, self.doubt, self.rewritten = {}, {}, set(), set(), set()
        self.low = self.high = self.least = self.most = 0
        self.durable = self.doubtful = False

    # What happens to it.

    def begin(self, first, blocks, number):
        for block in range(first, first + blocks):
            self.may.setdefault(block, {0}).add(number)
            self.since.setdefault(block, {0}).add(number)
        self.most = max(self.most, first + blocks)
        self.high = max(self.high, self.most)

    def returned(self, first, blocks, number, held):
        span = range(first, first + blocks)
        self.may.update((block, {number}) for block in span)
        if not held:
            self.left |= {block // UNIT for block in span}
        self.least = max(self.least, first + blocks)
        self.rewritten |= set(range(-(-first // UNIT), (first + blocks) // UNIT))

    def cut(self, blocks):
        """A truncation begins; what it leaves when it has returned."""
        gone = [block for block in self.may if block >= blocks]
        for block in gone:
            self.may[block].add(0)
            self.since[block].add(0)
        self.least, self.low = min(self.least, blocks), min(self.low, blocks)
        return dict.fromkeys(gone, {0})

    def synced(self):
        self.since = {block: set(writes) for block, writes in self.may.items()}
        self.left, self.doubt, self.rewritten = set(), self.doubt - self.rewritten, set()

    def named(self):
        """Its name and size are durable."""
        self.durable, self.low, self.high = True, self.least, self.most

    def died(self):
        """Its process died: what was in doubt is so again, though it was rewritten."""
        self.rewritten = set()

    def unsynced(self, held):
        """Blocks written since the last sync, of units that are held whole, or that are not."""
        return {block for block, writes in self.since.items() if len(writes) > 1 and (block // UNIT not in self.left) == held}

    def let_go(self):
        """What was held may have left."""
        self.left |= {block // UNIT for block in self.unsynced(held=True)}

    def loosen(self):
        """What was not synced, and is not held, may be lost."""
        self.may.update((block, set(self.since[block])) for block in self.unsynced(held=False))

    def failed(self):
        """A flush of its device may have failed."""
        self.loosen()
        self.doubt |= {block // UNIT for block in self.unsynced(held=False)}
        self.rewritten -= self.doubt

    def power_lost(self):
        self.let_go()
        self.loosen()
        self.least, self.most = min(self.low, self.least) if self.durable else 0, max(self.high, self.most)
        self.doubtful = self.doubtful or not self.durable

    # What there is to read.

    def data(self, number, blocks):
        return f"{self.uid:06d}{number:010d}".encode() * (BLOCK // 16) * blocks

    def compare(self, path, bad, keep):
        """Reads all of it. `bad`: devices it is on that are not in use; with `keep` what is found is known from then on."""
        size = os.stat(path).st_size // BLOCK
        if not self.least <= size <= self.most:
            raise Lost(f"{self.name}: has {size} blocks, not {self.least} to {self.most}")
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for first in range(0, max(size, max(self.may, default=-1) + 1), UNIT):
                for block, found in self.read_unit(fd, first, size, bad):
                    number = self.number_of(block, found)
                    # What a cache or the kernel still has of a device that failed may not be there later.
                    if keep and not bad and block in self.may:
                        self.may[block] = {number}
        finally:
            os.close(fd)
        if keep:
            self.least = self.most = size

    def read_unit(self, fd, first, size, bad):
        """Its blocks, but for those that cannot be read, and need not."""
        try:
            data = os.pread(fd, UNIT * BLOCK, first * BLOCK)
        except OSError:
            data = b""
        # A read that ends early met an error further on.
        is_whole = len(data) == min(UNIT, max(size - first, 0)) * BLOCK
        for block in range(first, first + UNIT):
            try:
                yield block, data[(block - first) * BLOCK :][:BLOCK] if is_whole else os.pread(fd, BLOCK, block * BLOCK)
            except OSError as error:
                if error.errno != errno.EIO or not bad and block // UNIT not in self.doubt:
                    raise Lost(f"{self.name}: block {block}: {error}; {self.told(block)}") from error

    def number_of(self, block, found):
        number = 0
        if found.strip(b"\0"):
            if found != found[:16] * (BLOCK // 16) or int(found[:6]) != self.uid:
                raise Lost(f"{self.name}: block {block} has foreign or torn bytes {found[:32]}")
            number = int(found[6:16])
        if number not in self.may.get(block, {0}):
            raise Lost(f"{self.name}: block {block} has write {number}; {self.told(block)}")
        return number

    def told(self, block):
        may, since, unit = self.may.get(block, {0}), self.since.get(block, {0}), block // UNIT
        return f"may have {sorted(may)}, since the last sync {sorted(since)}, left the cache: {unit in self.left}, in doubt: {unit in self.doubt}"
