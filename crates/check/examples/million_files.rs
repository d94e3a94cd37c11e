//! Checks an image of a million files of 1 KB in memory and prints how long it took.
//!
//! Run: `cargo run --release -p shoal-check --example million_files [FILES]`
//! Left out: reading from a disk. The figure is the checker's processor time on one core, with everything cached.

#[path = "../tests/store/mod.rs"]
mod store;

use std::time::Instant;

use shoal_check::{ImageSource, Source, check};
use shoal_format::inode::S_IFDIR;
use shoal_format::superblock::MemoryKind;
use store::media::Image;
use store::{Store, empty_inode};

/// Entries of a directory: as many as the builder's eight buckets hold for any distribution of hashes.
const FANOUT: u32 = 100;

fn main() {
    let files: u32 = std::env::args().nth(1).map_or(1_000_000, |n| n.parse().expect("number of files"));
    let mut store = Store::new(MemoryKind::Logged, files as u64 / 64 * 5 / 4 + 100);
    let (mut ino, mut group, mut directory) = (2, 1, 1);
    for i in 0..files {
        let inside = empty_inode(S_IFDIR | 0o755);
        if i % (FANOUT * FANOUT) == 0 {
            group = ino;
            store.add(1, format!("group-{ino}").as_bytes(), ino, inside);
            ino += 1;
        }
        if i % FANOUT == 0 {
            directory = ino;
            store.add(group, format!("directory-{ino}").as_bytes(), ino, inside);
            ino += 1;
        }
        store.add_data(directory, format!("file-{i:07}.txt").as_bytes(), ino, &[i as u8; 1024]);
        ino += 1;
    }
    store.finish();
    let log = store.log_device();
    let image = Image(store.into_image());
    let nothing = Image(Vec::new());
    println!("image: {} MiB", image.0.len() >> 20);
    for sums in [true, false] {
        let image = ImageSource::Images([&image, &nothing]);
        let source = Source { sums, ..Source::of(image, Some(&log)) };
        let started = Instant::now();
        let report = check(source, &mut |_| {}).expect("memory can be read");
        println!("sums {sums}: {:?}, {} files, {} errors", started.elapsed(), report.counts.files, report.errors.len());
    }
}
