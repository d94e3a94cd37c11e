#!/usr/bin/env python3
# Set-id bits go with a write, a truncation or an ACL by who lacks CAP_FSETID (or the group), and stay with who has it: the
# capability counts, not the user. Callers are made with setpriv(1).
# case: timeout_s=60
import os
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
for name, command in (("truncate", TRUNCATE), ("write", WRITE), ("O_TRUNC", OPEN_TRUNCATE)):
    expect(f"{name} by root", after(BY_ROOT, 0o6755, *command), 0o6755)
    expect(f"{name} by root without the capability", after(BY_ROOT_WITHOUT, 0o6755, *command), 0o755)
    expect(f"{name} by its owner", after(BY_USER, 0o6775, *command, uid=USER), 0o775)
    expect(f"{name}, no group execution", after(BY_USER, 0o2664, *command, uid=USER, gid=USER), 0o2664)
expect("fallocate by root", after(BY_ROOT, 0o6755, *ALLOCATE), 0o6755)
expect("fallocate by its owner", after(BY_USER, 0o6775, *ALLOCATE, uid=USER), 0o775)

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
