#!/usr/bin/env python3
# Files that grow past the threshold between memory and bulk storage (1 MiB) and shrink below it again, by every way
# there is, with readers beside them; statvfs agrees with what is written and freed.
# case: timeout_s=60 memory=logged,battery alone
import os
import random
import threading

MIB = 1 << 20
r = random.Random(11)


def body(size, seed):
    return random.Random(seed).randbytes(size)


model = bytearray()
fd = os.open("file", os.O_RDWR | os.O_CREAT)
for step in range(150):
    kind = r.randrange(5)
    if kind == 0:
        size = r.choice([0, 1000, MIB - 1, MIB, MIB + 1, 3 * MIB, r.randrange(4 * MIB)])
        os.ftruncate(fd, size)
        model = model[:size] + bytes(max(0, size - len(model)))
    elif kind == 1:
        data = body(r.randrange(1, 300_000), step)
        assert os.pwrite(fd, data, len(model)) == len(data)
        model += data
        if len(model) > 6 * MIB:
            os.ftruncate(fd, 100)
            model = model[:100]
    else:
        at = r.randrange(max(1, min(len(model) + 100_000, 5 * MIB)))
        data = body(r.choice([1, 100, 4096, 70_000, 2 * MIB]), step)
        assert os.pwrite(fd, data, at) == len(data)
        model += bytes(max(0, at - len(model)))
        model[at : at + len(data)] = data
    if step % 10 == 0:
        os.fsync(fd)
    if step % 25 == 0:
        os.close(fd)
        fd = os.open("file", os.O_RDWR)
    assert os.fstat(fd).st_size == len(model)
    assert os.pread(fd, len(model) + 1, 0) == model, f"step {step}"
os.close(fd)

# A reader of the stable head while the file grows across the threshold and falls back.
head = body(600_000, 1)
open("growing", "wb").write(head)
stop, wrong = threading.Event(), []


def read():
    with open("growing", "rb") as file:
        while not stop.is_set():
            file.seek(0)
            if file.read(len(head)) != head:
                wrong.append("the head changed while the file moved")
                return


readers = [threading.Thread(target=read) for _ in range(2)]
for thread in readers:
    thread.start()
with open("growing", "r+b") as file:
    for round_ in range(10):
        file.seek(0, 2)
        for _ in range(16):
            file.write(body(200_000, round_))
        file.flush()
        file.truncate(len(head))
stop.set()
for thread in readers:
    thread.join()
assert not wrong, wrong

# Room: 40 MiB written are gone from statvfs, and come back.
os.sync()
before = os.statvfs(".")
for k in range(40):
    open(f"block{k}", "wb").write(body(MIB + 4096 * k, k))
os.sync()
full = os.statvfs(".")
used = (before.f_bavail - full.f_bavail) * full.f_frsize
assert 39 * MIB <= used, f"40 MiB written, statvfs shows {used} bytes less"
for k in range(40):
    assert open(f"block{k}", "rb").read() == body(MIB + 4096 * k, k)
    os.unlink(f"block{k}")
