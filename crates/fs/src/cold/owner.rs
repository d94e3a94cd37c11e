//! The owner of a packed object: what refers to the object, and what its pieces are counted for.
//!
//! An object is made, replaced and given back through its owner. An object has one owner today, a
//! group of a file ([`Group`]). The head of an object counts its users (docs/spec/region.md,
//! section 7), so an owner may come to stand for several files that share one.
//! Left out: moving an object's pieces, which changes the object alone (`objects::relocate_pieces`).

use shoal_format::SlotRef;
use shoal_format::inode::Inode;
use shoal_format::object::{ChunkRef, GROUP_CHUNKS};
use shoal_region::{Tx, View};

use crate::cold::objects::Placed;
use crate::extents::{give, take};
use crate::{Result, small};

pub(crate) trait Owner {
    /// Allocates a piece for an object and counts it.
    fn take(&mut self, tx: &mut Tx<'_>, len: u64) -> Result<SlotRef>;

    /// Frees a piece of an object and discounts it.
    fn give(&mut self, tx: &mut Tx<'_>, piece: SlotRef) -> Result<()>;

    /// Counts bytes of the spill file.
    fn take_spilled(&mut self, bytes: u64);

    /// Discounts bytes of the spill file.
    fn give_spilled(&mut self, bytes: u64);

    /// Refers to the object at `new` instead of the one at `old`.
    fn refer(&mut self, tx: &mut Tx<'_>, old: SlotRef, new: SlotRef) -> Result<()>;
}

/// A group of a file. The caller stores the inode.
pub(crate) struct Group<'a> {
    pub inode: &'a mut Inode,
    pub number: u64,
}

impl Owner for Group<'_> {
    fn take(&mut self, tx: &mut Tx<'_>, len: u64) -> Result<SlotRef> {
        take(tx, self.inode, len)
    }

    fn give(&mut self, tx: &mut Tx<'_>, piece: SlotRef) -> Result<()> {
        give(tx, self.inode, piece)
    }

    fn take_spilled(&mut self, bytes: u64) {
        self.inode.allocated += bytes;
    }

    fn give_spilled(&mut self, bytes: u64) {
        self.inode.allocated = self.inode.allocated.saturating_sub(bytes);
    }

    fn refer(&mut self, tx: &mut Tx<'_>, old: SlotRef, new: SlotRef) -> Result<()> {
        small::replace_object(tx, self.inode, self.number, old, new)
    }
}

/// Returns the object of a group; `None` if the group is plain.
pub(crate) fn object_of(view: &impl View, inode: &Inode, group: u64) -> Result<Option<Placed>> {
    match small::sure_ref(view, inode, group * GROUP_CHUNKS)? {
        ChunkRef::Packed(slot) => Placed::load(view, slot).map(Some),
        ChunkRef::Slot(_) => Ok(None),
    }
}

/// Gives back an object, and lets its owner refer to the one at `new`.
pub(crate) fn exchange(tx: &mut Tx<'_>, owner: &mut impl Owner, old: &Placed, new: SlotRef) -> Result<()> {
    old.give(tx, owner)?;
    owner.refer(tx, old.slot, new)
}
