#!/bin/bash
# dbench: the file server trace of its package, 4 clients, 10 s.
# case: timeout_s=60 memory=logged,battery
set -eu
# `set -e` does not see a failing `! command`.
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
load=/usr/share/dbench/client.txt
[ -e $load ] || load=$(dpkg -L dbench | grep 'client.txt$')
dbench -t 10 -c "$load" -D "$CASE_DIR" 4 >"$SCRATCH/out" 2>&1
cat "$SCRATCH/out"
# Without a semaphore of its own dbench starts its clients one by one: no matter of the file system.
grep -v 'barrier semaphore' "$SCRATCH/out" >"$SCRATCH/said"
refused grep -qiE 'failed|error|No such file' "$SCRATCH/said"
grep -E '^Throughput [0-9.]+ MB/sec' "$SCRATCH/out"
