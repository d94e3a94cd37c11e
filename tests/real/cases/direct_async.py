"""Asynchronous direct writes beside cached readers: a read that begins after a write completed sees it.

A writer keeps 32 direct writes under way (libaio, by system call) while other processes read the same blocks through the
page cache. When a round of writes is complete, every block read through the cache must have the round's number.
"""
# case: timeout_s=60
import ctypes
import mmap
import os
import random
import signal
import struct
import sys
import time

BLOCK, DEPTH, BLOCKS = 4096, 32, 256
SECONDS = float(os.environ.get("SECONDS_TO_RUN", "4"))
# A file that lies in the memory tier, and one on the bulk device.
SIZES = [BLOCK * BLOCKS, BLOCK * BLOCKS * 8]
IO_SETUP, IO_GETEVENTS, IO_SUBMIT = 206, 208, 209
WRITE = 1

libc = ctypes.CDLL(None, use_errno=True)


class Aio:
    def __init__(self, fd):
        self.fd = fd
        self.context = ctypes.c_ulong(0)
        self.call(IO_SETUP, DEPTH, ctypes.byref(self.context))
        self.memory = mmap.mmap(-1, DEPTH * BLOCK)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        # data, key, rw_flags, lio_opcode, reqprio, fd, buf, nbytes, offset, reserved, flags, resfd
        self.blocks = [ctypes.create_string_buffer(64) for _ in range(DEPTH)]
        self.events = ctypes.create_string_buffer(32 * DEPTH)

    def call(self, *arguments):
        done = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
        if done < 0:
            raise OSError(ctypes.get_errno(), "libaio")
        return done

    def write_all(self, places, value):
        """Writes `value` into each of the blocks at `places`, all at once; returns when all are complete."""
        for i, place in enumerate(places):
            self.memory[i * BLOCK : (i + 1) * BLOCK] = struct.pack("<Q", value) * (BLOCK // 8)
            struct.pack_into(
                "<QIIHhIQQqQII", self.blocks[i], 0,
                i, 0, 0, WRITE, 0, self.fd, self.address + i * BLOCK, BLOCK, place * BLOCK, 0, 0, 0,
            )  # fmt: skip
        pointers = (ctypes.c_void_p * len(places))(*[ctypes.addressof(b) for b in self.blocks[: len(places)]])
        left, at = len(places), 0
        while at < left:
            at += self.call(IO_SUBMIT, self.context, left - at, ctypes.byref(pointers, at * 8))
        while left > 0:
            found = self.call(IO_GETEVENTS, self.context, 1, DEPTH, self.events, None)
            for event in range(found):
                result = struct.unpack_from("<QQqq", self.events, event * 32)[2]
                if result != BLOCK:
                    raise SystemExit(f"a write returned {result}")
            left -= found


def read_for_ever(path, seed):
    chance = random.Random(seed)
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    while True:
        os.pread(fd, BLOCK, chance.randrange(BLOCKS) * BLOCK)


def round_trip(size):
    path = f"file-{size}"
    with open(path, "wb") as file:
        file.write(bytes(size))
    readers = []
    for seed in range(3):
        pid = os.fork()
        if pid == 0:
            read_for_ever(path, seed)
        readers.append(pid)
    stale, rounds = 0, 0
    try:
        cached = os.open(path, os.O_RDONLY)
        aio = Aio(os.open(path, os.O_WRONLY | os.O_DIRECT))
        chance = random.Random(1)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            rounds += 1
            places = chance.sample(range(BLOCKS), DEPTH)
            aio.write_all(places, rounds)
            for place in places:
                found = struct.unpack("<Q", os.pread(cached, 8, place * BLOCK))[0]
                stale += found != rounds
    finally:
        for pid in readers:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    print(f"{size >> 10} KiB: {rounds} rounds of {DEPTH} writes, {stale} blocks stale")
    return stale


bad = sum([round_trip(size) for size in SIZES])
if bad:
    sys.exit(f"{bad} blocks read through the cache were older than a write that had completed")
