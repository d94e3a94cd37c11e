#!/bin/bash
# user.shoal.compress: set by the owner, inherited, kept by cp -a, tar and rename, refused where it is misspelt.
# case: timeout_s=30 memory=logged,battery
set -eu
name=user.shoal.compress
# `set -e` does not see a failing `! command`.
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
has() { [ "$(getfattr --only-values -n $name "$1" 2>/dev/null || true)" = "$2" ] || { getfattr -d "$1"; echo "$1: not $2"; exit 1; }; }
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
[ "$(stat -f -c %T .)" = fuseblk ] || [ "$(findmnt -no FSTYPE -T .)" = fuse.shoal ] || { echo "not on a store"; exit 77; }
mkdir dir && echo old >dir/before
setfattr -n $name -v zstd:9 dir
mkdir dir/below
for i in 1 2 3; do seq 5000 >dir/below/$i; done
ln -s 1 dir/below/link
has dir zstd:9; has dir/below zstd:9; has dir/below/1 zstd:9; has dir/before ""
getfattr -d dir/below/1 | grep -q "^$name=\"zstd:9\"$"
for wrong in gzip zstd:0 zstd:20 LZ4 "lz4 "; do refused setfattr -n $name -v "$wrong" dir; done
setfattr -n $name -v zstd dir/below/2 && has dir/below/2 zstd:3
setfattr -n $name -v off dir/below/3 && has dir/below/3 off
# Kept by what keeps attributes; a plain copy has the method of the directory it comes to.
cp -a dir copied && has copied/below/1 zstd:9 && has copied/below/3 off
mkdir lz4 && setfattr -n $name -v lz4 lz4 && cp dir/below/1 lz4/ && has lz4/1 lz4
mv dir/below/1 lz4/moved && has lz4/moved zstd:9 && ln lz4/moved hard && has hard zstd:9
tar --xattrs -cf t.tar dir && mkdir un && tar --xattrs -C un -xf t.tar && has un/dir/below/2 zstd:3 && has un/dir zstd:9
sed -i s/10/ten/ copied/below/1 && has copied/below/1 zstd:9
setfattr -x $name dir && has dir "" && touch dir/after && has dir/after "" && has dir/below zstd:9
refused setfattr -x $name dir
# The owner may, others may not.
mkdir own && chown tests own && as tests setfattr -n $name -v lz4 own && has own lz4
refused as pjdfstest setfattr -n $name -v off own
refused as pjdfstest setfattr -x $name own
sha256sum copied/below/2 dir/below/2 | cut -d' ' -f1 | uniq | wc -l | grep -qx 1
