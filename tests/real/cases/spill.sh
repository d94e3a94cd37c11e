#!/bin/bash
# Small files of twice the memory's size: equal right after, after all were read, after kill -9 while they spill and come back.
# case: timeout_s=240 alone
set -eu
[ -n "${SHOAL:-}" ] || { echo "only for stores: no \$SHOAL"; exit 77; }
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
store=$SCRATCH/store mnt=$SCRATCH/mnt
clean_up() { umount -l "$mnt" 2>/dev/null || true; }
trap clean_up EXIT
mkdir "$mnt"
"$SHOAL" format "$store" --memory-size 24M --bulk-size 512M >/dev/null
"$SHOAL" mount "$store" "$mnt"
spilled() { "$SHOAL" df --json "$mnt" | python3 -c "import json,sys; print(json.load(sys.stdin)['spilled']['$1'])"; }
free_kib() { df --output=avail -k "$mnt" | tail -1; }

echo "--- 48 MiB that do not shrink, and text"
mkdir "$mnt/noise" "$mnt/text"
python3 - "$mnt" <<'PYTHON'
import os, random, sys
top, r = sys.argv[1], random.Random(4)
for number in range(1500):
    with open(f"{top}/noise/{number}", "wb") as file:
        file.write(r.randbytes(r.choice([300, 5000, 20_000, 70_000, 60_000])))
for number in range(500):
    with open(f"{top}/text/{number}", "w") as file:
        file.write("".join(f"line {number} {line}\n" for line in range(r.randrange(3000))))
PYTHON
(cd "$mnt" && find . -type f | sort | xargs sha256sum) >"$SCRATCH/sums"
equal() { (cd "$mnt" && sha256sum --quiet -c "$SCRATCH/sums"); }
[ "$(spilled groups)" -gt 500 ] && [ "$(free_kib)" -gt 300000 ]
equal
# Names and removals have room.
for i in $(seq 300); do mkdir "$mnt/noise/new$i"; done
rmdir "$mnt"/noise/new*
"$SHOAL" inspect "$mnt" / >/dev/null

echo "--- kill -9 while some files spill and others come back"
for round in 1 2 3; do
    (for i in $(seq 400); do head -c 50000 /dev/urandom >"$mnt/noise/passing$i" || exit 0; done) 2>/dev/null &
    (cut -c67- "$SCRATCH/sums" | shuf | (cd "$mnt" && xargs cat)) >/dev/null 2>&1 &
    sleep "0.$((round * 3))"
    kill -9 "$(head -1 "$store/pid")"
    wait
    umount -l "$mnt" 2>/dev/null || true
    "$SHOAL" check "$store"
    "$SHOAL" mount "$store" "$mnt"
    equal
    rm -f "$mnt"/noise/passing*
done

echo "--- less memory at once, and none"
"$SHOAL" mount -o remount,spill=30 "$store" "$mnt"
for i in $(seq 60); do
    used=$("$SHOAL" df --json "$mnt" | python3 -c "import json,sys; m=json.load(sys.stdin)['memory']; print(m['used_bytes']*100//m['size_bytes'])")
    [ "$used" -gt 31 ] || break
    sleep 0.2
done
[ "$used" -le 31 ] || { echo "$used% of the memory are in use"; exit 1; }
equal
for wrong in 0 100 -1 much; do refused "$SHOAL" mount -o "remount,spill=$wrong" "$store" "$mnt" 2>/dev/null; done
"$SHOAL" mount -o remount,spill=off "$store" "$mnt"
[ "$(spilled from_percent)" = 0 ]
equal

echo "--- a salvage, a copy, other sizes"
"$SHOAL" umount "$mnt"
"$SHOAL" check "$store"
"$SHOAL" salvage "$store" "$SCRATCH/out"
(cd "$SCRATCH/out" && sha256sum --quiet -c "$SCRATCH/sums" && [ ! -e lost+found ])
"$SHOAL" copy "$store" "$SCRATCH/copy" && store=$SCRATCH/copy
"$SHOAL" resize "$store" --memory-size 64M --bulk-size 128M
"$SHOAL" check "$store"
"$SHOAL" mount "$store" "$mnt"
equal
# Now there is room for all of them.
for i in 1 2 3 4 5; do equal; sleep 1; done
[ "$(spilled groups)" -lt 400 ] || { "$SHOAL" df "$mnt"; exit 1; }
rm -rf "$mnt"/*
sleep 2
[ "$(spilled groups) $(spilled block_bytes)" = "0 0" ] || { "$SHOAL" df "$mnt"; exit 1; }
"$SHOAL" umount "$mnt"
"$SHOAL" check "$store"
