#!/bin/bash
# O_DIRECT: writes past the cache are seen by cached reads and the other way round.
# case: timeout_s=40
set -eu
for size in 512 8192; do # KiB
    dd if=/dev/urandom of="$SCRATCH/data" bs=1K count=$size status=none
    dd if="$SCRATCH/data" of=direct bs=64K oflag=direct status=none
    cmp "$SCRATCH/data" direct
    dd if=direct of="$SCRATCH/read" bs=64K iflag=direct status=none
    cmp "$SCRATCH/data" "$SCRATCH/read"
    # Cached first, then overwritten past the cache.
    cp "$SCRATCH/data" mixed
    cat mixed >/dev/null
    dd if=/dev/zero of=mixed bs=4K count=3 seek=5 conv=notrunc oflag=direct status=none
    cp "$SCRATCH/data" "$SCRATCH/want"
    dd if=/dev/zero of="$SCRATCH/want" bs=4K count=3 seek=5 conv=notrunc status=none
    cmp mixed "$SCRATCH/want"
    # Cached write, then a direct read.
    printf changed | dd of=mixed bs=1 seek=100 conv=notrunc status=none
    printf changed | dd of="$SCRATCH/want" bs=1 seek=100 conv=notrunc status=none
    dd if=mixed of="$SCRATCH/read" bs=4K iflag=direct status=none
    cmp "$SCRATCH/read" "$SCRATCH/want"
done
dd if=/dev/urandom of=synced bs=4K count=64 oflag=direct,dsync status=none
dd if=/dev/urandom of=synced bs=4K count=64 oflag=sync conv=notrunc,fsync status=none
[ "$(stat -c %s synced)" = 262144 ]
# Append past the cache.
dd if="$SCRATCH/data" of=appended bs=4K count=10 status=none
dd if="$SCRATCH/data" of=appended bs=4K skip=10 count=10 oflag=append,direct conv=notrunc status=none
cmp -n 81920 appended "$SCRATCH/data"
