#!/usr/bin/env python3
# Attributes so large that each takes whole segments of the region, beside files that take slots of every size: both
# keep their bytes. The two kinds of room come from one pool.
# case: timeout_s=90 memory=logged,battery
import hashlib
import multiprocessing
import os
import random
import time

SECONDS = 6


def value(seed, size):
    return (hashlib.sha256(str(seed).encode()).digest() * (size // 32 + 1))[:size]


def attributes(number, end):
    path = f"attributes{number}"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
    expected = {}
    turn = 0
    while time.monotonic() < end:
        turn += 1
        name = f"user.{turn % 3}"
        expected[name] = value((number, turn), 12_000 + turn % 9 * 1000)
        os.setxattr(path, name, expected[name])
        for name, want in expected.items():
            assert os.getxattr(path, name) == want, f"{path}: {name} changed"
        if turn % 50 == 0:
            os.unlink(path)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
            expected = {}
    print(f"{path}: {turn} attributes set")


def files(number, end):
    r = random.Random(number)
    os.mkdir(f"files{number}")
    held, made = {}, 0
    while time.monotonic() < end:
        made += 1
        path = f"files{number}/{made}"
        held[path] = r.choice([100, 700, 3000, 9000, 30_000])
        with open(path, "wb") as file:
            file.write(value(path, held[path]))
        if len(held) > 400:
            for path in r.sample(sorted(held), 300):
                with open(path, "rb") as file:
                    assert file.read() == value(path, held[path]), f"{path} changed"
                os.unlink(path)
                del held[path]
    for path, size in held.items():
        with open(path, "rb") as file:
            assert file.read() == value(path, size), f"{path} changed"
    print(f"files{number}: {made} files made")


end = time.monotonic() + SECONDS
workers = [multiprocessing.Process(target=work, args=(n, end)) for work in (attributes, files) for n in range(3)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert all(worker.exitcode == 0 for worker in workers), [worker.exitcode for worker in workers]
