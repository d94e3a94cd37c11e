//! Rebalancing: files move to the tier where their thresholds put them, and show no difference.
//!
//! Owns: which files move and which do not, contents, times, holes, links, room, and a process
//! crash. Left out: power losses and two operations at once (`enumeration`, `two_actors`).

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Attr, Error, Fs, Ino, ROOT, Rebalanced, Seek, SetAttr, TimeChange};
use shoal_sim::{Call, Fault, FaultPlan, Random};

use crate::cold::{Store, caller, setup};
use crate::store::Setup;
use crate::thresholds::{is_large, set, stored};

const KINDS: [MemoryKind; 3] = [MemoryKind::Logged, MemoryKind::Battery, MemoryKind::Dax];

fn bulk() -> Setup {
    Setup { bulk_blocks: 400, threshold: 128 << 10, region_bytes: 32 << 20, ring_bytes: 2 << 20, ..setup() }
}

fn bytes(tag: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    Random::new(tag).fill(&mut out);
    if tag.is_multiple_of(2) {
        out.chunks_mut(64).for_each(|line| line.fill(line[0]));
    }
    out
}

fn file(fs: &Fs, parent: Ino, name: &str, data: &[u8]) -> Ino {
    let ino = fs.mknod(&caller(), parent, name.as_bytes(), 0o644, 0).unwrap().ino;
    write(fs, ino, 0, data);
    ino
}

fn write(fs: &Fs, ino: Ino, at: u64, data: &[u8]) {
    assert_eq!(fs.write(ino, at, data).unwrap(), data.len());
}

fn read(fs: &Fs, ino: Ino) -> Vec<u8> {
    let mut out = vec![0; fs.getattr(ino).unwrap().size as usize + 1];
    let len = fs.read(ino, 0, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Rebalances one file or directory as the command does.
fn rebalance(fs: &Fs, ino: Ino, given: u32) -> Rebalanced {
    match fs.large().misplaced(ino, given).unwrap() {
        None => Rebalanced::InPlace,
        Some(found) => fs.large().rebalance(ino, found.generation, given).unwrap(),
    }
}

/// Returns all attributes but the space that the file takes.
fn shown(fs: &Fs, ino: Ino) -> Attr {
    Attr { blocks: 0, ..fs.getattr(ino).unwrap() }
}

/// Tells for each unit of 64 KiB of a file whether it is a hole.
fn holes(fs: &Fs, ino: Ino) -> Vec<bool> {
    let size = fs.getattr(ino).unwrap().size;
    let is_hole = |at: u64| fs.seek(ino, at, Seek::Data).map_or(true, |data| data >= (at + 65_536).min(size));
    (0..size).step_by(65_536).map(is_hole).collect()
}

#[test]
fn files_of_every_length_go_out_and_come_back_and_show_no_difference() {
    for kind in KINDS {
        let mut store = Store::new(Setup { kind, ..bulk() });
        let fs = store.open();
        let mut files = Vec::new();
        let lens =
            [4097, 30_000, 32_768, 65_536, 65_537, 131_072, 131_073, 400_000, 524_288, 524_289, 1_500_000, 3 << 20];
        for (number, &len) in lens.iter().enumerate() {
            let data = bytes(number as u64, len);
            let ino = fs.mknod(&caller(), ROOT, format!("f{number}").as_bytes(), 0o640, 0).unwrap().ino;
            set(&fs, ino, "64M");
            data.chunks(100_000).enumerate().for_each(|(part, data)| write(&fs, ino, part as u64 * 100_000, data));
            let (mtime, atime) = (Some(TimeChange::At(number as i64)), Some(TimeChange::At(7)));
            fs.setattr(ino, &SetAttr { mtime, atime, ..SetAttr::default() }).unwrap();
            if number % 3 == 0 {
                fs.cooling().pack_now(ino).unwrap();
            }
            if number % 4 == 0 {
                fs.spilling().spill_all().unwrap();
            }
            files.push((ino, data, shown(&fs, ino)));
        }
        for turn in 0..2 {
            for (ino, data, attr) in &mut files {
                let what = format!("{kind:?}, {} bytes, turn {turn}", data.len());
                set(&fs, *ino, "4K");
                attr.ctime = fs.getattr(*ino).unwrap().ctime;
                assert_eq!(rebalance(&fs, *ino, 0), Rebalanced::ToBulk, "{what}");
                assert!(is_large(&fs, *ino) && read(&fs, *ino) == *data && shown(&fs, *ino) == *attr, "{what}");
                assert_eq!(rebalance(&fs, *ino, 0), Rebalanced::InPlace, "{what}");
                set(&fs, *ino, "64M");
                attr.ctime = fs.getattr(*ino).unwrap().ctime;
                assert_eq!(rebalance(&fs, *ino, 0), Rebalanced::ToMemory, "{what}");
                assert!(!is_large(&fs, *ino) && read(&fs, *ino) == *data && shown(&fs, *ino) == *attr, "{what}");
                assert_eq!(rebalance(&fs, *ino, 0), Rebalanced::InPlace, "{what}");
            }
            assert_eq!((fs.usage().inodes, fs.usage().large_files), (lens.len() as u64 + 1, 0));
        }
        store.close(fs);
        let fs = store.open();
        files.iter().for_each(|(ino, data, _)| assert!(read(&fs, *ino) == *data));
        store.close(fs);
    }
}

#[test]
fn holes_stay_holes_and_space_that_was_asked_for_stays_on_bulk_storage() {
    let mut store = Store::new(bulk());
    let fs = store.open();
    for len in [400_000u64, 2_000_000] {
        let sparse = file(&fs, ROOT, &format!("sparse{len}"), &bytes(3, 70_000));
        write(&fs, sparse, 262_144, &bytes(5, 1000));
        fs.setattr(sparse, &SetAttr { size: Some(len), ..SetAttr::default() }).unwrap();
        assert!(is_large(&fs, sparse));
        let (data, map) = (read(&fs, sparse), holes(&fs, sparse));
        assert!(map.contains(&true) && map.contains(&false));
        set(&fs, sparse, "4M");
        assert_eq!(rebalance(&fs, sparse, 0), Rebalanced::ToMemory);
        assert!(read(&fs, sparse) == data && holes(&fs, sparse) == map, "{len}");
        fs.cooling().pack_now(sparse).unwrap();
        // Holes can be written, and bytes past the end are zeros.
        write(&fs, sparse, 300_000, b"new");
        let mut data = data;
        data[300_000..300_003].copy_from_slice(b"new");
        fs.setattr(sparse, &SetAttr { size: Some(len + 100_000), ..SetAttr::default() }).unwrap();
        data.resize(data.len() + 100_000, 0);
        assert!(read(&fs, sparse) == data);
        set(&fs, sparse, "4K");
        assert_eq!(rebalance(&fs, sparse, 0), Rebalanced::ToBulk);
        assert!(read(&fs, sparse) == data);
    }
    for (name, mode, at) in [("behind", 1, 300_000), ("within", 0, 200_000)] {
        let asked = file(&fs, ROOT, name, &bytes(7, 200_000));
        fs.fallocate(asked, mode, at, 200_000).unwrap();
        let before = fs.getattr(asked).unwrap();
        set(&fs, asked, "4M");
        assert_eq!(rebalance(&fs, asked, 0), Rebalanced::Stays, "{name}");
        assert_eq!(fs.getattr(asked).unwrap().blocks, before.blocks, "{name}");
    }
    store.close(fs);
}

#[test]
fn nothing_comes_into_memory_beyond_the_limit_of_spilling_and_a_full_device_takes_nothing() {
    let mut store = Store::new(Setup { bulk_blocks: 100, region_bytes: 8 << 20, ring_bytes: 1 << 20, ..bulk() });
    let fs = store.open_as(None);
    fs.spilling().set_spill_percent(50);
    let files: Vec<Ino> = (0..9).map(|n| file(&fs, ROOT, &format!("f{n}"), &bytes(2 * n + 1, 600_000))).collect();
    files.iter().for_each(|&ino| set(&fs, ino, "1M"));
    let done: Vec<_> = files.iter().map(|&ino| rebalance(&fs, ino, 0)).collect();
    let count = |what| done.iter().filter(|&&done| done == what).count();
    assert!(count(Rebalanced::ToMemory) > 1 && count(Rebalanced::NoRoom) > 1, "{done:?}");
    let usage = fs.usage();
    assert!(usage.region_used * 100 <= (usage.region_used + usage.region_free) * 50, "{usage:?}");
    // Fill the rest of the device: files in memory stay there.
    let rest = file(&fs, ROOT, "rest", b"");
    let full = (0..).find(|&block| fs.write(rest, block << 16, &[1; 65_536]) != Ok(65_536)).unwrap();
    assert!(full > 10);
    let small = files[0];
    set(&fs, small, "64K");
    assert_eq!(rebalance(&fs, small, 0), Rebalanced::NoRoom);
    assert!(read(&fs, small) == bytes(1, 600_000) && !is_large(&fs, small));
    assert_eq!(fs.usage().inodes, 11);
    store.close(fs);
}

#[test]
fn thresholds_follow_the_nearest_directory_but_those_that_were_set() {
    let mut store = Store::new(bulk());
    let fs = store.open();
    let dir = |parent, name: &str| fs.mkdir(&caller(), parent, name.as_bytes(), 0o755).unwrap().ino;
    let top = dir(ROOT, "top");
    let old = file(&fs, top, "old", &bytes(1, 20_000));
    let below = dir(top, "below");
    let own = file(&fs, below, "own", &bytes(3, 20_000));
    set(&fs, own, "1M");
    set(&fs, top, "8K");
    assert_eq!((fs.large().threshold_given(below), fs.large().threshold_given(ROOT)), (Ok(8192), Ok(0)));
    for (ino, done) in [(old, Rebalanced::ToBulk), (below, Rebalanced::InPlace), (own, Rebalanced::InPlace)] {
        assert_eq!(rebalance(&fs, ino, 8192), done);
    }
    assert_eq!([old, below, own].map(|ino| stored(&fs, ino)), [(8192, true), (8192, true), (1 << 20, false)]);
    // Set another threshold at the top, and then none.
    set(&fs, top, "64K");
    assert_eq!(rebalance(&fs, old, fs.large().threshold_given(below).unwrap()), Rebalanced::ToMemory);
    rebalance(&fs, below, 65_536);
    fs.removexattr(top, b"user.shoal.threshold").unwrap();
    let times = fs.getattr(below).unwrap();
    assert_eq!(rebalance(&fs, below, fs.large().threshold_given(top).unwrap()), Rebalanced::InPlace);
    assert_eq!((stored(&fs, below), fs.getattr(below).unwrap()), ((0, false), times));
    // Another file with the number is not touched.
    let found = fs.large().misplaced(old, 4096).unwrap().unwrap();
    assert_eq!(fs.large().rebalance(old, found.generation + 1, 4096), Ok(Rebalanced::InPlace));
    assert!(!is_large(&fs, old) && stored(&fs, old) == (65_536, true));
    store.close(fs);
}

#[test]
fn attributes_that_change_beside_a_move_stay() {
    crate::packing::attributes_beside_a_move();
}

/// When the device cannot be read, the file is as it was, and nothing is left over.
#[test]
fn a_file_that_cannot_be_read_stays_where_it_is() {
    for len in [300_000, 900_000] {
        let mut store = Store::new(bulk());
        let fs = store.open();
        let ino = file(&fs, ROOT, "f", &bytes(1, len));
        set(&fs, ino, "1M");
        for nth in 0..3 {
            store.world.fail(FaultPlan { call: Call::DiskRead, nth, for_good: true, fault: Fault::Io });
            let found = fs.large().misplaced(ino, 0).unwrap().unwrap();
            let before = fs.usage();
            assert!(matches!(fs.large().rebalance(ino, found.generation, 0), Err(Error::Io(_))), "{len} {nth}");
            store.world.clear_faults();
            assert!(is_large(&fs, ino) && read(&fs, ino) == bytes(1, len));
            assert_eq!(fs.usage().inodes, before.inodes, "{len} {nth}");
            // Segments have a few bytes of their own.
            assert!(fs.usage().region_used <= before.region_used + 1024, "{len} {nth}");
        }
        assert_eq!(rebalance(&fs, ino, 0), Rebalanced::ToMemory);
        store.close(fs);
    }
}
