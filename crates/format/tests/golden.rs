//! Golden bytes: a fixed value encodes to fixed bytes, so that no code change alters a layout
//! unnoticed.
//!
//! A dump has a line for each 16 bytes that are not all zero, and the total number of bytes at its
//! end. Every field has a distinct value, so that swapped fields show. If a test fails here, the
//! media of earlier programs can no longer be read.

use shoal_format::Sums;
use shoal_format::ram::{
    DiskSuperblock, DonorPlace, GroupId, Lease, LeaseClaim, Standing, TrimmedRange, UnitEntry, UnitHeader,
    decode_trimmed, encode_trimmed,
};
use shoal_format::ram_checkpoint::{self as checkpoint, GroupRecord, Kind, Root, Stamp};
use shoal_format::vlog::map::{Area, Directory, List, MapPiece, decode_map, encode_map};
use shoal_format::vlog::{Checkpoint, Entry, LINKS_MAX, Link, LoggedPiece, PIECES_MAX, Record, Superblock, Tail};

fn dump(bytes: &[u8]) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    for (row, bytes) in bytes.chunks(16).enumerate().filter(|(_, row)| row.iter().any(|&byte| byte != 0)) {
        write!(out, "{:04x}:", row * 16).unwrap();
        bytes.iter().for_each(|byte| write!(out, " {byte:02x}").unwrap());
        out.push('\n');
    }
    writeln!(out, "{:04x}", bytes.len()).unwrap();
    out
}

#[track_caller]
fn golden(bytes: &[u8], expected: &str) {
    let found = dump(bytes);
    assert_eq!(found.trim_end(), expected.trim(), "the bytes on media changed; found:\n{found}");
}

fn uuid(first: u8) -> [u8; 16] {
    std::array::from_fn(|n| first + n as u8)
}

fn ram_superblock(checkpoint: Option<u64>, sums: Sums) -> DiskSuperblock {
    let place = |standing, born| DonorPlace { standing, born, domain: 0 };
    DiskSuperblock {
        uuid: uuid(0x10),
        epoch: 0x0102_0304_0506_0708,
        donor: 3,
        policy: 6,
        data: 15,
        parity: 2,
        streams: 7,
        buffer_blocks: 0x29,
        flags: 1,
        block_bytes: 8192,
        blocks: 0xfedc_ba98,
        checkpoint,
        sums,
        sealed: false,
        donors: vec![
            place(Standing::Gone, 0),
            place(Standing::Counts, 0x0a0b_0c0d),
            place(Standing::Away, 0x1a1b_1c1d),
            place(Standing::Joins, 0x2a2b_2c2d),
        ],
    }
}

#[test]
fn the_superblock_of_a_network_ram_disk() {
    for (checkpoint, expected) in [(None, RAM_SUPERBLOCK_2), (Some(0x1122_3344_5566_7788), RAM_SUPERBLOCK_3)] {
        let superblock = ram_superblock(checkpoint, Sums::Crc32c);
        let bytes = superblock.encode();
        golden(&bytes, expected);
        // Versions 4 and 5 differ only in the version and in the checksum over it.
        let newer = ram_superblock(checkpoint, Sums::Xxh3);
        let newer_bytes = newer.encode();
        assert_eq!((newer_bytes[12], &newer_bytes[16..]), (bytes[12] + 2, &bytes[16..]));
        for (superblock, bytes) in [(superblock, bytes), (newer, newer_bytes)] {
            assert_eq!(DiskSuperblock::decode(&[bytes, vec![0; 2048]].concat()), Ok(superblock));
        }
    }
}

const RAM_SUPERBLOCK_2: &str = "
0000: e3 01 e9 c6 53 68 6f 61 6c 52 61 6d 02 00 00 00
0010: 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f
0020: 08 07 06 05 04 03 02 01 03 00 06 0f 02 07 01 00
0030: 29 00 04 00 00 20 00 00 98 ba dc fe 00 00 00 00
0040: 00 00 00 00 00 01 0d 0c 0b 0a 02 1d 1c 1b 1a 03
0050: 2d 2c 2b 2a 00 00 00 00 00 00 00 00 00 00 00 00
0800
";
const RAM_SUPERBLOCK_3: &str = "
0000: 70 9c a3 ef 53 68 6f 61 6c 52 61 6d 03 00 00 00
0010: 10 11 12 13 14 15 16 17 18 19 1a 1b 1c 1d 1e 1f
0020: 08 07 06 05 04 03 02 01 03 00 06 0f 02 07 01 00
0030: 29 00 04 00 00 20 00 00 98 ba dc fe 00 00 00 00
0040: 88 77 66 55 44 33 22 11 00 00 00 00 00 01 0d 0c
0050: 0b 0a 02 1d 1c 1b 1a 03 2d 2c 2b 2a 00 00 00 00
0800
";

fn unit_header(member: u8, lists: Vec<Vec<UnitEntry>>) -> UnitHeader {
    UnitHeader {
        uuid: uuid(0x30),
        group: GroupId::new(0x0102_0304_0506_0708),
        donor: 0x1112,
        born: 0x2122_2324,
        horizon: 0x3132_3334_3536_3738,
        cut: 0x4142_4344,
        member,
        data: 2,
        parity: 1,
        lists,
    }
}

#[test]
fn the_headers_of_units() {
    let entry =
        |n: u32| UnitEntry { block: 0x5152_5350 + n, sum: 0x6162_6360 + n, sequence: 0x7172_7374_7576_7770 + n as u64 };
    let data = unit_header(1, vec![vec![entry(1), entry(2)]]);
    let parity = unit_header(2, vec![vec![entry(3)], vec![entry(4), entry(5)]]);
    for (header, expected) in [(data, UNIT_DATA), (parity, UNIT_PARITY)] {
        // `encode` appends to what is already there.
        let mut bytes = vec![9; 3];
        header.encode(UnitHeader::bytes(2, 3), &mut bytes);
        golden(&bytes[3..], expected);
        assert_eq!(UnitHeader::decode(&bytes[3..]), Ok(header));
    }
}

const UNIT_DATA: &str = "
0000: 1c 56 9c de 02 00 00 00 53 68 6f 61 6c 55 6e 74
0010: 30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f
0020: 08 07 06 05 04 03 02 01 01 02 01 01 12 11 24 23
0030: 22 21 38 37 36 35 34 33 32 31 44 43 42 41 00 00
0040: 02 51 53 52 51 61 63 62 61 71 77 76 75 74 73 72
0050: 71 52 53 52 51 62 63 62 61 72 77 76 75 74 73 72
0060: 71 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0200
";
const UNIT_PARITY: &str = "
0000: 4e 2b 8a ac 02 00 00 00 53 68 6f 61 6c 55 6e 74
0010: 30 31 32 33 34 35 36 37 38 39 3a 3b 3c 3d 3e 3f
0020: 08 07 06 05 04 03 02 01 02 02 01 02 12 11 24 23
0030: 22 21 38 37 36 35 34 33 32 31 44 43 42 41 00 00
0040: 01 02 53 53 52 51 63 63 62 61 73 77 76 75 74 73
0050: 72 71 54 53 52 51 64 63 62 61 74 77 76 75 74 73
0060: 72 71 55 53 52 51 65 63 62 61 75 77 76 75 74 73
0070: 72 71 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0200
";

#[test]
fn leases_and_lists_of_ranges() {
    for (released, expected) in [(false, LEASE), (true, LEASE_RELEASED)] {
        // As written by programs without epochs.
        let lease = Lease {
            uuid: uuid(0x40),
            client: uuid(0x60),
            renewed: 0x0102_0304_0506_0708,
            released,
            claim: LeaseClaim::Owns,
            epoch: 0,
            mark: 0,
            bytes: 0,
        };
        golden(&lease.encode(), expected);
        assert_eq!(Lease::decode(&lease.encode()), Some(lease));
    }
    let ranges = [
        TrimmedRange { first: 0x0102_0304, count: 0x1112_1314, sequence: 0x2122_2324_2526_2728 },
        TrimmedRange { first: 0x3132_3334, count: 0x4142_4344, sequence: 0x5152_5354_5556_5758 },
    ];
    let mut block = vec![7; 512];
    encode_trimmed(&ranges, &mut block);
    golden(&block, RANGES);
    assert_eq!(decode_trimmed(&block).unwrap(), ranges);
}

const LEASE: &str = "
0000: e0 1f 7f b3 53 68 6f 61 6c 4c 73 65 02 00 00 00
0010: 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f
0020: 60 61 62 63 64 65 66 67 68 69 6a 6b 6c 6d 6e 6f
0030: 08 07 06 05 04 03 02 01 00 00 00 00 00 00 00 00
0200
";
const LEASE_RELEASED: &str = "
0000: 5d 9c c7 58 53 68 6f 61 6c 4c 73 65 02 00 00 00
0010: 40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f
0020: 60 61 62 63 64 65 66 67 68 69 6a 6b 6c 6d 6e 6f
0030: 08 07 06 05 04 03 02 01 01 00 00 00 00 00 00 00
0200
";
const RANGES: &str = "
0000: 02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0010: 04 03 02 01 14 13 12 11 28 27 26 25 24 23 22 21
0020: 34 33 32 31 44 43 42 41 58 57 56 55 54 53 52 51
0200
";

#[test]
fn the_checkpoints_of_a_network_ram_disk() {
    let stamp = Stamp { uuid: uuid(0x70), number: 0x0102_0304_0506_0708, donor: 0x1112, born: 0x2122_2324 };
    let root = Root {
        sequence: 0x0102_0304_0506_0708,
        horizon: 0x1112_1314_1516_1718,
        next_sequence: 0x2122_2324_2526_2728,
        next_group: GroupId::new(0x3132_3334_3536_3738),
        first_group: GroupId::new(0x4142_4344_4546_4748),
        groups: 0x5152_5354,
        blocks: 0x6162_6364,
        pages: 0x7172_7374,
    };
    assert_eq!(Root::decode(&root.encode()), Some(root));
    let list = checkpoint::encode_list(&[0x0102_0304, 0x1112_1314]);
    let mut groups = vec![];
    checkpoint::encode_range(0x0102_0304, 2, &mut groups);
    let members = [(0x1112, 0x2122_2324, 0x31), (0x4142, u32::MAX, 0x51)];
    checkpoint::encode_group(
        GroupId::new(0x6162_6364_6566_6768),
        0x7172_7374_7576_7778,
        1,
        members.into_iter(),
        &mut groups,
    );
    checkpoint::encode_group(GroupId::new(5), 6, 7, [].into_iter(), &mut groups);
    let pieces = [
        (Kind::Root, 0, root.encode(), CHECKPOINT_ROOT),
        (Kind::List, 0x3132_3334, list, CHECKPOINT_LIST),
        (Kind::End, 2, vec![], CHECKPOINT_END),
        (Kind::Groups, 3, groups.clone(), CHECKPOINT_GROUPS),
    ];
    for (kind, index, payload, expected) in pieces {
        let bytes = checkpoint::encode(&stamp, kind, index, &payload);
        golden(&bytes, expected);
        assert_eq!(checkpoint::decode(&bytes, &stamp, index), Some((kind, &payload[..])));
    }
    let (first, count, mut rest) = checkpoint::decode_range(&groups).unwrap();
    assert_eq!((first, count), (0x0102_0304, 2));
    let group = GroupRecord::take(&mut rest).unwrap().unwrap();
    assert_eq!(
        (group.id, group.first_sequence, group.data),
        (GroupId::new(0x6162_6364_6566_6768), 0x7172_7374_7576_7778, 1)
    );
    assert_eq!(group.members().collect::<Vec<_>>(), members);
    assert!(GroupRecord::take(&mut rest).unwrap().is_none() && rest.is_empty());
    assert_eq!((Kind::Table as u8, Kind::Lost as u8), (4, 6));
}

const CHECKPOINT_ROOT: &str = "
0000: ba eb 43 14 6c 00 00 00 53 68 6f 61 6c 52 43 70
0010: 70 71 72 73 74 75 76 77 78 79 7a 7b 7c 7d 7e 7f
0020: 08 07 06 05 04 03 02 01 12 11 01 00 24 23 22 21
0030: 00 00 00 00 00 00 00 00 08 07 06 05 04 03 02 01
0040: 18 17 16 15 14 13 12 11 28 27 26 25 24 23 22 21
0050: 38 37 36 35 34 33 32 31 48 47 46 45 44 43 42 41
0060: 54 53 52 51 64 63 62 61 74 73 72 71 00 00 00 00
0200
";
const CHECKPOINT_LIST: &str = "
0000: d9 1b 9e 8d 40 00 00 00 53 68 6f 61 6c 52 43 70
0010: 70 71 72 73 74 75 76 77 78 79 7a 7b 7c 7d 7e 7f
0020: 08 07 06 05 04 03 02 01 12 11 02 00 24 23 22 21
0030: 34 33 32 31 00 00 00 00 04 03 02 01 14 13 12 11
0200
";
const CHECKPOINT_END: &str = "
0000: 9c 1e ed 57 38 00 00 00 53 68 6f 61 6c 52 43 70
0010: 70 71 72 73 74 75 76 77 78 79 7a 7b 7c 7d 7e 7f
0020: 08 07 06 05 04 03 02 01 12 11 03 00 24 23 22 21
0030: 02 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0200
";
const CHECKPOINT_GROUPS: &str = "
0000: cd dd bb 2b 61 00 00 00 53 68 6f 61 6c 52 43 70
0010: 70 71 72 73 74 75 76 77 78 79 7a 7b 7c 7d 7e 7f
0020: 08 07 06 05 04 03 02 01 12 11 05 00 24 23 22 21
0030: 03 00 00 00 00 00 00 00 04 03 02 01 02 00 00 00
0040: 02 01 68 67 66 65 64 63 62 61 78 77 76 75 74 73
0050: 72 71 12 11 24 23 22 21 31 42 41 ff ff ff ff 51
0200
";

fn vlog_superblock(area: Option<Area>, sums: Sums) -> Superblock {
    Superblock {
        uuid: uuid(0x80),
        salt: 0x0102_0304_0506_0708,
        logical_blocks: 0x1112_1314,
        physical_blocks: 0x2122_2324,
        segment_blocks: 0x4142,
        area,
        sums,
    }
}

const AREA: Area = Area { at: 0x2012_1314, map_pieces: 0x31, list_blocks: 0x102 };

#[test]
fn the_superblock_and_the_tail_record_of_a_virtual_log_disk() {
    for (area, expected) in [(None, VLOG_SUPERBLOCK_1), (Some(AREA), VLOG_SUPERBLOCK_2)] {
        let superblock = vlog_superblock(area, Sums::Crc32c);
        golden(&superblock.encode(), expected);
        assert_eq!(Superblock::decode(&superblock.encode()), Ok(superblock));
        // Versions 3 and 4 differ only in the version and in the checksum over it.
        let newer = vlog_superblock(area, Sums::Xxh3);
        let bytes = newer.encode();
        assert_eq!((bytes[4], &bytes[8..]), (superblock.encode()[4] + 2, &superblock.encode()[8..]));
        assert_eq!(Superblock::decode(&bytes), Ok(newer));
    }
    let superblock = vlog_superblock(Some(AREA), Sums::Xxh3);
    let open = Tail { generation: 0x3132_3334_3536_3738, root: None, durable: 0x0a0b_0c0d_0e0f_1011, checkpoint: None };
    let root = Some(Link { at: 0x1a1b_1c1d, seq: 0x2a2b_2c2d_2e2f_3031 });
    let checkpoint = Some(Checkpoint { number: 0x0908_0706_0504_0302, side: 1 });
    for (tail, expected) in [(open, TAIL_OPEN), (Tail { root, checkpoint, ..open }, TAIL_CLOSED)] {
        golden(&tail.encode(&superblock), expected);
        assert_eq!(Tail::decode(&tail.encode(&superblock), &superblock), Ok(tail));
    }
}

const VLOG_SUPERBLOCK_1: &str = "
0000: 43 af 9b c6 01 00 00 00 53 68 6f 61 6c 56 4c 67
0010: 80 81 82 83 84 85 86 87 88 89 8a 8b 8c 8d 8e 8f
0020: 08 07 06 05 04 03 02 01 14 13 12 11 24 23 22 21
0030: 42 41 00 00 00 00 00 00 00 00 00 00 00 00 00 00
1000
";
const VLOG_SUPERBLOCK_2: &str = "
0000: fa 7e e3 7d 02 00 00 00 53 68 6f 61 6c 56 4c 67
0010: 80 81 82 83 84 85 86 87 88 89 8a 8b 8c 8d 8e 8f
0020: 08 07 06 05 04 03 02 01 14 13 12 11 24 23 22 21
0030: 42 41 00 00 14 13 12 20 31 00 00 00 02 01 00 00
1000
";
const TAIL_OPEN: &str = "
0000: 11 4f 88 f2 01 00 00 00 53 68 6f 61 6c 56 54 6c
0010: 08 07 06 05 04 03 02 01 38 37 36 35 34 33 32 31
0020: 00 00 00 00 00 00 00 00 00 00 00 00 11 10 0f 0e
0030: 0d 0c 0b 0a 00 00 00 00 00 00 00 00 00 00 00 00
1000
";
const TAIL_CLOSED: &str = "
0000: 55 e7 d4 9d 01 00 00 00 53 68 6f 61 6c 56 54 6c
0010: 08 07 06 05 04 03 02 01 38 37 36 35 34 33 32 31
0020: 31 30 2f 2e 2d 2c 2b 2a 1d 1c 1b 1a 11 10 0f 0e
0030: 0d 0c 0b 0a 02 03 04 05 06 07 08 09 01 00 00 00
1000
";

fn entries(first: u32) -> [Entry; 8] {
    std::array::from_fn(|n| Entry { at: 0x0102_0300 + first + n as u32, sum: 0x9192_9300 + first + n as u32 })
}

#[test]
fn the_records_of_a_virtual_log() {
    let superblock = vlog_superblock(None, Sums::Xxh3);
    let piece = |n: u32| LoggedPiece { index: 0x0112_1310 + n, changed: 0xa0 + n as u8, entries: entries(8 * n) };
    let link = |n: u32| Link { at: 0x0304_0500 + n, seq: 0x0506_0708_090a_0b00 + n as u64 };
    let small = Record {
        at: 0x0708_090a,
        seq: 0x1112_1314_1516_1718,
        durable: 0x0112_1314_1516_1719,
        skip: 0x2122,
        mapped: 0x3132_3334,
        pieces: (0..2).map(piece).collect(),
        links: (0..2).map(link).collect(),
    };
    let full = Record {
        pieces: (0..PIECES_MAX as u32).map(piece).collect(),
        links: (0..LINKS_MAX as u32).map(link).collect(),
        ..small.clone()
    };
    golden(&small.encode(&superblock), RECORD);
    let bytes = full.encode(&superblock);
    // The ends of the three arrays. The checksum at the start covers the rest.
    golden(&[&bytes[..64], &bytes[296..320], &bytes[536..560], &bytes[4080..]].concat(), RECORD_FULL);
    for record in [small, full] {
        assert_eq!(Record::decode(&record.encode(&superblock), record.at, &superblock), Ok(record));
    }
}

const RECORD: &str = "
0000: 09 b0 c4 db 01 00 00 00 53 68 6f 61 6c 56 52 63
0010: 18 17 16 15 14 13 12 11 19 17 16 15 14 13 12 01
0020: 0a 09 08 07 22 21 02 02 34 33 32 31 00 00 00 00
0030: 10 13 12 01 a0 11 13 12 01 a1 00 00 00 00 00 00
0130: 00 00 00 00 00 05 04 03 00 0b 0a 09 08 07 06 05
0140: 01 05 04 03 01 0b 0a 09 08 07 06 05 00 00 00 00
0300: 00 03 02 01 00 93 92 91 01 03 02 01 01 93 92 91
0310: 02 03 02 01 02 93 92 91 03 03 02 01 03 93 92 91
0320: 04 03 02 01 04 93 92 91 05 03 02 01 05 93 92 91
0330: 06 03 02 01 06 93 92 91 07 03 02 01 07 93 92 91
0340: 08 03 02 01 08 93 92 91 09 03 02 01 09 93 92 91
0350: 0a 03 02 01 0a 93 92 91 0b 03 02 01 0b 93 92 91
0360: 0c 03 02 01 0c 93 92 91 0d 03 02 01 0d 93 92 91
0370: 0e 03 02 01 0e 93 92 91 0f 03 02 01 0f 93 92 91
1000
";
const RECORD_FULL: &str = "
0000: 87 24 ba ac 01 00 00 00 53 68 6f 61 6c 56 52 63
0010: 18 17 16 15 14 13 12 11 19 17 16 15 14 13 12 01
0020: 0a 09 08 07 22 21 34 14 34 33 32 31 00 00 00 00
0030: 10 13 12 01 a0 11 13 12 01 a1 12 13 12 01 a2 13
0040: 01 d1 42 13 12 01 d2 43 13 12 01 d3 00 05 04 03
0050: 00 0b 0a 09 08 07 06 05 13 05 04 03 13 0b 0a 09
0060: 08 07 06 05 00 00 00 00 00 00 00 00 00 00 00 00
0070: 9e 04 02 01 9e 94 92 91 9f 04 02 01 9f 94 92 91
0080
";

#[test]
fn the_map_area_of_a_virtual_log_disk() {
    let superblock = vlog_superblock(Some(AREA), Sums::Xxh3);
    let number = 0x0102_0304_0506_0708;
    let pieces = [
        MapPiece { record: 0x1112_1314, entries: entries(0) },
        MapPiece { record: 0, entries: [Entry::default(); 8] },
        MapPiece { record: 0x1212_1314, entries: entries(8) },
    ];
    let (block, sum) = encode_map(&superblock, number, 0x0004_0506, &pieces);
    golden(&block, MAP_BLOCK);
    let mut found = vec![];
    decode_map(&superblock, &block, 0x0004_0506, sum, |index, piece| found.push((index, piece))).unwrap();
    let expected: Vec<_> = (0x31 * 0x0004_0506..).zip(pieces).collect();
    assert_eq!((&found[..3], found.len()), (&expected[..], 0x31));
    let mut directory = Directory::new(number, 0x1112_1314);
    for (n, slot, sum) in [(0, 1, 0x2122_2324), (9, 0, 0x3132_3334), (943, 1, 0x4142_4344)] {
        directory.set(n, slot, sum);
    }
    golden(&directory.encode(&superblock), DIRECTORY);
    assert_eq!(Directory::decode(&directory.encode(&superblock), &superblock), Ok(directory));
    let list =
        List { number, after: 0x1112_1314_1516_1718, index: 0x2122_2324, segments: vec![0x0102, 0x0304, 0x0506] };
    golden(&list.encode(&superblock), LIST);
    assert_eq!(List::decode(&list.encode(&superblock), &superblock), Ok(list));
}

const MAP_BLOCK: &str = "
0000: 18 62 d1 a0 01 00 00 00 53 68 6f 61 6c 56 4d 70
0010: 08 07 06 05 04 03 02 01 06 05 04 00 00 00 00 00
0040: 14 13 12 11 00 03 02 01 00 93 92 91 01 03 02 01
0050: 01 93 92 91 02 03 02 01 02 93 92 91 03 03 02 01
0060: 03 93 92 91 04 03 02 01 04 93 92 91 05 03 02 01
0070: 05 93 92 91 06 03 02 01 06 93 92 91 07 03 02 01
0080: 07 93 92 91 00 00 00 00 00 00 00 00 00 00 00 00
00c0: 00 00 00 00 00 00 00 00 14 13 12 12 08 03 02 01
00d0: 08 93 92 91 09 03 02 01 09 93 92 91 0a 03 02 01
00e0: 0a 93 92 91 0b 03 02 01 0b 93 92 91 0c 03 02 01
00f0: 0c 93 92 91 0d 03 02 01 0d 93 92 91 0e 03 02 01
0100: 0e 93 92 91 0f 03 02 01 0f 93 92 91 00 00 00 00
1000
";
const DIRECTORY: &str = "
0000: 7f 2d 22 58 01 00 00 00 53 68 6f 61 6c 56 44 72
0010: 08 07 06 05 04 03 02 01 14 13 12 11 00 00 00 00
0020: 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0090: 00 00 00 00 00 80 00 00 01 02 00 00 00 00 00 00
0100: 00 00 00 00 00 00 00 00 00 00 00 00 00 80 00 00
0110: 24 23 22 21 00 00 00 00 00 00 00 00 00 00 00 00
0130: 00 00 00 00 34 33 32 31 00 00 00 00 00 00 00 00
0fc0: 00 00 00 00 00 00 00 00 00 00 00 00 44 43 42 41
1000
";
const LIST: &str = "
0000: 71 a9 42 eb 01 00 00 00 53 68 6f 61 6c 56 4c 73
0010: 08 07 06 05 04 03 02 01 18 17 16 15 14 13 12 11
0020: 24 23 22 21 03 00 00 00 00 00 00 00 00 00 00 00
0040: 02 01 00 00 04 03 00 00 06 05 00 00 00 00 00 00
1000
";
