//! How the records of sixteen inodes lie in their block: one after the other, 96 bytes each.
//!
//! This is the only file that knows it; all others name a record by its block's reference and its
//! inode number.
//! Locks: an inode's lock protects its record, and records do not overlap, so a block as a whole
//! has no lock of its own. A block changes its place or its form under the locks of all its sixteen
//! inodes ([`super::tidy`]), so a reader or writer of one record needs only the lock that it has
//! anyway. (A lock for each block, taken by every access to a record, made look-ups 6% and
//! creations 9% slower.) Blocks whose records share bytes have a lock, below the inode locks
//! (`packed`).

use shoal_format::inode::{INODE_BLOCK, INODE_RECORD, Inode, InodeSlot};
use shoal_format::{FormatError, Offset, SlotRef};
use shoal_region::{Tx, View};

use crate::{Error, Ino, Result};

/// The bytes of a block.
pub(crate) type Bytes = [u8; INODE_BLOCK as usize];

/// Returns where the record in a place of a block begins.
pub(crate) fn record_at(block: SlotRef, place: usize) -> Offset {
    block.offset() + (place * INODE_RECORD) as u64
}

/// Makes a block without inodes, of generation 0.
pub(super) fn make(tx: &mut Tx<'_>) -> Result<SlotRef> {
    let block = tx.alloc(INODE_BLOCK)?;
    tx.zero(block.offset(), INODE_BLOCK)?;
    Ok(block)
}

/// Reads one record.
pub(super) fn get(view: &impl View, block: SlotRef, ino: Ino) -> Result<InodeSlot> {
    let mut bytes = [0; INODE_RECORD];
    view.read(record_at(block, ino.place()), &mut bytes)?;
    Inode::decode(&bytes).map_err(|error| undecodable(ino, error))
}

pub(super) fn undecodable(ino: Ino, error: FormatError) -> Error {
    Error::Corrupt(format!("inode {ino}: {error}; run `shoal check`"))
}

/// Writes the record of an inode in use.
pub(super) fn put(tx: &mut Tx<'_>, block: SlotRef, ino: Ino, inode: &Inode) -> Result<()> {
    Ok(tx.write(record_at(block, ino.place()), &inode.encode())?)
}

/// Writes the record of a free number, with the generation of its last user.
pub(super) fn put_free(tx: &mut Tx<'_>, block: SlotRef, ino: Ino, generation: u32) -> Result<()> {
    Ok(tx.write(record_at(block, ino.place()), &Inode::encode_free(generation))?)
}

/// Reads a whole block.
pub(super) fn read(view: &impl View, block: SlotRef) -> Result<Bytes> {
    let mut bytes = [0; INODE_BLOCK as usize];
    view.read(block.offset(), &mut bytes)?;
    Ok(bytes)
}

/// Returns the records of a block in the order of their numbers.
pub(super) fn records(bytes: &Bytes) -> impl Iterator<Item = std::result::Result<InodeSlot, FormatError>> {
    bytes.chunks_exact(INODE_RECORD).map(|record| Inode::decode(record.try_into().expect("chunk size")))
}
