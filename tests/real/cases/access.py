#!/usr/bin/env python3
# Who gets in, by every combination of the mount options that say so, for a mount of root's and one of a user's: real processes of
# the mounter, of root, of another user, and of the mounter in another user's name (setfsuid), after all names are in the caches.
# case: timeout_s=120
import ctypes
import itertools
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import traceback

SHOAL = os.environ.get("SHOAL")
if not SHOAL:
    print("no store here: mount options are those of shoal")
    sys.exit(77)
if "OWN_NAMESPACE" not in os.environ:
    # Mounts over files of the machine must not be seen by the cases that run beside this one.
    os.environ["OWN_NAMESPACE"] = "1"
    # Nor must mounts of others live on here when they are unmounted there.
    alone = 'umount -a -i -l -t fuse.shoal; exec "$@"'
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", alone, "sh", sys.executable, *sys.argv])

# fusermount3 wants a user with a name.
USER, OTHER = (pwd.getpwnam(name).pw_uid for name in ("tests", "pjdfstest"))
GROUPS = {0: 0} | {uid: pwd.getpwuid(uid).pw_gid for uid in (USER, OTHER)}
LIBC = ctypes.CDLL(None, use_errno=True)
BASE = os.environ["SCRATCH"]
MOUNT = os.path.join(BASE, "mnt")
# `private` is another word for noallow_other.
ACCESS = ["", "allow_other", "allow_root", "noallow_other", "private"]
CHECKS = ["", "noxattr", "nodefault_permissions", "noxattr,nodefault_permissions"]
failures = []


def run(*command, user=0, timeout_s=60):
    """Runs shoal for a user; its exit code and its errors."""
    if user:
        command = ("setpriv", f"--reuid={user}", f"--regid={GROUPS[user]}", "--clear-groups", *command)
    with open(os.path.join(BASE, "said"), "w+") as said:
        code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=timeout_s).returncode
        said.seek(0)
        return code, said.read()


def become(uid, fsuid=None, euid=None):
    """All ids of the process, then those with which it uses files."""
    os.setgroups([])
    os.setresgid(GROUPS[uid], GROUPS[uid], GROUPS[uid])
    if fsuid is not None and uid:
        LIBC.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS, so that another fsuid can be taken
    os.setresuid(uid, uid if euid is None else euid, uid)
    if fsuid is not None:
        if uid:
            header = (ctypes.c_uint32 * 2)(0x20080522, 0)
            setuid = 1 << 7
            sets = (ctypes.c_uint32 * 6)(setuid, setuid, 0, 0, 0, 0)
            assert LIBC.capset(header, sets) == 0, "capset"
        LIBC.setfsgid(GROUPS[fsuid])
        LIBC.setfsuid(fsuid)
        assert LIBC.setfsuid(-1) == fsuid, "setfsuid"


def attempts(before, at):
    """What works for this process. `at`: the mount, or a directory descriptor opened before the process became another."""
    before()
    path = (lambda name: os.path.join(at, name)) if isinstance(at, str) else (lambda name: name)
    where = {} if isinstance(at, str) else {"dir_fd": at}

    def opened(name, flags):
        fd = os.open(path(name), flags, 0o666, **where)
        try:
            if flags == os.O_RDONLY:
                os.read(fd, 100)
            else:
                os.write(fd, b"overwritten")
        finally:
            os.close(fd)

    actions = {
        "read an open file": lambda: opened("open", os.O_RDONLY),
        "read a secret": lambda: opened("secret", os.O_RDONLY),
        "overwrite a secret": lambda: opened("secret", os.O_WRONLY),
        "overwrite an open file": lambda: opened("open", os.O_WRONLY),
        "read below a closed directory": lambda: opened("closed/file", os.O_RDONLY),
        "make a file": lambda: opened("made", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        "make a file below": lambda: opened("closed/made", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
        "remove a file": lambda: os.unlink(path("gone"), **where),
        "rename a file": lambda: os.rename(path("moved"), path("moved2"), **({"src_dir_fd": at, "dst_dir_fd": at} if where else {})),
        "make a directory": lambda: os.mkdir(path("madedir"), **where),
        "change a mode": lambda: os.chmod(path("secret"), 0o666, **where),
        "list a closed directory": lambda: os.close(os.open(path("closed"), os.O_RDONLY | os.O_DIRECTORY, **where)),
    }
    works = []
    for what, action in actions.items():
        try:
            action()
            works.append(what)
        except OSError:
            pass
    return works


def as_process(*arguments):
    """`attempts` in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.write(writer, json.dumps(attempts(*arguments)).encode())
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as answers:
        text = answers.read()
    assert os.waitpid(child, 0)[1] == 0, "the process failed"
    return json.loads(text)


def fill(mounter):
    """The files as before, all known to the kernel."""
    become(mounter)
    os.umask(0)
    for name in os.listdir(MOUNT):
        path = os.path.join(MOUNT, name)
        shutil.rmtree(path) if os.path.isdir(path) else os.unlink(path)
    os.mkdir(os.path.join(MOUNT, "closed"), 0o700)
    for name, mode in (("open", 0o644), ("secret", 0o600), ("closed/file", 0o666), ("gone", 0o666), ("moved", 0o666)):
        with open(os.path.join(MOUNT, name), "w") as file:
            file.write("content")
        os.chmod(os.path.join(MOUNT, name), mode)
    for name in ("open", "secret", "closed/file"):
        with open(os.path.join(MOUNT, name)) as file:
            file.read()
    os.listdir(os.path.join(MOUNT, "closed"))
    for directory in (MOUNT, os.path.join(MOUNT, "closed")):
        # The attributes of directories are asked for again after a change.
        os.stat(directory)


def in_child(what, *arguments):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            what(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    assert os.waitpid(child, 0)[1] == 0, f"{what.__name__}{arguments} failed"


def expect(label, who, works, allowed, needed=()):
    beyond, short = set(works) - set(allowed), set(needed) - set(works)
    if beyond:
        failures.append(f"{label}: {who} could {', '.join(sorted(beyond))}")
    if short:
        failures.append(f"{label}: {who} could not {', '.join(sorted(short))}")


def try_one(mounter, access, checks):
    words = ",".join(word for word in (access, checks) if word)
    label = f"{'root' if mounter == 0 else 'user'}, -o {words or '(none)'}"
    everybody = access == "allow_other" or access == "" and mounter == 0
    unchecked = "nodefault_permissions" in checks
    # Of users the kernel lets in one or all: not one and root.
    refused = unchecked and everybody or access == "allow_root" and mounter != 0
    code, said = run(SHOAL, "mount", store(mounter), MOUNT, "-o", words or "rw", user=mounter)
    if (code != 0) != refused:
        failures.append(f"{label}: {'was refused: ' + said if code else 'was mounted'}")
    if code != 0:
        if said.count("\n") != 1 or "; " not in said:
            failures.append(f"{label}: not one sentence with a remedy: {said}")
        return
    try:
        in_child(fill, mounter)
        directory = None
        if mounter == 0:
            directory = os.open(MOUNT, os.O_RDONLY | os.O_DIRECTORY)
        all_there_is = as_process(lambda: become(mounter), MOUNT)
        expect(label, "the mounter", all_there_is, all_there_is, ["read a secret", "make a file below", "change a mode"])
        in_child(fill, mounter)
        by_mode = ["read an open file"]
        if not unchecked:
            in_its_name = as_process(lambda: become(mounter, fsuid=OTHER), MOUNT)
            expect(label, "the mounter in another user's name", in_its_name, by_mode)
            if mounter == 0:
                in_child(fill, mounter)
                passed = as_process(lambda: become(0, fsuid=OTHER), directory)
                expect(label, "another fsuid with a descriptor of the directory", passed, by_mode)
        if directory is not None:
            os.close(directory)
        for who, before in (
            ("another user", lambda: become(OTHER)),
            ("root's process with another effective user", lambda: become(0, euid=OTHER)),
        ):
            in_child(fill, mounter)
            works = as_process(before, MOUNT)
            expect(label, who, works, by_mode if everybody else [], by_mode if everybody else [])
        in_child(fill, mounter)
        works = as_process(lambda: become(0), MOUNT)
        # The kernel lets root into the mount of a user only where it lets in everybody.
        lets_in = everybody or mounter == 0
        expect(label, "root", works, all_there_is if lets_in else [], ["read a secret"] if lets_in else [])
        if unchecked and mounter == 0:
            # A file server acts in the names of others (setfsuid), so it must not find the files by their handles.
            handle = (ctypes.c_uint32 * 34)(128)
            at = ctypes.c_int()
            if LIBC.name_to_handle_at(-100, os.path.join(MOUNT, "secret").encode(), handle, ctypes.byref(at), 0) == 0:
                failures.append(f"{label}: files have handles, by which a file server can export them")
    finally:
        code, said = run(SHOAL, "umount", MOUNT, user=mounter)
        if code:
            failures.append(f"{label}: umount: {said}")


def store(mounter):
    return os.path.join(BASE, f"store-{mounter}")


mounters = [0, USER] if shutil.which("fusermount3") else [0]
try:
    if USER in mounters:
        # A machine where users may mount, and share what they mount.
        conf, device = os.path.join(BASE, "fuse.conf"), os.path.join(BASE, "fuse")
        with open(conf, "w") as file:
            file.write("user_allow_other\n")
        open("/etc/fuse.conf", "a").close()
        subprocess.run(["mount", "--bind", conf, "/etc/fuse.conf"], check=True)
        os.mknod(device, stat.S_IFCHR, os.stat("/dev/fuse").st_rdev)
        os.chmod(device, 0o666)
        subprocess.run(["mount", "--bind", device, "/dev/fuse"], check=True)
    os.mkdir(MOUNT)
    for mounter in mounters:
        os.chown(MOUNT, mounter, GROUPS[mounter])
        os.mkdir(store(mounter), 0o700)
        os.chown(store(mounter), mounter, GROUPS[mounter])
        code, said = run(SHOAL, "format", store(mounter), "--memory-size", "32M", "--bulk", "none", user=mounter)
        assert code == 0, said
        for access, checks in itertools.product(ACCESS, CHECKS):
            try_one(mounter, access, checks)
finally:
    subprocess.run(["umount", "-l", MOUNT], stderr=subprocess.DEVNULL)
if USER not in mounters:
    print("no fusermount3: mounts of users were not tried")
for failure in failures:
    print(failure)
sys.exit(1 if failures else 0)
