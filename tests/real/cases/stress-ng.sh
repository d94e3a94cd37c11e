#!/bin/bash
# stress-ng's file-system stressors that meet a mounted file system (others of its class meet /proc, pipes, inotify).
# Each checks what it does (--verify); the list is the one that ext4 passes.
# case: timeout_s=150 memory=logged
set -u
stressors="access chdir chmod chown copy-file dentry dir dirdeep dirmany fallocate fcntl file-ioctl filename flock
    fpunch fstat getdent hdd io iomix lease link locka lockf lockofd mknod open rename seek symlink sync-file touch
    utime xattr"
failed=
for stressor in $stressors; do
    # Bounded by operations too: some would use the whole time for one pass.
    if ! timeout 30 stress-ng --temp-path "$CASE_DIR" --verify --seed 9 --timeout 1s --"$stressor" 1 \
        --hdd-bytes 16m --fallocate-bytes 16m --iomix-bytes 16m --copy-file-bytes 128m --seek-size 16m \
        --dirdeep-inodes 500 --dentries 500 >"$SCRATCH/out" 2>&1; then
        failed="$failed $stressor"
    elif grep -qE 'fail:|fail [0-9]' "$SCRATCH/out"; then
        failed="$failed $stressor"
    fi
    echo "== $stressor"
    cat "$SCRATCH/out"
    case " $failed " in *" $stressor "*) cat "$SCRATCH/out" >>"$SCRATCH/failed" ;; esac
done
[ -z "$failed" ] || { cat "$SCRATCH/failed"; echo "failed:$failed"; exit 1; }
