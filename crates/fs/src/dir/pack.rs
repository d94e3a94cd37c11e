//! Packed buckets of directories: packs buckets that have cooled, and changes packed ones.
//!
//! A bucket is packed into a slot as short as it needs, in one transaction that swings the
//! references and frees the plain bucket. An insertion makes it plain in the same way. A removal,
//! or another inode for a name, encodes it anew in place; a removal always fits.
//! Rules: locks of directories are only tried, and held for [`STEP`] buckets. A bucket is packed
//! only if that gains an eighth, and if it comes back as it was, so that damage stays for the
//! checker to see. Left out: which directories have cooled (`cold`).

use std::time::Duration;

use shoal_format::SlotRef;
use shoal_format::dir::{BUCKET_BYTES, Dirent, NodeRef, open_bucket, pack_bucket};
use shoal_format::inode::{Inode, Layout};
use shoal_format::slot::{CLASS_SIZES, class_for};
use shoal_format::superblock::FEATURE_BUCKETS;
use shoal_region::Tx;

use super::{
    Buffer, FIRST_BUCKET, Found, Names, Step, Way, behind, counts, descend, live_entries, plain_len, set_refs, span,
    write_bucket,
};
use crate::cold::cooled::{Packing, has_buckets, has_cooled};
use crate::planted::{Bug, is_planted};
use crate::rooms::Tree;
use crate::{Error, Ino, Result};

/// Most buckets packed, and looked at, while a directory's lock is held.
const STEP: u32 = 16;
const LOOKS: u32 = 256;

/// Copies the entries of a bucket to a new plain bucket and frees the old one. `size` takes the
/// bytes that the entries need and returns how many to allocate, of which [`BUCKET_BYTES`] is the
/// most. The caller swings the references.
pub(super) fn move_to_plain(
    tx: &mut Tx<'_>,
    dir: &mut Inode,
    old: SlotRef,
    size: impl FnOnce(usize) -> usize,
) -> Result<SlotRef> {
    let buffer = Buffer::read(tx, old)?;
    let entries = live_entries(&buffer.bucket()?)?;
    let slot = tx.alloc(size(plain_len(&entries)).min(BUCKET_BYTES) as u64)?;
    write_bucket(tx, slot, &entries)?;
    exchanged(tx, dir, old, slot)?;
    Ok(slot)
}

/// Frees a bucket that a new one replaces.
fn exchanged(tx: &mut Tx<'_>, dir: &mut Inode, old: SlotRef, new: SlotRef) -> Result<()> {
    if !is_planted(Bug::BucketStays) {
        tx.free(old)?;
    }
    dir.allocated = dir.allocated - old.capacity() + new.capacity();
    Ok(())
}

/// Makes the only bucket of a directory plain, with `room` bytes for an entry to come, if a bucket
/// can be that long.
pub(super) fn unpack(tx: &mut Tx<'_>, dir: &mut Inode, old: SlotRef, room: usize) -> Result<SlotRef> {
    move_to_plain(tx, dir, old, |used| (used + room).next_power_of_two().max(FIRST_BUCKET as usize))
}

/// Makes the bucket at the end of a way plain.
pub(super) fn unpack_under(tx: &mut Tx<'_>, dir: &mut Inode, way: &Way) -> Result<()> {
    let slot = move_to_plain(tx, dir, way.bucket, |_| BUCKET_BYTES)?;
    refer(tx, way, slot)
}

fn refer(tx: &mut Tx<'_>, way: &Way, slot: SlotRef) -> Result<()> {
    let Step { node, index } = way.steps[way.len - 1];
    set_refs(tx, node, span(index, way.depth), NodeRef::Bucket { slot, depth: way.depth })
}

/// Removes an entry of a packed bucket that has other entries.
pub(super) fn remove(tx: &mut Tx<'_>, found: &Found) -> Result<()> {
    let buffer = Buffer::read(tx, found.bucket)?;
    let mut entries = live_entries(&buffer.bucket()?)?;
    entries.remove(found.at);
    Ok(tx.write(found.bucket.offset(), &pack_bucket(&entries))?)
}

/// Makes an entry of a packed bucket name another inode; returns false if the bucket has no room
/// for that.
pub(super) fn replace(tx: &mut Tx<'_>, found: &Found, entry: &Dirent<'_>) -> Result<bool> {
    let buffer = Buffer::read(tx, found.bucket)?;
    let mut entries = live_entries(&buffer.bucket()?)?;
    entries[found.at] = *entry;
    write(tx, found.bucket, &mut entries)
}

/// Writes a packed bucket with these entries; returns false if they do not fit.
pub(super) fn write(tx: &mut Tx<'_>, slot: SlotRef, entries: &mut [Dirent<'_>]) -> Result<bool> {
    entries.sort_unstable_by_key(|entry| entry.name);
    let bytes = pack_bucket(entries);
    let fits = bytes.len() as u64 <= slot.capacity();
    if fits {
        tx.write(slot.offset(), &bytes)?;
    }
    Ok(fits)
}

/// Packs a bucket into a slot of its own, if that gains enough. The caller swings the references.
fn pack(tx: &mut Tx<'_>, dir: &mut Inode, old: SlotRef) -> Result<Option<SlotRef>> {
    if counts(tx, old)?.is_packed {
        return Ok(None);
    }
    let buffer = Buffer::read(tx, old)?;
    let mut entries = live_entries(&buffer.bucket()?)?;
    entries.sort_unstable_by_key(|entry| entry.name);
    let (bytes, mut room) = (pack_bucket(&entries), [0; BUCKET_BYTES]);
    let capacity = class_for(bytes.len() as u64).map_or(u64::MAX, |class| CLASS_SIZES[class as usize].into());
    if entries.is_empty() || capacity > old.capacity() / 8 * 7 {
        return Ok(None);
    }
    match open_bucket(&bytes, tx.seed(), &mut room) {
        Ok(back) if live_entries(&back)? == entries => {}
        _ => return Ok(None),
    }
    let slot = tx.alloc(bytes.len() as u64)?;
    tx.write(slot.offset(), &bytes)?;
    exchanged(tx, dir, old, slot)?;
    Ok(Some(slot))
}

/// Packs the bucket that `hash` leads to. Returns whether it was packed, and the next hash to look
/// at.
fn pack_along(tx: &mut Tx<'_>, dir: &mut Inode, hash: u64) -> Result<(bool, Option<u64>)> {
    if dir.layout == Layout::DirPacked {
        let packed = pack(tx, dir, dir.root)?;
        dir.root = packed.unwrap_or(dir.root);
        return Ok((packed.is_some(), None));
    }
    let way = descend(tx, dir.root, hash)?;
    let packed = if way.bucket.is_none() { None } else { pack(tx, dir, way.bucket)? };
    if let Some(slot) = packed {
        refer(tx, &way, slot)?;
    }
    Ok((packed.is_some(), behind(&way, hash)))
}

impl<'a> Tree<'a> {
    /// Returns whether buckets of this directory are packed when they have cooled.
    pub(crate) fn packs_directory(self, inode: &Inode) -> bool {
        self.fs.options.pack_inodes && has_buckets(inode)
    }

    /// Packs the buckets of a directory; with `age` only if it has cooled. The caller holds no locks.
    pub(crate) fn pack_directory(self, ino: Ino, age: Option<Duration>, done: &mut Packing) -> Result<()> {
        self.fs.region.add_feature(FEATURE_BUCKETS)?;
        let mut hash = Some(0);
        while let Some(from) = hash {
            let Some(_lock) = self.fs.locks.try_write(ino) else {
                done.busy += 1;
                return Ok(());
            };
            let mut inode = match self.fs.load(ino) {
                Err(Error::Stale) => return Ok(()),
                loaded => loaded?,
            };
            if !self.packs_directory(&inode) || age.is_some_and(|age| !has_cooled(&inode, self.fs.now(), age)) {
                return Ok(());
            }
            hash = self.pack_buckets(ino, &mut inode, from, done)?;
        }
        Ok(())
    }

    /// Packs some buckets from `hash` on; returns the next hash to look at.
    fn pack_buckets(self, ino: Ino, inode: &mut Inode, hash: u64, done: &mut Packing) -> Result<Option<u64>> {
        let (before, mut tx) = (inode.allocated, self.fs.region.begin_reclaim());
        let (mut next, mut packed, mut looks) = (Some(hash), 0, 0);
        while let Some(hash) = next
            && packed < STEP
            && looks < LOOKS
        {
            let (is_packed, behind) = pack_along(&mut tx, inode, hash)?;
            packed += u32::from(is_packed);
            looks += 1;
            next = behind;
        }
        if packed > 0 {
            self.fs.store(&mut tx, ino, inode)?;
            self.fs.packing.commit_packed(tx, 0, 0)?;
            done.buckets += u64::from(packed);
            done.before += before;
            done.after += inode.allocated;
        }
        Ok(next)
    }
}
