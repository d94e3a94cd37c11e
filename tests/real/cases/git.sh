#!/bin/bash
# A repository of 2,000 files and 50 commits: cloned, worked in, packed and checked on the store.
# case: timeout_s=90 memory=logged,battery
set -eu
trap 'echo "line $LINENO: $BASH_COMMAND"; git -C "$CASE_DIR/clone" status --short | head' ERR
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t HOME=$SCRATCH
export GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'
git config --global gc.auto 0
git init -q -b main "$SCRATCH/origin"
# Through fast-import: the same commits on every machine, in a second.
python3 - <<'PY' | git -C "$SCRATCH/origin" fast-import --quiet
import random, sys
r = random.Random(5)
out = sys.stdout
names = [f"d{i % 40}/s{i % 7}/file{i}.txt" for i in range(2000)]
for commit in range(50):
    text = f"commit {commit}\n"
    out.write(f"commit refs/heads/main\ncommitter t <t@t> {1700000000 + commit} +0000\ndata {len(text)}\n{text}")
    for name in names if commit == 0 else r.sample(names, 60):
        body = "".join(f"{r.getrandbits(60):x}\n" for _ in range(r.randint(1, 200)))
        out.write(f"M 100644 inline {name}\ndata {len(body)}\n{body}\n")
PY
git clone -q "file://$SCRATCH/origin" clone
cd clone
[ "$(git ls-files | wc -l)" = 2000 ]
[ -z "$(git status --porcelain)" ]
git fsck --strict --no-progress
git checkout -q -b work HEAD~20
for i in 1 2 3 4 5; do
    for f in $(git ls-files | awk "NR % 50 == $i"); do echo "change $i" >>"$f"; done
    git mv "d$i" "moved$i"
    git commit -q -a -m "change $i"
done
git rebase -q HEAD~2
git merge -q -s ours main -m merge
git repack -q -a -d
git gc -q --prune=now
git fsck --strict --no-progress
git checkout -q main
[ -z "$(git status --porcelain)" ]
[ "$(git rev-parse main)" = "$(git -C "$SCRATCH/origin" rev-parse main)" ]
git push -q origin work
# Two worktrees and a clone by hard links.
git worktree add -q ../second work
git -C ../second status --porcelain
git clone -q --local . ../third
git -C ../third fsck --no-progress
