#!/bin/bash
# PostMark: 5,000 mail-sized files, 20,000 transactions.
# case: timeout_s=60
set -eu
# `set -e` does not see a failing `! command`.
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
postmark >"$SCRATCH/out" 2>&1 <<EOF
set location $CASE_DIR
set number 5000
set transactions 20000
set size 500 16000
set subdirectories 50
set seed 42
run
quit
EOF
cat "$SCRATCH/out"
refused grep -qi 'error' "$SCRATCH/out"
grep -q 'deleted' "$SCRATCH/out"
# PostMark removes all it made.
[ -z "$(find "$CASE_DIR" -type f)" ]
