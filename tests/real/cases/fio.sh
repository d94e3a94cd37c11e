#!/bin/bash
# fio writes with checksums and reads back: three engines, small and large files, buffered and direct.
# case: timeout_s=90 memory=logged,battery
set -eu
run() {
    echo "fio $*"
    fio --directory="$CASE_DIR" --verify=crc32c --verify_fatal=1 --do_verify=1 --randseed=7 --fallocate=none \
        --group_reporting --output-format=terse "$@"
}
for engine in psync mmap libaio; do
    run --name="small-$engine" --ioengine=$engine --rw=randwrite --bs=4k --filesize=64k-256k --nrfiles=32 \
        --size=4m --io_size=4m --verify_state_save=0
    run --name="large-$engine" --ioengine=$engine --rw=randwrite --bs=16k --size=12m --numjobs=2 --fsync_on_close=1 \
        --verify_state_save=0
done
run --name=append --ioengine=psync --rw=write --bs=7k --size=9m --verify_state_save=0
run --name=direct-small --ioengine=libaio --direct=1 --iodepth=8 --rw=randwrite --bs=4k --size=768k \
    --verify_state_save=0
run --name=direct-large --ioengine=libaio --direct=1 --iodepth=16 --rw=randwrite --bs=64k --size=24m \
    --verify_state_save=0
# Written in one run, verified in another one, after the cache was dropped.
fio --directory="$CASE_DIR" --name=later --ioengine=psync --rw=write --bs=32k --size=8m --verify=crc32c --do_verify=0 \
    --verify_state_save=0 --end_fsync=1 --output-format=terse
{ echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null || true
fio --directory="$CASE_DIR" --name=later --ioengine=psync --rw=read --bs=32k --size=8m --verify=crc32c \
    --verify_fatal=1 --verify_state_save=0 --output-format=terse
