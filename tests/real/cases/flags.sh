#!/bin/bash
# chattr's immutable and append-only flags, no-dump and no-atime; set-group-id under setfacl by strangers.
# case: timeout_s=40
set -eu
refused() { if "$@" 2>>"$SCRATCH/errors"; then echo "must fail, but did not: $*"; exit 1; fi; }
as() { setpriv --reuid "$1" --regid "$2" "${@:3}"; }
flags() { lsattr -d "$1" | cut -d' ' -f1 | tr -d e-; }
trap 'chattr -R -ia . 2>/dev/null || true' EXIT

echo "--- immutable file"
echo text >file
ln file second
chattr +i file
[ "$(flags file)" = i ] && [ "$(flags second)" = i ]
refused sh -c 'echo more >>file'
refused sh -c 'echo more >second'
refused truncate -s 1 file
refused truncate -s 100000 file
refused fallocate -l 100000 file
refused rm -f file
refused rm -f second
refused mv file other
echo other >other
refused mv -f other file
refused ln file third
refused chmod 600 file
refused chown 1 file
refused touch file
refused touch -d 2001-01-01 file
refused setfattr -n user.x -v y file
refused setfacl -m u:1:r file
refused python3 -c 'import os; a = os.open("other", os.O_RDONLY); b = os.open("file", os.O_WRONLY); os.copy_file_range(a, b, 3)'
[ "$(cat file)" = text ]
[ "$(stat -c '%a %h %u' file)" = "644 2 0" ]
chattr -i file
echo more >>file && rm second && chmod 600 file && mv file moved

echo "--- append-only file"
printf 'one\n' >log
chattr +a log
[ "$(flags log)" = a ]
printf 'two\n' >>log
head -c 300000 /dev/zero >>log
[ "$(stat -c %s log)" = 300008 ]
refused sh -c 'echo x >log'
refused truncate -s 3 log
refused dd if=/dev/zero of=log bs=1 count=1 conv=notrunc status=none
refused fallocate -p -o 0 -l 4096 log
refused rm -f log
refused mv log log2
refused ln log log3
refused chmod 600 log
refused touch -d 2001-01-01 log
touch log
[ "$(head -2 log | tr '\n' ' ')" = "one two " ]
chattr -a log
truncate -s 3 log && rm log

echo "--- directories"
mkdir dir
echo x >dir/x
chattr +i dir
refused touch dir/y
refused mkdir dir/sub
refused rm -f dir/x
refused mv dir/x x
refused mv other dir/other
refused mv dir dir2
refused rmdir dir
echo y >>dir/x # the file itself is not immutable
chattr -i dir
# The flags are the first reason to refuse.
denied() {
    python3 -c 'import errno, os, sys
try: getattr(os, sys.argv[1])(*map(os.fsencode, sys.argv[2:]))
except PermissionError as error: sys.exit(error.errno != errno.EPERM)
except OSError as error: print(error)
sys.exit(1)' "$@" || { echo "not refused with EPERM: $*"; exit 1; }
}
mkdir -p dir/full/sub
for flag in i a; do
    chattr +$flag dir
    denied rmdir dir/full
    denied rename dir/full dir2
    mkdir new && denied rename new dir/full
    rmdir new
    chattr -$flag dir
    chattr +$flag dir/full
    denied rmdir dir/full
    denied setxattr dir/full user.x y
    denied setxattr dir/full nonsense.x y
    chattr -$flag dir/full
done
rm -r dir/full
chattr +a dir
touch dir/y
refused rm -f dir/y
refused mv dir/y y
refused mv -f other dir/y
mv other dir/other
[ "$(ls dir | tr '\n' ' ')" = "other x y " ]
chattr -a dir
rm -r dir

echo "--- the rest"
echo x >plain
chattr +dA plain
[ "$(flags plain)" = dA ]
changed=$(stat -c %z plain)
sleep 0.05
chattr +d plain
[ "$(stat -c %z plain)" != "$changed" ] # the kernel has it for known
touch -d 2001-01-01 plain
before=$(stat -c %x plain)
dd if=plain of=/dev/null iflag=direct status=none
[ "$(stat -c %x plain)" = "$before" ]
chown tests plain
chmod 666 plain
tests=$(id -u tests) group=$(id -g tests)
refused as "$tests" "$group" --clear-groups chattr +i plain
refused as "$tests" "$group" --clear-groups chattr +a plain
as "$tests" "$group" --clear-groups chattr -dA plain
[ -z "$(flags plain)" ]
stranger=$(id -u pjdfstest) strange=$(id -g pjdfstest)
refused as "$stranger" "$strange" --clear-groups chattr +d plain
# The other form of the ioctl.
python3 - <<'PYTHON'
import fcntl, os, struct
fd = os.open("plain", os.O_RDONLY)
get = lambda: struct.unpack("<5I8x", fcntl.ioctl(fd, 0x801C581F, bytes(28)))[0]
kept = get() & ~0x80000000
fcntl.ioctl(fd, 0x401C5820, struct.pack("<5I8x", 0x8, 0, 0, 0, 0))
assert get() & 0x8, hex(get())
try:
    os.truncate("plain", 0)
    raise SystemExit("an immutable file was truncated")
except PermissionError:
    pass
fcntl.ioctl(fd, 0x401C5820, struct.pack("<5I8x", kept, 0, 0, 0, 0))
os.truncate("plain", 0)
PYTHON

echo "--- set-group-id and access ACLs"
bits() { stat -c %a "$1"; }
sgid() { rm -rf g && echo x >g && chown "$1:$2" g && chmod 2755 g; }
sgid "$tests" "$strange"
as "$tests" "$group" --clear-groups setfacl -m u:1:r g
[ "$(bits g)" = 755 ] || { echo "setfacl by a stranger to the group kept set-group-id: $(bits g)"; exit 1; }
sgid "$tests" "$strange"
as "$tests" "$group" --groups "$strange" setfacl -m u:1:r g
[ "$(bits g)" = 2755 ] || { echo "setfacl by a member took set-group-id away: $(bits g)"; exit 1; }
sgid "$tests" "$group"
as "$tests" "$group" --clear-groups setfacl -m u:1:r g
[ "$(bits g)" = 2755 ]
sgid "$tests" "$strange"
setfacl -m u:1:r g
[ "$(bits g)" = 2755 ] || { echo "setfacl by root took set-group-id away: $(bits g)"; exit 1; }
# A directory's default ACL says nothing about the directory.
mkdir d && chown "$tests:$strange" d && chmod 2775 d
as "$tests" "$group" --clear-groups setfacl -d -m u:1:r d
[ "$(bits d)" = 2775 ]
as "$tests" "$group" --clear-groups setfacl -m u:1:r d
[ "$(bits d)" = 775 ]
