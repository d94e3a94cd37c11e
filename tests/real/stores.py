"""Stores under test: format, mount, kill, unmount, check; each call has a time-out and never hangs on a dead mount.

The command line of `shoal` is used as a user would use it. Everything lives in one temporary directory that other
users may search (some tests switch users), so it is made under /tmp and not in the work tree.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CALL_TIMEOUT_S = 120

# Whoever ends the test, its mounts and daemons end with it.
if "SHOAL_ALONE" not in os.environ:
    os.execv(os.path.join(ROOT, "tests", "alone"), ["alone", *sys.orig_argv])


# A time-out from outside must not leave mounts behind: exit through the `finally` clauses.
def leave(*_):
    # timeout(1) signals the program and its group: the second one must not break off the clean-up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(143)


signal.signal(signal.SIGTERM, leave)


def target_dir():
    return os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target")


def tools_dir():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.environ.get("SHOAL_TOOLS") or os.path.join(cache, "shoal-tools")


def shoal_binary():
    """The binary under test: $SHOAL, or the release build."""
    path = os.environ.get("SHOAL") or os.path.join(target_dir(), "release", "shoal")
    if not os.access(path, os.X_OK):
        sys.exit(f"{path}: no such program; run `cargo build --release`, or set SHOAL")
    return path


def xtask_binary():
    path = os.environ.get("XTASK") or os.path.join(target_dir(), "release", "xtask")
    if not os.access(path, os.X_OK):
        sys.exit(f"{path}: no such program; run `cargo build --release -p xtask`, or set XTASK")
    return path


class ShoalError(Exception):
    """A command of `shoal` did not do what it must."""


def mount_options():
    """Of every mount; SHOAL_MOUNT_OPTIONS has further ones."""
    return ",".join(["allow_other"] + [o for o in [os.environ.get("SHOAL_MOUNT_OPTIONS")] if o])


def run(argv, timeout_s=CALL_TIMEOUT_S, env=None):
    """Runs a command with its output in files, so that a daemon which keeps stdout open cannot block us."""
    with tempfile.TemporaryFile("w+b") as out, tempfile.TemporaryFile("w+b") as err:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env, start_new_session=True
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = "time-out"
        out.seek(0)
        err.seek(0)
        return code, out.read().decode(errors="replace"), err.read().decode(errors="replace")


# How a host file system of each kind is made in a file or device.
MKFS = {
    "ext4": ["mkfs.ext4", "-q", "-F"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
    "btrfs": ["mkfs.btrfs", "-q", "-f"],
}


def system(*argv):
    """A command that must succeed."""
    code, out, err = run(list(argv), 60)
    if code != 0:
        raise ShoalError(f"{' '.join(argv)}: exit {code}: {(out + err).strip()}")


def unmount(path):
    """Unmounts, and waits for passers-by, who keep a mount busy for a moment. Is it unmounted?"""
    for _ in range(100):
        if not is_mounted(path) or run(["umount", path], 30)[0] == 0:
            return True
        time.sleep(0.1)
    return False


def unmount_or_detach(path):
    """Unmounts, whoever still looks at it."""
    if not unmount(path):
        system("umount", "-l", path)


def is_mounted(mountpoint):
    """From the kernel's table: stat() of a dead or hanging mount would fail or block."""
    with open("/proc/self/mountinfo", errors="surrogateescape") as table:
        return any(line.split()[4] == mountpoint for line in table)


def pid_exists(pid):
    """Is the process alive? A zombie counts as dead."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


class Store:
    """One formatted store and its mount point."""

    def __init__(self, memory="logged", memory_size="2G", bulk_size="8G", log=None, base=None):
        self.base = base or tempfile.mkdtemp(prefix="shoal-", dir=os.environ.get("SHOAL_TMP", "/tmp"))
        os.chmod(self.base, 0o755)
        self.store = os.path.join(self.base, "store")
        self.mountpoint = os.path.join(self.base, "mnt")
        self.bulk = os.path.join(self.base, "bulk")
        self.log = log or os.path.join(self.base, "daemon.log")
        self.memory_size, self.bulk_size = memory_size, bulk_size
        self.shm = None
        if memory == "battery":
            self.shm = tempfile.mkdtemp(prefix="shoal-", dir="/dev/shm")
            memory = "battery=" + os.path.join(self.shm, "region")
        self.memory = memory
        os.makedirs(self.mountpoint, exist_ok=True)

    def shoal(self, *arguments, timeout_s=CALL_TIMEOUT_S):
        return run([shoal_binary(), *arguments], timeout_s)

    def must(self, *arguments, timeout_s=CALL_TIMEOUT_S):
        code, out, err = self.shoal(*arguments, timeout_s=timeout_s)
        if code != 0:
            raise ShoalError(f"shoal {' '.join(arguments)}: exit {code}\n{out}{err}")
        return out

    def format_arguments(self):
        arguments = ["--memory", self.memory, "--memory-size", self.memory_size]
        if self.bulk_size:
            arguments += ["--bulk", "file:" + self.bulk, "--bulk-size", self.bulk_size]
        return arguments

    def format(self):
        self.must("format", self.store, *self.format_arguments())

    def mount(self, timeout_s=CALL_TIMEOUT_S):
        """Mounts through the daemonising command; its output (and the daemon's) goes to the log."""
        with open(self.log, "ab") as log:
            start = log.tell()
            process = subprocess.Popen(
                [shoal_binary(), "mount", self.store, self.mountpoint, "-o", mount_options()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = "time-out"
        if code != 0 or not is_mounted(self.mountpoint):
            with open(self.log, "rb") as log:
                log.seek(start)
                said = log.read().decode(errors="replace")
            raise ShoalError(f"shoal mount {self.store}: exit {code}, mounted: {is_mounted(self.mountpoint)}\n{said}")

    def mount_foreground(self):
        """Starts a mount that stays a child of ours: to kill it while it recovers."""
        with open(self.log, "ab") as log:
            return subprocess.Popen(
                [shoal_binary(), "mount", self.store, self.mountpoint, "--foreground", "-o", mount_options()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pid(self):
        try:
            with open(os.path.join(self.store, "pid")) as file:
                # The first line; what else the file tells is the daemon's own.
                return int(file.readline())
        except (FileNotFoundError, ValueError):
            # On a full host the file cannot be written.
            return self.lock_owner()

    def lock_owner(self):
        """The process that holds the store's lock, by the kernel's table."""
        lock = os.path.join(self.store, "lock")
        inode = os.stat(lock).st_ino
        with open("/proc/locks") as table:
            for line in table:
                words = line.split()
                if words[1] == "FLOCK" and int(words[5].split(":")[2]) == inode:
                    links = [os.path.join(f"/proc/{words[4]}/fd", name) for name in os.listdir(f"/proc/{words[4]}/fd")]
                    if lock in (os.readlink(link) for link in links if os.path.islink(link)):
                        return int(words[4])
        raise ValueError(f"{lock}: nobody holds it")

    def alive(self):
        try:
            return is_mounted(self.mountpoint) and pid_exists(self.pid())
        except (FileNotFoundError, ValueError):
            return False

    def kill(self):
        """SIGKILL to the daemon; returns once it is gone."""
        pid = self.pid()
        os.kill(pid, signal.SIGKILL)
        self.wait_gone(pid)

    def wait_gone(self, pid, timeout_s=30):
        deadline = time.monotonic() + timeout_s
        while pid_exists(pid):
            if time.monotonic() > deadline:
                raise ShoalError(f"daemon {pid} of {self.store} still runs {timeout_s} s after it should be gone")
            time.sleep(0.005)

    def detach(self):
        """Removes a mount whose daemon is dead."""
        for _ in range(20):
            if not is_mounted(self.mountpoint):
                return
            code, _, _ = run(["fusermount3", "-u", "-z", self.mountpoint], 10)
            if code != 0:
                run(["umount", "-l", self.mountpoint], 10)
        if is_mounted(self.mountpoint):
            raise ShoalError(f"{self.mountpoint}: cannot be unmounted")

    def umount(self, timeout_s=CALL_TIMEOUT_S):
        """A clean unmount; when it returns the daemon has finished with the store."""
        try:
            pid = self.pid()
        except (FileNotFoundError, ValueError):
            pid = None
        self.must("umount", self.mountpoint, timeout_s=timeout_s)
        if is_mounted(self.mountpoint):
            raise ShoalError(f"{self.mountpoint}: still mounted after `shoal umount`")
        if pid:
            self.wait_gone(pid)

    def check(self):
        """The store must be clean, and its daemon must not have panicked on the way."""
        for line in self.daemon_log().splitlines():
            if "panicked" in line:
                raise ShoalError(f"{self.store}/shoal.log: {line}")
        self.must("check", self.store, timeout_s=CALL_TIMEOUT_S * 2)

    def df(self):
        return json.loads(self.must("df", self.mountpoint, "--json"))

    def daemon_log(self):
        """What the daemon wrote while it was detached from our output."""
        try:
            with open(os.path.join(self.store, "shoal.log"), errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def abandon(self):
        """Ends the daemon whatever its state: for a mount that hangs or is left by a failed test."""
        try:
            pid = self.pid()
            with open(f"/proc/{pid}/cmdline", "rb") as command:
                # The file may be stale and the number used again: end only what serves this store.
                if self.store.encode() in command.read():
                    os.kill(pid, signal.SIGKILL)
        except (OSError, ValueError):
            pass
        self.detach()

    def cache(self):
        """The file of the write-back cache, if there is one."""
        try:
            with open(os.path.join(self.store, "cache")) as note:
                return note.readline().rstrip("\n")
        except FileNotFoundError:
            return None

    def remove(self):
        self.abandon()
        if self.cache():
            # What a killed daemon held would take memory until the next boot.
            run(["rm", "-f", self.cache()], 10)
        shutil.rmtree(self.base, ignore_errors=True)
        if self.shm:
            shutil.rmtree(self.shm, ignore_errors=True)
