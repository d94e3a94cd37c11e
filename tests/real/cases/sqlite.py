#!/usr/bin/env python3
# The sqlite3 shell in both journal modes: inserts, a kill -9 in the middle, integrity, nothing committed is lost.
# case: timeout_s=90 memory=logged,battery
import os
import signal
import subprocess
import sys
import time


def sql(name, text):
    done = subprocess.run(["sqlite3", "-batch", "-bail", name], input=text, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        sys.exit(f"sqlite3 {name}: {done.stderr}")
    return done.stdout


for mode in ("wal", "delete", "truncate", "persist"):
    name = f"{mode}.db"
    out = sql(name, f"pragma journal_mode={mode}; create table t(k integer primary key, v blob, w text);")
    assert out.strip() == mode, f"{name}: journal mode is {out!r}"
    rows = "".join(f"insert into t values({k}, randomblob({k % 900}), 'row {k}');\n" for k in range(2000))
    sql(name, f"begin;{rows}commit; create index i on t(w);")
    # One transaction a row, acknowledged on stdout after its commit; killed in the middle.
    writer = subprocess.Popen(
        ["sqlite3", "-batch", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    acknowledged = 0
    for k in range(2000, 2400):
        writer.stdin.write(f"insert into t values({k}, randomblob(5000), 'single'); select {k};\n")
        writer.stdin.flush()
        if k < 2300:
            assert writer.stdout.readline().strip() == str(k)
            acknowledged = k
    time.sleep(0.02)
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    acknowledged = int(rest[-1]) if rest else acknowledged
    writer.wait()
    assert sql(name, "pragma integrity_check;").strip() == "ok", name
    most = int(sql(name, "select max(k) from t;"))
    count = int(sql(name, "select count(*) from t;"))
    assert most in (acknowledged, acknowledged + 1) and count == most + 1, (name, acknowledged, most, count)
    sql(name, "update t set w = w || 'x' where k % 3 = 0; delete from t where k % 5 = 0; vacuum;")
    assert sql(name, "pragma integrity_check;").strip() == "ok", name
    # Two writers at once: the locks of the file decide.
    two = [
        subprocess.Popen(["sqlite3", "-batch", "-bail", name], stdin=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for index, process in enumerate(two):
        base = 10000 * (index + 1)
        rows = "".join(f"insert into t values({base + k}, 'v', 'w');" for k in range(100))
        process.stdin.write(f".timeout 30000\n{rows}\n")
        process.stdin.close()
    assert [p.wait(60) for p in two] == [0, 0], name
    assert int(sql(name, "select count(*) from t where k >= 10000;")) == 200, name
    assert sql(name, "pragma integrity_check;").strip() == "ok", name
    print(f"{mode}: killed after row {acknowledged}, {most} found")
