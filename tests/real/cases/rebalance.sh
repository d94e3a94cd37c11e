#!/bin/bash
# Files move between memory and bulk storage by the thresholds of their directories: stopped, killed, beside writers, open and mapped ones.
# case: timeout_s=240 alone
set -eu
[ -n "${SHOAL:-}" ] || { echo "only for stores: no \$SHOAL"; exit 77; }
store=$SCRATCH/store mnt=$SCRATCH/mnt
clean_up() { kill $(jobs -p) 2>/dev/null || true; umount -l "$mnt" 2>/dev/null || true; }
trap clean_up EXIT
mkdir "$mnt"
"$SHOAL" format "$store" --memory-size 128M --bulk-size 1G >/dev/null
"$SHOAL" mount "$store" "$mnt" >/dev/null
large() { "$SHOAL" df --json "$mnt" | python3 -c "import json,sys; print(json.load(sys.stdin)['files']['large_files'])"; }
field() { python3 -c "import json,sys; print(json.load(sys.stdin)['$1'])"; }
threshold() { setfattr -n user.shoal.threshold -v "$1" "$mnt/tree"; }

echo "--- a tree of all lengths, with holes and second names"
mkdir -p "$mnt/tree/a/b" "$mnt/tree/c"
python3 - "$mnt/tree" <<'PYTHON'
import os, random, sys
top, r = sys.argv[1], random.Random(4)
for number in range(900):
    directory = r.choice(["", "a/", "a/b/", "c/"])
    with open(f"{top}/{directory}{number}", "wb") as file:
        length = r.choice([0, 300, 5000, 20_000, 60_000, 70_000, 200_000])
        file.write(r.randbytes(length) if number % 2 else b"%d " % number * (length // 4))
for number, length in enumerate([700_000, 3_000_000, 8_000_000]):
    with open(f"{top}/c/long{number}", "wb") as file:
        file.write(r.randbytes(length))
        file.seek(200_000, os.SEEK_CUR)
        file.write(b"behind a hole")
    os.link(f"{top}/c/long{number}", f"{top}/a/second{number}")
PYTHON
state() { (cd "$mnt/tree" && find . -type f | sort | xargs -d '\n' sha256sum && find . -type f -printf '%p %s %T@ %C@ %n %m\n' | sort) >"$1"; }
state "$SCRATCH/before"
equal() { state "$SCRATCH/now" && cmp "$SCRATCH/before" "$SCRATCH/now"; }

echo "--- out, and in again"
threshold 16K
"$SHOAL" rebalance "$mnt/tree"
[ "$(large)" -gt 400 ] || { echo "$(large) large files"; exit 1; }
equal
[ "$("$SHOAL" rebalance --json "$mnt/tree" | field looked_at)" = 0 ]
threshold 32M
[ "$("$SHOAL" rebalance --json "$mnt/tree/c" | field to_bulk)" = 0 ]
"$SHOAL" rebalance "$mnt"
[ "$(large)" = 0 ] || { echo "$(large) large files"; exit 1; }
equal
grep -q . "$mnt/tree/c/long0" && [ "$(du -k "$mnt/tree/c/long1" | cut -f1)" -lt 3120 ]

echo "--- stopped and gone on with"
threshold 8K
"$SHOAL" rebalance "$mnt/tree" >/dev/null 2>&1 &
sleep 0.05
kill -INT $! 2>/dev/null || true
wait $! || true
equal
"$SHOAL" rebalance "$mnt/tree" >/dev/null
equal

echo "--- kill -9 while files go out and come in"
cut=0
for round in 1 2 3 4 5 6; do
    threshold "$([ $((round % 2)) = 0 ] && echo 8K || echo 32M)"
    "$SHOAL" rebalance "$mnt/tree" >/dev/null 2>&1 &
    sleep "0.0$((round * 13 % 10))$round"
    kill -9 "$(head -1 "$store/pid")"
    wait || true
    umount -l "$mnt" 2>/dev/null || true
    [ $((round % 3)) = 0 ] || "$SHOAL" check "$store" >/dev/null
    "$SHOAL" mount "$store" "$mnt" >/dev/null
    files=$(large)
    [ "$files" = 0 ] || [ "$files" -gt 600 ] || cut=$((cut + 1))
    equal
done
[ "$cut" -gt 0 ] || { echo "no kill came in the middle"; exit 1; }
"$SHOAL" rebalance "$mnt" >/dev/null
equal

echo "--- beside writers, and with files open, mapped and without a name"
python3 - "$SHOAL" "$mnt/tree" <<'PYTHON'
import mmap, os, random, subprocess, sys, threading
shoal, top = sys.argv[1:]
def rebalance(size):
    os.setxattr(top, "user.shoal.threshold", size)
    subprocess.run([shoal, "rebalance", top], check=True, stdout=subprocess.DEVNULL)
r = random.Random(7)
contents = {f"{top}/busy{n}": bytearray(r.randbytes(r.choice([3000, 40_000, 150_000, 900_000]))) for n in range(24)}
for path, data in contents.items():
    open(path, "wb").write(data)
opened = open(f"{top}/busy0", "rb")
gone = open(f"{top}/gone", "w+b")
gone.write(b"gone" * 50_000)
gone.flush()
os.unlink(f"{top}/gone")
mapped = open(f"{top}/busy1", "r+b")
view = mmap.mmap(mapped.fileno(), 0)
over = threading.Event()
wrong = []
def work(paths, seed):
    r = random.Random(seed)
    while not over.is_set():
        path = r.choice(paths)
        data = contents[path]
        with open(path, "r+b") as file:
            if r.random() < 0.5:
                at, part = r.randrange(len(data)), r.randbytes(r.randrange(1, 20_000))
                data[at : at + len(part)] = part
                file.seek(at)
                file.write(part)
                file.flush()
            file.seek(0)
            if file.read() != data:
                wrong.append(path)
                return
paths = [path for path in contents if not path.endswith(("/busy0", "/busy1"))]
threads = [threading.Thread(target=work, args=(paths[n::3], n)) for n in range(3)]
[thread.start() for thread in threads]
try:
    for turn in range(8):
        rebalance(b"8K" if turn % 2 else b"16M")
        view[turn : turn + 4] = b"map%d" % turn
        contents[f"{top}/busy1"][turn : turn + 4] = b"map%d" % turn
        view.flush()
        opened.seek(0)
        gone.seek(0)
        assert opened.read() == contents[f"{top}/busy0"] and gone.read() == b"gone" * 50_000
        assert view[:] == contents[f"{top}/busy1"], "the map differs"
finally:
    over.set()
    [thread.join() for thread in threads]
assert not wrong, wrong
view.close()
for path, data in contents.items():
    assert open(path, "rb").read() == data, path
    os.unlink(path)
PYTHON
equal
umount "$mnt"
for i in $(seq 100); do [ -e "$store/pid" ] || break; sleep 0.1; done
"$SHOAL" check "$store"
"$SHOAL" rebalance "$store"
echo "--- not in a store"
if "$SHOAL" rebalance "$SCRATCH" 2>"$SCRATCH/error"; then exit 1; fi
grep -q "neither a store" "$SCRATCH/error"
