#!/bin/bash
# POSIX ACLs: set, read, mask, inherited from a default ACL, obeyed, kept by cp and tar, gone with setfacl -b.
# case: timeout_s=30
set -eu
# `set -e` does not see a failing `! command`.
refused() { if "$@"; then echo "must fail, but did not: $*"; exit 1; fi; }
same() { [ "$1" = "$2" ] || { printf 'expected:\n%s\nfound:\n%s\n' "$2" "$1"; exit 1; }; }
as() { setpriv --reuid "$1" --regid "$1" --clear-groups "${@:2}"; }
umask 022
echo secret >file
chmod 640 file
setfacl -m u:tests:rw,g:pjdfstest:r file
same "$(getfacl -cn file | grep . | tr '\n' ' ' | sed "s/$(id -u tests)/T/; s/$(getent group pjdfstest | cut -d: -f3)/P/")" \
    "user::rw- user:T:rw- group::r-- group:P:r-- mask::rw- other::--- "
same "$(stat -c %a file)" 660
as tests cat file
as tests sh -c 'echo more >>file'
refused as pjdfstest sh -c 'echo more >>file'
as pjdfstest cat file
# chmod changes the mask, which limits the named entries.
chmod 600 file
refused as tests cat file
chmod 660 file
setfacl -m m::r file
refused as tests sh -c 'echo more >>file'
# Default ACL: directories pass it on, files take it; the umask does not count then.
mkdir dir
setfacl -d -m u::rwx,u:tests:rwx,g::r-x,o::- dir
umask 077
mkdir dir/sub
touch dir/sub/file
umask 022
same "$(getfacl -c dir/sub | grep -c '^default:')" 5
same "$(getfacl -c dir/sub/file | grep '^user:tests' | tr -s ' \t' ' ')" "user:tests:rwx #effective:rw-"
same "$(stat -c %a dir/sub/file)" 660
same "$(stat -c %a dir/sub)" 770
setfacl -k dir
mkdir dir/plain
same "$(getfacl -c dir/plain | grep -c default || true)" 0
# Kept by cp -a, by tar and by rename; removed by -b; the mode stays as chmod left it.
cp -a file copied
same "$(getfacl -c copied)" "$(getfacl -c file)"
tar --acls -cf t.tar file && mkdir un && tar --acls -C un -xf t.tar
same "$(getfacl -c un/file)" "$(getfacl -c file)"
mv file dir/moved
same "$(getfacl -c dir/moved)" "$(getfacl -c copied)"
setfacl -b copied
getfacl -c copied >"$SCRATCH/acl"
refused grep mask "$SCRATCH/acl"
getfacl -R dir >acls && setfacl -R -b dir && setfacl --restore=acls
same "$(getfacl -c dir/moved)" "$(getfacl -c un/file)"
refused setfacl -m u:tests:rw /nonexistent/file
