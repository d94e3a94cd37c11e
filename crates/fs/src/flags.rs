//! The flags of chattr(1) that Shoal keeps: immutable, append-only, no-dump, no-atime.
//!
//! Rules: the kernel does not know them (FUSE does not report them), so every operation asks here,
//! under the inode's lock. They forbid the same as on Linux' own file systems, with the same error,
//! also for root. The adapter decides who may change the flags. Left out: flags that would mean
//! nothing here (compression, journaling, ...).

use shoal_format::inode::{INODE_APPEND_ONLY, INODE_IMMUTABLE, INODE_NO_ATIME, INODE_NO_DUMP, Inode, S_IFDIR, S_IFREG};

use crate::{Error, Fs, Ino, Result, SetAttr, TimeChange};

/// Flags of chattr(1) on a file or directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFlags {
    /// Nothing changes.
    pub immutable: bool,
    /// A file only grows, a directory only gains entries.
    pub append_only: bool,
    /// For backup programs.
    pub no_dump: bool,
    /// Reads leave the access time alone.
    pub no_atime: bool,
}

const BITS: u8 = INODE_IMMUTABLE | INODE_APPEND_ONLY | INODE_NO_DUMP | INODE_NO_ATIME;

impl FileFlags {
    fn of(inode: &Inode) -> FileFlags {
        let has = |bit| inode.flags & bit != 0;
        FileFlags {
            immutable: has(INODE_IMMUTABLE),
            append_only: has(INODE_APPEND_ONLY),
            no_dump: has(INODE_NO_DUMP),
            no_atime: has(INODE_NO_ATIME),
        }
    }

    fn bits(self) -> u8 {
        [
            (self.immutable, INODE_IMMUTABLE),
            (self.append_only, INODE_APPEND_ONLY),
            (self.no_dump, INODE_NO_DUMP),
            (self.no_atime, INODE_NO_ATIME),
        ]
        .iter()
        .fold(0, |bits, (set, bit)| if *set { bits | bit } else { bits })
    }
}

/// Returns the flags that a directory hands down to files and directories made in it, as on ext4
/// and XFS.
pub(crate) fn handed_down(dir: &Inode) -> u8 {
    dir.flags & (INODE_NO_DUMP | INODE_NO_ATIME)
}

fn refuse_if(forbidden: bool) -> Result<()> {
    if forbidden { Err(Error::NotPermitted) } else { Ok(()) }
}

/// Fails for an inode whose names and attributes may not change.
pub(crate) fn check_change(inode: &Inode) -> Result<()> {
    refuse_if(inode.flags & (INODE_IMMUTABLE | INODE_APPEND_ONLY) != 0)
}

/// Fails if no data may be written at `at`.
pub(crate) fn check_write(inode: &Inode, at: u64) -> Result<()> {
    refuse_if(inode.flags & INODE_IMMUTABLE != 0 || inode.flags & INODE_APPEND_ONLY != 0 && at < inode.size)
}

/// Fails if no entries may be added to the directory.
pub(crate) fn check_entry_added(dir: &Inode) -> Result<()> {
    refuse_if(dir.flags & INODE_IMMUTABLE != 0)
}

/// Fails if the entry that names `inode` may not be removed from the directory.
pub(crate) fn check_entry_removed(dir: &Inode, inode: &Inode) -> Result<()> {
    check_change(dir).and_then(|()| check_change(inode))
}

/// Fails if the attributes may not be changed in this way. Both times of an append-only file may be
/// set to the present.
pub(crate) fn check_setattr(inode: &Inode, change: &SetAttr) -> Result<()> {
    let times = (change.atime, change.mtime);
    let only_touched = change.mode.is_none()
        && change.uid.is_none()
        && change.gid.is_none()
        && change.size.is_none()
        && matches!(times, (None, None) | (Some(TimeChange::Now), Some(TimeChange::Now)));
    if only_touched { check_entry_added(inode) } else { check_change(inode) }
}

impl Fs {
    pub fn file_flags(&self, ino: Ino) -> Result<FileFlags> {
        let _lock = self.locks.read(ino);
        Ok(FileFlags::of(&self.load(ino)?))
    }

    /// Replaces the flags if `allowed` accepts the present ones and the inode's owner.
    pub fn set_file_flags(
        &self,
        ino: Ino,
        flags: FileFlags,
        allowed: impl FnOnce(FileFlags, u32) -> bool,
    ) -> Result<()> {
        self.writable()?;
        let _lock = self.locks.write(ino);
        let mut inode = self.load(ino)?;
        if !matches!(inode.kind(), S_IFREG | S_IFDIR) {
            return Err(Error::NotSupported);
        }
        refuse_if(!allowed(FileFlags::of(&inode), inode.uid))?;
        inode.flags = inode.flags & !BITS | flags.bits();
        inode.ctime = self.now();
        // Flags can be removed on a full store: what they protect must be removable.
        let mut tx = self.region.begin_reclaim();
        self.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        Ok(())
    }
}
