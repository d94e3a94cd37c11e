//! `statfs` while a store is filled: as much fits as it says is free.
//!
//! Owns: the promise at a tenth, half and nine tenths of the way to a full store, in bytes for
//! small files and in inodes for empty ones. Left out: room after deletions, and files about as
//! long as a unit of `statfs` (`compaction`).

use std::sync::Arc;

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Fs, Options, ROOT};
use shoal_sim::{Random, SimClock, is_due};

use crate::store::{Boot, CALLER, Setup, Watch, format, open_at, open_with};

/// Contents of the files of a run.
#[derive(Clone, Copy, Debug)]
enum Contents {
    Random,
    /// Compresses to a fraction.
    Text,
}

/// Free space as `statfs` reports it at a moment.
#[derive(Clone, Copy, Debug)]
struct Said {
    bytes: u64,
    files: u64,
}

fn said(fs: &Fs) -> Said {
    let stat = fs.statfs();
    Said { bytes: stat.available * u64::from(stat.block_bytes), files: stat.files_free }
}

/// Creates files of `len` bytes until there is no room. Returns how many fitted, and what `statfs`
/// said before each of them.
fn fill(setup: Setup, len: usize, contents: Contents) -> (u64, Vec<Said>) {
    let world = format(setup, 7);
    let clock = Arc::new(SimClock::new(1_000_000_000));
    let (fs, _) = open_at(setup, &world, 1, 1, &clock).expect("a new store opens");
    fill_open(&fs, len, contents)
}

fn fill_open(fs: &Fs, len: usize, contents: Contents) -> (u64, Vec<Said>) {
    let mut random = Random::new(len as u64);
    let mut promises = Vec::new();
    let mut dir = ROOT;
    loop {
        let number = promises.len();
        promises.push(said(fs));
        if number.is_multiple_of(1000) {
            match fs.mkdir(&CALLER, ROOT, format!("d{number}").as_bytes(), 0o755) {
                Ok(made) => dir = made.ino,
                Err(Error::NoSpace(_)) => return (number as u64, promises),
                Err(error) => panic!("{error}"),
            }
        }
        let bytes = match contents {
            Contents::Random => random.bytes(len),
            Contents::Text => {
                format!("{number} reads of a line like every other line\n").into_bytes().repeat(len)[..len].to_vec()
            }
        };
        let made = fs.mknod(&CALLER, dir, format!("f{number:07}").as_bytes(), 0o644, 0);
        match made.and_then(|file| if len == 0 { Ok(0) } else { fs.write(file.ino, 0, &bytes) }) {
            Ok(written) => assert_eq!(written, len),
            Err(Error::NoSpace(_)) => return (number as u64, promises),
            Err(error) => panic!("{error}"),
        }
    }
}

fn setup(kind: MemoryKind) -> Setup {
    Setup { kind, region_bytes: 512 << 16, bulk_blocks: 0, ..Setup::default() }
}

/// Returns what `statfs` said on the way to a full store, as shares of what fitted from then on.
fn shares(fitted: u64, promises: &[Said], of: impl Fn(&Said, u64) -> f64) -> [f64; 3] {
    [10, 50, 90].map(|percent| {
        let at = fitted * percent / 100;
        of(&promises[at as usize], fitted - at)
    })
}

#[test]
fn small_files_fit_into_the_bytes_that_are_said_to_be_free() {
    for (kind, turn) in [MemoryKind::Logged, MemoryKind::Battery].into_iter().zip(0..) {
        let all = [300, 1024, 3000].into_iter().flat_map(|len| [(len, Contents::Random), (len, Contents::Text)]);
        for ((len, contents), _) in all.zip(turn..).filter(|(_, number)| is_due(*number, 6)) {
            let (fitted, promises) = fill(setup(kind), len, contents);
            let shares = shares(fitted, &promises, |said, left| said.bytes as f64 / (left * len as u64) as f64);
            println!("{}, {len} bytes, {contents:?}: {shares:.3?}", kind.name());
            assert!(shares.iter().all(|&share| share <= 1.1), "{}, {len} {contents:?}: {shares:?}", kind.name());
            // Compressible files are packed before a store is full. Nobody knows how far they will
            // shrink, so `statfs` says less.
            let least = if let Contents::Random = contents { 0.9 } else { 0.0 };
            assert!(shares.iter().all(|&share| share >= least), "{}, {len} {contents:?}: {shares:?}", kind.name());
        }
    }
}

#[test]
fn empty_files_fit_into_the_inodes_that_are_said_to_be_free() {
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        let (fitted, promises) = fill(setup(kind), 0, Contents::Text);
        let shares = shares(fitted, &promises, |said, left| said.files as f64 / left as f64);
        println!("{}: {shares:.3?}", kind.name());
        assert!(shares.iter().all(|share| (0.9..=1.02).contains(share)), "{}: {shares:?}", kind.name());
        // Long files can still have half of what is left.
        let half = &promises[fitted as usize / 2];
        assert!(half.bytes > half.files * 50, "{half:?}");
    }
}

#[test]
fn a_process_that_may_use_less_memory_says_so_and_keeps_no_more_of_it_than_it_must() {
    let setup = Setup { region_bytes: 1024 << 16, ..setup(MemoryKind::Logged) };
    let (world, clock) = (format(setup, 7), Arc::new(SimClock::new(1_000_000_000)));
    let most = 64 << 16;
    let opened = |opening, region_bytes_max| {
        let boot = Boot { boot: 1, opening, keeps_trimmed: true };
        let options = Options { region_bytes_max, no_atime: true, ..Options::default() };
        open_with(setup, &world, boot, &Watch::default(), options, &clock).unwrap().expect("it opens").0
    };
    let fs = opened(1, Some(most));
    let (fitted, promises) = fill_open(&fs, 3000, Contents::Random);
    let shares = shares(fitted, &promises, |said, left| said.bytes as f64 / (left * 3000) as f64);
    assert!(shares.iter().all(|share| (0.8..=1.1).contains(share)), "{shares:?}");
    // All fits except for the reserve, which is that of so small a region.
    let bytes = fitted * 3000;
    assert!(bytes < most && bytes * 10 > most * 7, "{bytes} of {most}");
    fs.shutdown().unwrap();
    drop(fs);
    // The limit was the process's, not the store's.
    let fs = opened(2, None);
    assert!(said(&fs).bytes > 40 << 20, "{:?}", said(&fs));
}
