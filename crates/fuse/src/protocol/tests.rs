//! The protocol against byte layouts written out by hand, and against arbitrary bytes.
//!
//! The layouts are those of `include/uapi/linux/fuse.h`, as in a message of Linux 6.18 on a
//! little-endian machine. Random and damaged messages must be decoded or refused, and never cause a
//! panic. `SHOAL_SEED` chooses other messages, `SHOAL_DEEP` makes more.

use shoal_fs::{Attr, Ino};
use shoal_sim::Random;
use zerocopy::IntoBytes;

use super::layout::{InHeader, SetattrIn};
use super::*;

/// Returns random numbers from a seed in the environment, which is printed.
pub(crate) fn random_from_environment() -> Random {
    let seed = std::env::var("SHOAL_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x5eed_f05e);
    println!("SHOAL_SEED={seed}");
    Random::new(seed)
}

pub(crate) fn rounds(usual: u64) -> u64 {
    if std::env::var_os("SHOAL_DEEP").is_some() { usual * 100 } else { usual }
}

pub(crate) fn message(opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique: 2 * u64::from(opcode),
        node,
        uid: 1000,
        gid: 100,
        pid: 7,
        ..InHeader::default()
    };
    [header.as_bytes(), body].concat()
}

fn agreed(flags: u64) -> Agreed {
    Agreed { flags, write_bytes_max: 1 << 20 }
}

fn operation(opcode: u32, body: &[u8]) -> Option<Operation<'static>> {
    let message = Vec::leak(message(opcode, 5, body));
    decode(message, &agreed(init_flags::SETXATTR_EXT)).ok().map(|request| request.operation)
}

#[test]
fn a_header_lies_as_the_kernel_sends_it() {
    #[rustfmt::skip]
    let bytes = [
        45, 0, 0, 0, /* opcode */ 1, 0, 0, 0, /* unique */ 4, 3, 0, 0, 0, 0, 0, 0x80,
        /* node */ 1, 0, 0, 0, 0, 0, 0, 1, /* uid */ 0xe8, 3, 0, 0, /* gid */ 100, 0, 0, 0, /* pid */ 9, 1, 0, 0,
        /* extensions */ 0, 0, 0, 0, b'n', b'a', b'm', b'e', 0,
    ];
    let request = decode(&bytes, &Agreed::default()).unwrap();
    assert_eq!((request.opcode, request.unique, request.node), (1, 0x8000_0000_0000_0304, 0x0100_0000_0000_0001));
    assert_eq!((request.uid, request.gid, request.pid), (1000, 100, 265));
    assert_eq!(request.operation, Operation::Lookup { name: b"name" });
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len], &Agreed::default()).is_err(), "cut to {len} bytes");
    }
    // Eight bytes of extensions, which were not negotiated, hide the name.
    let mut extended = bytes;
    extended[36] = 1;
    assert_eq!(decode(&extended, &Agreed::default()).unwrap_err().unique, Some(0x8000_0000_0000_0304));
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn with(mut head: Vec<u8>, tail: &[u8]) -> Vec<u8> {
    head.extend_from_slice(tail);
    head
}

#[track_caller]
fn is(opcode: u32, body: Vec<u8>, expected: Operation<'_>) {
    assert_eq!(operation(opcode, &body), Some(expected), "opcode {opcode}");
}

#[test]
fn bodies_with_names_are_read_at_their_offsets() {
    is(opcode::FORGET, words(&[7, 1]), Operation::Forget { count: 1 << 32 | 7 });
    is(
        opcode::MKNOD,
        with(words(&[0o100644, 3, 0o22, 0]), b"n\0"),
        Operation::Mknod { name: b"n", mode: 0o100644, rdev: 3, umask: 0o22 },
    );
    is(opcode::MKDIR, with(words(&[0o755, 0o77]), b"d\0"), Operation::Mkdir { name: b"d", mode: 0o755, umask: 0o77 });
    is(opcode::SYMLINK, b"n\0to/there\0".to_vec(), Operation::Symlink { name: b"n", target: b"to/there" });
    let names = (b"a".as_slice(), b"bc".as_slice());
    is(
        opcode::RENAME,
        with(words(&[9, 0]), b"a\0bc\0"),
        Operation::Rename { name: names.0, new_directory: 9, new_name: names.1, flags: 0 },
    );
    is(
        opcode::RENAME2,
        with(words(&[9, 0, 4, 0]), b"a\0bc\0"),
        Operation::Rename { name: names.0, new_directory: 9, new_name: names.1, flags: 4 },
    );
    is(opcode::LINK, with(words(&[8, 0]), b"l\0"), Operation::Link { target: 8, name: b"l" });
    is(
        opcode::CREATE,
        with(words(&[1, 0o600, 0o22, 0]), b"c\0"),
        Operation::Create { name: b"c", mode: 0o600, umask: 0o22, flags: 1 },
    );
    is(
        opcode::TMPFILE,
        with(words(&[1, 0o600, 0o22, 0]), b"/\0"),
        Operation::Tmpfile { mode: 0o600, umask: 0o22, flags: 1 },
    );
}

#[test]
fn bodies_of_data_and_attributes_are_read_at_their_offsets() {
    is(opcode::OPEN, words(&[2, 0]), Operation::Open { flags: 2 });
    is(
        opcode::READ,
        words(&[0, 0, 4096, 1, 512, 0, 0, 0, 0, 0]),
        Operation::Read { offset: 1 << 32 | 4096, size: 512 },
    );
    is(
        opcode::WRITE,
        with(words(&[0, 0, 10, 0, 3, 4, 0, 0, 0, 0]), b"abc"),
        Operation::Write { offset: 10, data: b"abc", flags: WRITE_KILL_SUIDGID },
    );
    is(opcode::READDIRPLUS, words(&[0, 0, 5, 0, 99, 0, 0, 0, 0, 0]), Operation::Readdirplus { offset: 5, size: 99 });
    is(
        opcode::SETXATTR,
        with(words(&[2, 1, 1, 0]), b"user.x\0vv"),
        Operation::Setxattr { name: b"user.x", value: b"vv", flags: 1, more_flags: SETXATTR_ACL_KILL_SGID },
    );
    is(opcode::GETXATTR, with(words(&[64, 0]), b"user.x\0"), Operation::Getxattr { name: b"user.x", size: 64 });
    is(opcode::LISTXATTR, words(&[0, 0]), Operation::Listxattr { size: 0 });
    is(opcode::STATX, words(&[0, 0, 0, 0, 0, 0xfff]), Operation::Statx { mask: 0xfff });
    is(
        opcode::IOCTL,
        with(words(&[0, 0, 0, 0x660, 0, 0, 2, 8]), b"in"),
        Operation::Ioctl { command: 0x660, data: b"in", out_size: 8 },
    );
    is(opcode::FALLOCATE, words(&[0, 0, 1, 0, 2, 0, 3, 0]), Operation::Fallocate { offset: 1, len: 2, mode: 3 });
    is(opcode::LSEEK, words(&[0, 0, 6, 0, 3, 0]), Operation::Lseek { offset: 6, whence: 3 });
    let copy = |wide| Operation::CopyFileRange { offset: 1, to_node: 2, to_offset: 3, len: 4, wide };
    let body = words(&[0, 0, 1, 0, 2, 0, 0, 0, 3, 0, 4, 0, 0, 0]);
    is(opcode::COPY_FILE_RANGE, body.clone(), copy(false));
    is(opcode::COPY_FILE_RANGE_64, body, copy(true));
    is(opcode::SETATTR, words(&[8, 0, 0, 0, 77, 0, 0, 0, 1, 0, 2, 0, 3, 0, 4, 5, 6, 0o600, 0, 10, 11, 0]), {
        let times =
            SetattrIn { atime: 1, mtime: 2, ctime: 3, atime_ns: 4, mtime_ns: 5, ctime_ns: 6, ..SetattrIn::default() };
        Operation::Setattr(SetattrIn { valid: setattr::SIZE, size: 77, mode: 0o600, uid: 10, gid: 11, ..times })
    });
    let Some(Operation::BatchForget(forgets)) =
        operation(opcode::BATCH_FORGET, &words(&[2, 0, 1, 0, 2, 0, 3, 0, 4, 0]))
    else {
        panic!();
    };
    assert_eq!(forgets.iter().collect::<Vec<_>>(), [(1, 2), (3, 4)]);
    is(47_000, Vec::new(), Operation::Unknown);
}

#[test]
fn the_second_half_of_setxattr_is_there_only_where_it_was_negotiated() {
    let body = [[2, 0, 0, 0], [1, 0, 0, 0]].concat();
    let message = message(opcode::SETXATTR, 5, &[&body[..], b"user.x\0vv"].concat());
    let short = decode(&message, &agreed(0)).unwrap().operation;
    assert_eq!(short, Operation::Setxattr { name: b"user.x", value: b"vv", flags: 1, more_flags: 0 });
    assert!(decode(&message, &agreed(init_flags::SETXATTR_EXT)).is_err());
}

#[test]
fn what_the_kernel_never_sends_is_malformed_and_names_the_request() {
    let refused = |opcode, body: &[u8]| decode(&message(opcode, 5, body), &agreed(0)).unwrap_err().unique;
    assert_eq!(refused(opcode::LOOKUP, b"no end"), Some(2));
    assert_eq!(refused(opcode::LOOKUP, b"\0"), Some(2), "an empty name");
    assert_eq!(refused(opcode::LOOKUP, b"a/b\0"), Some(2));
    assert_eq!(refused(opcode::FORGET, &[1]), None, "nobody waits");
    assert_eq!(refused(opcode::BATCH_FORGET, &[255, 255, 255, 255, 0, 0, 0, 0]), None);
    let mut write = [0; 40];
    write[16] = 9;
    assert_eq!(refused(opcode::WRITE, &write), Some(32), "less data than announced");
    let mut read = [0; 40];
    read[15] = 0x80;
    assert_eq!(refused(opcode::READ, &read), Some(30), "a negative offset");
}

#[test]
fn attributes_keep_every_field_at_its_place() {
    let attr = Attr {
        ino: Ino::new(7),
        mode: 0o104755,
        nlink: 2,
        uid: 3,
        gid: 4,
        rdev: 0x12_3456,
        size: 6,
        blocks: 8,
        atime: -1,
        mtime: 2_000_000_003,
        ctime: -1_200_000_000,
        btime: 4,
        generation: 9,
    };
    let out = entry(&attr, 11);
    let bytes = out.as_bytes();
    let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((word(0), word(8), word(16), word(24), word(32)), (7, 9, 11, 11, 0));
    assert_eq!((word(40), word(48), word(56)), (7, 6, 8), "ino, size, blocks");
    assert_eq!((word(64) as i64, word(72) as i64, word(80) as i64), (-1, 2, -2), "seconds, rounded down");
    assert_eq!((half(88), half(92), half(96)), (999_999_999, 3, 800_000_000), "nanoseconds, forward");
    assert_eq!((half(100), half(104), half(108), half(112)), (0o104755, 2, 3, 4));
    assert_eq!((half(116), half(120), half(124)), (0x12_3456, 64 << 10, 0));
    let long = statx(&attr);
    let bytes = long.as_bytes();
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!((half(32), u16::from_ne_bytes([bytes[60], bytes[61]])), (0xfff, 0o104755), "mask, mode");
    assert_eq!((half(112), half(120)), (0, 4), "birth: seconds, nanoseconds");
    assert_eq!((half(160), half(164)), (0x234, 0x156), "device numbers");
    let absent = no_such_name();
    assert_eq!((absent.node, absent.entry_valid_s), (0, FOR_EVER_S));
    for ns in [0, 1, -1, 1_700_000_000_123_456_789, i64::MAX, i64::MIN] {
        let times = super::attr(&Attr { mtime: ns, ..attr }).attr;
        assert_eq!(crate::convert::received_ns(times.mtime, times.mtime_ns), ns, "there and back");
    }
}

#[test]
fn a_listing_is_aligned_and_ends_where_its_room_does() {
    let mut listing = Listing::new(24 + 8 + 24 + 8);
    assert!(listing.add(5, 1, 8, b"one"));
    assert!(!listing.add(6, 2, 4, b"nine-long"), "32 and 40 bytes are more than 64");
    assert!(listing.add(6, 2, 4, b"eight-lo"));
    assert!(!listing.add(6, 2, 4, b""));
    let bytes = listing.bytes();
    assert_eq!(bytes.len(), 64);
    assert_eq!((bytes[0], bytes[8], bytes[16], bytes[20]), (5, 1, 3, 8));
    assert_eq!(&bytes[24..32], b"one\0\0\0\0\0");
    assert_eq!(&bytes[56..64], b"eight-lo");
    let attr = Attr { ino: Ino::new(9), mode: 0o100644, ..attr_of_nothing() };
    let mut listing = Listing::new(128 + 32);
    assert!(listing.add_with(&entry(&attr, 1), 3, 8, b"x") && listing.bytes().len() == 160);
    assert_eq!((listing.bytes()[0], listing.bytes()[128], listing.bytes()[136]), (9, 9, 3));
}

fn attr_of_nothing() -> Attr {
    Attr {
        ino: Ino::ZERO,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        generation: 0,
    }
}

#[test]
fn arbitrary_bytes_decode_or_are_refused() {
    let mut random = random_from_environment();
    let (mut understood, mut refused) = (0, 0);
    for _ in 0..rounds(200_000) {
        let mut body: Vec<u8> = (0..random.below(100)).map(|_| random.next_u64() as u8).collect();
        // Small numbers and short names get furthest.
        for byte in &mut body {
            if random.below(3) > 0 {
                *byte = [0, 0, 0, 1, b'n'][random.below(5) as usize];
            }
        }
        let mut message = message(random.below(u64::from(opcode::END) + 2) as u32, random.below(9), &body);
        if random.below(10) == 0 {
            let at = random.below(message.len() as u64) as usize;
            message[at] = random.next_u64() as u8;
        }
        if random.below(20) == 0 {
            message.truncate(random.below(message.len() as u64) as usize);
        }
        match decode(&message, &agreed(random.next_u64())) {
            Ok(request) => {
                understood += 1;
                assert!(request.operation.answer_bytes_max() <= u32::MAX as usize + 16);
                if let Operation::BatchForget(forgets) = request.operation {
                    assert!(forgets.iter().count() <= message.len() / 16);
                }
            }
            Err(_) => refused += 1,
        }
    }
    assert!(understood > 1000 && refused > 1000, "{understood} understood, {refused} refused");
}
