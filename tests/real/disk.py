"""The layer of `disk.c` for a test: built, mounted, told to cut the power or to let a write go astray."""

import os
import random
import subprocess
import tempfile
import time

from stores import HERE, ShoalError, is_mounted, system, unmount_or_detach


class Disk:
    """A file system below stores, in `place`. A cut loses any part of what was not synced, and is a directory of its own."""

    def __init__(self, seed):
        self.draw, self.top = random.Random(seed), tempfile.mkdtemp(prefix="shoal-disk-", dir=os.environ.get("SHOAL_TMP", "/tmp"))
        os.chmod(self.top, 0o755)
        self.below, self.fs = self.sub("below"), self.sub("fs")
        self.after, self.place = os.path.join(self.top, "after"), os.path.join(self.fs, "place")
        self.program, self.at = os.path.join(self.top, "disk"), self.place
        system("gcc", "-O2", "-w", "-I/usr/include/fuse3", "-o", self.program, os.path.join(HERE, "disk.c"), "-lfuse3", "-lpthread")
        self.log = os.path.join(self.top, "disk.log")
        self.up()
        os.mkdir(self.place)

    def up(self):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen([self.program, self.below, self.fs], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        for _ in range(200):
            if is_mounted(self.fs):
                return
            time.sleep(0.05)
        raise ShoalError(f"the layer does not mount: {self.told()}")

    def sub(self, name):
        path = os.path.join(self.top, name)
        os.mkdir(path)
        return path

    def command(self, text):
        power = os.open(os.path.join(self.fs, ".power"), os.O_WRONLY)
        try:
            os.write(power, text.encode())
        finally:
            os.close(power)

    def told(self):
        with open(self.log) as log:
            return log.read()

    def cut(self):
        """The power fails, for what is in `after` from now on; the life of the layer goes on. Returns `place` there."""
        self.command(f"cut {self.after} {self.draw.getrandbits(32)}")
        return os.path.join(self.after, "place")

    def power_fails(self):
        """What the last cut left is the disk from now on. Its users are gone."""
        self.down()
        now = os.path.join(self.below, "now")
        system("rm", "-rf", now)
        os.rename(self.after, now)
        self.up()

    def power_on(self):
        pass

    def forget(self):
        system("rm", "-rf", self.after)

    def down(self):
        unmount_or_detach(self.fs)
        self.process.kill()
        self.process.wait()

    def remove(self):
        self.down()
        system("rm", "-rf", "--one-file-system", self.top)

    # As a host of `bulk_model`.
    end = remove
