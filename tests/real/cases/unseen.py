#!/usr/bin/env python3
# A program's capabilities go with its bytes and its owner, also on a mount without extended attributes, where the kernel sees none:
# whoever changed the file there must not find it a program with capabilities at the next mount. So it is on ext4.
# case: timeout_s=60
import mmap
import os
import stat
import subprocess
import sys

SHOAL = os.environ.get("SHOAL")
USER = 54321
CAPABILITY = bytes.fromhex("0100000200040000000000000000000000000000")  # cap_net_bind_service=ep
# Kept in memory, on bulk storage, and cut into several records.
SIZES = (5_000, 300_000, 3_000_000)

if os.getuid() != 0:
    print("only root can give capabilities")
    sys.exit(77)
failures = []


class Place:
    """A directory, of a store of its own where there are stores."""

    def __init__(self):
        self.path = os.getcwd()
        if SHOAL:
            self.store, self.path = (os.path.join(os.environ["SCRATCH"], name) for name in ("store", "mnt"))
            os.mkdir(self.path)
            self.shoal("format", self.store, "--memory-size", "64M", "--bulk-size", "256M", "--threshold", "1M")

    def shoal(self, *arguments):
        done = subprocess.run([SHOAL, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, (arguments, done)

    def mount(self, options):
        if SHOAL:
            self.shoal("mount", self.store, self.path, "-o", options)
        os.chdir(self.path)

    def umount(self):
        os.chdir("/")
        if SHOAL:
            self.shoal("umount", self.path)


def opened(name, change, flags=os.O_RDWR):
    fd = os.open(name, flags)
    try:
        change(fd)
    finally:
        os.close(fd)


def copied(name):
    opened("source", lambda source: opened(name, lambda to: os.copy_file_range(source, to, 100)), os.O_RDONLY)


def as_user(*command):
    subprocess.run(["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *command], check=True, timeout=20)


CHANGES = {
    "write": lambda name: opened(name, lambda fd: os.pwrite(fd, b"x", 10)),
    "user's write": lambda name: as_user("dd", "if=/dev/zero", f"of={name}", "bs=1", "count=1", "conv=notrunc", "status=none"),
    "append": lambda name: opened(name, lambda fd: os.write(fd, b"x"), os.O_WRONLY | os.O_APPEND),
    "direct write": lambda name: opened(name, lambda fd: os.pwrite(fd, mmap.mmap(-1, 4096), 0), os.O_RDWR | os.O_DIRECT),
    "O_TRUNC": lambda name: opened(name, lambda fd: None, os.O_WRONLY | os.O_TRUNC),
    "truncate": lambda name: os.truncate(name, 100),
    "longer": lambda name: os.truncate(name, 4_000_000),
    "allocate": lambda name: opened(name, lambda fd: os.posix_fallocate(fd, 0, 4_000_000)),
    "user's allocate": lambda name: as_user("fallocate", "-l", "4000000", name),
    "punch": lambda name: subprocess.run(["fallocate", "-p", "-l", "4096", name], check=True),
    "copy": copied,
    "chown": lambda name: os.chown(name, USER, USER),
    "chown to the same": lambda name: os.chown(name, 0, 0),
    "chgrp": lambda name: os.chown(name, -1, USER),
}
KEPT = {
    "nothing": lambda name: None,
    "chmod": lambda name: os.chmod(name, 0o711),
    "times": lambda name: os.utime(name, (1, 2)),
    "read": lambda name: open(name, "rb").close(),
    "rename": lambda name: (os.rename(name, name + "2"), os.rename(name + "2", name)),
    "link": lambda name: (os.link(name, name + "2"), os.unlink(name + "2")),
}

place = Place()
try:
    place.mount("rw")
    with open("source", "wb") as source:
        source.write(b"s" * 1000)
    for what in [*CHANGES, *KEPT]:
        for size in SIZES:
            with open(f"{what} {size}", "wb") as file:
                file.write(b"p" * size)
            os.setxattr(f"{what} {size}", "user.note", b"n" * 50)
            os.chmod(f"{what} {size}", 0o6777)
            os.setxattr(f"{what} {size}", "security.capability", CAPABILITY)
    place.umount()
    place.mount("noxattr")
    for what, change in (CHANGES | KEPT).items():
        for size in SIZES:
            change(f"{what} {size}")
    place.umount()
    place.mount("rw")
    for what in [*CHANGES, *KEPT]:
        for size in SIZES:
            name = f"{what} {size}"
            has = "security.capability" in os.listxattr(name)
            if has != (what in KEPT):
                failures.append(f"{name}: {'still has' if has else 'has lost'} its capabilities")
            if os.getxattr(name, "user.note") != b"n" * 50:
                failures.append(f"{name}: has lost another attribute")
            set_id = stat.S_IMODE(os.stat(name).st_mode) & 0o6000
            wanted = 0 if what.startswith(("user's", "chown", "chgrp", "chmod")) else 0o6000
            if set_id != wanted:
                failures.append(f"{name}: set-id bits {set_id:o}, not {wanted:o}")
            if what in CHANGES:
                os.setxattr(name, "security.capability", CAPABILITY)
    place.umount()
    if SHOAL:
        place.shoal("check", place.store)
        # In a user namespace root is nobody special: what it cannot read it is not told of.
        place.mount("rw")
        os.setxattr("source", "trusted.t", b"1")
        assert "trusted.t" in os.listxattr("source")
        place.umount()
        script = (
            '"$0" mount "$1" "$2" && cd "$2" && python3 -c "import os; print(*os.listxattr(\'source\'))" && '
            'touch new && cp --preserve=xattr source copy; code=$?; cd / && "$0" umount "$2" && exit $code'
        )
        inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, SHOAL, place.store, place.path]
        done = subprocess.run(inside, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        if done.returncode or "trusted" in done.stdout:
            failures.append(f"in a user namespace: {done}")
finally:
    os.chdir("/")
    if SHOAL:
        subprocess.run(["umount", "-l", place.path], stderr=subprocess.DEVNULL)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
