//! The engine called in-process, on one thread: creates with 1 KiB of data, look-ups with attributes, unlinks.
//!
//! `cargo bench -p shoal-fs --bench engine -- [packed] [FILES...]` prints, for each memory kind and number of files, operations a
//! second as the median of five rounds with the spread. Memory lies in /dev/shm (battery) or the log under
//! the target directory (logged). Not a criterion bench: a round must start from an empty store, and one round is
//! already a million operations. With `packed` the inodes are packed before the look-ups.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_format::superblock::{Geometry, MemoryKind};
use shoal_fs::{Caller, FormatOptions, Fs, Ino, Options, Parts, ROOT};
use shoal_host::{HostImage, PrivateMap, SegmentLog, SharedKind, SharedMap, SystemClock};
use shoal_media::{ImageFile, PersistentMemory};

const ROUNDS: usize = 5;
const SEED: u64 = 42;

fn geometry(kind: MemoryKind, files: u64) -> Geometry {
    Geometry {
        memory_kind: kind,
        uuid: [1; 16],
        region_bytes: (files * 1400 + (64 << 20)).next_multiple_of(1 << 20),
        bulk_blocks: 0,
        ring_bytes: 4 << 20,
        threshold: 1 << 20,
        hash_seed: SEED,
        created_ns: 0,
    }
}

struct Store {
    paths: Vec<PathBuf>,
    fs: Fs,
}

impl Drop for Store {
    fn drop(&mut self) {
        for path in &self.paths {
            let _ = std::fs::remove_file(path);
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

fn open(kind: MemoryKind, files: u64) -> Store {
    let geometry = geometry(kind, files);
    let format = FormatOptions { geometry, sums: true, root_mode: 0o755, root_uid: 0, root_gid: 0 };
    let clock = || Arc::new(SystemClock::new());
    let (boot_id, nonce) = ([3; 16], [4; 16]);
    if kind == MemoryKind::Battery {
        let path = PathBuf::from(format!("/dev/shm/shoal-bench-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let memory: Arc<dyn PersistentMemory> =
            Arc::new(SharedMap::create(&path, geometry.region_bytes, SharedKind::Battery).unwrap());
        // Battery-backed RAM is there before the program starts; the pages of /dev/shm are there
        // only after a first write.
        memory.zero(0, geometry.region_bytes);
        let parts = || shoal_region::Parts { memory: memory.clone(), log: None, images: None, boot_id, nonce };
        Fs::format(Parts { region: parts(), bulk: None, clock: clock() }, &format).unwrap();
        let parts = Parts { region: parts(), bulk: None, clock: clock() };
        return Store { paths: vec![path], fs: Fs::open(parts, options()).unwrap().0 };
    }
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("engine-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let images: [Arc<HostImage>; 2] =
        [0, 1].map(|i| Arc::new(HostImage::create(&dir.join(format!("image.{i}"))).unwrap()));
    let log = Arc::new(SegmentLog::create(&dir.join("log"), 32 << 20).unwrap());
    let parts = |memory: Arc<dyn PersistentMemory>| shoal_region::Parts {
        memory,
        log: Some(log.clone()),
        images: Some(images.clone().map(|image| image as Arc<dyn ImageFile>)),
        boot_id,
        nonce,
    };
    let memory = Arc::new(PrivateMap::new(geometry.region_bytes, None).unwrap());
    Fs::format(Parts { region: parts(memory), bulk: None, clock: clock() }, &format).unwrap();
    let as_files = images.clone().map(|image| image as Arc<dyn ImageFile>);
    let (newest, superblock, anchor) = shoal_region::newest_image(&as_files).unwrap();
    let image = (images[newest].file(), anchor.used_bytes.get());
    let memory = Arc::new(PrivateMap::new(superblock.region_bytes, Some(image)).unwrap());
    let parts = Parts { region: parts(memory), bulk: None, clock: clock() };
    Store { paths: vec![dir], fs: Fs::open(parts, options()).unwrap().0 }
}

/// Returns options with which inodes are cold at once; nothing is packed unless a round does it.
fn options() -> Options {
    Options { pack_age: Some(Duration::ZERO), ..Options::default() }
}

/// Directories of at most this many files, as trees have them.
const PER_DIR: u64 = 10_000;

fn name(buffer: &mut [u8; 8], number: u64) -> &[u8] {
    let mut rest = number % PER_DIR;
    buffer.copy_from_slice(b"f0000000");
    for place in (1..8).rev() {
        buffer[place] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    buffer
}

/// Packs all inodes.
fn pack(fs: &Fs) {
    while fs.compacting().pack_inodes_step(u32::MAX).unwrap().more {}
    let packed = fs.compacting().packed_inodes().unwrap();
    println!("{} inodes packed, {:.1} bytes each", packed.inodes, packed.bytes as f64 / packed.inodes as f64);
}

fn round(kind: MemoryKind, files: u64, packed: bool) -> [f64; 3] {
    let store = open(kind, files);
    let fs = &store.fs;
    let caller = Caller::default();
    let dirs: Vec<Ino> = (0..files.div_ceil(PER_DIR))
        .map(|d| fs.mkdir(&caller, ROOT, format!("d{d}").as_bytes(), 0o755).unwrap().ino)
        .collect();
    let dir = |number: u64| dirs[(number / PER_DIR) as usize];
    let data = [7u8; 1024];
    let mut buffer = [0; 8];
    let start = Instant::now();
    for number in 0..files {
        let attr = fs.mknod(&caller, dir(number), name(&mut buffer, number), 0o100644, 0).unwrap();
        fs.write(attr.ino, 0, &data).unwrap();
    }
    let created = start.elapsed();
    if packed {
        pack(fs);
    }
    // A full-period walk visits every file once, in no order.
    let step = (files / 2 + 1..).find(|step| gcd(*step, files) == 1).unwrap();
    let start = Instant::now();
    let mut at = 0;
    for _ in 0..files {
        at = (at + step) % files;
        std::hint::black_box(fs.lookup(dir(at), name(&mut buffer, at)).unwrap());
    }
    let looked_up = start.elapsed();
    let start = Instant::now();
    for number in 0..files {
        fs.unlink(dir(number), name(&mut buffer, number)).unwrap();
    }
    let unlinked = start.elapsed();
    [created, looked_up, unlinked].map(|time| files as f64 / time.as_secs_f64())
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn main() {
    let packed = std::env::args().any(|arg| arg == "packed");
    let mut sizes: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![10_000, 100_000, 1_000_000];
    }
    println!("ops/s, median of {ROUNDS} rounds (min-max), one thread, seed {SEED}");
    for kind in [MemoryKind::Battery, MemoryKind::Logged] {
        for &files in &sizes {
            let rounds: Vec<[f64; 3]> = (0..ROUNDS).map(|_| round(kind, files, packed)).collect();
            let figure = |which: usize| {
                let mut values: Vec<f64> = rounds.iter().map(|round| round[which]).collect();
                values.sort_by(f64::total_cmp);
                format!("{:>9.0} ({:.0}-{:.0})", values[ROUNDS / 2], values[0], values[ROUNDS - 1])
            };
            println!(
                "{:>8} {files:>8} files: create+1KiB {}  lookup {}  unlink {}",
                kind.name(),
                figure(0),
                figure(1),
                figure(2)
            );
        }
    }
}
