//! The memory of an idle store.
//!
//! Owns: when the region lets go of its memory, and that everything reads as before. Left out: what
//! the memory itself does (`shoal-host`), and crashes (in the other tests a rest follows every
//! checkpoint).

use std::sync::Arc;

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Fs, Ino, Options};
use shoal_sim::SimClock;

use crate::devices::{create, read};
use crate::store::{Boot, Setup, Watch, format, open_with};

const MIB: usize = 1 << 20;
const S_NS: u64 = 1_000_000_000;

fn open(packs: bool) -> (Fs, Arc<SimClock>, Vec<(u8, Ino)>) {
    let setup = Setup { region_bytes: 64 << 20, ..Setup::region_only(MemoryKind::Logged) };
    let world = format(setup, 3).snapshot().process_crash().open();
    let clock = Arc::new(SimClock::new(S_NS.cast_signed()));
    let pack_age = Options::default().pack_age.filter(|_| packs);
    let options = Options { no_atime: true, pack_age, ..Options::default() };
    let (fs, _) = open_with(setup, &world, Boot::first(true), &Watch::default(), options, &clock).unwrap().unwrap();
    let files: Vec<_> = (0..20u8).map(|number| (number, create(&fs, &[b'a' + number]))).collect();
    for &(number, file) in &files {
        assert_eq!(fs.write(file, 0, &vec![number + 1; MIB]), Ok(MIB));
    }
    assert!(fs.region().private_bytes().unwrap() > 20 * MIB as u64);
    (fs, clock, files)
}

#[test]
fn an_idle_store_lets_go_of_its_memory_once() {
    let (fs, clock, files) = open(false);
    assert_eq!(fs.upkeep().rest(), Ok(false), "somebody has just committed");
    clock.advance(6 * S_NS);
    assert_eq!(fs.upkeep().rest(), Ok(true));
    assert_eq!(fs.region().private_bytes(), Some(0));
    for &(number, file) in &files {
        assert_eq!(read(&fs, file, MIB as u64 - 5, 5), Ok(vec![number + 1; 5]), "file {number}");
    }
    clock.advance(100 * S_NS);
    assert_eq!(fs.upkeep().rest(), Ok(false), "nothing has changed");
    // A little is not worth it.
    fs.write(files[0].1, 0, b"new").unwrap();
    assert_eq!(fs.upkeep().rest(), Ok(false));
    clock.advance(100 * S_NS);
    assert_eq!(fs.upkeep().rest(), Ok(false));
    assert_eq!(read(&fs, files[0].1, 0, 5), Ok(b"new\x01\x01".to_vec()));
    fs.shutdown().unwrap();
}

#[test]
fn a_store_does_not_rest_before_it_has_packed() {
    let (fs, clock, _) = open(true);
    assert_eq!(fs.upkeep().rest(), Ok(false));
    clock.advance(10 * S_NS);
    assert_eq!(fs.upkeep().rest(), Ok(false), "there are files to be packed");
}
