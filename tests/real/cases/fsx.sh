#!/bin/bash
# Random file operations against a model: five seeds, 10,000 operations each (`FSX_OPERATIONS`), on a file that crosses
# the threshold of 1 MiB in both directions.
# case: timeout_s=200 memory=logged,battery
set -eu
cat >"$SCRATCH/fsx.toml" <<'TOML'
flen = 2097152
[opsize]
min = 0
max = 131072
[weights]
close_open = 1
invalidate = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 5
fsync = 0.2
fdatasync = 0.2
posix_fallocate = 3
punch_hole = 5
sendfile = 5
posix_fadvise = 1
copy_file_range = 5
TOML
# Seed 1 syncs each store through a mapping, the others leave that to the kernel, as most programs do.
sed 's/^flen/nomsyncafterwrite = true\nflen/' "$SCRATCH/fsx.toml" >"$SCRATCH/lazy.toml"
# Two seeds stay below the threshold.
sed 's/^flen = .*/flen = 262144/; s/^max = .*/max = 65536/' "$SCRATCH/lazy.toml" >"$SCRATCH/small.toml"
run() { # configuration, seed
    "$TOOLS/fsx" -f "$SCRATCH/$1.toml" -N "${FSX_OPERATIONS:-10000}" -S "$2" -P "$SCRATCH" "$CASE_DIR/file.$2" >"$SCRATCH/out.$2" 2>&1
}
# All five at once: they share the store, not a file.
pids=
run fsx 1 & pids="$pids 1:$!"
run lazy 2 & pids="$pids 2:$!"
run lazy 3 & pids="$pids 3:$!"
run small 4 & pids="$pids 4:$!"
run small 5 & pids="$pids 5:$!"
failed=
for pair in $pids; do
    wait "${pair#*:}" || failed="$failed ${pair%:*}"
    echo "== seed ${pair%:*}"
    tail -n 200 "$SCRATCH/out.${pair%:*}"
done
[ -z "$failed" ] || { echo "failed seeds:$failed"; exit 1; }
