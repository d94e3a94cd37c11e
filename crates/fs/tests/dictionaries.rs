//! Dictionaries of short files: trained when they pay, kept while files name them, mended from either copy.
//!
//! Left out: dictionaries added between other operations and at crashes (`model`, `enumeration`,
//! `resize`).

use std::mem::offset_of;

use shoal_check::{FindingKind, Remedy};
use shoal_format::SlotRef;
use shoal_format::dictionary::{DICTIONARIES_MAX, DICTIONARY_BYTES_MAX, DictionaryList, Listed};
use shoal_format::superblock::{FEATURE_DICTIONARIES, ROOTS_AT, Roots};
use shoal_fs::{Error, FORMS, Form, Fs, Ino, Method, Options, ROOT, Reading, SetAttr};
use shoal_media::PersistentMemory;
use shoal_region::View;
use shoal_sim::Random;

use crate::cold::{AGE, Store, create, options, setup};
use crate::store;

/// Returns a file of one kind of text. The numbers in it make files differ.
fn text(kind: u64, random: &mut Random) -> Vec<u8> {
    let mut words = Random::new(kind);
    let mut file = String::new();
    for _ in 0..20 {
        file += &format!("{:012x} = {:x}\n", words.below(1 << 48), random.below(1 << 16));
    }
    file.into_bytes()
}

struct Made {
    ino: Ino,
    bytes: Vec<u8>,
}

fn make(fs: &Fs, kind: u64, name: &str, count: u64) -> Vec<Made> {
    let mut random = Random::new(kind + 100);
    (0..count)
        .map(|number| {
            let (ino, bytes) = (create(fs, &format!("{name}{number}")), text(kind, &mut random));
            assert_eq!(fs.write(ino, 0, &bytes).unwrap(), bytes.len());
            Made { ino, bytes }
        })
        .collect()
}

fn read(fs: &Fs, file: &Made) -> Result<(), Error> {
    let mut out = vec![0; file.bytes.len()];
    fs.read(file.ino, 0, &mut out)?;
    assert!(out == file.bytes, "inode {} has other bytes", file.ino);
    Ok(())
}

fn has_dictionary(fs: &Fs, file: &Made) -> bool {
    let report = fs.cooling().packing_of(file.ino).unwrap();
    let form = FORMS.into_iter().zip(report.forms).find(|(_, share)| share.groups > 0);
    form.is_some_and(|(form, _)| form == Form::ZstdDictionary)
}

fn pack(fs: &Fs) {
    fs.cooling().pack_all(&mut |_, _| {}).unwrap();
}

fn roots(fs: &Fs) -> [SlotRef; 2] {
    let at = ROOTS_AT + offset_of!(Roots, dictionaries) as u64;
    [at, at + 8].map(|at| SlotRef::from_bits(fs.region().read_u64(at).unwrap()).unwrap())
}

/// Returns the list, which is the same in both copies.
fn listed(fs: &Fs) -> Vec<Listed> {
    let lists = roots(fs).map(|list| match list.is_none() {
        true => Vec::new(),
        false => DictionaryList::decode(&fs.region().read_vec(list.offset(), 208).unwrap()).unwrap(),
    });
    assert_eq!(lists[0], lists[1]);
    lists[0].clone()
}

#[test]
fn short_files_get_a_dictionary_when_it_pays_and_keep_their_bytes() {
    let mut taken = Vec::new();
    for method in [Method::Auto, Method::Lz4] {
        let mut store = Store::new(setup());
        let fs = store.open_with(Options { method, ..options(None) });
        let few = make(&fs, 1, "few", 100);
        pack(&fs);
        assert!(listed(&fs).is_empty(), "100 files are no reason for one");
        let many = make(&fs, 1, "many", 1000);
        pack(&fs);
        let expected = method == Method::Auto;
        assert_eq!(listed(&fs).len(), expected as usize);
        assert!(many.iter().all(|file| has_dictionary(&fs, file) == expected));
        assert!(!few.iter().any(|file| has_dictionary(&fs, file)), "objects stay as they are");
        taken.push(fs.cooling().packing_report().unwrap().all().stored);
        store.close(fs);
        let fs = store.open();
        few.iter().chain(&many).for_each(|file| read(&fs, file).unwrap());
        for file in &many[..50] {
            fs.write(file.ino, 5, b"changed").unwrap();
        }
        pack(&fs);
        assert!(many.iter().all(|file| has_dictionary(&fs, file) == expected));
        store.close(fs);
    }
    assert!(taken[0] * 3 < taken[1] * 2, "{taken:?}");
}

#[test]
fn noise_gets_none_and_background_work_trains_as_well() {
    let mut store = Store::new(setup());
    let fs = store.open();
    for number in 0..3000 {
        let mut noise = vec![0; 200];
        Random::new(number).fill(&mut noise);
        fs.write(create(&fs, &format!("noise{number}")), 0, &noise).unwrap();
    }
    tick(&store, &fs);
    assert!(listed(&fs).is_empty());
    let many = make(&fs, 1, "many", 3000);
    tick(&store, &fs);
    assert_eq!(listed(&fs).len(), 1);
    assert!(many.iter().all(|file| has_dictionary(&fs, file)));
    store.close(fs);
}

/// Runs background work until everything is packed.
fn tick(store: &Store, fs: &Fs) {
    store.clock.advance(20 * AGE.as_nanos() as u64);
    for _ in 0..600 {
        store.clock.advance(100_000_000);
        fs.cooling().pack_tick().unwrap();
    }
}

#[test]
fn other_contents_get_a_dictionary_of_their_own_and_the_old_one_goes_with_its_files() {
    let mut store = Store::new(store::Setup { region_bytes: 64 << 20, ..setup() });
    let fs = store.open();
    let old = make(&fs, 1, "old", 1000);
    tick(&store, &fs);
    assert_eq!(listed(&fs).len(), 1);
    let new = make(&fs, 2, "new", 18_000);
    tick(&store, &fs);
    let two = listed(&fs);
    assert_eq!((two.len(), two[0].number, two[1].number), (2, 2, 1));
    let later = make(&fs, 2, "later", 10);
    tick(&store, &fs);
    assert!(later.iter().all(|file| has_dictionary(&fs, file)));
    let small = |file: &Made| fs.cooling().packing_of(file.ino).unwrap().all().stored;
    assert!(small(&later[0]) < small(&new[0]), "{} {}", small(&later[0]), small(&new[0]));
    old.iter().chain(&new).for_each(|file| read(&fs, file).unwrap());
    // One user keeps the old dictionary.
    let unlink = |name: String| fs.unlink(ROOT, name.as_bytes()).unwrap();
    (0..999).for_each(|number| unlink(format!("old{number}")));
    (0..18_000).for_each(|number| unlink(format!("new{number}")));
    tick(&store, &fs);
    assert_eq!(listed(&fs), two);
    read(&fs, &old[999]).unwrap();
    let taken = fs.cooling().packing_report().unwrap().dictionary_bytes;
    fs.unlink(ROOT, b"old999").unwrap();
    tick(&store, &fs);
    assert_eq!(listed(&fs), two[..1]);
    assert!(fs.cooling().packing_report().unwrap().dictionary_bytes < taken * 2 / 3);
    later.iter().for_each(|file| read(&fs, file).unwrap());
    store.close(fs);
}

/// The payload that a read found is still in the spill file when the read goes on, but the file has
/// other bytes by then, and the dictionary of the former ones is gone.
#[test]
fn a_dictionary_that_goes_between_the_steps_of_a_read_is_not_missed() {
    let mut store = Store::new(store::Setup { bulk_blocks: 40, ..setup() });
    let fs = store.open();
    make(&fs, 1, "old", 1000);
    tick(&store, &fs);
    // Long enough to be worth a place in the spill file.
    let long = |seed: u64| (0..6).flat_map(|part| text(1, &mut Random::new(seed + part))).collect::<Vec<u8>>();
    let mut file = Made { ino: create(&fs, "file"), bytes: long(10) };
    fs.write(file.ino, 0, &file.bytes).unwrap();
    tick(&store, &fs);
    assert!(has_dictionary(&fs, &file));
    (0..1000).for_each(|number| fs.unlink(ROOT, format!("old{number}").as_bytes()).unwrap());
    fs.cooling().add_dictionary(text(2, &mut Random::new(2))).unwrap();
    assert!(fs.spilling().spill_all().unwrap() > 0);
    // Nothing is left in memory that could decode it.
    store.close(fs);
    let fs = store.open();
    let mut out = vec![0; file.bytes.len()];
    let Reading::Needs(plan) = fs.read_begin(file.ino, 0, &mut out).unwrap() else { panic!("it is in memory") };
    file.bytes = text(1, &mut Random::new(20));
    let empty = SetAttr { size: Some(0), ..SetAttr::default() };
    fs.setattr(file.ino, &empty).unwrap();
    assert_eq!(fs.write(file.ino, 0, &file.bytes), Ok(file.bytes.len()));
    tick(&store, &fs);
    assert_eq!(listed(&fs).iter().map(|listed| listed.number).collect::<Vec<u16>>(), [2], "the old one is gone");
    assert_eq!(fs.read_on(plan, &mut out), Ok(file.bytes.len()));
    assert!(out[..file.bytes.len()] == file.bytes[..]);
    assert_eq!(fs.repair().damaged_inodes(), 0);
    store.close(fs);
}

#[test]
fn a_store_has_few_dictionaries_and_none_that_is_too_long() {
    let mut store = Store::new(setup());
    let fs = store.open();
    assert_eq!(fs.cooling().add_dictionary(vec![1; DICTIONARY_BYTES_MAX + 1]), Err(Error::Invalid));
    assert_eq!(fs.cooling().add_dictionary(Vec::new()), Err(Error::Invalid));
    let mut files = Vec::new();
    for kind in 0..DICTIONARIES_MAX as u64 {
        fs.cooling().add_dictionary(text(kind, &mut Random::new(kind))).unwrap();
        files.extend(make(&fs, kind, &format!("{kind} "), 3));
        pack(&fs);
    }
    assert_eq!(fs.cooling().add_dictionary(vec![1; 100]), Err(Error::NO_SPACE));
    fs.unlink(ROOT, b"3 0").unwrap();
    fs.unlink(ROOT, b"3 1").unwrap();
    fs.unlink(ROOT, b"3 2").unwrap();
    files.drain(9..12);
    pack(&fs);
    assert_eq!(listed(&fs).len(), DICTIONARIES_MAX - 1);
    fs.cooling().add_dictionary(vec![1; DICTIONARY_BYTES_MAX]).unwrap();
    assert_eq!(listed(&fs)[0].number as usize, DICTIONARIES_MAX + 1, "a number is never given again");
    store.close(fs);
    let fs = store.open();
    files.iter().for_each(|file| read(&fs, file).unwrap());
    store.close(fs);
}

#[test]
fn an_older_store_gets_the_feature_with_its_first_dictionary() {
    let mut store = Store::new(setup());
    store.without_feature(FEATURE_DICTIONARIES);
    let fs = store.open();
    make(&fs, 1, "few", 10);
    pack(&fs);
    assert!(!fs.region().has_feature(FEATURE_DICTIONARIES));
    fs.cooling().add_dictionary(text(1, &mut Random::new(1))).unwrap();
    assert!(fs.region().has_feature(FEATURE_DICTIONARIES));
    store.close(fs);
    assert!(store.open().region().has_feature(FEATURE_DICTIONARIES));
}

#[test]
fn damage_to_one_copy_costs_nothing_and_to_both_only_their_files() {
    let bytes = || text(1, &mut Random::new(1));
    for (copies, place) in [(vec![0], 0), (vec![1], 1), (vec![0], 2), (vec![1], 2), (vec![0, 1], 2), (vec![0, 1], 0)] {
        let mut store = Store::new(setup());
        let fs = store.open();
        let plain = make(&fs, 1, "without", 1);
        pack(&fs);
        fs.cooling().add_dictionary(bytes()).unwrap();
        let files = make(&fs, 1, "with", 3);
        pack(&fs);
        let (lists, dictionary) = (roots(&fs), listed(&fs)[0]);
        store.close(fs);
        let memory = store.world.memory(0);
        for &copy in &copies {
            // In a list, in its reference, in a dictionary.
            let at = match place {
                0 => lists[copy].offset().get() + 50,
                1 => ROOTS_AT.get() + (offset_of!(Roots, dictionaries) + copy * 8) as u64 + 7,
                _ => dictionary.copies[copy].offset().get() + 100,
            };
            let mut byte = [0];
            memory.read(at, &mut byte);
            memory.write_through(at, &[byte[0] ^ 4]);
        }
        let report = store::report(store.setup, &store.world, false).unwrap();
        assert!(report.errors.iter().any(|f| f.kind == FindingKind::Dictionaries), "{copies:?} {place}: {report:?}");
        let fs = store.open();
        read(&fs, &plain[0]).unwrap();
        if copies.len() == 2 {
            assert!(report.errors.iter().any(|finding| finding.kind == FindingKind::PackedObject), "{report:?}");
            for file in &files {
                assert!(matches!(read(&fs, file), Err(Error::Corrupt(_))), "{copies:?} {place}");
            }
            if place == 0 {
                assert_eq!(
                    fs.cooling().add_dictionary(bytes()),
                    Err(Error::NO_SPACE),
                    "there must be no list beside a lost one"
                );
            }
            continue;
        }
        files.iter().for_each(|file| read(&fs, file).unwrap());
        assert!(report.remedies.contains(&Remedy::Dictionaries));
        fs.cooling().repair_dictionaries().unwrap();
        assert_eq!(listed(&fs), [dictionary]);
        fs.shutdown().unwrap();
        drop(fs);
        let left = store::report(store.setup, &store.world, false).unwrap();
        let expected: &[FindingKind] = if place == 1 { &[FindingKind::Leak] } else { &[] };
        let kinds: Vec<FindingKind> = left.errors.iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds, expected, "{copies:?} {place}: {left:?}");
    }
}
