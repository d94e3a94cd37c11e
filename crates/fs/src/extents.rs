//! Extent maps: which blocks of a large file lie where on the bulk device.
//!
//! Two halves. Pure functions on a sorted `Vec<Extent>` (`cut`, `put`, `reflag`), and the map in
//! the region: `find` answers a lookup by binary search in place, [`MapEdit`] loads the few leaves
//! a change touches and stores what differs.
//! Rules: extents ascend, never overlap, and join with a neighbour whenever both ends and the flags
//! meet within one leaf. The key of a leaf is at most its first extent's block, and no extent
//! reaches over the key of the next leaf. A map without extents has no root: the inode's layout is
//! `Empty` then. An edit loads at most [`LEAVES_MAX`] leaves, from the end of its range backwards,
//! so that its record stays small.
//! Left out: the bulk device and its allocator, and what the flags mean.
//!
//! One file of over 500 lines: reading and editing a map are one algorithm over the same nodes.

use shoal_format::extent::{
    BulkBlock, EXTENT_BYTES, EXTENT_HEADER, Extent, ExtentHeader, ExtentNode, ExtentRecord, FileBlock, IndexRecord,
    LEAF_BYTES, LEAF_EXTENTS, decode, encode,
};
use shoal_format::inode::{Inode, Layout};
use shoal_format::{FormatError, Offset, SlotRef};
use shoal_region::{Tx, View};
use zerocopy::FromBytes;

use crate::{Error, Result};

/// Most leaves that one edit loads.
pub(crate) const LEAVES_MAX: usize = 64;
/// Most leaves of one map: inserting a leaf at the front rewrites the index, which must fit in one
/// record.
const INDEX_MAX: usize = 32768;
/// A map of one leaf with at most this many extents goes back into its root.
const ROOT_AGAIN: usize = LEAF_EXTENTS / 2;

/// The mapping of one block of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mapped {
    /// A hole that ends at block `until`.
    Hole { until: FileBlock },
    /// The extent that holds the block.
    At(Extent),
}

/// Returns the part of `extent` within `[start, end)`.
pub(crate) fn clip(extent: Extent, start: FileBlock, end: FileBlock) -> Extent {
    let (from, to) = (extent.file_block.max(start), extent.end().min(end));
    Extent { file_block: from, blocks: to - from, bulk_block: extent.bulk_block + (from - extent.file_block), ..extent }
}

fn joins(a: &Extent, b: &Extent) -> bool {
    a.end() == b.file_block
        && a.bulk_block + a.blocks == b.bulk_block
        && a.flags == b.flags
        && a.blocks + b.blocks <= u32::MAX as u64
}

/// Removes everything within `[start, end)`; returns what was there.
pub(crate) fn cut(extents: &mut Vec<Extent>, start: FileBlock, end: FileBlock) -> Vec<Extent> {
    let from = extents.partition_point(|e| e.end() <= start);
    let to = extents.partition_point(|e| e.file_block < end);
    if from >= to {
        return Vec::new();
    }
    let (first, last) = (extents[from], extents[to - 1]);
    let head = (first.file_block < start).then(|| clip(first, FileBlock::ZERO, start));
    let tail = (last.end() > end).then(|| clip(last, end, FileBlock::MAX));
    extents.splice(from..to, head.into_iter().chain(tail)).map(|e| clip(e, start, end)).collect()
}

/// Adds an extent where nothing is, joining it with its neighbours.
pub(crate) fn put(extents: &mut Vec<Extent>, extent: Extent) {
    let at = extents.partition_point(|e| e.file_block < extent.file_block);
    debug_assert!(at == 0 || extents[at - 1].end() <= extent.file_block);
    debug_assert!(at == extents.len() || extents[at].file_block >= extent.end());
    let before = at > 0 && joins(&extents[at - 1], &extent);
    let mut joined = extent;
    if before {
        joined = extents[at - 1];
        joined.blocks += extent.blocks;
    }
    let after = at < extents.len() && joins(&joined, &extents[at]);
    if after {
        joined.blocks += extents[at].blocks;
    }
    extents.splice(at - before as usize..at + after as usize, [joined]);
}

/// Changes the flags of everything within `[start, end)`.
pub(crate) fn reflag(extents: &mut Vec<Extent>, start: FileBlock, end: FileBlock, change: impl Fn(u32) -> u32) {
    let from = extents.partition_point(|e| e.end() <= start);
    let to = extents.partition_point(|e| e.file_block < end);
    // Most calls find nothing to change; the list is not taken apart for them.
    if from >= to || extents[from..to].iter().all(|e| change(e.flags) == e.flags) {
        return;
    }
    for extent in cut(extents, start, end) {
        put(extents, Extent { flags: change(extent.flags), ..extent });
    }
}

fn damaged(field: &'static str, found: u64) -> Error {
    FormatError::Range { what: "extent map", field, found }.into()
}

/// A node's header, decoded.
struct Header {
    is_index: bool,
    /// Number of items in the node.
    count: u64,
}

fn header(view: &impl View, node: SlotRef) -> Result<Header> {
    let mut bytes = [0; EXTENT_HEADER];
    view.read(node.offset(), &mut bytes)?;
    let header = ExtentHeader::read_from_bytes(&bytes).expect("sixteen bytes");
    let (kind, count) = (header.kind.get(), header.count.get() as u64);
    if kind > 1 {
        return Err(damaged("kind", kind as u64));
    }
    if EXTENT_HEADER as u64 + count * EXTENT_BYTES as u64 > node.capacity() {
        return Err(damaged("count", count));
    }
    Ok(Header { is_index: kind == 1, count })
}

fn item_at(node: SlotRef, index: u64) -> Offset {
    node.offset() + EXTENT_HEADER as u64 + index * EXTENT_BYTES as u64
}

/// Returns how many items of the node begin at or before `block`. Extents and index entries both
/// begin with their block.
fn items_up_to(view: &impl View, node: SlotRef, count: u64, block: FileBlock) -> Result<u64> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = (low + high) / 2;
        let mut first = [0; 4];
        view.read(item_at(node, middle), &mut first)?;
        if u32::from_le_bytes(first) as u64 <= block.get() { low = middle + 1 } else { high = middle }
    }
    Ok(low)
}

fn index_entry(view: &impl View, node: SlotRef, index: u64) -> Result<(FileBlock, SlotRef)> {
    let mut bytes = [0; EXTENT_BYTES];
    view.read(item_at(node, index), &mut bytes)?;
    Ok(IndexRecord::ref_from_bytes(&bytes).expect("sixteen bytes").decode()?)
}

fn extent_entry(view: &impl View, node: SlotRef, index: u64, bulk_blocks: u64) -> Result<Extent> {
    let mut bytes = [0; EXTENT_BYTES];
    view.read(item_at(node, index), &mut bytes)?;
    Ok(ExtentRecord::ref_from_bytes(&bytes).expect("sixteen bytes").decode(bulk_blocks)?)
}

/// Returns the number of leaves of the map with this root.
pub(crate) fn leaf_count(view: &impl View, root: SlotRef) -> Result<u64> {
    let Header { is_index, count } = header(view, root)?;
    Ok(if is_index { count } else { 0 })
}

/// Moves a leaf out of a draining segment if it is `wanted`; the inode does not change.
pub(crate) fn relocate_leaf(
    tx: &mut Tx<'_>,
    root: SlotRef,
    index: u64,
    wanted: impl Fn(SlotRef) -> bool,
) -> Result<bool> {
    let (_, leaf) = index_entry(tx, root, index)?;
    if !wanted(leaf) {
        return Ok(false);
    }
    let Some(new) = tx.relocate(leaf)? else { return Ok(false) };
    tx.write(item_at(root, index) + 8, &new.bits().to_le_bytes())?;
    Ok(true)
}

/// Looks `block` up in the map with this root (none: everything is a hole).
pub(crate) fn find(view: &impl View, root: SlotRef, block: FileBlock, bulk_blocks: u64) -> Result<Mapped> {
    let mut until = FileBlock::MAX;
    if root.is_none() {
        return Ok(Mapped::Hole { until });
    }
    let Header { is_index, mut count } = header(view, root)?;
    let mut leaf = root;
    if is_index {
        let position = items_up_to(view, root, count, block)?;
        if position < count {
            until = index_entry(view, root, position)?.0;
        }
        if position == 0 {
            return Ok(Mapped::Hole { until });
        }
        leaf = index_entry(view, root, position - 1)?.1;
        let below = header(view, leaf)?;
        count = below.count;
        if below.is_index {
            return Err(damaged("kind", 1));
        }
    }
    let position = items_up_to(view, leaf, count, block)?;
    if position > 0 {
        let extent = extent_entry(view, leaf, position - 1, bulk_blocks)?;
        if block < extent.end() {
            return Ok(Mapped::At(extent));
        }
    }
    if position < count {
        until = extent_entry(view, leaf, position, bulk_blocks)?.file_block;
    }
    Ok(Mapped::Hole { until: until.max(block + 1) })
}

/// Returns the end, on the bulk device, of the last extent that begins before `block`: the best
/// place for the next block.
pub(crate) fn goal_before(
    view: &impl View,
    root: SlotRef,
    block: FileBlock,
    bulk_blocks: u64,
) -> Result<Option<BulkBlock>> {
    if root.is_none() || block == FileBlock::ZERO {
        return Ok(None);
    }
    let before = FileBlock::new(block.get() - 1);
    let Header { is_index, mut count } = header(view, root)?;
    let mut leaf = root;
    if is_index {
        match items_up_to(view, root, count, before)? {
            0 => return Ok(None),
            position => leaf = index_entry(view, root, position - 1)?.1,
        }
        count = header(view, leaf)?.count;
    }
    match items_up_to(view, leaf, count, before)? {
        0 => Ok(None),
        position => extent_entry(view, leaf, position - 1, bulk_blocks).map(|e| Some(e.bulk_block + e.blocks)),
    }
}

/// Returns the extents that can be reached in a map that does not decode, and where each lies.
/// Whatever [`find`] could return is among them.
pub(crate) fn raw(view: &impl View, root: SlotRef) -> Result<Vec<(Offset, Extent)>> {
    let mut found = Vec::new();
    let Ok(Header { is_index, count }) = header(view, root) else { return Ok(found) };
    let mut nodes = vec![(root, count)];
    if is_index {
        let leaves = (0..count).filter_map(|index| index_entry(view, root, index).ok());
        nodes = leaves.filter_map(|(_, leaf)| Some((leaf, header(view, leaf).ok()?.count))).collect();
    }
    for (node, count) in nodes {
        for index in 0..count {
            // The device's end is not checked here: blocks behind it are never read.
            if let Ok(extent) = extent_entry(view, node, index, u64::MAX) {
                found.push((item_at(node, index), extent));
            }
        }
    }
    Ok(found)
}

struct Leaf {
    first: FileBlock,
    slot: SlotRef,
    /// Place of its extents in `before`.
    extents: std::ops::Range<usize>,
}

/// A change to a map: loaded, edited through `extents`, stored.
pub(crate) struct MapEdit {
    root: SlotRef,
    /// Entries of the index; `None` when the root holds the extents itself.
    index: Option<usize>,
    /// Index position of the first leaf loaded.
    position: usize,
    leaves: Vec<Leaf>,
    before: Vec<Extent>,
    /// The extents of the loaded leaves. Only `[start, end of the range asked for)` may be edited.
    pub extents: Vec<Extent>,
    /// First block the edit covers: later than asked for when the range has more than [`LEAVES_MAX`] leaves.
    pub start: FileBlock,
}

impl MapEdit {
    /// Loads what `[start, end)` needs, the last leaves first.
    pub fn load(
        view: &impl View,
        inode: &Inode,
        start: FileBlock,
        end: FileBlock,
        bulk_blocks: u64,
    ) -> Result<MapEdit> {
        let root = if inode.layout == Layout::Extents { inode.root } else { SlotRef::NONE };
        let mut edit = MapEdit {
            root,
            index: None,
            position: 0,
            leaves: Vec::new(),
            before: Vec::new(),
            extents: Vec::new(),
            start,
        };
        if root.is_none() {
            return Ok(edit);
        }
        let Header { is_index, count } = header(view, root)?;
        if !is_index {
            edit.before = load_extents(view, root, count, bulk_blocks)?;
            edit.extents = edit.before.clone();
            return Ok(edit);
        }
        edit.index = Some(count as usize);
        let last = items_up_to(view, root, count, FileBlock::new(end.get().saturating_sub(1)))?.max(1).min(count);
        let mut first = items_up_to(view, root, count, start)?.max(1) - 1;
        if last - first > LEAVES_MAX as u64 {
            first = last - LEAVES_MAX as u64;
            edit.start = index_entry(view, root, first)?.0;
        }
        edit.position = first as usize;
        for position in first..last {
            let (key, slot) = index_entry(view, root, position)?;
            let Header { is_index, count } = header(view, slot)?;
            if is_index {
                return Err(damaged("kind", 1));
            }
            let extents = load_extents(view, slot, count, bulk_blocks)?;
            let begin = edit.before.len();
            if let (Some(last), Some(next)) = (edit.before.last(), extents.first())
                && last.end() > next.file_block
            {
                return Err(damaged("file block", next.file_block.get()));
            }
            edit.before.extend_from_slice(&extents);
            edit.leaves.push(Leaf { first: key, slot, extents: begin..edit.before.len() });
        }
        edit.extents = edit.before.clone();
        Ok(edit)
    }

    /// Stores what changed. Sets root, layout and allocated bytes (of map pieces only) of the
    /// inode, which the caller stores.
    pub fn store(self, tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
        if self.extents == self.before {
            return Ok(());
        }
        match self.index {
            Some(count) => self.store_leaves(tx, inode, count),
            None => self.store_root(tx, inode),
        }
    }

    fn store_root(self, tx: &mut Tx<'_>, inode: &mut Inode) -> Result<()> {
        if self.extents.is_empty() {
            return set_root(tx, inode, self.root, SlotRef::NONE);
        }
        if self.extents.len() <= LEAF_EXTENTS {
            return write_root(tx, inode, self.root, Some(&self.before), &self.extents);
        }
        let mut entries = Vec::new();
        for group in groups(&self.extents, LeafLengths::Full) {
            let leaf = new_leaf(tx, inode, group)?;
            entries.push((group[0].file_block, leaf));
        }
        let root = new_index(tx, inode, entries.len())?;
        tx.write(root.offset(), &encode(&ExtentNode::Index(entries)))?;
        set_root(tx, inode, self.root, root)
    }

    fn store_leaves(self, tx: &mut Tx<'_>, inode: &mut Inode, count: usize) -> Result<()> {
        let MapEdit { root, position, leaves, before, extents, .. } = self;
        let same = |leaf: &Leaf, at: usize| {
            let len = leaf.extents.len();
            extents.get(at..at + len).is_some_and(|now| now == &before[leaf.extents.clone()])
        };
        // Leaves unchanged at the front and at the back stay as they are.
        let mut head = 0;
        while head < leaves.len() && same(&leaves[head], leaves[head].extents.start) {
            head += 1;
        }
        let mut tail = leaves.len();
        while tail > head {
            let from_end = before.len() - leaves[tail - 1].extents.start;
            let floor = leaves[head].extents.start;
            if extents.len() < floor + from_end || !same(&leaves[tail - 1], extents.len() - from_end) {
                break;
            }
            tail -= 1;
        }
        // An extent between two unchanged leaves joins one of them; behind a full last leaf it begins a new one.
        if head == tail && extents.len() > before.len() {
            let full_at_end = position + tail == count && tail > 0 && leaves[tail - 1].extents.len() >= LEAF_EXTENTS;
            if head > 0 && !full_at_end {
                head -= 1;
            } else if tail < leaves.len() {
                tail += 1;
            }
        }
        let changed = &leaves[head..tail];
        let from = changed.first().map_or(before.len(), |leaf| leaf.extents.start);
        let behind = leaves[tail..].first().map_or(0, |leaf| before.len() - leaf.extents.start);
        let middle = &extents[from..extents.len() - behind];
        let is_at_end = position + leaves.len() == count && behind == 0;
        let lengths = if is_at_end { LeafLengths::Full } else { LeafLengths::Even };

        let mut entries: Vec<(FileBlock, SlotRef)> = Vec::new();
        let mut old = changed.iter();
        for group in groups(middle, lengths) {
            let slot = match old.next() {
                Some(leaf) => {
                    write_changes(tx, leaf.slot, &before[leaf.extents.clone()], group)?;
                    leaf.slot
                }
                None => new_leaf(tx, inode, group)?,
            };
            entries.push((group[0].file_block, slot));
        }
        for leaf in old {
            give(tx, inode, leaf.slot)?;
        }
        // Entries [first, first + changed.len()) of the index become `entries`.
        let first = position + head;
        let total = count - changed.len() + entries.len();
        if total == 0 {
            return set_root(tx, inode, root, SlotRef::NONE);
        }
        if total == 1 && entries.len() == 1 && middle.len() <= ROOT_AGAIN {
            give(tx, inode, entries[0].1)?;
            return write_root(tx, inode, root, None, middle);
        }
        if total > INDEX_MAX {
            return Err(Error::FileTooBig);
        }
        let bytes = &encode(&ExtentNode::Index(entries))[EXTENT_HEADER..];
        if total == count {
            let unchanged = changed.iter().zip(bytes.chunks_exact(EXTENT_BYTES)).all(|(leaf, entry)| {
                entry[..4] == (leaf.first.get() as u32).to_le_bytes() && entry[8..] == leaf.slot.bits().to_le_bytes()
            });
            return if unchanged { Ok(()) } else { Ok(tx.write(item_at(root, first as u64), bytes)?) };
        }
        splice_index(tx, inode, count, first..first + changed.len(), bytes)
    }
}

/// Replaces a range of the `count` entries of the index in the root. The root grows if it has to.
fn splice_index(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    count: usize,
    range: std::ops::Range<usize>,
    entries: &[u8],
) -> Result<()> {
    let root = inode.root;
    let total = count - range.len() + entries.len() / EXTENT_BYTES;
    let rest = tx.read_vec(item_at(root, range.end as u64), (count - range.end) * EXTENT_BYTES)?;
    let mut target = root;
    let mut whole = Vec::new();
    if EXTENT_HEADER + total * EXTENT_BYTES > root.capacity() as usize {
        target = new_index(tx, inode, total)?;
        whole = tx.read_vec(item_at(root, 0), range.start * EXTENT_BYTES)?;
    }
    let write_at = range.start - whole.len() / EXTENT_BYTES;
    whole.extend_from_slice(entries);
    whole.extend_from_slice(&rest);
    tx.write(item_at(target, write_at as u64), &whole)?;
    tx.write(target.offset(), &node_header(1, total))?;
    set_root(tx, inode, root, target)
}

fn load_extents(view: &impl View, node: SlotRef, count: u64, bulk_blocks: u64) -> Result<Vec<Extent>> {
    let bytes = view.read_vec(node.offset(), EXTENT_HEADER + count as usize * EXTENT_BYTES)?;
    match decode(&bytes, bulk_blocks)? {
        ExtentNode::Extents(extents) => Ok(extents),
        ExtentNode::Index(_) => Err(damaged("kind", 1)),
    }
}

/// How long new leaves are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LeafLengths {
    /// Full, where a file grows at its end.
    Full,
    /// Of equal length elsewhere, to leave room for inserts.
    Even,
}

/// Cuts a list into leaves.
fn groups(extents: &[Extent], lengths: LeafLengths) -> std::slice::Chunks<'_, Extent> {
    let leaves = extents.len().div_ceil(LEAF_EXTENTS).max(1);
    extents.chunks(match lengths {
        LeafLengths::Full => LEAF_EXTENTS,
        LeafLengths::Even => extents.len().div_ceil(leaves).max(1),
    })
}

fn node_header(kind: u32, count: usize) -> [u8; 8] {
    let mut header = [0; 8];
    header[..4].copy_from_slice(&kind.to_le_bytes());
    header[4..].copy_from_slice(&(count as u32).to_le_bytes());
    header
}

/// Allocates a piece and counts it.
pub(crate) fn take(tx: &mut Tx<'_>, inode: &mut Inode, len: u64) -> Result<SlotRef> {
    let slot = tx.alloc(len)?;
    inode.allocated += slot.capacity();
    Ok(slot)
}

/// Frees a piece and discounts it.
pub(crate) fn give(tx: &mut Tx<'_>, inode: &mut Inode, slot: SlotRef) -> Result<()> {
    tx.free(slot)?;
    inode.allocated = inode.allocated.saturating_sub(slot.capacity());
    Ok(())
}

fn new_leaf(tx: &mut Tx<'_>, inode: &mut Inode, extents: &[Extent]) -> Result<SlotRef> {
    let leaf = take(tx, inode, LEAF_BYTES)?;
    tx.write(leaf.offset(), &encode(&ExtentNode::Extents(extents.to_vec())))?;
    Ok(leaf)
}

/// Makes a root for `count` leaves, with room for half as many more.
fn new_index(tx: &mut Tx<'_>, inode: &mut Inode, count: usize) -> Result<SlotRef> {
    let root = take(tx, inode, (EXTENT_HEADER + (count + count / 2) * EXTENT_BYTES) as u64)?;
    // The reserved half of the header is zero from here on.
    tx.zero(root.offset(), EXTENT_HEADER as u64)?;
    Ok(root)
}

fn set_root(tx: &mut Tx<'_>, inode: &mut Inode, old: SlotRef, new: SlotRef) -> Result<()> {
    if old != new && !old.is_none() {
        give(tx, inode, old)?;
    }
    inode.root = new;
    inode.layout = if new.is_none() { Layout::Empty } else { Layout::Extents };
    Ok(())
}

/// Stores `extents` in the root. `before` is what the old root holds, when it holds extents.
fn write_root(
    tx: &mut Tx<'_>,
    inode: &mut Inode,
    old: SlotRef,
    before: Option<&[Extent]>,
    extents: &[Extent],
) -> Result<()> {
    let need = (EXTENT_HEADER + extents.len() * EXTENT_BYTES) as u64;
    if let Some(before) = before
        && need <= old.capacity()
        && (old.capacity() <= 256 || need * 4 > old.capacity())
    {
        return write_changes(tx, old, before, extents);
    }
    let root = take(tx, inode, need)?;
    tx.write(root.offset(), &encode(&ExtentNode::Extents(extents.to_vec())))?;
    set_root(tx, inode, old, root)
}

/// Turns a node that holds `old` into one that holds `new`, writing only what lies between their first and last
/// difference.
fn write_changes(tx: &mut Tx<'_>, node: SlotRef, old: &[Extent], new: &[Extent]) -> Result<()> {
    if old.len() != new.len() {
        tx.write(node.offset(), &node_header(0, new.len()))?;
    }
    let first = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let mut last = new.len();
    if old.len() == new.len() {
        while last > first && old[last - 1] == new[last - 1] {
            last -= 1;
        }
    }
    if first < last {
        let bytes = encode(&ExtentNode::Extents(new[first..last].to_vec()));
        tx.write(item_at(node, first as u64), &bytes[EXTENT_HEADER..])?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "extents_tests.rs"]
mod tests;
