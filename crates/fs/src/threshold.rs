//! The size above which a file is large: the store's, and that of directories and files as an
//! extended attribute.
//!
//! `format` writes the store's threshold; an option or [`Fs::set_threshold`] overrides it while the
//! store is open. Another option raises it for files that may be executed. The attribute `user.shoal.threshold` of a directory applies to files created in
//! and below it, that of a file to the file itself. It is not a stored attribute but a number in
//! the inode's record, which new files and directories inherit. Links and renames leave it
//! unchanged. An inherited threshold is not shown as an attribute: a copy would carry it along as
//! if somebody had set it, and changing it at the tree's root would no longer work. A change takes
//! effect at the next write that finds the file too long, and in a rebalancing (`rebalance`).
//! Rules: the store has the feature before the first number is written.
//! Left out: moving files (`file`, `large`).

use std::sync::atomic::Ordering::Relaxed;

use shoal_format::inode::{Inode, THRESHOLD_MAX, THRESHOLD_MIN, Threshold};
use shoal_format::superblock::FEATURE_THRESHOLDS;

use crate::rooms::Tree;
use crate::xattr::{self, XattrMode};
use crate::{Error, Fs, Ino, Result, flags};

/// The attribute's name.
pub const THRESHOLD_ATTRIBUTE: &[u8] = b"user.shoal.threshold";

/// Returns the threshold that a user gave a file or directory.
pub(crate) fn own(inode: &Inode) -> Option<u32> {
    Some(inode.threshold).filter(|threshold| threshold.bytes > 0 && !threshold.inherited).map(|own| own.bytes)
}

/// Returns the attribute's value.
pub(crate) fn value(inode: &Inode) -> Result<Vec<u8>> {
    own(inode).map(|bytes| threshold_text(bytes).into_bytes()).ok_or(Error::NoAttribute)
}

/// Formats a threshold: `256K`, `1M`, or bytes.
pub fn threshold_text(bytes: u32) -> String {
    match bytes {
        0 => "0".into(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Parses a threshold: a number, with an optional K or M behind it. Returns its bytes.
fn parsed(text: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    // `parse` would accept a sign.
    let number: u64 = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    let bytes = u32::try_from(number.checked_mul(1 << shift)?).ok()?;
    (THRESHOLD_MIN..=THRESHOLD_MAX).contains(&bytes).then_some(bytes)
}

/// Fails if the attribute may not be changed in this way.
fn check(inode: &Inode, mode: XattrMode) -> Result<()> {
    flags::check_change(inode)?;
    xattr::check_name(inode, THRESHOLD_ATTRIBUTE)?;
    match (mode, own(inode)) {
        (XattrMode::Create, Some(_)) => Err(Error::Exists),
        (XattrMode::Replace, None) => Err(Error::NoAttribute),
        _ => Ok(()),
    }
}

impl Fs {
    /// Returns the size above which a file is large (bytes), if neither the file nor its directory
    /// has its own.
    pub fn threshold(&self) -> u64 {
        self.threshold.load(Relaxed)
    }

    /// Sets that size until the store is closed; `None`: as the store was formatted.
    pub fn set_threshold(&self, bytes: Option<u64>) {
        self.threshold.store(bytes.unwrap_or(self.region.superblock().threshold), Relaxed);
    }
}

impl<'a> Tree<'a> {
    /// Returns the size above which this file is large (bytes).
    pub(crate) fn threshold_of(self, inode: &Inode) -> u64 {
        match (&self.fs.bulk, inode.threshold.bytes) {
            (None, _) => u64::MAX,
            (_, 0) => self.usual_threshold(inode).min(THRESHOLD_MAX.into()),
            (_, own) => own.into(),
        }
    }

    /// The threshold of a file that has none of its own. Programs and libraries are read whole and
    /// again and again, and are marked as executable when they are made.
    fn usual_threshold(self, inode: &Inode) -> u64 {
        let bytes = self.fs.threshold();
        match inode.is_file() && inode.mode & 0o111 != 0 {
            true => bytes.max(self.fs.options.executables),
            false => bytes,
        }
    }

    pub(crate) fn set_own_threshold(self, ino: Ino, value: &[u8], mode: XattrMode) -> Result<()> {
        let bytes = parsed(value).ok_or(Error::Invalid)?;
        {
            // Checked before the store gets the feature, which older programs refuse.
            let _lock = self.fs.locks.read(ino);
            check(&self.fs.load(ino)?, mode)?;
        }
        self.fs.region.add_feature(FEATURE_THRESHOLDS)?;
        self.fs.with_room(|| self.change_threshold(ino, Threshold { bytes, inherited: false }, mode))
    }

    pub(crate) fn remove_own_threshold(self, ino: Ino) -> Result<()> {
        self.change_threshold(ino, Threshold::NONE, XattrMode::Replace)
    }

    fn change_threshold(self, ino: Ino, threshold: Threshold, mode: XattrMode) -> Result<()> {
        let _lock = self.fs.locks.write(ino);
        let mut inode = self.fs.load(ino)?;
        check(&inode, mode)?;
        (inode.threshold, inode.ctime) = (threshold, self.fs.now());
        let mut tx = if threshold.bytes == 0 { self.fs.region.begin_reclaim() } else { self.fs.region.begin() };
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_read_as_they_are_written_and_within_their_limits() {
        for (text, bytes) in [("4096", 4096), ("4K", 4096), ("256k", 256 << 10), ("1M", 1 << 20), ("64M", 64 << 20)] {
            assert_eq!(parsed(text.as_bytes()), Some(bytes), "{text}");
            assert_eq!(parsed(threshold_text(bytes).as_bytes()), Some(bytes), "{text}");
        }
        assert_eq!([4096, 5000, 1 << 20].map(threshold_text), ["4K", "5000", "1M"]);
        for wrong in ["", "K", "-1M", "+1M", "1G", "0", "4095", "3K", "65M", "99999999999999999999M", "1 M", "1MiB"] {
            assert_eq!(parsed(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
