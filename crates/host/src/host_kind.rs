//! Properties of the file system under a store: whether it writes in place, whether it can reserve
//! room, and what direct I/O may write.
//!
//! A store into a map whose block must be copied on write needs room at that moment, and a file
//! system without room answers with SIGBUS. So maps are stored to only where existing blocks are
//! written in place. Everywhere else `pwrite` is used, which can report ENOSPC. XFS counts as
//! copying: blocks that it shares with a reflinked copy are copied on write. Left out: free space
//! (`machine`).

use std::fs::File;
use std::io;

use rustix::fs::{FallocateFlags, IFlags, fstatfs, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;

use crate::calls;

/// Magic numbers of statfs(2): tmpfs, and the file systems that write in place (ext2 to ext4,
/// tmpfs, ramfs).
const TMPFS: u32 = 0x0102_1994;
const IN_PLACE: [u32; 3] = [0xef53, TMPFS, 0x8584_58f6];

/// Magic number of btrfs.
const BTRFS: u32 = 0x9123_683e;

/// Returns true if direct I/O may use memory that is not in this process's page table yet. On btrfs (Linux 6.18) such a
/// write ends in the middle and goes on with the rest, and after a power loss its log has one extent twice: the whole
/// file system cannot be mounted any more.
pub(crate) fn takes_absent_pages(file: &File) -> bool {
    fstatfs(file).is_ok_and(|s| s.f_type as u32 != BTRFS)
}

/// Returns true if the file is on tmpfs, so that its pages are memory charged to their user.
pub fn is_tmpfs(file: &File) -> io::Result<bool> {
    Ok(fstatfs(file)?.f_type as u32 == TMPFS)
}

/// Returns true if the file system of `file` always writes existing blocks in place. False for an
/// unknown one.
pub(crate) fn writes_in_place(file: &File) -> bool {
    fstatfs(file).is_ok_and(|s| IN_PLACE.contains(&(s.f_type as u32)))
}

/// Asks a file system that copies on write to write this empty file, or files made in this
/// directory, in place. If it refuses, only that guarantee is missing.
pub(crate) fn write_in_place(file: &File) {
    if !writes_in_place(file) {
        let _ = ioctl_getflags(file).and_then(|flags| ioctl_setflags(file, flags | IFlags::NOCOW));
    }
}

/// Reserves room for a range. Returns false where the file system cannot.
pub(crate) fn allocate(file: &File, at: u64, len: u64) -> io::Result<bool> {
    if len == 0 {
        return Ok(true);
    }
    match calls::fallocate(file, FallocateFlags::empty(), at, len) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_file_systems_known_to_write_in_place_do() {
        let proc = File::open("/proc").unwrap();
        assert!(!writes_in_place(&proc), "an unlisted file system is not trusted");
        let shm = File::open("/dev/shm").unwrap();
        assert_eq!(writes_in_place(&shm), is_tmpfs(&shm).unwrap());
    }
}
