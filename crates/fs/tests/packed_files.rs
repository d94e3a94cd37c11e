//! Packed files: the same bytes whatever form they have, an error for every flipped bit, and room
//! where none was left.
//!
//! Left out: packing between all operations and at every crash (`model`, `crash`).

use std::time::Duration;

use shoal_format::inode::{INODE_SUMMED, Layout};
use shoal_format::object::{GROUP, OBJECT_HEAD, Object};
use shoal_fs::{Error, FORMS, Form, Fs, Ino, Method, Options, SetAttr};
use shoal_media::PersistentMemory;
use shoal_region::View;
use shoal_sim::Random;

use crate::cold::{Store, create, options, setup};
use crate::crash::deep;
use crate::data_store::gate::each_seed;
use crate::packing::crowd::crowd;
use crate::packing::{alike, beside_a_move, room_meanwhile, written_meanwhile};

/// Returns bytes that compress, or do not.
fn data(seed: u64, len: usize, shrinks: bool) -> Vec<u8> {
    let mut out = vec![0; len];
    Random::new(seed).fill(&mut out);
    if shrinks {
        out.chunks_mut(40).for_each(|line| line.fill(line[0]));
    }
    out
}

fn file(fs: &Fs, name: &str, bytes: &[u8]) -> Ino {
    let ino = create(fs, name);
    assert_eq!(fs.write(ino, 0, bytes).unwrap(), bytes.len());
    ino
}

fn read(fs: &Fs, ino: Ino) -> Result<Vec<u8>, Error> {
    let mut out = vec![0; fs.getattr(ino)?.size as usize];
    let len = fs.read(ino, 0, &mut out)?;
    assert_eq!(len, out.len());
    Ok(out)
}

/// Makes files of each form.
fn each_form(fs: &Fs) -> Vec<(Form, Ino, Vec<u8>)> {
    let mut files = Vec::new();
    for (form, name, len, shrinks) in [
        (Form::Zstd, "short", 3000, true),
        (Form::Zstd, "chunks", 100_000, true),
        (Form::Zstd, "groups", 300_000, true),
        (Form::Summed, "noise", 3000, false),
        (Form::Summed, "in place", 70_000, false),
    ] {
        let bytes = data(len as u64, len, shrinks);
        files.push((form, file(fs, name, &bytes), bytes));
    }
    files
}

pub fn form_of(fs: &Fs, ino: Ino) -> Form {
    let report = fs.cooling().packing_of(ino).unwrap();
    let used: Vec<_> = FORMS.into_iter().zip(report.forms).filter(|(_, share)| share.groups > 0).collect();
    assert_eq!(used.len(), 1, "{used:?}");
    used[0].0
}

#[test]
fn every_form_holds_the_same_bytes_and_takes_less_where_it_can() {
    for method in [Method::Auto, Method::Lz4, Method::Zstd(9)] {
        let mut store = Store::new(setup());
        let fs = store.open_with(Options { method, ..options(None) });
        let files = each_form(&fs);
        let packing = fs.cooling().pack_all(&mut |_, _| {}).unwrap();
        assert_eq!((packing.groups, packing.summed, packing.busy), (5, 2, 0), "{packing:?}");
        assert!(packing.after < packing.before / 3 + 90_000, "{packing:?}");
        let mut random = Random::new(3);
        for (form, ino, bytes) in &files {
            let expected = if *form == Form::Zstd && method == Method::Lz4 { Form::Lz4 } else { *form };
            assert_eq!(form_of(&fs, *ino), expected);
            assert_eq!(&read(&fs, *ino).unwrap(), bytes);
            for _ in 0..50 {
                let at = random.below(bytes.len() as u64 + 10);
                let mut part = vec![0; random.below(50_000) as usize];
                let len = fs.read(*ino, at, &mut part).unwrap();
                let from = bytes.len().min(at as usize);
                assert_eq!(part[..len], bytes[from..bytes.len().min(from + part.len())]);
            }
            assert_eq!(fs.getattr(*ino).unwrap().rdev, 0, "the checksum is nobody's business");
        }
        assert_eq!(fs.cooling().pack_all(&mut |_, _| {}).unwrap(), Default::default(), "nothing is left to do");
        store.close(fs);
    }
}

/// Returns the places of a packed file's bytes in the region that a checksum covers or a reference
/// leads through.
fn covered(fs: &Fs, ino: Ino) -> Vec<(u64, u64)> {
    let placement = fs.placement(ino).unwrap();
    let inode = placement.inode;
    match inode.layout {
        Layout::Direct => {
            assert_ne!(inode.flags & INODE_SUMMED, 0);
            vec![(inode.root.offset().get(), inode.size)]
        }
        Layout::Packed => {
            let head = fs.region().read_vec(inode.root.offset(), OBJECT_HEAD).unwrap();
            let object = Object::decode(&head.try_into().unwrap()).unwrap();
            // The number of users is not part of the checksum.
            let end = object.payload_at() as u64 + u64::from(object.payload);
            vec![(inode.root.offset().get() + 4, end.min(inode.root.capacity()) - 4)]
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_flipped_bit_is_an_error_and_never_other_bytes() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let files = each_form(&fs);
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    let memory = store.world.memory(0);
    let mut random = Random::new(4);
    for (_, ino, bytes) in files.iter().filter(|(_, _, bytes)| bytes.len() as u64 <= GROUP) {
        for (at, len) in covered(&fs, *ino) {
            for _ in 0..400 {
                let (place, bit) = (at + random.below(len), 1 << random.below(8));
                let mut byte = [0];
                memory.read(place, &mut byte);
                memory.write(place, &[byte[0] ^ bit]);
                let found = read(&fs, *ino);
                assert!(
                    matches!(found, Err(Error::Corrupt(_))),
                    "byte {place:#x} of {at:#x}: {:?}",
                    found.map(|b| b == *bytes)
                );
                memory.write(place, &byte);
            }
        }
        assert_eq!(&read(&fs, *ino).unwrap(), bytes);
    }
}

#[test]
fn files_cool_are_packed_and_become_plain_by_a_change() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let bytes = data(1, 50_000, true);
    let ino = file(&fs, "f", &bytes);
    let tick = |seconds: u64| {
        for _ in 0..seconds * 10 {
            store.clock.advance(100_000_000);
            fs.cooling().pack_tick().unwrap();
        }
    };
    tick(25);
    assert_eq!(form_of(&fs, ino), Form::Plain, "it is young");
    tick(10);
    assert_eq!(form_of(&fs, ino), Form::Zstd);
    fs.write(ino, 7, b"new").unwrap();
    assert_eq!(form_of(&fs, ino), Form::Plain);
    let changed = [&bytes[..7], b"new", &bytes[10..]].concat();
    assert_eq!(read(&fs, ino).unwrap(), changed);
    tick(40);
    assert_eq!(form_of(&fs, ino), Form::Zstd);
    let packed = fs.cooling().packing_of(ino).unwrap();
    // A cut takes no room.
    fs.setattr(ino, &SetAttr { size: Some(20_000), ..SetAttr::default() }).unwrap();
    assert_eq!(fs.cooling().packing_of(ino).unwrap().all().stored, packed.all().stored);
    assert_eq!(read(&fs, ino).unwrap(), changed[..20_000]);
    fs.setattr(ino, &SetAttr { size: Some(40_000), ..SetAttr::default() }).unwrap();
    let mut grown = changed[..20_000].to_vec();
    grown.resize(40_000, 0);
    assert_eq!(read(&fs, ino).unwrap(), grown, "what was cut off does not come back");
    // An idle store has no work, and writes nothing.
    tick(40);
    let end = fs.region().last_lsn();
    tick(100);
    assert_eq!(fs.region().last_lsn(), end);
    store.close(fs);
}

#[test]
fn a_full_store_packs_what_has_cooled_before_it_refuses_a_write() {
    let written = |pack_age| {
        let mut store = Store::new(setup());
        let fs = store.open_as(pack_age);
        let mut files = Vec::new();
        for number in 0..2000 {
            store.clock.advance(10_000_000);
            let bytes = data(number, 30_000, true);
            let ino = create(&fs, &format!("f{number}"));
            match fs.write(ino, 0, &bytes) {
                Ok(len) if len == bytes.len() => files.push((ino, bytes)),
                Ok(_) | Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        for (ino, bytes) in &files {
            assert_eq!(&read(&fs, *ino).unwrap(), bytes);
        }
        store.close(fs);
        files.len()
    };
    let (plain, packed) = (written(None), written(Some(Duration::from_secs(3600))));
    println!("{plain} files plain, {packed} packed");
    assert!(packed > 3 * plain, "{plain} files plain, {packed} packed");
}

#[test]
fn files_of_many_sizes_are_written_to_a_store_that_only_packing_makes_large_enough() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let (mut files, mut random, mut written) = (Vec::new(), Random::new(9), 0);
    while written < 40 << 20 {
        let len = if random.below(4) == 0 { random.below(300_000) } else { random.below(20_000) } as usize + 1;
        let (bytes, ino) = (data(written, len, true), create(&fs, &format!("f{}", files.len())));
        for (part, at) in bytes.chunks(128 << 10).zip((0..).step_by(128 << 10)) {
            store.clock.advance(1_000_000);
            let outcome = fs.write(ino, at, part);
            assert_eq!(outcome.as_ref().ok(), Some(&part.len()), "{outcome:?} after {written} bytes: {:?}", fs.usage());
        }
        written += len as u64;
        files.push((ino, bytes));
    }
    for (ino, bytes) in &files {
        assert_eq!(&read(&fs, *ino).unwrap(), bytes);
    }
    store.close(fs);
}

#[test]
fn room_that_was_asked_for_and_holes_stay() {
    let mut store = Store::new(setup());
    let fs = store.open();
    let bytes = data(1, 10_000, true);
    let preallocated = file(&fs, "preallocated", &bytes);
    fs.fallocate(preallocated, 1, 0, 200_000).unwrap();
    let sparse = create(&fs, "sparse");
    fs.write(sparse, 0, &bytes).unwrap();
    fs.write(sparse, 100_000, &bytes).unwrap();
    let before = [preallocated, sparse].map(|ino| fs.getattr(ino).unwrap().blocks);
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
    assert_eq!([preallocated, sparse].map(|ino| fs.getattr(ino).unwrap().blocks), before);
    assert_eq!(fs.seek(sparse, 0, shoal_fs::Seek::Hole).unwrap(), 10_240);
}

#[test]
fn an_object_in_the_place_of_another_with_the_same_head_is_read_as_it_is() {
    alike();
}

#[test]
fn a_file_that_moves_to_the_bulk_device_is_not_packed_meanwhile() {
    beside_a_move();
}

#[test]
fn room_asked_for_while_a_file_is_packed_stays() {
    room_meanwhile();
}

#[test]
fn bytes_written_while_their_file_is_packed_stay() {
    written_meanwhile();
}

#[test]
fn threads_that_write_and_read_files_do_not_notice_that_they_are_packed() {
    let steps = if deep() { 10_000 } else { 400 };
    each_seed(24, |kind, seed| {
        let judged = crowd(kind, seed % 3 > 0, seed, steps);
        assert!(judged > steps, "seed {seed}: {judged} reads judged");
    });
}
