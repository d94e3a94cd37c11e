#!/usr/bin/env python3
# Names: every byte but / and NUL, 255 bytes long, 256 refused; paths of depth 500 and up to PATH_MAX.
# case: timeout_s=60
import errno
import os
import random
import shutil

odd = [bytes([b]) for b in range(1, 256) if b not in b"/."]
odd += [b"...", b" ", b"  ", b"-rf", b"a\nb", b"\xff\xfe", b"caf\xc3\xa9", b"cafe\xcc\x81", b"*", b"~", b"A", b"a", b".hidden"]
odd += [b"x" * 255, b"\xff" * 255, b"\xe2\x82\xac" * 85]
names = sorted(set(odd))
os.mkdir("names")
for name in names:
    with open(b"names/" + name, "wb") as file:
        file.write(name)
assert sorted(os.listdir(b"names")) == names
for name in names:
    assert open(b"names/" + name, "rb").read() == name
for name in (b"y" * 256, b"\xff" * 4000):
    for call in (lambda p: os.close(os.open(p, os.O_CREAT)), os.mkdir, lambda p: os.symlink("a", p), os.stat):
        try:
            call(b"names/" + name)
            raise AssertionError(f"a name of {len(name)} bytes was taken")
        except OSError as error:
            assert error.errno == errno.ENAMETOOLONG, error
for name in names:
    os.rename(b"names/" + name, b"names/" + name[::-1] + (b"" if len(name) > 200 else b"!"))
assert len(os.listdir(b"names")) == len(names)
shutil.rmtree(b"names")
# 500 directories deep, then long ones up to the limit of a path.
here = os.getcwd()
for k in range(500):
    os.mkdir(f"d{k}")
    os.chdir(f"d{k}")
open("bottom", "w").write("deep")
assert open("../d499/bottom").read() == "deep"
os.chdir(here)
assert os.path.getsize("/".join(f"d{k}" for k in range(500)) + "/bottom") == 4
parts = "/".join(f"d{k}" for k in range(250))
os.rename(parts, "middle")
assert os.path.getsize("middle/" + "/".join(f"d{k}" for k in range(250, 500)) + "/bottom") == 4
shutil.rmtree("d0")
shutil.rmtree("middle")
path = "l" * 250
while len(path) + 251 < 4000:
    os.mkdir(path)
    path += "/" + "l" * 250
# Names that collide in short hashes or differ in one bit only.
r = random.Random(3)
base = bytes(r.randrange(1, 256) for _ in range(60)).replace(b"/", b"_")
flipped = {bytes(b ^ (1 << bit) if i == at else b for i, b in enumerate(base)) for at in range(60) for bit in range(8)}
flipped = {n for n in flipped if b"/" not in n and b"\0" not in n}
os.mkdir("bits")
for name in flipped:
    os.mkdir(b"bits/" + name)
assert set(os.listdir(b"bits")) == flipped and os.stat("bits").st_nlink == len(flipped) + 2
