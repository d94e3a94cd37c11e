//! Conversions between the engine's values and the protocol's: attributes, times, kinds, errors, set-id bits.
//!
//! Pure functions. Times are nanoseconds since 1970 in an `i64` (years 1678 to 2262); what lies outside is
//! clamped. Set-id bits: which of them a write, a truncation or a change of owner clears is the kernel's rule
//! (`should_remove_suid`), restated here because with HANDLE_KILLPRIV_V2 the daemon applies it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileType, INodeNo, RenameFlags, TimeOrNow};
use shoal_fs::{Attr, RenameMode, TimeChange};

const NS: i128 = 1_000_000_000;
const S_IFMT: u32 = 0o170000;
const S_IFREG: u32 = 0o100000;
const S_IFDIR: u32 = 0o040000;
const S_ISUID: u32 = 0o4000;
const S_ISGID: u32 = 0o2000;
const S_IXGRP: u32 = 0o010;

/// Programs size their buffers by this (`st_blksize`): every buffer written is one request, so it is larger than the
/// unit of allocation. 64 KiB is also what the C library then reads directories with.
const PREFERRED_IO_BYTES: u32 = 64 << 10;

pub(crate) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: system_time(attr.btime),
        kind: kind_of_mode(attr.mode),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

pub(crate) fn system_time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    if ns >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

/// The time the kernel sent.
///
/// The protocol carries a time before 1970 as negative seconds plus nanoseconds going forward; `fuser` 0.18 hands it
/// on as if the nanoseconds went backward too. That is undone here: -1.2 s is sent as (-2 s, 0.8 s) and arrives as -2.8 s.
pub(crate) fn received_ns(time: SystemTime) -> i64 {
    let ns = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => {
            let before = before.duration();
            -(before.as_secs() as i128) * NS + before.subsec_nanos() as i128
        }
    };
    ns.clamp(i64::MIN as i128, i64::MAX as i128) as i64
}

pub(crate) fn time_change(time: TimeOrNow) -> TimeChange {
    match time {
        TimeOrNow::Now => TimeChange::Now,
        TimeOrNow::SpecificTime(time) => TimeChange::At(received_ns(time)),
    }
}

fn kind_of_mode(mode: u32) -> FileType {
    kind_of_entry((mode >> 12) as u8)
}

/// From a directory entry's `d_type`, which is `st_mode >> 12`.
pub(crate) fn kind_of_entry(d_type: u8) -> FileType {
    match d_type {
        1 => FileType::NamedPipe,
        2 => FileType::CharDevice,
        4 => FileType::Directory,
        6 => FileType::BlockDevice,
        10 => FileType::Symlink,
        12 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

pub(crate) fn errno(error: &shoal_fs::Error) -> Errno {
    Errno::from_i32(error.errno())
}

/// What to do about the target, and whether the old name becomes a whiteout. `None` for flags that are unknown or exclude
/// each other: an exchange leaves no name free.
pub(crate) fn rename_mode(flags: RenameFlags) -> Option<(RenameMode, bool)> {
    let whiteout = flags.contains(RenameFlags::RENAME_WHITEOUT);
    let rest = flags.difference(RenameFlags::RENAME_WHITEOUT);
    if rest.is_empty() {
        Some((RenameMode::Replace, whiteout))
    } else if rest == RenameFlags::RENAME_NOREPLACE {
        Some((RenameMode::NoReplace, whiteout))
    } else if rest == RenameFlags::RENAME_EXCHANGE && !whiteout {
        Some((RenameMode::Exchange, false))
    } else {
        None
    }
}

/// The mode that a write or truncation by a caller without CAP_FSETID leaves, if it is another one.
pub(crate) fn mode_after_write(mode: u32) -> Option<u32> {
    (mode & S_IFMT == S_IFREG).then(|| without_set_id(mode)).flatten()
}

/// The mode that a change of owner or group leaves, if it is another one.
pub(crate) fn mode_after_chown(mode: u32) -> Option<u32> {
    (mode & S_IFMT != S_IFDIR).then(|| without_set_id(mode)).flatten()
}

/// Set-group-id without group execution once meant mandatory locking, and stays.
fn without_set_id(mode: u32) -> Option<u32> {
    let mut kept = mode & !S_ISUID;
    if mode & S_IXGRP != 0 {
        kept &= !S_ISGID;
    }
    (kept != mode).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_convert_on_both_sides_of_1970() {
        for ns in [0, 1, -1, 1_700_000_000_123_456_789, -1_200_000_000, i64::MAX, i64::MIN] {
            let time = system_time(ns);
            let back = match time.duration_since(UNIX_EPOCH) {
                Ok(d) => d.as_nanos() as i128,
                Err(e) => -(e.duration().as_nanos() as i128),
            };
            assert_eq!(back, ns as i128);
        }
    }

    #[test]
    fn a_time_before_1970_is_what_the_caller_meant() {
        // As fuser 0.18 decodes (seconds, nanoseconds) of the protocol.
        let decoded = |secs: i64, ns: u32| {
            if secs >= 0 {
                UNIX_EPOCH + Duration::new(secs as u64, ns)
            } else {
                UNIX_EPOCH - Duration::new(-secs as u64, ns)
            }
        };
        assert_eq!(received_ns(decoded(-2, 800_000_000)), -1_200_000_000);
        assert_eq!(received_ns(decoded(-1, 999_999_999)), -1);
        assert_eq!(received_ns(decoded(-5, 0)), -5_000_000_000);
        assert_eq!(received_ns(decoded(3, 7)), 3_000_000_007);
        assert_eq!(received_ns(decoded(1 << 40, 0)), i64::MAX);
        assert_eq!(received_ns(decoded(-(1 << 40), 0)), i64::MIN);
    }

    #[test]
    fn kinds_follow_the_mode() {
        assert_eq!(kind_of_mode(0o100644), FileType::RegularFile);
        assert_eq!(kind_of_mode(0o040755), FileType::Directory);
        assert_eq!(kind_of_mode(0o120777), FileType::Symlink);
        assert_eq!(kind_of_mode(0o010644), FileType::NamedPipe);
        assert_eq!(kind_of_mode(0o140644), FileType::Socket);
        assert_eq!(kind_of_mode(0o020644), FileType::CharDevice);
        assert_eq!(kind_of_mode(0o060644), FileType::BlockDevice);
    }

    #[test]
    fn attributes_keep_every_field() {
        let attr = Attr {
            ino: 7,
            mode: 0o104755,
            nlink: 2,
            uid: 3,
            gid: 4,
            rdev: 5,
            size: 6,
            blocks: 8,
            atime: -1,
            mtime: 2,
            ctime: 3,
            btime: 4,
            generation: 9,
        };
        let out = file_attr(&attr);
        assert_eq!((out.ino.0, out.perm, out.nlink, out.uid, out.gid), (7, 0o4755, 2, 3, 4));
        assert_eq!((out.rdev, out.size, out.blocks), (5, 6, 8));
        assert_eq!((out.atime, out.mtime), (system_time(-1), system_time(2)));
        assert_eq!((out.ctime, out.crtime), (system_time(3), system_time(4)));
    }

    #[test]
    fn set_id_bits_go_as_the_kernel_would_clear_them() {
        assert_eq!(mode_after_write(0o104755), Some(0o100755));
        assert_eq!(mode_after_write(0o106775), Some(0o100775));
        assert_eq!(mode_after_write(0o102644), None, "set-group-id without execution stays");
        assert_eq!(mode_after_write(0o106644), Some(0o102644));
        assert_eq!(mode_after_write(0o100644), None);
        assert_eq!(mode_after_chown(0o042775), None, "directories keep theirs");
        assert_eq!(mode_after_chown(0o106755), Some(0o100755));
    }

    #[test]
    fn an_exchange_goes_with_no_other_rename_flag_and_a_whiteout_with_all_others() {
        let (whiteout, no_replace) = (RenameFlags::RENAME_WHITEOUT, RenameFlags::RENAME_NOREPLACE);
        assert_eq!(rename_mode(RenameFlags::empty()), Some((RenameMode::Replace, false)));
        assert_eq!(rename_mode(no_replace), Some((RenameMode::NoReplace, false)));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Some((RenameMode::Exchange, false)));
        assert_eq!(rename_mode(whiteout), Some((RenameMode::Replace, true)));
        assert_eq!(rename_mode(whiteout | no_replace), Some((RenameMode::NoReplace, true)));
        assert_eq!(rename_mode(whiteout | RenameFlags::RENAME_EXCHANGE), None);
        assert_eq!(rename_mode(no_replace | RenameFlags::RENAME_EXCHANGE), None);
    }
}
