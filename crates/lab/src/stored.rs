//! A tree's inodes as a store of Shoal keeps them after they have cooled: the input for a store's
//! profile.
//!
//! The tree's own records do not contain layout, places and sums, but a store's inodes have little
//! else that is long. Rules of thumb fill in these fields: packed data takes two fifths, files
//! below 256 bytes do not shrink. Times of birth and change are a store's own, in whole
//! nanoseconds, where other file systems stamp files with timer ticks. A wrong guess makes codes
//! longer but no record wrong. Left out: the form of these fields (`docs/spec/pack.md`, "Inodes of
//! a store").

use shoal_format::inode::{CHUNK, INODE_SUMMED, Layout};
use shoal_format::object::{GROUP, OBJECT_HEAD, piece_sizes};
use shoal_format::slot::class_for;
use shoal_format::{BULK_BLOCK, Offset, SlotRef};
use shoal_pack::{BLOCK_INODES, Record};
use shoal_sim::Random;

/// Bit that is set in the stored form of a reference to a slot.
const IS_SLOT: u64 = 1 << 46;
/// Files below this (bytes) rarely shrink by an eighth.
const SHRINKS: u64 = 256;
/// Files above this (bytes) are large by default.
const THRESHOLD: u64 = 1 << 20;
/// Longest time between two files, and that to create one (ns). A file that changed sooner than the
/// third value after it was written was created in place, not copied.
const BETWEEN_NS: u64 = 1_000_000;
const MAKING_NS: u64 = 500_000;
const MADE_NS: u64 = 5_000_000_000;
/// Bytes of a small directory's bucket, and of its extended attributes.
const BUCKET: u64 = 256;
const ATTRIBUTES: u64 = 64;
/// Unit (bytes) and limit of places. The places are random, and nothing depends on them.
const UNIT: u64 = 16;
const PLACES: u64 = 1 << 36;

/// Converts the records to those that a store would have. The same records give the same result.
pub fn as_stored(records: &[Record]) -> Vec<Record> {
    let mut random = Random::new(records.len() as u64);
    let inodes = records.len() as u64;
    let mut clock_ns = records.iter().map(|record| record.ctime).max().unwrap_or_default();
    let dated = |(at, record): (usize, &Record)| {
        // Treat every other block as a copy that keeps the tree's times, and the others as files
        // created in the store.
        let record = own_times(record, (at / BLOCK_INODES).is_multiple_of(2), &mut clock_ns, &mut random);
        stored(&record, inodes, &mut random)
    };
    records.iter().enumerate().map(dated).collect()
}

/// Returns the record with the times that a store gives it at `clock_ns`, and advances the clock.
fn own_times(record: &Record, is_copy: bool, clock_ns: &mut i64, random: &mut Random) -> Record {
    let mut after = |most_ns: u64| {
        *clock_ns = clock_ns.saturating_add(1 + random.below(most_ns) as i64);
        *clock_ns
    };
    let (btime, ctime) = (after(BETWEEN_NS), after(MAKING_NS));
    let is_made = record.mtime.abs_diff(record.ctime) < MADE_NS;
    match is_made && !is_copy {
        true => Record { btime, ctime, mtime: ctime, atime: btime, ..*record },
        false => Record { btime, ctime, ..*record },
    }
}

fn stored(record: &Record, inodes: u64, random: &mut Random) -> Record {
    let mut record = Record { generation: 1, data: 0, allocated: 0, parent: 0, layout: 0, ..*record };
    let mut reference = |bytes: u64| {
        let class = class_for(bytes).unwrap_or_default();
        IS_SLOT | SlotRef::slot(Offset::new(random.below(PLACES) * UNIT), class).bits()
    };
    if record.xattr != 0 {
        record.xattr = reference(ATTRIBUTES);
    }
    let usual = Layout::Direct as u8;
    match (record.mode >> 12, record.size) {
        (0o10 | 0o12, 0) => {}
        (0o12, size) => record.data = reference(size),
        (0o10, size @ 1..SHRINKS) => {
            record.data = reference(size);
            record.flags |= u32::from(INODE_SUMMED);
        }
        (0o10, size @ SHRINKS..=GROUP) => {
            let pieces = object(size);
            record.data = reference(pieces[0]);
            record.allocated = pieces[1..].iter().sum();
            record.layout = Layout::Packed as u8 - usual;
        }
        (0o10, size @ ..=THRESHOLD) => {
            let groups = (0..size).step_by(GROUP as usize).map(|at| object((size - at).min(GROUP)));
            record.data = reference(size.div_ceil(CHUNK) * 8);
            record.allocated = groups.flatten().sum();
            record.layout = Layout::Chunked as u8 - usual;
        }
        (0o10, size) => {
            record.data = reference(64);
            record.allocated = size.next_multiple_of(BULK_BLOCK);
            record.layout = Layout::Extents as u8 - usual;
        }
        (0o4, _) => {
            record.data = reference(BUCKET);
            record.parent = 1 + random.below(inodes) as u32;
            // The size of a directory is its number of entries. Most directories have few.
            let most = 4 << random.below(5);
            record.size = 1 + random.below(most);
        }
        _ => {}
    }
    if record.flags & u32::from(INODE_SUMMED) != 0 && record.data != 0 {
        record.rdev = random.next_u64() as u32 | 1;
    }
    record
}

/// Returns the sizes of the pieces of an object that holds `bytes` bytes of a file.
fn object(bytes: u64) -> Vec<u64> {
    piece_sizes(OBJECT_HEAD as u64 + bytes * 2 / 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mode: u16, size: u64) -> Record {
        let record = Record { mode, size, links: 1, generation: 1, ctime: 5, mtime: 3, ..Record::default() };
        as_stored(&[record])[0]
    }

    #[test]
    fn files_get_the_fields_of_their_form() {
        let file = 0o100644;
        let empty = of(file, 0);
        assert_eq!((empty.data, empty.flags, empty.layout, empty.rdev), (0, 0, 0, 0));
        let short = of(file, 100);
        assert!(short.flags == 64 && short.rdev != 0 && short.layout == 0 && short.data >> 46 == 1);
        let packed = of(file, 5000);
        assert!(packed.layout == 5 && packed.rdev == 0 && packed.data >> 46 == 1);
        assert_eq!((of(file, 200_000).layout, of(file, 3 << 20).layout), (1, 2));
        assert_eq!(of(file, 3 << 20).allocated, 3 << 20);
        let directory = of(0o40755, 4096);
        assert!(directory.parent != 0 && directory.size < 4096);
        assert_eq!(of(0o20600, 0).data, 0);
    }

    #[test]
    fn times_are_the_stores_where_it_makes_them() {
        let old = Record { mode: 0o100644, ctime: 9_000_000_000, mtime: 1, atime: 2, ..Record::default() };
        let made = Record { mtime: 9_000_000_000, ..old };
        let times = as_stored(&[vec![old; 16], vec![made; 16]].concat());
        assert!(times.windows(2).all(|pair| pair[0].ctime < pair[1].btime && pair[1].btime < pair[1].ctime));
        assert!(times[..16].iter().all(|record| (record.mtime, record.atime) == (1, 2)));
        assert!(times[16..].iter().all(|record| (record.mtime, record.atime) == (record.ctime, record.btime)));
    }
}
