//! Directories that lost entries: joins sparse buckets, and removes nodes with a single bucket.
//! Also moves the pieces of directories.
//!
//! The reverse of a split: two neighbours of equal depth under one node become one bucket of a
//! depth less. They are joined if half a bucket holds both, so that the next insertion does not
//! split them again. An empty neighbour range just widens the bucket's own. A bucket that is alone
//! under its node takes the node's place in the node above; a bucket alone under the root is the
//! directory. Hash order stays, and with it every cookie.

use shoal_format::SlotRef;
use shoal_format::dir::{BUCKET_BYTES, NODE_BITS, NODE_BYTES, NODE_FANOUT, NodeRef};
use shoal_format::inode::{Inode, Layout};
use shoal_region::Tx;

use super::{
    Buffer, Step, Way, behind, descend, is_null, live_entries, node_ref, pack, plain_len, set_refs, span, write_bucket,
};
use crate::Result;

/// A bucket with more entries is not looked at when one is removed.
pub(super) const SPARSE_ENTRIES: usize = 8;
/// Two buckets are joined if the result is at most this long (bytes).
const JOINED_BYTES: usize = BUCKET_BYTES / 2;

/// Joins the bucket of `hash` with what lies beside it, as far as possible.
pub(super) fn join(tx: &mut Tx<'_>, dir: &mut Inode, hash: u64) -> Result<()> {
    let way = descend(tx, dir.root, hash)?;
    join_behind(tx, dir, way)
}

/// Like [`join`], for a way whose last reference is a bucket, or was one of depth `way.depth` and is empty now.
pub(super) fn join_behind(tx: &mut Tx<'_>, dir: &mut Inode, mut way: Way) -> Result<()> {
    let mut len = way.len;
    let Step { node, index } = way.steps[len - 1];
    let mut bucket = match node_ref(tx, node, index)? {
        NodeRef::Bucket { slot, .. } => slot,
        _ => SlotRef::NONE,
    };
    loop {
        let Step { node, index } = way.steps[len - 1];
        if way.depth > 0 {
            let (first, count) = span(index, way.depth);
            let beside = first ^ count;
            let wide = span(index, way.depth - 1);
            match node_ref(tx, node, beside)? {
                NodeRef::Null if is_null(tx, node, (beside, count))? => {}
                NodeRef::Bucket { slot, depth } if depth == way.depth => {
                    if bucket.is_none() {
                        bucket = slot;
                    } else if let Some((kept, gone)) = merge(tx, bucket, slot)? {
                        tx.free(gone)?;
                        dir.allocated -= gone.capacity();
                        bucket = kept;
                    } else {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
            way.depth -= 1;
            if !bucket.is_none() {
                set_refs(tx, node, wide, NodeRef::Bucket { slot: bucket, depth: way.depth })?;
            }
            continue;
        }
        // The bucket, or nothing, is all that is below this node.
        debug_assert_eq!(span(index, 0), (0, NODE_FANOUT));
        tx.free(node)?;
        dir.allocated -= NODE_BYTES;
        len -= 1;
        if len == 0 {
            (dir.layout, dir.root) =
                if bucket.is_none() { (Layout::Empty, SlotRef::NONE) } else { (Layout::DirPacked, bucket) };
            return Ok(());
        }
        let above = way.steps[len - 1];
        way.depth = NODE_BITS;
        let reference =
            if bucket.is_none() { NodeRef::Null } else { NodeRef::Bucket { slot: bucket, depth: NODE_BITS } };
        set_refs(tx, above.node, (above.index, 1), reference)?;
    }
}

/// Moves the entries of two buckets into the longer one, if they are sparse; returns which one has
/// them, and which has none. The longer bucket keeps its form; a packed one must have room for
/// them.
fn merge(tx: &mut Tx<'_>, one: SlotRef, other: SlotRef) -> Result<Option<(SlotRef, SlotRef)>> {
    let (to, from) = if other.capacity() > one.capacity() { (other, one) } else { (one, other) };
    let (first, second) = (Buffer::read(tx, to)?, Buffer::read(tx, from)?);
    let is_packed = first.is_packed;
    let (first, second) = (first.bucket()?, second.bucket()?);
    if first.live() + second.live() > 4 * SPARSE_ENTRIES {
        return Ok(None);
    }
    let mut entries = live_entries(&first)?;
    entries.extend(live_entries(&second)?);
    if plain_len(&entries) > JOINED_BYTES {
        return Ok(None);
    }
    if !is_packed {
        write_bucket(tx, to, &entries)?;
    } else if !pack::write(tx, to, &mut entries)? {
        return Ok(None);
    }
    Ok(Some((to, from)))
}

/// Moves the `wanted` pieces on the way to `hash` out of draining segments. Returns whether any
/// moved, and the next hash to look at. Changes `dir` but does not store it. For hashed
/// directories; a packed one is a single piece.
pub(crate) fn relocate_along(
    tx: &mut Tx<'_>,
    dir: &mut Inode,
    hash: u64,
    wanted: impl Fn(SlotRef) -> bool,
) -> Result<(bool, Option<u64>)> {
    let mut way = descend(tx, dir.root, hash)?;
    let mut moved = false;
    for level in 0..way.len {
        let node = way.steps[level].node;
        if !wanted(node) {
            continue;
        }
        let Some(new) = tx.relocate(node)? else { continue };
        if level == 0 {
            dir.root = new;
        } else {
            let Step { node, index } = way.steps[level - 1];
            set_refs(tx, node, (index, 1), NodeRef::Node(new))?;
        }
        way.steps[level].node = new;
        moved = true;
    }
    if wanted(way.bucket)
        && let Some(slot) = tx.relocate(way.bucket)?
    {
        let Step { node, index } = way.steps[way.len - 1];
        set_refs(tx, node, span(index, way.depth), NodeRef::Bucket { slot, depth: way.depth })?;
        way.bucket = slot;
        moved = true;
    }
    Ok((moved, behind(&way, hash)))
}
