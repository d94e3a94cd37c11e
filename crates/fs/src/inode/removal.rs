//! Changes records in place in packed blocks, for removals: a full store must be able to lose
//! files, and may have no room for a plain block.
//!
//! A number becomes free where its record lies. The other codes of the block stay as they are, so
//! the block hardly ever gets longer; if it does, it moves to another slot. Any other record that a
//! removal changes (the directory's, or one with a link less) makes its block plain as any change
//! does. If there is no room for that, it is written in place: the packer left room for the longest
//! code of such records. A block that an earlier version packed has no such room. Then another
//! block is packed to make room for a plain one, the reserve is used, and in the last resort the
//! record keeps its times.
//! Rules: the lock of a packed block is held from reading the block until the transaction has
//! ended. The block is read through the transaction, which may have changed it before. A removal
//! that holds one such lock and waits for another does so alone (`Packed::removals`): all others
//! wait for nothing while they hold theirs. A claim comes before the counts of triplets, as in
//! `tidy`; they are released in reverse order.

use parking_lot::{MutexGuard, RwLockWriteGuard};
use shoal_format::SlotRef;
use shoal_format::inode::{Inode, InodeSlot};
use shoal_format::slot::CLASS_SIZES;
use shoal_pack::{BlockBytes, Item};
use shoal_region::{Lack, Tx};

use super::packed::{PACKED_MAX, STRIPES, SlotBytes, indexed_triplet, is_packed};
use super::tables::Change;
use super::{Claim, block, record};
use crate::rooms::Tree;
use crate::{Error, Fs, Ino, Result};

/// A removal and what it holds until its transaction has ended.
pub(crate) struct Removal<'a> {
    fs: &'a Fs,
    // In the order in which they are released.
    change: Option<Change<'a>>,
    claim: Option<Claim<'a>>,
    forms: Vec<(usize, RwLockWriteGuard<'a, ()>)>,
    alone: Option<MutexGuard<'a, ()>>,
    /// The lack that the last refusal named.
    lack: Lack,
}

/// Whether a removal writes another record after this one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Follows {
    Nothing,
    /// Another record, whose packed block may have to be waited for while this one's is locked.
    Another,
}

impl<'a> Tree<'a> {
    pub(crate) fn removal(self) -> Removal<'a> {
        Removal { fs: self.fs, change: None, claim: None, forms: Vec::new(), alone: None, lack: Lack::OTHER }
    }
}

/// Allocates a slot for a packed block, of the first class that has one.
fn alloc(tx: &mut Tx<'_>, len: usize) -> Result<SlotRef> {
    let (sizes, mut lack) = (CLASS_SIZES.iter().map(|&bytes| bytes as usize), Lack::OTHER);
    for bytes in sizes.filter(|bytes| (len..=PACKED_MAX).contains(bytes)) {
        match tx.alloc(bytes as u64) {
            Err(shoal_region::Error::NoSpace(now)) => lack = now,
            slot => return Ok(slot?),
        }
    }
    Err(Error::NoSpace(lack))
}

impl<'a> Removal<'a> {
    /// Writes the record of an inode that stays, whose exclusive lock the caller holds.
    pub fn store(&mut self, tx: &mut Tx<'_>, ino: Ino, inode: &Inode, follows: Follows) -> Result<()> {
        let item = record::item(&inode.encode())?;
        let held = self.forms.len();
        if !self.holds(ino) {
            match self.fs.compacting().plain_block_at_once(ino) {
                Err(Error::NoSpace(lack)) => self.lack = lack,
                plain => return block::put(tx, plain?, ino, inode),
            }
        }
        if self.replace(tx, ino, &item, follows)? {
            return Ok(());
        }
        if self.forms.len() > held {
            // Nothing in that block was changed.
            self.forms.truncate(held);
            match self.fs.compacting().plain_block_for_removal(ino) {
                Err(Error::NoSpace(lack)) => self.lack = lack,
                plain => return block::put(tx, plain?, ino, inode),
            }
            if self.replace(tx, ino, &item, follows)? {
                return Ok(());
            }
        }
        let table = &self.fs.table;
        let slot = table.block_slot(tx, ino.block())?;
        if !is_packed(slot) {
            // Another thread has made it plain since.
            return if slot.is_none() { Err(Error::Stale) } else { block::put(tx, slot, ino, inode) };
        }
        let InodeSlot::Used(old) = table.decode_one(tx, slot, ino)? else { return Err(Error::Stale) };
        let timeless = Inode { mtime: old.mtime, ctime: old.ctime, ..*inode };
        if self.replace(tx, ino, &record::item(&timeless.encode())?, follows)? {
            Ok(())
        } else {
            Err(Error::NoSpace(self.lack))
        }
    }

    /// Marks the record of `ino` free. To be called last.
    pub fn free(&mut self, tx: &mut Tx<'_>, ino: Ino, generation: u32) -> Result<()> {
        let (table, held) = (&self.fs.table, self.forms.len());
        let is_in_place = is_packed(table.block_slot(tx, ino.block())?);
        if is_in_place && self.replace(tx, ino, &Item::Free { generation }, Follows::Nothing)? {
            return Ok(());
        }
        if self.forms.len() == held && self.holds(ino) && is_packed(table.block_slot(tx, ino.block())?) {
            // Its block was changed in place for the directory, and cannot be made plain after
            // that.
            return Err(Error::NoSpace(self.lack));
        }
        self.forms.truncate(held);
        block::put_free(tx, self.fs.compacting().plain_block_for_removal(ino)?, ino, generation)?;
        self.claim = Some(table.freeing(ino, generation));
        Ok(())
    }

    /// Ends the removal after its transaction has committed.
    pub fn committed(mut self) {
        if let Some(change) = self.change.take() {
            change.committed();
        }
        if let Some(claim) = self.claim.take() {
            claim.give_back();
        }
    }

    fn holds(&self, ino: Ino) -> bool {
        let stripe = ino.block() as usize % STRIPES;
        self.forms.iter().any(|(held, _)| *held == stripe)
    }

    fn lock(&mut self, ino: Ino, follows: Follows) {
        if self.holds(ino) {
            return;
        }
        let packed = &self.fs.table.packed;
        if follows == Follows::Another && self.alone.is_none() {
            self.alone = Some(packed.removals.lock());
        }
        self.forms.push((ino.block() as usize % STRIPES, packed.lock(ino.block()).write()));
    }

    /// Puts an item into its packed block within `tx`. Returns false, and changes nothing, if the
    /// block is plain or the item cannot be put there.
    fn replace(&mut self, tx: &mut Tx<'_>, ino: Ino, item: &Item, follows: Follows) -> Result<bool> {
        self.lock(ino, follows);
        let table = &self.fs.table;
        let Some(link) = table.block_link(tx, ino.block())? else { return Err(Error::Stale) };
        if !is_packed(link.slot) {
            return Ok(false);
        }
        let bytes = SlotBytes::read(tx, link.slot)?;
        let (mut out, mut released) = (BlockBytes::default(), None);
        {
            let decoder = table.packed.tables.decoder();
            // A damaged block is reported where it is made plain.
            let Ok(packed) = bytes.open() else { return Ok(false) };
            let Ok(old) = packed.get(ino.place(), &decoder.profiles, &decoder.triplets) else { return Ok(false) };
            if !packed.replace(ino.place(), item, &decoder.profiles, &decoder.triplets, &mut out) {
                return Ok(false);
            }
            if matches!(item, Item::Free { .. }) {
                released = indexed_triplet(&packed, ino.place(), &old, &decoder);
            }
        }
        let mut slot = link.slot;
        if out.bytes().len() as u64 > slot.capacity() {
            slot = match alloc(tx, out.bytes().len()) {
                Err(Error::NoSpace(lack)) => {
                    self.lack = lack;
                    return Ok(false);
                }
                new => new?,
            };
            tx.free(link.slot)?;
            tx.write(link.place, &slot.bits().to_le_bytes())?;
        }
        tx.write(slot.offset(), out.bytes())?;
        if let Item::Free { generation } = item {
            self.claim = Some(table.freeing(ino, *generation));
            if let Some(triplet) = released {
                let mut change = table.packed.tables.change();
                change.release(triplet);
                change.write(tx)?;
                self.change = Some(change);
            }
        }
        Ok(true)
    }
}
