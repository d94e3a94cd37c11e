#!/usr/bin/env python3
# Set-id bits go with a write, a truncation or an ACL by who lacks CAP_FSETID (or the group), and stay with who has it: the
# capability counts, not the user. A change of owner takes them whoever makes it. Callers are made with setpriv(1).
# case: timeout_s=60
import os
import platform
import stat
import subprocess
import sys

USER, GROUP = 54321, 54322
BY_ROOT = []
BY_ROOT_WITHOUT = ["setpriv", "--bounding-set=-fsetid", "--inh-caps=-fsetid"]
BY_USER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
BY_MEMBER = ["setpriv", f"--reuid={USER}", f"--regid={USER}", f"--groups={GROUP}"]

if os.getuid() != 0:
    print("only root can change who it is")
    sys.exit(77)
os.chmod(".", 0o777)

failures = []


def after(caller, mode, *command, uid=0, gid=0):
    """The mode that a file has after the command was run on it."""
    with open("file", "w") as file:
        file.write("content")
    os.chown("file", uid, gid)
    os.chmod("file", mode)
    assert stat.S_IMODE(os.stat("file").st_mode) == mode
    subprocess.run(caller + list(command), check=True, timeout=20)
    left = stat.S_IMODE(os.stat("file").st_mode)
    os.unlink("file")
    return left


def expect(what, found, expected):
    if found != expected:
        failures.append(f"{what}: {found:o}, {expected:o} expected")


TRUNCATE = ["truncate", "-s", "3", "file"]
WRITE = ["dd", "if=/dev/zero", "of=file", "bs=2", "count=1", "conv=notrunc", "status=none"]
OPEN_TRUNCATE = ["sh", "-c", ": >file"]
ALLOCATE = ["fallocate", "-l", "9000", "file"]
COPY = ["/usr/bin/python3", "-c", "import os; f = os.open('file', os.O_RDWR); os.copy_file_range(f, f, 2, 0, 4)"]
for name, command in (("truncate", TRUNCATE), ("write", WRITE), ("O_TRUNC", OPEN_TRUNCATE)):
    expect(f"{name} by root", after(BY_ROOT, 0o6755, *command), 0o6755)
    expect(f"{name} by root without the capability", after(BY_ROOT_WITHOUT, 0o6755, *command), 0o755)
    expect(f"{name} by its owner", after(BY_USER, 0o6775, *command, uid=USER), 0o775)
    expect(f"{name}, no group execution", after(BY_USER, 0o2664, *command, uid=USER, gid=USER), 0o2664)
# Set-group-id without group execution is no program's: it goes when somebody outside of the group changes the file (Linux 6.2).
KEPT = 0o2664 if tuple(map(int, platform.release().split(".")[:2])) < (6, 2) else 0o664
for name, command in (("truncate", TRUNCATE), ("write", WRITE), ("O_TRUNC", OPEN_TRUNCATE), ("fallocate", ALLOCATE), ("copy", COPY)):
    what = f"{name}, no group execution, "
    expect(what + "root", after(BY_ROOT, 0o2664, *command, gid=GROUP), 0o2664)
    expect(what + "its owner from outside of the group", after(BY_USER, 0o2664, *command, uid=USER, gid=GROUP), KEPT)
    expect(what + "another user from outside of the group", after(BY_USER, 0o2666, *command, gid=GROUP), KEPT | 0o002)
    expect(what + "a member", after(BY_MEMBER, 0o2664, *command, uid=USER, gid=GROUP), 0o2664)
    expect(what + "set-user-id too, a member", after(BY_MEMBER, 0o6664, *command, uid=USER, gid=GROUP), 0o2664)
expect("write, no group execution, root without the capability", after(BY_ROOT_WITHOUT, 0o2664, *WRITE, gid=GROUP), KEPT)
for name, command in (("fallocate", ALLOCATE), ("copy", COPY)):
    expect(f"{name} by root", after(BY_ROOT, 0o6755, *command), 0o6755)
    expect(f"{name} by its owner", after(BY_USER, 0o6775, *command, uid=USER), 0o775)

CHOWN_NOTHING = ["/usr/bin/python3", "-c", "import os; os.chown('file', -1, -1)"]
# A change of owner takes them away though nothing changes, and from root, too.
for name, command in (
    ("to the same owner", ["chown", "0:0", "file"]),
    ("of the group alone", ["chgrp", "0", "file"]),
    ("of nothing", CHOWN_NOTHING),
    ("to another owner", ["chown", f"{USER}:{GROUP}", "file"]),
):
    expect(f"root's chown {name}", after(BY_ROOT, 0o6755, *command), 0o755)
    expect(f"root's chown {name}, without the capability", after(BY_ROOT_WITHOUT, 0o6755, *command), 0o755)
    expect(f"root's chown {name}, no group execution", after(BY_ROOT, 0o6744, *command), 0o2744)
OWN_GROUP = ["chgrp", str(GROUP), "file"]
expect("a member's chgrp to the same group", after(BY_MEMBER, 0o6755, *OWN_GROUP, uid=USER, gid=GROUP), 0o755)
expect("a member's chgrp, no group execution", after(BY_MEMBER, 0o6744, *OWN_GROUP, uid=USER, gid=GROUP), 0o2744)
left = after(BY_USER, 0o2744, "chgrp", str(USER), "file", uid=USER, gid=GROUP)
expect("a stranger's chgrp, no group execution", left, KEPT & 0o7000 | 0o744)
expect("the owner's chown of nothing", after(BY_USER, 0o6755, *CHOWN_NOTHING, uid=USER, gid=USER), 0o755)
STRANGER = ["/usr/bin/python3", "-c", "import contextlib, os\nwith contextlib.suppress(OSError): os.chown('file', -1, -1)"]
expect("a stranger's chown of nothing", after(BY_USER, 0o6755, *STRANGER), 0o6755)
os.mkdir("directory", 0o755)
os.chmod("directory", 0o6755)
os.chown("directory", 0, 0)
expect("chown of a directory", stat.S_IMODE(os.stat("directory").st_mode), 0o6755)

# An access ACL is a change of mode, by who must be in the file's group.
ACL = ["setfacl", "-m", "u:12345:r", "file"]
expect("ACL by root", after(BY_ROOT, 0o2754, *ACL, gid=GROUP) & 0o7000, 0o2000)
expect("ACL by root without the capability", after(BY_ROOT_WITHOUT, 0o2754, *ACL, gid=GROUP) & 0o7000, 0)
expect("ACL by an outsider", after(BY_USER, 0o2754, *ACL, uid=USER, gid=GROUP) & 0o7000, 0)
expect("ACL by a member", after(BY_MEMBER, 0o2754, *ACL, uid=USER, gid=GROUP) & 0o7000, 0o2000)
expect("ACL in the caller's group", after(BY_USER, 0o2754, *ACL, uid=USER, gid=USER) & 0o7000, 0o2000)
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
