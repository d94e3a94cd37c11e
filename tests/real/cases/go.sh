#!/bin/bash
# Go's own tests of its os package, run in a copy of their folder on the store, with temporary files there too.
# case: timeout_s=120
set -eu
command -v go >/dev/null || { echo "go is not installed (apt-get install golang-go)"; exit 77; }
root=$(go env GOROOT)
export GOCACHE=${XDG_CACHE_HOME:-$HOME/.cache}/go-build GOFLAGS=-mod=mod
(cd "$SCRATCH" && go test -c -o "$SCRATCH/os.test" os)
cp -rL "$root/src/os" "$CASE_DIR/os"
mkdir "$CASE_DIR/tmp"
cd "$CASE_DIR/os"
# The short set leaves out tests of pipes and processes that take 20 s and meet no file system.
TMPDIR=$CASE_DIR/tmp "$SCRATCH/os.test" -test.v -test.short >"$SCRATCH/out" 2>&1 || true
cat "$SCRATCH/out"
sed -n 's/^ *--- FAIL: \([^ ]*\).*/\1/p' "$SCRATCH/out" | sort >"$SCRATCH/failed"
grep -v '^#' "$REAL/expected/go.txt" | cut -d' ' -f1 | sort >"$SCRATCH/expected"
comm -23 "$SCRATCH/failed" "$SCRATCH/expected" >"$SCRATCH/new"
passed=$(grep -c -- '--- PASS' "$SCRATCH/out")
if [ -s "$SCRATCH/new" ] || [ "$passed" -lt 500 ] || ! grep -qE '^(PASS|FAIL)$' "$SCRATCH/out"; then
    echo "$passed passed; failed, and not on ext4: $(tr '\n' ' ' <"$SCRATCH/new")"
    exit 1
fi
