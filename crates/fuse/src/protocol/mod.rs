//! The FUSE protocol: bytes to requests, answers to bytes. No I/O, no state, no `unsafe`.
//!
//! | module | owns |
//! |---|---|
//! | `layout` | the kernel's structures, with asserted sizes |
//! | `decode` | a message from the kernel as a [`Request`] |
//! | `encode` | attributes, entries and directory listings as the kernel wants them |
//! | `negotiation` | INIT: the offer and the agreement |
//!
//! Rules: hostile bytes never cause a panic. A message that cannot be understood says which request
//! must be answered with an error. The request determines how long its answer may be
//! ([`Operation::answer_bytes_max`]); senders keep to that. Numbers (operations, flags) are those
//! of `include/uapi/linux/fuse.h`.

mod decode;
mod encode;
pub mod layout;
mod negotiation;
#[cfg(test)]
pub(crate) mod tests;

pub use decode::{Operation, Request, client, decode};
pub use encode::{Listing, attr, entry, no_such_name, notify_attributes, out_header, statx};
pub(crate) use negotiation::PAGE_BYTES;
pub use negotiation::{Agreed, InitIn, Negotiation, Wanted, flags as init_flags, negotiate};

/// A lifetime that does not end in practice (seconds).
pub const FOR_EVER_S: u64 = 365 * 24 * 3600;

/// Room for headers and names, besides the data of a write (bytes).
pub const MESSAGE_ROOM_BYTES: usize = 4096;
/// Smallest buffer that the kernel accepts (bytes).
pub const BUFFER_BYTES_MIN: usize = 8192;

/// `fuse_setattr_in.valid`.
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    /// Only sent if the kernel keeps the times, with its write-back cache.
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// Flags in the answer to an open.
pub mod open {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NOFLUSH: u32 = 1 << 5;
}

/// `fuse_write_in.write_flags`: pages that the kernel writes back, of maps or under `writeback`.
pub const WRITE_CACHE: u32 = 1 << 0;
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_setxattr_in.setxattr_flags`.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// `fuse_notify_code`.
pub const NOTIFY_INVAL_INODE: i32 = 2;

/// Operations by number.
pub mod opcode {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;

    /// One more than the largest known operation.
    pub const END: u32 = 54;
}
