"""What the NBD tests share: processes, scratch places, certificates, and how tests are run and counted.

A test is a function of a `World`, which ends every process and removes every file it made. A program that is not
installed skips the test loudly.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MIB = 1 << 20
SHOAL = os.environ.get("SHOAL", os.path.join(ROOT, "target/release/shoal"))
# nbdsh's module belongs to the system's Python.
SYSTEM_PYTHON = dict(os.environ, PATH="/usr/bin:" + os.environ["PATH"])
TESTS = []

# Whoever ends the test, its mounts and servers end with it.
if "SHOAL_ALONE" not in os.environ:
    os.execv(os.path.join(ROOT, "tests", "alone"), ["alone", *sys.orig_argv])


class Skip(Exception):
    """A program is missing."""


def test(function):
    TESTS.append(function)
    return function


def need(*programs):
    for program in programs:
        if not shutil.which(program):
            raise Skip(f"{program} is not installed")


def run(*command, ok=True, timeout=60, **options):
    """Runs a program; returns what it said. With ok=False it must fail, but not by a signal or a time-out."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          stdin=subprocess.DEVNULL, timeout=timeout, **options)
    text = done.stdout.decode(errors="replace")
    good = done.returncode == 0 if ok else 0 < done.returncode < 128
    assert good, f"{' '.join(map(str, command))}: exit {done.returncode}\n{text}"
    assert "panicked" not in text, text
    return text


def wait_for(what, condition, limit_s=20):
    deadline = time.time() + limit_s
    while not condition():
        assert time.time() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.05)


def ended(child, limit_s=60):
    """Waits for the end of a program. Says where its threads are if it takes longer than ten seconds."""
    try:
        return child.wait(10)
    except subprocess.TimeoutExpired:
        threads = os.path.join("/proc", str(child.pid), "task")
        for thread in os.listdir(threads):
            for name in "comm wchan syscall stack".split():
                try:
                    with open(os.path.join(threads, thread, name)) as file:
                        print(f"     {child.args[0]} has not ended: thread {thread}: {name}: {file.read().strip()}", flush=True)
                except OSError as error:
                    print(f"     {thread}: {name}: {error}", flush=True)
    return child.wait(limit_s)


def fio_job(said):
    """What fio measured, from its --output-format=json."""
    return json.loads(said[said.index("{"):])["jobs"][0]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A server of any kind, ended with the test. `ready` must accept: a socket's path, a port, or (host, port)."""

    def __init__(self, world, *command, ready, **options):
        self.log = open(world.path(f"log{len(world.processes)}"), "w+")
        self.child = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=self.log,
                                      stderr=subprocess.STDOUT, **options)
        self.ends_with_input = str(command[0]).endswith("/serve")
        world.processes.append(self)
        deadline = time.time() + 10
        while not self.accepts(ready):
            assert self.child.poll() is None, f"{command[0]} ended: {self.said()}"
            assert time.time() < deadline, f"{command[0]} does not listen: {self.said()}"
            time.sleep(0.02)

    @staticmethod
    def accepts(ready):
        try:
            if not isinstance(ready, str):
                socket.create_connection(("127.0.0.1", ready) if isinstance(ready, int) else ready, 1).close()
            else:
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(ready)
            return True
        except OSError:
            return False

    def said(self):
        with open(self.log.name) as log:
            return log.read()

    def end(self):
        """Closes standard input, which ends our example; others are told by signal."""
        self.child.stdin.close()
        try:
            self.child.wait(2 if self.ends_with_input else 0)
        except subprocess.TimeoutExpired:
            self.child.terminate()
            try:
                self.child.wait(5)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()
        if not self.log.closed:
            self.log.close()


class World:
    """A scratch directory and the processes of one test."""

    def __init__(self, binaries):
        self.binaries, self.processes = binaries, []
        self.directory = tempfile.mkdtemp(prefix="nbd-")

    def path(self, name):
        return os.path.join(self.directory, name)

    def end_all(self):
        for process in reversed(self.processes):
            process.end()
        self.processes = []

    def close(self):
        self.end_all()
        shutil.rmtree(self.directory, ignore_errors=True)

    def serve(self, source="memory:64", *options, tcp=False, name="disk"):
        """Starts our server; returns its URI."""
        self.socket = self.path(f"s{len(self.processes)}")
        self.port = free_port()
        address = f"127.0.0.1:{self.port}" if tcp else f"unix:{self.socket}"
        self.ours = Process(self, self.binaries + "/serve", address, source, "--name", name, *options,
                            ready=self.port if tcp else self.socket)
        return f"nbd://127.0.0.1:{self.port}/{name}" if tcp else f"nbd+unix:///{name}?socket={self.socket}"

    def copy(self, *arguments, **options):
        return run(self.binaries + "/copy", *arguments, **options)

    def data(self, name="data", mib=64, sparse=False):
        path = self.path(name)
        with open(path, "wb") as file:
            if sparse:
                file.write(os.urandom(3 * MIB))
                file.seek(40 * MIB)
                file.write(os.urandom(5 * MIB))
                file.truncate(mib * MIB)
            else:
                file.write(os.urandom(mib * MIB))
        return path

    def empty(self, name, mib=64):
        path = self.path(name)
        with open(path, "wb") as file:
            file.truncate(mib * MIB)
        return path

    def certificates(self, directory, name="localhost", key_of=None):
        """An authority, a server and a client certificate, under the file names NBD programs use."""
        need("openssl")
        at = self.path(directory)
        os.mkdir(at)
        quiet = dict(cwd=at)
        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca-key.pem", "-out", "ca-cert.pem",
            "-days", "2", "-subj", "/CN=authority", **quiet)
        with open(at + "/extensions", "w") as file:
            file.write(f"subjectAltName=DNS:{name},IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
        for party in ("server", "client"):
            run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{party}-key.pem", "-out", "request",
                "-subj", f"/CN={party}", **quiet)
            run("openssl", "x509", "-req", "-in", "request", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem",
                "-CAcreateserial", "-days", "2", "-extfile", "extensions", "-out", f"{party}-cert.pem", **quiet)
        return at


class Proxy:
    """The way to a donor. What goes there can be stalled and go on later, also when its connection has ended. `listen`: a path; without
    one it listens on a port. `trap`: called with what passes to the donor, before and after."""

    def __init__(self, target, listen=None):
        self.target, self.trap, self.held, self.ends = target, None, set(), set()
        self.change = threading.Condition()
        if listen:
            self.listener = socket.socket(socket.AF_UNIX)
            self.listener.bind(listen)
            self.listener.listen(64)
        else:
            self.listener = socket.create_server(("127.0.0.1", 0))
            self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self.target)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self.change:
                self.ends.add(pair)
            threading.Thread(target=self.pump, args=(client, server, pair, True), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, pair, False), daemon=True).start()

    def pump(self, source, sink, pair, to_donor):
        try:
            while data := source.recv(1 << 16):
                trap = self.trap if to_donor else None
                if trap:
                    trap(self, data, False)
                if to_donor:
                    with self.change:
                        self.change.wait_for(lambda: pair not in self.held, 60)
                sink.sendall(data)
                if trap:
                    trap(self, data, True)
        except OSError:
            pass
        with self.change:
            if not to_donor:
                # The client learns of it; what the connection held still arrives.
                self.shut([sink])
                self.change.wait_for(lambda: pair not in self.held, 60)
            self.ends.discard(pair)
        self.shut(pair)

    @staticmethod
    def shut(ends):
        for end in ends:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def stall(self):
        """Of the connections so far nothing more reaches the donor until `release`."""
        with self.change:
            self.held |= self.ends

    def release(self):
        with self.change:
            self.held.clear()
            self.change.notify_all()

    def reset(self):
        with self.change:
            pairs = list(self.ends)
        for pair in pairs:
            self.shut(pair)

    def close(self):
        self.release()
        self.reset()
        self.listener.close()


def same(one, two, count=None):
    with open(one, "rb") as a, open(two, "rb") as b:
        left = count if count is not None else 1 << 62
        while left:
            x, y = a.read(min(MIB, left)), b.read(min(MIB, left))
            assert x == y, f"{one} and {two} differ"
            if not x:
                return
            left -= len(x)


def donate(world, name, size="64M", *more):
    path = world.path(name)
    return Process(world, SHOAL, "donate", "--memory", size, "--listen", f"unix:{path}", *more, ready=path)


def donors(world, count, size="64M", *more):
    """Donors of our own: texts for `netram:`, and their processes."""
    names = [f"donor{number}" for number in range(count)]
    return [f"unix:{world.path(name)}" for name in names], [donate(world, name, size, *more) for name in names]


def status(path):
    """Of the network RAM disk that is served there."""
    return json.loads(run(SHOAL, "status", "--json", f"unix:{path}"))["device"]["disk"]


def states(path):
    return [donor["state"] for donor in status(path)["donors"]]


def nbdkit(world, *arguments, tcp=False):
    need("nbdkit")
    if tcp:
        port = free_port()
        Process(world, "nbdkit", "-f", "-p", port, "-i", "127.0.0.1", *arguments, ready=port)
        return f"nbd://127.0.0.1:{port}/"
    path = world.path("k")
    Process(world, "nbdkit", "-f", "-U", path, *arguments, ready=path)
    return f"nbd+unix:///?socket={path}"


def main(binaries, names):
    passed = failed = skipped = 0
    for function in TESTS:
        name = function.__name__
        if names and not any(part in name for part in names):
            continue
        world, started = World(os.path.abspath(binaries)), time.time()
        try:
            function(world)
            passed += 1
            print(f"ok   {name} ({time.time() - started:.1f} s)", flush=True)
        except Skip as reason:
            skipped += 1
            print(f"SKIP {name}: {reason}", flush=True)
        except (AssertionError, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
            failed += 1
            print(f"FAIL {name}: {error}", flush=True)
            for process in world.processes:
                last = process.said().splitlines()[-5:]
                print("".join(f"     {process.child.args[0]}: {line}\n" for line in last), end="", flush=True)
        finally:
            world.close()
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""))
    sys.exit(failed > 0)
