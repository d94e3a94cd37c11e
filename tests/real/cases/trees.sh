#!/bin/bash
# A real tree (headers, time zones with their links, Perl modules) goes in and out by tar, rsync and cp.
# case: timeout_s=90 memory=logged,battery
set -eu
mkdir "$SCRATCH/real"
trees=
for tree in usr/include/linux usr/include/c++ usr/share/zoneinfo usr/share/perl usr/share/doc/git; do
    [ ! -d /$tree ] || trees="$trees $tree"
done
# shellcheck disable=SC2086
tar --format=posix -C / -cf - $trees | tar -C "$SCRATCH/real" -xpf -
echo "$(find "$SCRATCH/real" | wc -l) entries, $(du -sm "$SCRATCH/real" | cut -f1) MiB"
listing() { (cd "$1" && find . -printf '%P %y %m %U %G %s %T@ %l\n' | sed 's/^\([^ ]* d [^ ]* [^ ]* [^ ]*\) [0-9]*/\1/' | sort); }
tar --format=posix -C "$SCRATCH" -cf "$SCRATCH/real.tar" real
mkdir out
tar -C out -xpf "$SCRATCH/real.tar"
diff -r --no-dereference "$SCRATCH/real" out/real
diff <(listing "$SCRATCH/real") <(listing out/real)
# Packed on the store, unpacked outside.
tar --format=posix -cf again.tar -C out real
mkdir "$SCRATCH/back"
tar -C "$SCRATCH/back" -xpf again.tar
diff <(listing "$SCRATCH/real") <(listing "$SCRATCH/back/real")
rsync -aH --checksum "$SCRATCH/real/" synced/
diff <(listing "$SCRATCH/real") <(listing synced)
# A second run finds nothing to do.
[ -z "$(rsync -aH --itemize-changes out/real/ synced/)" ]
cp -a out/real copied
diff <(listing out/real) <(listing copied)
rm -rf out copied synced
[ "$(ls)" = again.tar ]
