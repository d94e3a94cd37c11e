#!/usr/bin/env python3
# Python's own tests of its file modules, with their temporary files on the store; the failures are compared with the
# recorded ones. Tests that skip themselves where a file system lacks a feature must not do so here.
# case: timeout_s=120
import os
import subprocess
import sys
import xml.etree.ElementTree as tree

MODULES = "test_os test_shutil test_mmap test_posix test_tempfile test_glob test_pathlib".split()
# Python skips these quietly on a file system without the feature.
MUST_RUN = [
    "test_os.ExtendedAttributeTests.test_simple",
    "test_os.ExtendedAttributeTests.test_lpath",
    "test_os.LinkTests.test_link",
    "test_os.TestSendfile.test_send_whole_file",
    "test_os.UtimeTests.test_utime",
    "test_posix.PosixTester.test_posix_fallocate",
    "test_posix.PosixTester.test_posix_fadvise",
    "test_posix.PosixTester.test_mkfifo",
    "test_posix.PosixTester.test_mknod",
    "test_shutil.TestCopy.test_copyxattr",
    "test_shutil.TestZeroCopySendfile.test_regular_copy",
]

interpreter = sys.executable
for candidate in (sys.executable, "/usr/bin/python3"):
    if subprocess.run([candidate, "-c", "import test.test_os"], capture_output=True).returncode == 0:
        interpreter = candidate
        break
else:
    print("no Python here has its own tests; install libpython3.11-testsuite")
    sys.exit(77)

scratch = os.environ["SCRATCH"]
report = os.path.join(scratch, "report.xml")
command = [interpreter, "-m", "test", "--tempdir", os.getcwd(), "--junit-xml", report, "--timeout", "60", *MODULES]
code = subprocess.run(command, env={**os.environ, "TMPDIR": os.getcwd()}).returncode

failed, ran = set(), set()
for case in tree.parse(report).iter("testcase"):
    name = case.get("name").removeprefix("test.")
    if case.find("failure") is not None or case.find("error") is not None:
        failed.add(name)
    elif case.find("skipped") is None:
        ran.add(name)

with open(os.path.join(os.environ["REAL"], "expected", "python.txt")) as file:
    expected = {line.split()[0] for line in file if line.strip() and not line.startswith("#")}
print(f"exit {code}, {len(ran)} passed, {len(failed)} failed")
skipped = [name for name in MUST_RUN if name not in ran | failed]
if skipped:
    print("skipped though they must run: " + " ".join(skipped))
if failed - expected:
    print("failed, and not on ext4: " + " ".join(sorted(failed - expected)))
# A crash of the interpreter leaves a report without failures.
sys.exit(1 if failed - expected or skipped or (code != 0 and not failed) or len(ran) < 700 else 0)
