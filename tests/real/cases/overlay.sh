#!/bin/bash
# The upper and work directory of overlayfs: its usual life, then a root file system as container engines make it.
# case: timeout_s=120
set -eu
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || { echo "the kernel has no overlayfs"; exit 77; }
refused() { if "$@" 2>>"$SCRATCH/errors"; then echo "must fail, but did not: $*"; exit 1; fi; }
here=$PWD
low=$SCRATCH/low merged=$SCRATCH/merged
whiteout() { [ "$(stat -c '%F %t:%T' "$1")" = "character special file 0:0" ] || { echo "$1 is no whiteout"; exit 1; }; }
clean_up() {
    umount -l "$merged" 2>/dev/null || true
    rm -rf "$here"/upper* "$here"/work* 2>/dev/null || true
}
trap clean_up EXIT
# Anybody who looks at all mounts (a passing df) keeps one busy for a moment.
detach() {
    for _ in $(seq 100); do
        if umount "$merged" 2>>"$SCRATCH/errors"; then return; fi
        sleep 0.1
    done
    umount "$merged"
}
overlay() { # options
    mount -t overlay overlay -o "lowerdir=$low,upperdir=$here/upper,workdir=$here/work,$1" "$merged"
}
fresh() { # options
    rm -rf upper work
    mkdir upper work
    overlay "$1"
}
mkdir "$low" "$merged"
mkdir -p "$low"/dir/sub "$low"/full "$low"/moved/deep
for name in a b c d e dir/x dir/sub/y full/1 full/2 moved/deep/z; do echo "low $name" >"$low/$name"; done
head -c 20M /dev/urandom >"$low/large"
ln "$low/c" "$low/c2"
ln -s a "$low/link"
mknod "$low/null" c 1 3
chown 1000:1000 "$low/e"
chmod 6755 "$low/c2"
for name in s g; do echo "low $name" >"$low/$name"; done
chown 1000:1000 "$low/s" && chmod 6755 "$low/s"
chown 0:42 "$low/g" && chmod 2755 "$low/g"
setfattr -n user.kept -v yes "$low/e"
(cd "$low" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$SCRATCH/low.sums"

echo "--- renames that leave a whiteout, by system call"
cat >"$SCRATCH/rename.py" <<'PYTHON'
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4

def rename(old, new, flags):
    done = libc.renameat2(-100, old.encode(), -100, new.encode(), flags)
    return 0 if done == 0 else ctypes.get_errno()

def is_whiteout(name):
    seen = os.lstat(name)
    return (seen.st_mode, seen.st_rdev) == (0o020000, 0)

def expect(found, wanted, what):
    if found != wanted:
        sys.exit(f"{what}: {found}, expected {wanted}")

os.makedirs("r/one")
os.makedirs("r/two")
os.chdir("r")
for name in ("f", "g", "h", "one/i"):
    open(name, "w").write(name)
os.mkdir("one/dir")
expect(rename("f", "f2", WHITEOUT), 0, "within a directory")
expect((is_whiteout("f"), open("f2").read()), (True, "f"), "within a directory")
expect(rename("g", "f2", WHITEOUT | NOREPLACE), errno.EEXIST, "noreplace, target there")
expect(open("g").read(), "g", "noreplace, target there")
expect(rename("g", "g2", WHITEOUT | NOREPLACE), 0, "noreplace")
expect((is_whiteout("g"), open("g2").read()), (True, "g"), "noreplace")
expect(rename("h", "f2", WHITEOUT), 0, "over a file")
expect((is_whiteout("h"), open("f2").read()), (True, "h"), "over a file")
expect(rename("one/i", "two/i", WHITEOUT), 0, "across")
expect((is_whiteout("one/i"), open("two/i").read()), (True, "one/i"), "across")
expect(rename("one/dir", "two/dir", WHITEOUT), 0, "a directory")
expect((is_whiteout("one/dir"), os.path.isdir("two/dir")), (True, True), "a directory")
expect((os.stat("one").st_nlink, os.stat("two").st_nlink), (2, 3), "links of the directories")
# Over a whiteout and with one, as overlayfs does when a name comes back.
expect(rename("two/i", "one/i", 0), 0, "over a whiteout")
expect(rename("g", "one/i", EXCHANGE), 0, "exchange with a whiteout")
expect(is_whiteout("one/i"), True, "exchange with a whiteout")
expect(rename("g2", "f2", WHITEOUT | EXCHANGE), errno.EINVAL, "whiteout and exchange")
expect(sorted(os.listdir("one")), ["dir", "i"], "names")
os.chdir("..")
PYTHON
python3 "$SCRATCH/rename.py"
rm -r r

for redirect in on off; do
    echo "--- the usual life, redirect_dir=$redirect"
    fresh "redirect_dir=$redirect,metacopy=off"
    cd "$merged"
    [ "$(cat a)" = "low a" ]
    rm a
    whiteout "$here/upper/a"
    refused cat a
    echo new >a # a name comes back over its whiteout
    [ "$(cat a "$here/upper/a" | tr '\n' ' ')" = "new new " ]
    echo more >>b # copied up
    [ "$(tr '\n' ' ' <b)" = "low b more " ]
    mv d d2
    whiteout "$here/upper/d"
    mv d2 dir/sub/d3
    [ "$(cat dir/sub/d3)" = "low d" ]
    mv -f c b # one lower file over another
    [ "$(cat b)" = "low c" ]
    whiteout "$here/upper/c"
    [ "$(cat c2)" = "low c" ]
    ln e e2
    [ "$(stat -c '%a %u:%g %h' e2)" = "644 1000:1000 2" ]
    ln c2 c3
    [ "$(stat -c '%a %u:%g' c3)" = "6755 0:0" ]
    # Set-id files come up as they are, whoever owns them; a chown through the overlay is a chown.
    ln s s2 && touch g
    [ "$(stat -c '%a %u:%g' s s2 g | tr '\n' ' ')" = "6755 1000:1000 6755 1000:1000 2755 0:42 " ]
    chown 1000:1000 s && [ "$(stat -c %a s s2 | tr '\n' ' ')" = "755 755 " ]
    [ "$(getfattr --only-values -n user.kept e2)" = yes ]
    rm -r full # then opaque: nothing of the lower one shows
    mkdir full
    [ -z "$(ls -A full)" ]
    [ "$(getfattr --only-values -n trusted.overlay.opaque "$here/upper/full")" = y ]
    echo 3 >full/3
    if [ $redirect = on ]; then
        mv moved/deep here # as a redirect, without copying
        [ "$(getfattr --only-values -n trusted.overlay.redirect "$here/upper/here")" = /moved/deep ]
        [ ! -e "$here/upper/here/z" ]
    else
        refused python3 -c 'import os; os.rename("moved/deep", "here")' # EXDEV
        mv moved/deep here # mv copies then
    fi
    [ "$(cat here/z)" = "low moved/deep/z" ]
    [ -z "$(ls -A moved)" ]
    printf changed | dd of=large bs=1 seek=10000000 conv=notrunc status=none
    cmp -n 10000000 large "$low/large"
    cmp -i 10000007 large "$low/large"
    [ "$(head -c 10000007 large | tail -c 7)" = changed ]
    rm link && ln -s b link && [ "$(cat link)" = "low c" ]
    chmod 600 dir/x && [ "$(stat -c %a dir/x)" = 600 ] && [ "$(cat dir/x)" = "low dir/x" ]
    rm null && echo plain >null
    mkfifo pipe && mkdir -p p/q/r && rmdir p/q/r && mv p p2
    setfattr -n user.new -v 1 dir
    mkdir -p user && setfattr -n user.overlay.x -v 1 user
    find . | sort >"$SCRATCH/names"
    # d_type of whiteouts and all others comes with the listing.
    python3 - "$here/upper" <<'PYTHON'
import os, stat, sys
for entry in os.scandir(sys.argv[1]):
    seen = stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode)
    told = (entry.is_file(follow_symlinks=False), entry.is_dir(follow_symlinks=False), entry.is_symlink())
    assert told == (seen == stat.S_IFREG, seen == stat.S_IFDIR, seen == stat.S_IFLNK), entry.name
PYTHON
    sync -f .
    cd "$here"
    find "$merged" -type f -print0 | sort -z | xargs -0 sha256sum >"$SCRATCH/sums"
    detach
    overlay "redirect_dir=$redirect,metacopy=off"
    (cd "$merged" && find . | sort) >"$SCRATCH/names2"
    diff "$SCRATCH/names" "$SCRATCH/names2"
    find "$merged" -type f -print0 | sort -z | xargs -0 sha256sum | diff - "$SCRATCH/sums"
    detach
    (cd "$low" && find . -type f -print0 | sort -z | xargs -0 sha256sum) | diff - "$SCRATCH/low.sums"
done
[ -z "$(dmesg 2>/dev/null | grep -F "overlayfs: upper fs missing required features" || true)" ]

echo "--- a root file system"
# What a container's image would bring: a shell, tools, the package manager, and the libraries they ask for.
root=$SCRATCH/low
rm -rf "$root"
mkdir -p "$root"/{bin,tmp,proc,dev,etc,usr/bin,var/lib/dpkg/updates,var/lib/dpkg/info,var/lib/dpkg/triggers,var/log,sbin}
touch "$root/var/lib/dpkg/status" "$root/var/lib/dpkg/available"
programs="bash sh cat ls cp mv rm mkdir rmdir ln chmod chown touch find grep sed tar dpkg dpkg-deb dpkg-split dpkg-query \
    sort env diff sha256sum xargs true test ldconfig start-stop-daemon"
for program in $programs; do
    path=$(PATH=$PATH:/usr/sbin:/sbin command -v "$program" || true)
    case $path in /*) ;; *) path=$(PATH=/usr/bin:/bin:/usr/sbin:/sbin type -P "$program" || true) ;; esac
    [ -n "$path" ] || continue
    cp -L "$path" "$root/bin/"
    for library in $(ldd "$path" 2>/dev/null | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp -Ln "$library" "$root$library"
    done
done
ln -s bash "$root/bin/sh" 2>/dev/null || true
echo root:x:0:0:root:/:/bin/sh >"$root/etc/passwd"
echo root:x:0: >"$root/etc/group"
mkdir -p "$SCRATCH/package"/{DEBIAN,opt/thing/lib,etc}
package() { # version
    rm -rf "$SCRATCH/package/opt/thing/lib"/*
    for i in $(seq 100); do echo "version $1 file $i" >"$SCRATCH/package/opt/thing/lib/$i"; done
    head -c 3M /dev/urandom >"$SCRATCH/package/opt/thing/large"
    ln -sf thing "$SCRATCH/package/opt/current"
    printf 'Package: thing\nVersion: %s\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n' "$1" \
        >"$SCRATCH/package/DEBIAN/control"
    printf '#!/bin/sh\nset -e\nmkdir -p /var/thing\necho "$1 $2" >>/var/thing/log\n' >"$SCRATCH/package/DEBIAN/postinst"
    chmod 755 "$SCRATCH/package/DEBIAN/postinst"
    dpkg-deb --build "$SCRATCH/package" "$root/tmp/thing-$1.deb" >/dev/null
}
package 1
cp "$SCRATCH/package/opt/thing/large" "$SCRATCH/large1"
package 2
fresh metacopy=off
inside() { chroot "$merged" /bin/sh -euc "export PATH=/bin:/usr/bin; $1"; }
inside 'ls -l /bin >/tmp/list; grep -q bash /tmp/list; rm /bin/rmdir; mkdir /srv; cp -a /bin /srv/bin; rm -r /srv/bin'
whiteout upper/bin/rmdir
if [ -x "$root/bin/dpkg" ] && [ -x "$root/bin/dpkg-deb" ]; then
    inside 'dpkg --force-all -i /tmp/thing-1.deb' >"$SCRATCH/dpkg" 2>&1 || { cat "$SCRATCH/dpkg"; exit 1; }
    inside 'dpkg-query -W thing | grep -q 1; test "$(cat /opt/current/lib/100)" = "version 1 file 100"'
    cmp "$merged/opt/thing/large" "$SCRATCH/large1"
    inside 'dpkg --force-all -i /tmp/thing-2.deb' >"$SCRATCH/dpkg" 2>&1 || { cat "$SCRATCH/dpkg"; exit 1; }
    inside 'test "$(cat /opt/current/lib/100)" = "version 2 file 100"; grep -q "configure 1" /var/thing/log'
    inside 'dpkg --force-all -P thing' >"$SCRATCH/dpkg" 2>&1 || { cat "$SCRATCH/dpkg"; exit 1; }
    [ ! -e "$merged/opt/thing" ]
else
    echo "no dpkg here: a package is not installed"
fi
inside 'tar -C / -cf /tmp/all.tar bin etc; mkdir /tmp/un; tar -C /tmp/un -xf /tmp/all.tar; diff -r /bin /tmp/un/bin; rm -r /tmp/un /tmp/all.tar'
# The engine commits a container: what is in the upper directory becomes a layer.
detach
tar --xattrs --xattrs-include='trusted.*' -cf "$SCRATCH/layer.tar" -C upper .
grep -q rmdir <<<"$(tar -tf "$SCRATCH/layer.tar")"
mkdir upper2 work2
tar --xattrs --xattrs-include='trusted.*' -xf "$SCRATCH/layer.tar" -C upper2
mount -t overlay overlay -o "lowerdir=$root,upperdir=$here/upper2,workdir=$here/work2" "$merged"
refused ls "$merged/bin/rmdir"
[ -e "$merged/bin/bash" ]
detach
# Three layers, two of them on the store.
mkdir upper3
mount -t overlay overlay -o "lowerdir=$here/upper2:$root,upperdir=$here/upper3,workdir=$here/work" "$merged"
refused ls "$merged/bin/rmdir"
rm -r "$merged/bin"
whiteout upper3/bin
detach

if [ -n "${SHOAL:-}" ]; then
    echo "--- on a store of its own that is killed and mounted again below it"
    store=$SCRATCH/store mnt=$SCRATCH/mnt
    trap 'umount -l "$merged" "$mnt" 2>/dev/null || true; clean_up' EXIT
    mkdir "$mnt"
    "$SHOAL" format "$store" --memory-size 256M --bulk-size 512M >/dev/null
    "$SHOAL" mount "$store" "$mnt" >/dev/null
    here=$mnt
    mkdir "$mnt/upper" "$mnt/work"
    for round in clean killed; do
        overlay metacopy=off
        rm -f "$merged/bin/ls"
        echo "$round" >"$merged/etc/$round"
        mv "$merged/etc/group" "$merged/etc/group-$round" 2>/dev/null || true
        sync -f "$merged"
        detach
        if [ $round = clean ]; then
            "$SHOAL" umount "$mnt"
        else
            kill -9 "$(head -1 "$store/pid")"
        fi
        "$SHOAL" mount "$store" "$mnt" >/dev/null
        overlay metacopy=off
        refused ls "$merged/bin/ls"
        [ "$(cat "$merged/etc/$round")" = $round ]
        [ -e "$merged/etc/group-clean" ] && [ ! -e "$merged/etc/group" ]
        detach
    done
    "$SHOAL" umount "$mnt"
    "$SHOAL" check "$store"
    here=$PWD
fi
