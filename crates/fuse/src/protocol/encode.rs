//! Attributes, entries and directory listings as the kernel wants them.
//!
//! Pure functions over plain values. Lifetimes are in seconds. A time is whole seconds, rounded
//! down, and nanoseconds going forward, even before 1970.

use shoal_fs::Attr;
use zerocopy::IntoBytes;

use super::layout::{self, AttrOut, Dirent, EntryOut, NotifyInvalInodeOut, OutHeader, Statx, StatxOut, SxTime};
use super::{FOR_EVER_S, NOTIFY_INVAL_INODE};

const NS: i64 = 1_000_000_000;

/// Programs size their buffers by this (`st_blksize`, bytes). Every buffer written is one request,
/// so it is larger than the unit of allocation. The C library reads directories with buffers of
/// this size, too.
const PREFERRED_IO_BYTES: u32 = 64 << 10;

/// STATX_BASIC_STATS and STATX_BTIME.
const STATX_KNOWN: u32 = 0xfff;

fn seconds(time: i64) -> i64 {
    time.div_euclid(NS)
}

fn nanoseconds(time: i64) -> u32 {
    time.rem_euclid(NS) as u32
}

fn fixed_attr(attr: &Attr) -> layout::Attr {
    layout::Attr {
        ino: attr.ino.into(),
        size: attr.size,
        blocks: attr.blocks,
        atime: seconds(attr.atime),
        mtime: seconds(attr.mtime),
        ctime: seconds(attr.ctime),
        atime_ns: nanoseconds(attr.atime),
        mtime_ns: nanoseconds(attr.mtime),
        ctime_ns: nanoseconds(attr.ctime),
        mode: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        block_bytes: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// Returns attributes that stay true until the kernel changes them.
pub fn attr(attr: &Attr) -> AttrOut {
    AttrOut { valid_s: FOR_EVER_S, attr: fixed_attr(attr), ..AttrOut::default() }
}

/// Returns an inode under a name. The kernel may trust both for `lifetime_s` (seconds).
pub fn entry(attr: &Attr, lifetime_s: u64) -> EntryOut {
    EntryOut {
        node: attr.ino.into(),
        generation: attr.generation.into(),
        entry_valid_s: lifetime_s,
        attr_valid_s: lifetime_s,
        attr: fixed_attr(attr),
        ..EntryOut::default()
    }
}

/// Returns the answer that a name does not exist, for the kernel to remember.
pub fn no_such_name() -> EntryOut {
    EntryOut { entry_valid_s: FOR_EVER_S, ..EntryOut::default() }
}

pub fn statx(attr: &Attr) -> StatxOut {
    let time = |time| SxTime { seconds: seconds(time), ns: nanoseconds(time), ..SxTime::default() };
    // This is the kernel's encoding of `dev_t` in 32 bits.
    let (major, minor) = ((attr.rdev >> 8) & 0xfff, (attr.rdev & 0xff) | ((attr.rdev >> 12) & 0xfff00));
    StatxOut {
        valid_s: FOR_EVER_S,
        stat: Statx {
            mask: STATX_KNOWN,
            block_bytes: PREFERRED_IO_BYTES,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: attr.mode as u16,
            ino: attr.ino.into(),
            size: attr.size,
            blocks: attr.blocks,
            atime: time(attr.atime),
            btime: time(attr.btime),
            ctime: time(attr.ctime),
            mtime: time(attr.mtime),
            rdev_major: major,
            rdev_minor: minor,
            ..Statx::default()
        },
        ..StatxOut::default()
    }
}

/// Returns the header of an answer. `errno` is 0 for success.
pub fn out_header(unique: u64, errno: i32, body_bytes: usize) -> OutHeader {
    OutHeader { len: (size_of::<OutHeader>() + body_bytes) as u32, error: -errno, unique }
}

/// Tells the kernel to forget the attributes of an inode, without its pages.
pub fn notify_attributes(ino: u64) -> (OutHeader, NotifyInvalInodeOut) {
    let body = NotifyInvalInodeOut { ino, offset: -1, len: 0 };
    (out_header(0, -NOTIFY_INVAL_INODE, size_of_val(&body)), body)
}

/// The answer to READDIR and READDIRPLUS: as many entries as fit.
pub struct Listing {
    bytes: Vec<u8>,
    bytes_max: usize,
}

impl Listing {
    pub fn new(bytes_max: usize) -> Listing {
        // The kernel asks for more than most directories need.
        Listing { bytes: Vec::with_capacity(bytes_max.min(64 << 10)), bytes_max }
    }

    /// Adds an entry. Returns false if there is no room for it.
    pub fn add(&mut self, ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        self.add_behind(&[], ino, next, kind, name)
    }

    /// Adds an entry with its attributes in front. Returns false if there is no room for it.
    pub fn add_with(&mut self, entry: &EntryOut, next: u64, kind: u8, name: &[u8]) -> bool {
        self.add_behind(entry.as_bytes(), entry.attr.ino, next, kind, name)
    }

    fn add_behind(&mut self, front: &[u8], ino: u64, next: u64, kind: u8, name: &[u8]) -> bool {
        let bytes = front.len() + (size_of::<Dirent>() + name.len()).next_multiple_of(8);
        if self.bytes.len() + bytes > self.bytes_max {
            return false;
        }
        let end = self.bytes.len() + bytes;
        self.bytes.extend_from_slice(front);
        let entry = Dirent { ino, next, name_len: name.len() as u32, kind: kind.into() };
        self.bytes.extend_from_slice(entry.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(end, 0);
        true
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
