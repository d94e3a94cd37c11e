//! Single operations of the engine under criterion, on `battery` memory in a warm store of 10,000 files.
//!
//! `cargo bench -p shoal-fs --bench operations`. For whole-store rounds from empty to full see `engine`. Memory is a file in
//! /dev/shm that is removed at the end.

use std::hint::black_box;
use std::path::PathBuf;
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{Caller, FormatOptions, Fs, Options, Parts, ROOT, SetAttr};
use shoal_host::{SharedKind, SharedMap, SystemClock};
use shoal_media::PersistentMemory;

const FILES: u64 = 10_000;

fn store(path: &PathBuf) -> Fs {
    let geometry = Geometry {
        memory_kind: MemoryKind::Battery,
        uuid: [1; 16],
        region_bytes: 128 << 20,
        bulk_blocks: 0,
        ring_bytes: 4 << 20,
        threshold: 1 << 20,
        hash_seed: 42,
        created_ns: 0,
    };
    let _ = std::fs::remove_file(path);
    let map = SharedMap::create(path, geometry.region_bytes, SharedKind::Battery).expect("room in /dev/shm");
    let memory: Arc<dyn PersistentMemory> = Arc::new(map);
    let parts = || Parts {
        region: shoal_region::Parts {
            memory: memory.clone(),
            log: None,
            images: None,
            boot_id: [3; 16],
            nonce: [4; 16],
        },
        bulk: None,
        clock: Arc::new(SystemClock::new()),
    };
    let format = FormatOptions { geometry, sums: true, root_mode: 0o755, root_uid: 0, root_gid: 0 };
    Fs::format(parts(), &format).expect("a new store");
    Fs::open(parts(), Options::default()).expect("the new store").0
}

fn operations(criterion: &mut Criterion) {
    let path = PathBuf::from(format!("/dev/shm/shoal-operations-{}", std::process::id()));
    let fs = store(&path);
    let caller = Caller::default();
    let data = [7; 1024];
    let names: Vec<String> = (0..FILES).map(|n| format!("f{n:07}")).collect();
    let mut last = ROOT;
    for name in &names {
        last = fs.mknod(&caller, ROOT, name.as_bytes(), 0o100644, 0).expect("room").ino;
        fs.write(last, 0, &data).expect("room");
    }
    let mut at = 0;
    let mut next = || {
        at = (at + 7919) % names.len();
        names[at].as_bytes()
    };
    criterion.bench_function("lookup", |b| b.iter(|| black_box(fs.lookup(ROOT, next()))));
    criterion.bench_function("getattr", |b| b.iter(|| black_box(fs.getattr(last))));
    criterion.bench_function("setattr mode", |b| {
        b.iter(|| fs.setattr(last, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).expect("a live file"))
    });
    criterion.bench_function("create, write 1 KiB, unlink", |b| {
        b.iter(|| {
            let ino = fs.mknod(&caller, ROOT, b"new", 0o100644, 0).expect("room").ino;
            fs.write(ino, 0, &data).expect("room");
            fs.unlink(ROOT, b"new").expect("just made");
        })
    });
    criterion.bench_function("overwrite 1 KiB", |b| b.iter(|| fs.write(last, 0, &data).expect("in place")));
    let mut buffer = [0; 1024];
    criterion
        .bench_function("read 1 KiB", |b| b.iter(|| fs.read(last, 0, black_box(&mut buffer)).expect("a live file")));
    criterion.bench_function("rename", |b| {
        b.iter(|| {
            fs.rename(ROOT, b"f0000000", ROOT, b"moved", shoal_fs::RenameMode::Replace).expect("there");
            fs.rename(ROOT, b"moved", ROOT, b"f0000000", shoal_fs::RenameMode::Replace).expect("there");
        })
    });
    criterion.bench_function("readdir of 10,000", |b| {
        b.iter(|| {
            let mut count = 0;
            fs.readdir(ROOT, 0, &mut |entry| {
                count += entry.name.len();
                true
            })
            .expect("a directory");
            count
        })
    });
    let _ = std::fs::remove_file(&path);
}

criterion_group!(benches, operations);
criterion_main!(benches);
