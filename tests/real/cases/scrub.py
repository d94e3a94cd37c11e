#!/usr/bin/env python3
# Checksums of bulk storage on real files: a flipped byte is found by a read, a scrub, `shoal df` and a salvage, stays known when bytes
# beside it are written, and is healed by writing it; kill -9 in the midst of overwriting makes no damage, whether the write-back
# cache outlives it or not; a write of an odd size keeps checksums.
# case: timeout_s=60
import json
import os
import random
import sys
import threading
import time

if not os.environ.get("SHOAL"):
    print("only for stores: no $SHOAL")
    sys.exit(77)
os.environ["SHOAL_TMP"] = os.environ["SCRATCH"]
sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["REAL"])
from stores import Store

SIZE = 3_000_001
KILLS = 3
r = random.Random(5)


def outcome(call, *arguments):
    """The number of the error, or None."""
    try:
        call(*arguments)
    except OSError as error:
        return error.errno


def read(path):
    with open(path, "rb") as file:
        # In steps: a long read that fails behind its begin is a short one.
        return b"".join(iter(lambda: file.read(65536), b""))


def put(path, at, data):
    with open(path, "r+b", buffering=0) as file:
        file.seek(at)
        assert file.write(data) == len(data)


def scrub(store, damaged):
    """Scrubs; the report names the files that are damaged, and no others."""
    code, out, err = store.shoal("scrub", store.mountpoint, "--json")
    report = json.loads(out)
    assert code == (1 if damaged else 0), (code, err)
    assert sorted({finding["path"] for finding in report["findings"]}) == damaged, report["findings"]
    return report


def flip(store, contents, at):
    with open(store.bulk, "r+b") as file:
        place = file.read().index(contents[at : at + 64])
        file.seek(place)
        file.write(bytes([contents[at] ^ 16]))


def damage(store):
    files = {name: r.randbytes(SIZE) for name in ("middle", "end", "sound", "gone")}
    for name, contents in files.items():
        with open(os.path.join(store.mountpoint, name), "wb") as file:
            file.write(contents)
    store.umount()
    places = {"middle": 1_000_000, "end": SIZE - 64, "gone": 70_000}
    for name, at in places.items():
        flip(store, files[name], at)
    code, _, err = store.shoal("salvage", store.store, os.path.join(store.base, "salvaged"))
    named = {name for name in files if f"/{name}: bytes" in err}
    assert code == 4 and named == set(places), (code, err)
    store.mount()
    path = {name: os.path.join(store.mountpoint, name) for name in files}
    for name in files:
        assert outcome(read, path[name]) == (5 if name in places else None), name
    assert store.df()["checksums"]["damaged"] == 3
    scrub(store, ["/end", "/gone", "/middle"])
    assert outcome(put, path["middle"], 1_000_000 - 50, b"beside it") == 5
    assert outcome(put, path["end"], SIZE, b"behind it") == 5
    scrub(store, ["/end", "/gone", "/middle"])
    put(path["middle"], 0, files["middle"])
    put(path["end"], SIZE - 5000, files["end"][-5000:])
    os.unlink(path["gone"])
    assert all(read(path[name]) == files[name] for name in ("middle", "end", "sound"))
    assert store.df()["checksums"]["damaged"] == 0
    scrub(store, [])


def overwrite(path, stop, ended):
    draw = random.Random(path)
    try:
        file = os.open(path, os.O_RDWR)
        while not stop.is_set():
            at, kind = draw.randrange(SIZE), draw.randrange(10)
            if kind == 0:
                os.ftruncate(file, at)
            elif kind == 1:
                os.fsync(file)
            else:
                at, length = draw.choice([(at // 4096 * 4096, 4096), (at, draw.randrange(1, 9000)), (at, 200_000)])
                os.pwrite(file, draw.randbytes(length), at)
    except OSError as error:
        ended.append(error.errno)


def kill(store, without_cache):
    paths = [os.path.join(store.mountpoint, name) for name in ("middle", "end", "sound")]
    stop, ended = threading.Event(), []
    writers = [threading.Thread(target=overwrite, args=(path, stop, ended)) for path in paths]
    for writer in writers:
        writer.start()
    time.sleep(r.uniform(0.3, 0.8))
    store.kill()
    store.detach()
    for writer in writers:
        writer.join()
    assert 5 not in ended and len(ended) == len(writers), ended
    if without_cache:
        os.remove(store.cache())
    store.mount()
    for path in paths:
        read(path)
    assert scrub(store, [])["covered_bytes"] > 0, "what a crash may have cut off has no checksum until it is read"


for memory in ("logged", "battery"):
    print("---", memory, flush=True)
    store = Store(memory=memory, memory_size="64M", bulk_size="256M")
    try:
        store.format()
        store.mount()
        damage(store)
        for number in range(KILLS):
            kill(store, number % 2 == 1)
        odd = os.path.join(store.mountpoint, "odd")
        with open(odd, "wb") as file:
            file.write(r.randbytes(SIZE))
        scrub(store, [])
        put(odd, 5001, r.randbytes(12_345))
        assert scrub(store, [])["covered_bytes"] == 0, "a write of a part of 4 KiB keeps their checksum"
        store.umount()
        store.check()
    finally:
        store.remove()
