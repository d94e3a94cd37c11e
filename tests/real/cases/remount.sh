#!/bin/bash
# Remount, mount options of copied fstab lines, a mount right after kill -9, an unmount beside a passing df.
# case: timeout_s=90
set -eu
[ -n "${SHOAL:-}" ] || { echo "only for stores: no \$SHOAL"; exit 77; }
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
store=$SCRATCH/store mnt=$SCRATCH/mnt
options() { findmnt -no OPTIONS "$mnt"; }
has() { case ",$(options)," in *",$1,"*) ;; *) echo "no $1 in $(options)"; exit 1 ;; esac; }
lacks() { case ",$(options)," in *",$1,"*) echo "$1 in $(options)"; exit 1 ;; esac; }
clean_up() { umount -l "$mnt" 2>/dev/null || true; }
trap clean_up EXIT
mkdir "$mnt"
"$SHOAL" format "$store" --memory-size 256M --bulk-size 512M >/dev/null
"$SHOAL" mount "$store" "$mnt" -o nosuid

echo "--- by shoal mount"
head -c 3M /dev/urandom >"$mnt/large"
echo one >"$mnt/file"
"$SHOAL" mount -o remount,ro "$store" "$mnt"
has ro && has nosuid
# Everything is durable: nothing waits for the log or carries the mark of data that a power loss would take.
"$SHOAL" df --json "$mnt" >"$SCRATCH/df"
"$SHOAL" inspect "$mnt" /large >"$SCRATCH/inspect"
refused grep -qi new "$SCRATCH/inspect"
refused touch "$mnt/file"
refused rm "$mnt/file"
refused sh -c "echo two >>'$mnt/file'"
refused truncate -s 0 "$mnt/large"
before=$(stat -c %x "$mnt/file")
cat "$mnt/file" >/dev/null
[ "$(stat -c %x "$mnt/file")" = "$before" ] || { echo "a read changed the time of a read-only mount"; exit 1; }
"$SHOAL" mount -o remount,rw "$store" "$mnt"
has rw && has nosuid
echo two >>"$mnt/file"
[ "$(cat "$mnt/file" | tr '\n' ' ')" = "one two " ]
# Not while somebody writes.
exec 7>"$mnt/open"
refused "$SHOAL" mount -o remount,ro "$store" "$mnt" 2>"$SCRATCH/error"
grep -q 'open for writing' "$SCRATCH/error"
exec 7>&-
refused "$SHOAL" mount -o remount,sink "$store" "$mnt"

echo "--- by mount(8)"
# In a mount name space of its own, where /usr/sbin has the helper; the file system is the same.
mkdir "$SCRATCH/helper"
ln -s "$SHOAL" "$SCRATCH/helper/mount.fuse.shoal"
real_sbin=$(readlink -f /sbin)
cat >"$SCRATCH/inside" <<'INSIDE'
set -eu
store=$1 mnt=$2 helper=$3 sbin=$4
mount -t overlay -o "lowerdir=$helper:$sbin" none "$sbin"
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
mount -o remount,ro "$mnt"
refused touch "$mnt/file"
mount -o remount,rw "$mnt"
touch "$mnt/file"
mount -t fuse.shoal -o remount,ro "$store" "$mnt"
refused touch "$mnt/file"
mount -o remount,rw,noatime "$mnt"
findmnt -no OPTIONS "$mnt" | grep -q noatime
touch "$mnt/file"
INSIDE
if grep -qw overlay /proc/filesystems; then
    unshare -m bash "$SCRATCH/inside" "$store" "$mnt" "$SCRATCH/helper" "$real_sbin"
fi
"$SHOAL" umount "$mnt"

echo "--- options of copied fstab lines"
"$SHOAL" mount "$store" "$mnt" -o nodiratime,strictatime,lazytime,dirsync,nosymfollow,mand,iversion,noiversion,silent,loud
for option in nodiratime nosymfollow dirsync lazytime; do has $option; done
lacks relatime && lacks noatime
ln -s file "$mnt/link"
refused cat "$mnt/link"
touch -d 2001-01-01 "$mnt/file"
for _ in 1 2; do
    # Past the cache, so that the daemon sees each read; the second would change nothing under relatime.
    before=$(stat -c %x "$mnt/file")
    dd if="$mnt/file" of=/dev/null iflag=direct status=none
    [ "$(stat -c %x "$mnt/file")" != "$before" ]
done
"$SHOAL" mount -o remount,noatime "$store" "$mnt"
before=$(stat -c %x "$mnt/file")
dd if="$mnt/file" of=/dev/null iflag=direct status=none
[ "$(stat -c %x "$mnt/file")" = "$before" ]
"$SHOAL" umount "$mnt"
"$SHOAL" mount "$store" "$mnt" -o ro
refused "$SHOAL" mount -o remount,rw "$store" "$mnt" 2>"$SCRATCH/error"
grep -q 'opened for reading' "$SCRATCH/error"
refused touch "$mnt/file"
"$SHOAL" umount "$mnt"
refused "$SHOAL" mount -o remount,ro "$store" "$mnt" 2>"$SCRATCH/error"
grep -q 'is not mounted here' "$SCRATCH/error"

echo "--- a mount at once after kill -9"
"$SHOAL" mount "$store" "$mnt"
# What is in memory takes the kernel time to free.
head -c 60M /dev/zero | split -b 200K -a 3 - "$mnt/f"
for _ in $(seq "${KILLS:-25}"); do
    kill -9 "$(head -1 "$store/pid")"
    "$SHOAL" mount "$store" "$mnt" >/dev/null
done
# A live daemon is not waited for.
started=$(date +%s)
refused "$SHOAL" mount "$store" "$mnt" 2>"$SCRATCH/error"
grep -q 'in use by process' "$SCRATCH/error"
[ $(($(date +%s) - started)) -lt 20 ]

echo "--- an unmount beside passers-by"
for _ in $(seq 10); do
    # Holds the mount for a good moment, as a df does for a short one.
    (cd "$mnt" && exec sleep 0.3) &
    sleep 0.05
    "$SHOAL" umount "$mnt"
    wait
    "$SHOAL" mount "$store" "$mnt" >/dev/null
done
# By signal as well: whoever only passes by is not cut off.
pid=$(head -1 "$store/pid")
(cd "$mnt" && sleep 0.5 && cat file >"$SCRATCH/seen") &
sleep 0.1
kill -TERM "$pid"
wait $!
[ "$(head -1 "$SCRATCH/seen")" = one ]
while [ -d "/proc/$pid" ]; do sleep 0.02; done
"$SHOAL" check "$store"
