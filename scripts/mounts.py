"""Mounts of Shoal and its peers that an experiment of the lab compares. A place is one of

  shoal-logged, shoal-battery   the build given by --shoal, its stores on the same disk (and, for battery, in memory)
  LABEL=BINARY[:MEMORY][:OPTIONS]
                                another build or other mount options: MEMORY is logged (the default) or battery
  tmpfs, ramfs                  what memory alone can do
  ext2, ext4, xfs, btrfs        on loop devices with direct I/O, files of the same disk
  bindfs                        over tmpfs: what FUSE alone costs
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

from limits import memory_cgroup

LOOPS = {
    # As Conquest met it: a directory is searched name by name.
    "ext2": ("mkfs.ext2", "-q", "-F", "-O", "^dir_index"),
    "ext4": ("mkfs.ext4", "-q", "-F"),
    "xfs": ("mkfs.xfs", "-q", "-f"),
    "btrfs": ("mkfs.btrfs", "-q", "-f"),
}
MEMORIES = ("logged", "battery")
OWN = tuple(f"shoal-{memory}" for memory in MEMORIES)
PEERS = ("tmpfs", "ramfs", *LOOPS, "bindfs")


def fail(why):
    sys.exit(f"{os.path.basename(sys.argv[0])}: {why}")


def run(*command, timeout=120):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        fail(f"{' '.join(command)}: {error}")
    if done.returncode:
        fail(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


class Store:
    """A place that is a store: which program serves it, and how."""

    def __init__(self, label, shoal, memory, options):
        self.label, self.shoal, self.memory, self.options = label, os.path.abspath(shoal), memory, options
        # The label names directories, beside those with a dot in their names.
        if not re.fullmatch(r"[A-Za-z0-9_-]+", label):
            fail(f"{label!r} is no label; use letters, digits, hyphens and underscores")
        if not os.access(self.shoal, os.X_OK):
            fail(f"{label}: {self.shoal} is no program; build it, or name another one")


def place_of(text, shoal, options):
    """The label of a place, and its store if it is one."""
    label, is_store, rest = text.partition("=")
    if text in PEERS:
        return text, None
    if text in OWN:
        return text, Store(text, shoal, text.removeprefix("shoal-"), options)
    if not is_store:
        fail(f"{text} is no place; give {', '.join((*OWN, *PEERS))} or LABEL=BINARY[:MEMORY][:OPTIONS]")
    binary, _, rest = rest.partition(":")
    memory, _, others = rest.partition(":")
    # Options may have colons of their own, as in update_policy=aipu:30s.
    if memory in ("", *MEMORIES):
        rest = others
    return label, Store(label, binary, memory if memory in MEMORIES else MEMORIES[0], rest)


class Mounts:
    def __init__(self, base, loop_bytes):
        self.base, self.loop_bytes = base, loop_bytes
        # What is mounted, each with the program that unmounts it; directories by label.
        self.mounted, self.at = [], {}

    def make(self, label, store):
        at = f"{self.base}/{label}"
        os.mkdir(at)
        away = ("umount", at)
        if store:
            self.serve(store, at)
            away = (store.shoal, "umount", at)
        elif label in ("tmpfs", "ramfs"):
            run("mount", "-t", label, label, at)
        elif label == "bindfs":
            below = f"{self.base}/bindfs.below"
            os.mkdir(below)
            run("mount", "-t", "tmpfs", "tmpfs", below)
            self.mounted.append(("umount", below))
            run("bindfs", "--multithreaded", below, at)
        else:
            self.mount_loop(label, at)
        self.mounted.append(away)
        self.at[label] = at

    def serve(self, store, at):
        memory = store.memory
        if memory == "battery":
            memory += f"=/dev/shm/{os.path.basename(self.base)}-{store.label}"
        directory = f"{self.base}/{store.label}.store"
        run(store.shoal, "format", "--memory", memory, "--bulk-size", str(self.loop_bytes), directory)
        run(store.shoal, "mount", *(["-o", store.options] if store.options else []), directory, at)

    def mount_loop(self, label, at):
        image = f"{self.base}/{label}.image"
        with open(image, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, self.loop_bytes)
        device = run("losetup", "--find", "--show", "--direct-io=on", image)
        try:
            run(*LOOPS[label], device)
            run("mount", "-t", label, device, at)
        finally:
            # Gone when it is unmounted, however this program ends.
            run("losetup", "--detach", device)

    def away(self):
        for command in reversed(self.mounted):
            subprocess.run(command, capture_output=True, timeout=120)
        for name in os.listdir("/dev/shm"):
            if name.startswith(os.path.basename(self.base)):
                os.unlink(f"/dev/shm/{name}")


def compare(experiment, description, places):
    """Runs `shoal lab run EXPERIMENT` on the places that the command line chooses, and ends with its exit code."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shoal", default="target/release/shoal", help="this build; it runs the lab, too")
    parser.add_argument("--dir", default=None, help="where stores and images lie: one disk")
    parser.add_argument("--places", default=",".join(places), help="separated by commas [%(default)s]")
    parser.add_argument("--place", action="append", default=[], help="one more, such as old=/usr/bin/shoal:logged:noxattr,threads=8; repeatable")
    parser.add_argument("--mount-options", default="", help="of shoal-logged and shoal-battery, such as transport=uring,writeback")
    parser.add_argument("--loop-bytes", type=int, default=12 << 30, help="size of each loop device, and of the bulk storage")
    parser.add_argument("--memory", type=int, help="limit for everything (bytes)")
    parser.add_argument("lab", nargs="*", metavar="WORD", help=f"options of `shoal lab run {experiment}`, behind --")
    options = parser.parse_args()
    shoal = os.path.abspath(options.shoal)
    chosen = [text for text in options.places.split(",") if text] + options.place
    chosen = [place_of(text, shoal, options.mount_options) for text in chosen]
    for number, (label, _) in enumerate(chosen):
        if label in [earlier for earlier, _ in chosen[:number]]:
            fail(f"two places are called {label}; give one of them another label")
    if options.memory:
        memory_cgroup(options.memory)
    with tempfile.TemporaryDirectory(prefix=f"shoal-{experiment}-", dir=options.dir) as base:
        mounts = Mounts(base, options.loop_bytes)
        try:
            for label, store in chosen:
                mounts.make(label, store)
            at = [word for label, path in mounts.at.items() for word in ("--at", f"{label}={path}")]
            began = time.monotonic()
            code = subprocess.run([shoal, "lab", "run", experiment, *at, *options.lab]).returncode
            print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
        finally:
            mounts.away()
    sys.exit(code)
