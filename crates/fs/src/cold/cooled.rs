//! What may be packed, when it has cooled, and what packing did.
//!
//! Owns: the tests of one inode, without its locks, and [`Packing`]. Left out: packing itself
//! (`packer` for files, `dir::pack` for directories, `inode::packer` for inodes).

use std::time::Duration;

use shoal_format::inode::{INODE_SUMMED, INODE_TRUNCATING, Inode, Layout};

/// A directory that changes more often than this is not packed in between: each change would make a
/// bucket plain again.
const DIRECTORY_AGE: Duration = Duration::from_secs(1);

/// Work of packing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packing {
    /// Groups of up to 128 KiB that were packed.
    pub groups: u64,
    /// Groups that did not shrink and got a checksum.
    pub summed: u64,
    /// Buckets of directories that were packed.
    pub buckets: u64,
    /// Bytes of the region that all these took before, and take now.
    pub before: u64,
    pub after: u64,
    /// Groups that another thread was changing.
    pub busy: u64,
}

impl std::ops::AddAssign for Packing {
    fn add_assign(&mut self, other: Packing) {
        self.groups += other.groups;
        self.summed += other.summed;
        self.buckets += other.buckets;
        self.before += other.before;
        self.after += other.after;
        self.busy += other.busy;
    }
}

/// Returns whether the file has data in the region that might be plain.
pub(crate) fn may_be_packed(inode: &Inode) -> bool {
    has_data(inode)
        && inode.nlink > 0
        && inode.flags & (INODE_TRUNCATING | INODE_SUMMED) == 0
        && matches!(inode.layout, Layout::Direct | Layout::Chunked)
}

/// Returns whether the file has data in the region.
pub(crate) fn has_data(inode: &Inode) -> bool {
    inode.is_file() && inode.size > 0 && matches!(inode.layout, Layout::Direct | Layout::Chunked | Layout::Packed)
}

/// Returns whether the inode has not changed for `age`; for a directory, [`DIRECTORY_AGE`] at
/// least.
pub(crate) fn has_cooled(inode: &Inode, now: i64, age: Duration) -> bool {
    let age = if inode.is_dir() { age.max(DIRECTORY_AGE) } else { age };
    u128::try_from(now.saturating_sub(inode.ctime)).is_ok_and(|idle| idle >= age.as_nanos())
}

/// Returns whether the inode is a directory with a link that has buckets.
pub(crate) fn has_buckets(inode: &Inode) -> bool {
    matches!(inode.layout, Layout::DirPacked | Layout::DirHashed) && inode.nlink > 0
}
