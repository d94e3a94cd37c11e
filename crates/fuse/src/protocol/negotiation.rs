//! INIT: the first message of a connection, in which both sides say what they can do.
//!
//! The kernel offers flags and limits, and the answer accepts some of them. The result determines
//! the form of later requests ([`Agreed`]). Versions: major 7, minor 23 (Linux 3.15) or later,
//! since all structures used here have had their present sizes from then on. The answered minor is
//! the smaller of both sides'; only flags decide what is sent.

use zerocopy::FromBytes;

use super::layout::{InitInRest, InitInShort, InitOut};

const MAJOR: u32 = 7;
/// Minor version with COPY_FILE_RANGE_64 (Linux 6.18).
const MINOR: u32 = 45;
const MINOR_MIN: u32 = 23;
pub(crate) const PAGE_BYTES: u32 = 4096;

/// `fuse_init_in.flags`, with `flags2` in the upper half.
pub mod flags {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    /// Files have no handles by which they could be exported (Linux 6.9).
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// The kernel's offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitIn {
    pub major: u32,
    pub minor: u32,
    pub read_ahead_max: u32,
    pub flags: u64,
}

impl InitIn {
    pub(super) fn read(body: &[u8]) -> Option<InitIn> {
        let (short, rest) = InitInShort::read_from_prefix(body).ok()?;
        let mut flags = u64::from(short.flags);
        if flags & flags::INIT_EXT != 0
            && let Ok((rest, _)) = InitInRest::read_from_prefix(rest)
        {
            flags |= u64::from(rest.flags2) << 32;
        }
        Some(InitIn { major: short.major, minor: short.minor, read_ahead_max: short.read_ahead_max, flags })
    }
}

/// This side's wishes.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub flags: u64,
    pub write_bytes_max: u32,
    pub read_ahead_max: u32,
    pub background_max: u16,
}

/// The agreement that both sides keep from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreed {
    pub flags: u64,
    /// Maximum data of one write (bytes).
    pub write_bytes_max: u32,
}

impl Agreed {
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

#[derive(Debug, PartialEq, Eq)]
pub enum Negotiation {
    Agreed(Agreed, InitOut),
    /// The kernel's major version is newer. It is told ours, and sends INIT again.
    Again(InitOut),
    /// The kernel is too old.
    Refused,
}

pub fn negotiate(offered: &InitIn, wanted: &Wanted) -> Negotiation {
    let ours = InitOut { major: MAJOR, minor: MINOR, ..InitOut::default() };
    if offered.major > MAJOR {
        return Negotiation::Again(ours);
    }
    if offered.major < MAJOR || offered.minor < MINOR_MIN {
        return Negotiation::Refused;
    }
    let flags = (wanted.flags | flags::INIT_EXT) & offered.flags;
    // Without MAX_PAGES the kernel sends at most 32 pages.
    let most = if flags & flags::MAX_PAGES != 0 { wanted.write_bytes_max } else { 32 * PAGE_BYTES };
    let write_bytes_max = wanted.write_bytes_max.min(most).max(PAGE_BYTES);
    let out = InitOut {
        minor: offered.minor.min(MINOR),
        read_ahead_max: wanted.read_ahead_max.min(offered.read_ahead_max),
        flags: flags as u32,
        flags2: (flags >> 32) as u32,
        background_max: wanted.background_max,
        congestion_threshold: wanted.background_max / 4 * 3,
        write_bytes_max,
        time_granularity_ns: 1,
        pages_max: write_bytes_max.div_ceil(PAGE_BYTES).try_into().unwrap_or(u16::MAX),
        ..ours
    };
    Negotiation::Agreed(Agreed { flags, write_bytes_max }, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::IntoBytes;

    const WANTED: Wanted = Wanted {
        flags: flags::MAX_PAGES | flags::SETXATTR_EXT | flags::DIRECT_IO_ALLOW_MMAP | flags::ASYNC_READ,
        write_bytes_max: 1 << 20,
        read_ahead_max: 1 << 20,
        background_max: 64,
    };

    fn offered(minor: u32, flags: u64) -> InitIn {
        InitIn { major: 7, minor, read_ahead_max: 128 << 10, flags }
    }

    #[test]
    fn what_was_not_offered_is_not_taken() {
        let all =
            flags::MAX_PAGES | flags::SETXATTR_EXT | flags::DIRECT_IO_ALLOW_MMAP | flags::INIT_EXT | flags::POSIX_ACL;
        let Negotiation::Agreed(agreed, out) = negotiate(&offered(99, all), &WANTED) else { panic!() };
        assert_eq!(agreed.flags, all & !flags::POSIX_ACL, "neither unwanted flags nor unknown ones");
        assert_eq!((out.flags, out.flags2), (agreed.flags as u32, 1 << 4));
        assert_eq!((out.major, out.minor), (7, MINOR));
        assert_eq!((out.write_bytes_max, out.pages_max, out.read_ahead_max), (1 << 20, 256, 128 << 10));
        assert_eq!((out.background_max, out.congestion_threshold, out.time_granularity_ns), (64, 48, 1));
        let Negotiation::Agreed(agreed, out) = negotiate(&offered(31, flags::ASYNC_READ), &WANTED) else { panic!() };
        assert_eq!((agreed.flags, out.flags2, out.minor), (flags::ASYNC_READ, 0, 31));
        assert_eq!(agreed.write_bytes_max, 128 << 10, "32 pages without MAX_PAGES");
    }

    #[test]
    fn versions_that_do_not_fit_are_told_apart() {
        assert_eq!(negotiate(&offered(22, 0), &WANTED), Negotiation::Refused);
        assert_eq!(negotiate(&InitIn { major: 6, ..offered(40, 0) }, &WANTED), Negotiation::Refused);
        let Negotiation::Again(out) = negotiate(&InitIn { major: 8, ..offered(0, 0) }, &WANTED) else { panic!() };
        assert_eq!((out.major, out.flags), (7, 0));
    }

    #[test]
    fn the_upper_flags_count_only_where_they_were_announced() {
        let mut body = InitInShort { major: 7, minor: 38, read_ahead_max: 5, flags: 1 }.as_bytes().to_vec();
        assert_eq!(InitIn::read(&body).unwrap().flags, 1);
        body.extend_from_slice(InitInRest { flags2: 1 << 4, ..InitInRest::default() }.as_bytes());
        assert_eq!(InitIn::read(&body).unwrap().flags, 1, "not announced");
        body[12..16].copy_from_slice(&(1u32 | 1 << 30).to_ne_bytes());
        assert_eq!(InitIn::read(&body).unwrap().flags, 1 | flags::INIT_EXT | flags::DIRECT_IO_ALLOW_MMAP);
        assert_eq!(InitIn::read(&body[..15]), None);
    }
}
