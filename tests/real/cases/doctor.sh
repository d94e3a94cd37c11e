#!/bin/bash
# `shoal doctor` names what is wrong here and what to do; `mount --enable-uring` does what it says, and only root may.
# case: timeout_s=60 alone
set -eu
[ -n "${SHOAL:-}" ] || { echo "only for stores: no \$SHOAL"; exit 77; }
switch=/sys/module/fuse/parameters/enable_uring
before=$(cat "$switch" 2>/dev/null || true)
store=$SCRATCH/store mnt=$SCRATCH/mnt
clean_up() {
    umount -l "$mnt" 2>/dev/null || true
    [ -z "$before" ] || echo "$before" >"$switch"
}
trap clean_up EXIT
mkdir "$mnt"
verdict() { "$SHOAL" doctor --json "$SCRATCH" | python3 -c "
import json, sys
print(*[check['verdict'] for check in json.load(sys.stdin)['checks'] if check['about'] == sys.argv[1]])" "$1"; }
"$SHOAL" doctor "$SCRATCH"
[ "$(verdict /dev/fuse)" = fine ]
[ "$(prlimit --nofile=100 "$SHOAL" doctor "$SCRATCH" | grep -c '^better  *open files ')" = 1 ]
if "$SHOAL" doctor "$SCRATCH/nowhere" 2>"$SCRATCH/said"; then exit 1; fi
grep -q nowhere "$SCRATCH/said"

echo "--- without the device"
if unshare -m sh -c 'mount --bind /dev/null /dev/fuse && setpriv --reuid 65534 --clear-groups --bounding-set -all "$@"' sh \
    env PATH=/nowhere "$SHOAL" doctor / >"$SCRATCH/said"; then exit 1; fi
grep -q '^WRONG  *fusermount3 ' "$SCRATCH/said"

echo "--- the switch"
"$SHOAL" format "$store" --memory-size 16M --bulk none >/dev/null
if [ -z "$before" ] || ! (echo N >"$switch") 2>/dev/null; then
    if "$SHOAL" mount --enable-uring "$store" "$mnt" 2>"$SCRATCH/said"; then exit 1; fi
    grep -q 6.14 "$SCRATCH/said"
    exit 0
fi
[ "$(verdict 'FUSE over io_uring')" = better ]
chmod 755 "$SCRATCH" && chown -R 65534 "$store" "$mnt"
if setpriv --reuid 65534 --clear-groups "$SHOAL" mount --enable-uring "$store" "$mnt" 2>"$SCRATCH/said"; then exit 1; fi
[ "$(cat "$switch")" = N ]
"$SHOAL" mount --enable-uring "$store" "$mnt" | grep -q 'until the next boot'
[ "$(cat "$switch")" = Y ]
grep -q 'requests come by io_uring' "$store/shoal.log"
"$SHOAL" umount "$mnt" >/dev/null
