//! Conversions of values in requests: times, rename modes, set-id bits.
//!
//! Pure functions. Times are nanoseconds since 1970 in an `i64` (years 1678 to 2262); times outside
//! are clamped. The kernel's rule (`setattr_should_drop_suidgid`, `setattr_should_drop_sgid`) says
//! which set-id bits a write, a truncation or a change of owner clears. It is restated here because
//! with HANDLE_KILLPRIV_V2 the daemon applies it.

use rustix::fs::{FileType, Mode, RenameFlags};
use shoal_fs::{RenameMode, SetAttr, TimeChange};

use crate::protocol::layout::SetattrIn;
use crate::protocol::setattr;

const NS: i128 = 1_000_000_000;
/// The bits of a request that each name an attribute to be changed.
const NAMED: u32 = setattr::MODE
    | setattr::UID
    | setattr::GID
    | setattr::SIZE
    | setattr::ATIME
    | setattr::ATIME_NOW
    | setattr::MTIME
    | setattr::MTIME_NOW
    | setattr::CTIME;

/// Converts a time from the protocol, which has whole seconds, rounded down, and nanoseconds going
/// forward, even before 1970.
pub(crate) fn received_ns(seconds: i64, ns: u32) -> i64 {
    let ns = i128::from(seconds) * NS + i128::from(ns);
    ns.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns the attributes that a request changes.
pub(crate) fn attr_change(asked: &SetattrIn) -> SetAttr {
    let is_named = |bit| asked.valid & bit != 0;
    let time = |bit, now, seconds, ns| {
        is_named(bit).then(|| match is_named(now) {
            true => TimeChange::Now,
            false => TimeChange::At(received_ns(seconds, ns)),
        })
    };
    SetAttr {
        mode: is_named(setattr::MODE).then_some(asked.mode & 0o7777),
        uid: is_named(setattr::UID).then_some(asked.uid),
        gid: is_named(setattr::GID).then_some(asked.gid),
        size: is_named(setattr::SIZE).then_some(asked.size),
        atime: time(setattr::ATIME, setattr::ATIME_NOW, asked.atime, asked.atime_ns),
        mtime: time(setattr::MTIME, setattr::MTIME_NOW, asked.mtime, asked.mtime_ns),
        ctime: is_named(setattr::CTIME).then(|| received_ns(asked.ctime, asked.ctime_ns)),
    }
}

/// Returns whether a request changes nothing. The kernel sends such a request to clear set-id bits:
/// for chown(2) with neither an owner nor a group, and before a write. It names only the time of
/// change, if the kernel keeps times.
pub(crate) fn names_nothing(asked: &SetattrIn) -> bool {
    asked.valid & NAMED & !setattr::CTIME == 0
}

/// Returns whether these are the times of a write that the kernel has gathered. Both times are then
/// equal, and come alone. If a program sets the modification time alone, the two differ.
pub(crate) fn are_written_times(asked: &SetattrIn) -> bool {
    asked.valid & NAMED == setattr::MTIME | setattr::CTIME
        && (asked.mtime, asked.mtime_ns) == (asked.ctime, asked.ctime_ns)
}

/// Returns the treatment of the target, and whether the old name becomes a whiteout. `None` for
/// flags that are unknown or exclude each other: an exchange leaves no name free.
pub(crate) fn rename_mode(flags: u32) -> Option<(RenameMode, bool)> {
    let flags = RenameFlags::from_bits(flags)?;
    let whiteout = flags.contains(RenameFlags::WHITEOUT);
    let rest = flags - RenameFlags::WHITEOUT;
    if rest.is_empty() {
        Some((RenameMode::Replace, whiteout))
    } else if rest == RenameFlags::NOREPLACE {
        Some((RenameMode::NoReplace, whiteout))
    } else if rest == RenameFlags::EXCHANGE && !whiteout {
        Some((RenameMode::Exchange, false))
    } else {
        None
    }
}

/// Returns the mode after a write or truncation by a caller without CAP_FSETID; `None` if it stays
/// the same.
pub(crate) fn mode_after_write(mode: u32, is_member: impl FnOnce() -> bool) -> Option<u32> {
    (FileType::from_raw_mode(mode) == FileType::RegularFile).then(|| without_set_id(mode, is_member)).flatten()
}

/// Returns the mode after a change of owner or group; `None` if it stays the same.
pub(crate) fn mode_after_chown(mode: u32, is_member: impl FnOnce() -> bool) -> Option<u32> {
    (FileType::from_raw_mode(mode) != FileType::Directory).then(|| without_set_id(mode, is_member)).flatten()
}

/// Returns the mode without set-id bits; `None` if it has none to lose. Set-group-id without group
/// execution once meant mandatory locking, and stays if the caller is in the file's group.
fn without_set_id(mode: u32, is_member: impl FnOnce() -> bool) -> Option<u32> {
    let has = |bit: Mode| mode & bit.as_raw_mode() != 0;
    let mut kept = mode & !Mode::SUID.as_raw_mode();
    if has(Mode::SGID) && (has(Mode::XGRP) || !is_member()) {
        kept &= !Mode::SGID.as_raw_mode();
    }
    (kept != mode).then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_before_1970_is_what_the_caller_meant() {
        assert_eq!(received_ns(-2, 800_000_000), -1_200_000_000);
        assert_eq!(received_ns(-1, 999_999_999), -1);
        assert_eq!(received_ns(-5, 0), -5_000_000_000);
        assert_eq!(received_ns(3, 7), 3_000_000_007);
        assert_eq!(received_ns(1 << 40, 0), i64::MAX);
        assert_eq!(received_ns(-(1 << 40), 0), i64::MIN);
        assert_eq!(received_ns(i64::MIN, u32::MAX), i64::MIN);
    }

    #[test]
    fn only_what_a_request_names_is_changed() {
        let asked =
            SetattrIn { mode: 0o104755, uid: 1, gid: 2, size: 3, mtime: -1, mtime_ns: 5, ..SetattrIn::default() };
        let change = attr_change(&asked);
        assert_eq!((change.mode, change.uid, change.gid, change.size), (None, None, None, None));
        assert_eq!((change.atime, change.mtime), (None, None));
        let all = setattr::MODE | setattr::UID | setattr::GID | setattr::SIZE | setattr::ATIME | setattr::MTIME;
        let change = attr_change(&SetattrIn { valid: all | setattr::ATIME_NOW, ..asked });
        assert_eq!((change.mode, change.uid, change.gid, change.size), (Some(0o4755), Some(1), Some(2), Some(3)));
        assert_eq!((change.atime, change.mtime), (Some(TimeChange::Now), Some(TimeChange::At(-999_999_995))));
    }

    #[test]
    fn set_id_bits_go_as_the_kernel_would_clear_them() {
        let (member, stranger) = (|| true, || false);
        assert_eq!(mode_after_write(0o104755, member), Some(0o100755));
        assert_eq!(mode_after_write(0o106775, member), Some(0o100775));
        assert_eq!(mode_after_write(0o102644, member), None, "set-group-id without execution stays");
        assert_eq!(mode_after_write(0o102644, stranger), Some(0o100644), "unless a stranger to the group writes");
        assert_eq!(mode_after_write(0o106644, member), Some(0o102644));
        assert_eq!(mode_after_write(0o100644, || panic!("nobody asks for groups without need")), None);
        assert_eq!(mode_after_chown(0o042775, stranger), None, "directories keep theirs");
        assert_eq!(mode_after_chown(0o106755, member), Some(0o100755));
        assert_eq!(mode_after_chown(0o102644, stranger), Some(0o100644));
    }

    #[test]
    fn an_exchange_goes_with_no_other_rename_flag_and_a_whiteout_with_all_others() {
        let [no_replace, exchange, whiteout] = [1, 2, 4];
        assert_eq!(rename_mode(0), Some((RenameMode::Replace, false)));
        assert_eq!(rename_mode(no_replace), Some((RenameMode::NoReplace, false)));
        assert_eq!(rename_mode(exchange), Some((RenameMode::Exchange, false)));
        assert_eq!(rename_mode(whiteout), Some((RenameMode::Replace, true)));
        assert_eq!(rename_mode(whiteout | no_replace), Some((RenameMode::NoReplace, true)));
        assert_eq!(rename_mode(whiteout | exchange), None);
        assert_eq!(rename_mode(no_replace | exchange), None);
        assert_eq!(rename_mode(1 << 3), None);
    }
}
