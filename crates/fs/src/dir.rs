//! Directories: one packed bucket while small, extendible hashing in bounded nodes above that.
//!
//! Layout and cookie rules are in `shoal-format::dir`. An insertion appends to a bucket. A removal
//! marks the entry, joins a sparse bucket with its neighbour and removes a node that leads to one
//! bucket only (`shrink`). So a directory is as large as its entries need, and an emptied one owns
//! nothing. Changes are a few small writes; only a split, a join or a squeeze rewrites a bucket. A
//! bucket that has cooled may be packed (`pack`). An insertion unpacks it; a removal encodes it
//! anew in place, so that a full store can lose names. Callers hold the directory's lock and store
//! its inode.

mod pack;
mod shrink;

use std::ops::Range;

use shoal_format::SlotRef;
use shoal_format::dir::{
    BUCKET_BYTES, BUCKET_HEADER, Bucket, Dirent, ENTRY_INO_AT, HASH_BITS, LEVELS_MAX, NODE_BITS, NODE_BYTES,
    NODE_FANOUT, NodeRef, PackedEntries, bucket_counts, bucket_header, is_packed_bucket, node_index, open_bucket,
};
use shoal_format::inode::{Inode, Layout};
use shoal_format::slot::{CLASS_SIZES, class_for};
use shoal_region::{Region, Tx, View};

use crate::{Error, Ino, Result};
pub(crate) use shrink::relocate_along;

/// Bytes of the first bucket of a small directory.
const FIRST_BUCKET: u64 = 128;

/// The region's bytes, and the key of the name hashes, which packed buckets do not have.
pub(crate) trait Names: View {
    fn seed(&self) -> u64;
}

impl Names for Region {
    fn seed(&self) -> u64 {
        self.superblock().hash_seed
    }
}

impl Names for Tx<'_> {
    fn seed(&self) -> u64 {
        self.superblock().hash_seed
    }
}

/// An entry that was looked up, and where it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub ino: Ino,
    /// File type, as the entry has it.
    pub kind: u8,
    bucket: SlotRef,
    /// Position of the entry in its bucket, and of what follows it. In a packed bucket: the number
    /// of entries before it, and one more.
    at: usize,
    end: usize,
}

/// One node on the way down and the index taken in it.
#[derive(Clone, Copy)]
struct Step {
    node: SlotRef,
    index: usize,
}

/// The way from the root node to a bucket.
struct Way {
    steps: [Step; LEVELS_MAX as usize],
    len: usize,
    /// The last step's reference: to a bucket, or to nothing.
    bucket: SlotRef,
    depth: u32,
}

/// The bytes of a bucket: in plain form, or as stored ([`Buffer::read_as_it_is`]).
struct Buffer {
    bytes: [u8; BUCKET_BYTES],
    len: usize,
    is_packed: bool,
}

impl Buffer {
    fn read(view: &impl Names, slot: SlotRef) -> Result<Buffer> {
        let read = Buffer::read_as_it_is(view, slot)?;
        if !read.is_packed {
            return Ok(read);
        }
        let mut bytes = [0; BUCKET_BYTES];
        let len = open_bucket(&read.bytes[..read.len], view.seed(), &mut bytes)?.used();
        Ok(Buffer { bytes, len, is_packed: true })
    }

    fn read_as_it_is(view: &impl View, slot: SlotRef) -> Result<Buffer> {
        let mut buffer = Buffer { bytes: [0; BUCKET_BYTES], len: bucket_len(slot)?, is_packed: false };
        view.read(slot.offset(), &mut buffer.bytes[..buffer.len])?;
        buffer.is_packed = buffer.bytes.first_chunk().is_some_and(is_packed_bucket);
        Ok(buffer)
    }

    fn bucket(&self) -> Result<Bucket<'_>> {
        Ok(Bucket::new(&self.bytes[..self.len])?)
    }
}

fn bucket_len(slot: SlotRef) -> Result<usize> {
    let len = slot.capacity() as usize;
    if (BUCKET_HEADER..=BUCKET_BYTES).contains(&len) {
        Ok(len)
    } else {
        Err(Error::Corrupt(format!("directory bucket {slot:?}")))
    }
}

/// What a change at the end of a bucket needs to know.
struct Counts {
    used: usize,
    live: usize,
    is_packed: bool,
}

fn counts(view: &impl View, slot: SlotRef) -> Result<Counts> {
    let (mut header, len) = ([0; BUCKET_HEADER], bucket_len(slot)?);
    view.read(slot.offset(), &mut header)?;
    let (used, live) = bucket_counts(&header, len)?;
    Ok(Counts { used, live, is_packed: is_packed_bucket(&header) })
}

fn node_ref(view: &impl View, node: SlotRef, index: usize) -> Result<NodeRef> {
    Ok(NodeRef::decode(view.read_u64(node.offset() + index as u64 * 8)?)?)
}

fn descend(view: &impl View, root: SlotRef, hash: u64) -> Result<Way> {
    let mut way =
        Way { steps: [Step { node: root, index: 0 }; LEVELS_MAX as usize], len: 0, bucket: SlotRef::NONE, depth: 0 };
    let mut node = root;
    loop {
        if way.len == LEVELS_MAX as usize {
            return Err(Error::Corrupt("directory is too deep; run `shoal check`".into()));
        }
        let index = node_index(hash, way.len as u32);
        way.steps[way.len] = Step { node, index };
        way.len += 1;
        match node_ref(view, node, index)? {
            NodeRef::Node(child) => node = child,
            NodeRef::Null => return Ok(way),
            NodeRef::Bucket { slot, depth } => {
                (way.bucket, way.depth) = (slot, depth);
                return Ok(way);
            }
        }
    }
}

/// Looks a name up.
pub(crate) fn lookup(view: &impl View, dir: &Inode, hash: u64, name: &[u8]) -> Result<Option<Found>> {
    let bucket = match dir.layout {
        Layout::DirPacked => dir.root,
        Layout::DirHashed => descend(view, dir.root, hash)?.bucket,
        _ => return Ok(None),
    };
    if bucket.is_none() {
        return Ok(None);
    }
    let buffer = Buffer::read_as_it_is(view, bucket)?;
    if buffer.is_packed {
        return find_packed(&buffer, bucket, name);
    }
    let found = buffer.bucket()?.find(hash, name)?;
    Ok(found.map(|(at, entry)| Found {
        ino: entry.ino as Ino,
        kind: entry.kind,
        bucket,
        at,
        end: at + entry.encoded_len(),
    }))
}

fn find_packed(buffer: &Buffer, bucket: SlotRef, name: &[u8]) -> Result<Option<Found>> {
    let (mut entries, mut at) = (PackedEntries::new(&buffer.bytes[..buffer.len])?, 0);
    while let Some(entry) = entries.step()? {
        if entry.name == name {
            return Ok(Some(Found { ino: entry.ino, kind: entry.kind, bucket, at, end: at + 1 }));
        }
        at += 1;
    }
    Ok(None)
}

/// Adds an entry that is not there yet. Changes `dir` (root, layout, size, allocated) but does not store it.
pub(crate) fn insert(tx: &mut Tx<'_>, dir: &mut Inode, entry: &Dirent<'_>) -> Result<()> {
    loop {
        let done = match dir.layout {
            Layout::Empty => start_packed(tx, dir)?,
            Layout::DirPacked => insert_packed(tx, dir, entry)?,
            _ => insert_hashed(tx, dir, entry)?,
        };
        if done {
            dir.size += 1;
            return Ok(());
        }
    }
}

fn start_packed(tx: &mut Tx<'_>, dir: &mut Inode) -> Result<bool> {
    let slot = tx.alloc(FIRST_BUCKET)?;
    tx.write(slot.offset(), &bucket_header(BUCKET_HEADER, 0))?;
    dir.allocated += slot.capacity();
    (dir.layout, dir.root) = (Layout::DirPacked, slot);
    Ok(false)
}

/// Outcome of appending an entry.
enum Append {
    Done,
    Full,
    /// The bucket is packed: nothing can be appended.
    Packed,
}

/// Appends to a bucket if the entry fits, after squeezing out removed entries if need be.
fn append(tx: &mut Tx<'_>, slot: SlotRef, entry: &Dirent<'_>) -> Result<Append> {
    let Counts { used, live, is_packed } = counts(tx, slot)?;
    if is_packed {
        return Ok(Append::Packed);
    }
    let len = entry.encoded_len();
    if used + len <= slot.capacity() as usize {
        let mut bytes = Vec::with_capacity(len);
        entry.encode(&mut bytes);
        tx.write(slot.offset() + used as u64, &bytes)?;
        tx.write(slot.offset(), &bucket_header(used + len, live + 1))?;
        return Ok(Append::Done);
    }
    let buffer = Buffer::read(tx, slot)?;
    let mut entries = live_entries(&buffer.bucket()?)?;
    if plain_len(&entries) + len > slot.capacity() as usize {
        return Ok(Append::Full);
    }
    entries.push(*entry);
    write_bucket(tx, slot, &entries)?;
    Ok(Append::Done)
}

/// Returns the length of a plain bucket with these entries (bytes).
fn plain_len(entries: &[Dirent<'_>]) -> usize {
    BUCKET_HEADER + entries.iter().map(Dirent::encoded_len).sum::<usize>()
}

fn live_entries<'a>(bucket: &Bucket<'a>) -> Result<Vec<Dirent<'a>>> {
    let mut entries = Vec::with_capacity(bucket.live() + 1);
    for entry in bucket.entries() {
        let (_, entry) = entry?;
        if !entry.ino.is_none() {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn write_bucket(tx: &mut Tx<'_>, slot: SlotRef, entries: &[Dirent<'_>]) -> Result<()> {
    let mut bytes = vec![0; BUCKET_HEADER];
    entries.iter().for_each(|entry| entry.encode(&mut bytes));
    let header = bucket_header(bytes.len(), entries.len());
    bytes[..BUCKET_HEADER].copy_from_slice(&header);
    Ok(tx.write(slot.offset(), &bytes)?)
}

fn insert_packed(tx: &mut Tx<'_>, dir: &mut Inode, entry: &Dirent<'_>) -> Result<bool> {
    let old = dir.root;
    match append(tx, old, entry)? {
        Append::Done => return Ok(true),
        Append::Full if old.capacity() < BUCKET_BYTES as u64 => {
            let twice = old.capacity() as usize * 2;
            dir.root = pack::move_to_plain(tx, dir, old, |used| twice.max(used + entry.encoded_len()))?;
            return Ok(false);
        }
        Append::Packed => {
            dir.root = pack::unpack(tx, dir, old, entry.encoded_len())?;
            return Ok(false);
        }
        Append::Full => {}
    }
    // The full bucket becomes the only one under a root node; the next round splits it.
    let node = new_node(tx, NodeRef::Bucket { slot: old, depth: 0 })?;
    dir.allocated += NODE_BYTES;
    (dir.layout, dir.root) = (Layout::DirHashed, node);
    Ok(false)
}

/// Makes a node whose references are all the same.
fn new_node(tx: &mut Tx<'_>, reference: NodeRef) -> Result<SlotRef> {
    let node = tx.alloc(NODE_BYTES)?;
    tx.write(node.offset(), &reference.encode().to_le_bytes().repeat(NODE_FANOUT))?;
    Ok(node)
}

/// Returns the aligned range of references that a bucket of `depth` has around `index`: its first
/// one and its length.
fn span(index: usize, depth: u32) -> (usize, usize) {
    let len = 1 << (NODE_BITS - depth);
    (index / len * len, len)
}

fn set_refs(tx: &mut Tx<'_>, node: SlotRef, (first, len): (usize, usize), reference: NodeRef) -> Result<()> {
    let bytes = reference.encode().to_le_bytes().repeat(len);
    Ok(tx.write(node.offset() + first as u64 * 8, &bytes)?)
}

fn insert_hashed(tx: &mut Tx<'_>, dir: &mut Inode, entry: &Dirent<'_>) -> Result<bool> {
    let way = descend(tx, dir.root, entry.hash)?;
    let Step { node, index } = way.steps[way.len - 1];
    if way.bucket.is_none() {
        // The widest empty aligned range around the index gets one bucket.
        let mut depth = NODE_BITS;
        while depth > 0 && is_null(tx, node, span(index, depth - 1))? {
            depth -= 1;
        }
        let slot = tx.alloc(BUCKET_BYTES as u64)?;
        write_bucket(tx, slot, std::slice::from_ref(entry))?;
        dir.allocated += slot.capacity();
        set_refs(tx, node, span(index, depth), NodeRef::Bucket { slot, depth })?;
        return Ok(true);
    }
    match append(tx, way.bucket, entry)? {
        Append::Done => return Ok(true),
        Append::Packed => {
            pack::unpack_under(tx, dir, &way)?;
            return Ok(false);
        }
        Append::Full => {}
    }
    if way.depth == NODE_BITS {
        if way.len == LEVELS_MAX as usize {
            // 56 bits of a keyed hash agree for more names than a bucket holds.
            return Err(Error::NO_SPACE);
        }
        let child = new_node(tx, NodeRef::Bucket { slot: way.bucket, depth: 0 })?;
        dir.allocated += NODE_BYTES;
        set_refs(tx, node, (index, 1), NodeRef::Node(child))?;
        return Ok(false);
    }
    split(tx, dir, &way)?;
    Ok(false)
}

fn is_null(view: &impl View, node: SlotRef, (first, len): (usize, usize)) -> Result<bool> {
    let bytes = view.read_vec(node.offset() + first as u64 * 8, len * 8)?;
    Ok(bytes.iter().all(|&b| b == 0))
}

/// Splits a bucket by the next bit of the hash; a half without entries becomes null.
fn split(tx: &mut Tx<'_>, dir: &mut Inode, way: &Way) -> Result<()> {
    let Step { node, index } = way.steps[way.len - 1];
    let buffer = Buffer::read(tx, way.bucket)?;
    let entries = live_entries(&buffer.bucket()?)?;
    let bit = HASH_BITS - 1 - (NODE_BITS * (way.len as u32 - 1) + way.depth);
    let (high, low): (Vec<_>, Vec<_>) = entries.into_iter().partition(|e| e.hash >> bit & 1 == 1);
    let (first, len) = span(index, way.depth);
    let depth = way.depth + 1;
    let halves = [(low, (first, len / 2)), (high, (first + len / 2, len / 2))];
    let mut slot = Some(way.bucket);
    for (entries, range) in halves {
        if entries.is_empty() {
            set_refs(tx, node, range, NodeRef::Null)?;
            continue;
        }
        let target = match slot.take() {
            Some(old) => old,
            None => {
                let new = tx.alloc(BUCKET_BYTES as u64)?;
                dir.allocated += new.capacity();
                new
            }
        };
        write_bucket(tx, target, &entries)?;
        set_refs(tx, node, range, NodeRef::Bucket { slot: target, depth })?;
    }
    Ok(())
}

/// Removes an entry found by [`lookup`] under the same lock. Changes `dir` but does not store it.
pub(crate) fn remove(tx: &mut Tx<'_>, dir: &mut Inode, hash: u64, found: &Found) -> Result<()> {
    let Counts { used, live, is_packed } = counts(tx, found.bucket)?;
    dir.size = dir.size.saturating_sub(1);
    if live > 1 {
        if is_packed {
            pack::remove(tx, found)?;
        } else {
            remove_plain(tx, found, used, live)?;
        }
        // A bucket with so few entries may fit into its neighbour.
        if dir.layout == Layout::DirHashed && live <= shrink::SPARSE_ENTRIES {
            return shrink::join(tx, dir, hash);
        }
        return Ok(());
    }
    let way = (dir.layout == Layout::DirHashed).then(|| descend(tx, dir.root, hash)).transpose()?;
    tx.free(found.bucket)?;
    dir.allocated -= found.bucket.capacity();
    let Some(way) = way else {
        (dir.layout, dir.root) = (Layout::Empty, SlotRef::NONE);
        return Ok(());
    };
    let last = way.steps[way.len - 1];
    set_refs(tx, last.node, span(last.index, way.depth), NodeRef::Null)?;
    shrink::join_behind(tx, dir, way)
}

fn remove_plain(tx: &mut Tx<'_>, found: &Found, used: usize, live: usize) -> Result<()> {
    let last = found.end == used;
    let used = if last { found.at } else { used };
    tx.write(found.bucket.offset(), &bucket_header(used, live - 1))?;
    if !last {
        tx.write(found.bucket.offset() + (found.at + ENTRY_INO_AT) as u64, &[0; 5])?;
    }
    Ok(())
}

/// Makes an existing entry name another inode. Changes `dir` (root, allocated) but does not store
/// it, and may move other entries.
pub(crate) fn replace(tx: &mut Tx<'_>, dir: &mut Inode, entry: &Dirent<'_>) -> Result<()> {
    loop {
        let found = lookup(tx, dir, entry.hash, entry.name)?.ok_or(Error::NotFound)?;
        if counts(tx, found.bucket)?.is_packed {
            if pack::replace(tx, &found, entry)? {
                return Ok(());
            }
            match dir.layout {
                Layout::DirHashed => pack::unpack_under(tx, dir, &descend(tx, dir.root, entry.hash)?)?,
                _ => dir.root = pack::unpack(tx, dir, found.bucket, 0)?,
            }
            continue;
        }
        let mut bytes = [0; 5];
        bytes[..4].copy_from_slice(&entry.ino.get().to_le_bytes());
        bytes[4] = entry.kind;
        return Ok(tx.write(found.bucket.offset() + (found.at + ENTRY_INO_AT) as u64, &bytes)?);
    }
}

/// An entry as `readdir` hands it out.
pub(crate) struct Listed {
    pub ino: Ino,
    pub kind: u8,
    pub name: Vec<u8>,
    /// Hash and rank among equal hashes, as one ascending number.
    pub cookie: u64,
}

/// Bits of a cookie below the hash: ranks among entries of equal hash.
const RANK_BITS: u32 = 3;

/// Returns the entries of one bucket with cookies of at least `from`, in cookie order; the buckets
/// before it have none. Also returns the cookie to go on from, or `None` at the end of the
/// directory. A bucket with an entry that does not belong there is an error once its other entries
/// are listed: a listing that goes on from the hash of such an entry could start over or leave
/// entries out.
pub(crate) fn list(view: &impl Names, dir: &Inode, from: u64) -> Result<(Vec<Listed>, Option<u64>)> {
    match dir.layout {
        Layout::DirPacked => list_bucket(view, dir.root, from, 0..HASH_END),
        Layout::DirHashed => {
            let mut floor = from;
            loop {
                let hash = floor >> RANK_BITS;
                if hash >= HASH_END {
                    return Ok((Vec::new(), None));
                }
                let way = descend(view, dir.root, hash)?;
                let next = behind(&way, hash).map(|next| next << RANK_BITS);
                if !way.bucket.is_none() {
                    let (entries, rest) = list_bucket(view, way.bucket, floor, range_of(&way, hash))?;
                    if !entries.is_empty() {
                        return Ok((entries, rest.or(next)));
                    }
                }
                match next {
                    Some(next) => floor = next,
                    None => return Ok((Vec::new(), None)),
                }
            }
        }
        _ => Ok((Vec::new(), None)),
    }
}

/// First number that is no hash.
const HASH_END: u64 = 1 << HASH_BITS;

/// Returns the hashes of the bucket, or of the empty reference, that `hash` led to.
fn range_of(way: &Way, hash: u64) -> Range<u64> {
    let last = way.steps[way.len - 1];
    let (first, len) = if way.bucket.is_none() { (last.index, 1) } else { span(last.index, way.depth) };
    let shift = HASH_BITS - NODE_BITS * way.len as u32;
    let prefix = (hash >> (shift + NODE_BITS)) << NODE_BITS;
    (prefix + first as u64) << shift..(prefix + (first + len) as u64) << shift
}

/// Returns the first hash behind the range of the bucket, or of the empty reference, that `hash`
/// led to; `None` at the end.
fn behind(way: &Way, hash: u64) -> Option<u64> {
    let end = range_of(way, hash).end;
    (end < HASH_END).then_some(end)
}

/// Returns the bucket's entries from `from`, and the cookie behind them if the bucket also has
/// entries with hashes outside of `range`. Such entries alone are an error.
fn list_bucket(view: &impl Names, slot: SlotRef, from: u64, range: Range<u64>) -> Result<(Vec<Listed>, Option<u64>)> {
    let buffer = Buffer::read(view, slot)?;
    let mut entries = live_entries(&buffer.bucket()?)?;
    let live = entries.len();
    entries.retain(|entry| range.contains(&entry.hash) && entry.hash != 0);
    let all_belong = entries.len() == live;
    entries.sort_by_key(|entry| entry.hash);
    let (mut rank, mut last) = (0, u64::MAX);
    let mut out = Vec::with_capacity(entries.len());
    for entry in entries {
        rank = if entry.hash == last { (rank + 1).min((1 << RANK_BITS) - 1) } else { 0 };
        last = entry.hash;
        let cookie = entry.hash << RANK_BITS | rank;
        if cookie >= from {
            out.push(Listed { ino: entry.ino as Ino, kind: entry.kind, name: entry.name.to_vec(), cookie });
        }
    }
    match out.last() {
        _ if all_belong => Ok((out, None)),
        Some(last) => {
            let behind = last.cookie + 1;
            Ok((out, Some(behind)))
        }
        None => Err(Error::Corrupt(format!("directory bucket {slot:?}: a name's hash belongs elsewhere"))),
    }
}

const _: () = assert!(CLASS_SIZES[class_for(BUCKET_BYTES as u64).unwrap() as usize] == BUCKET_BYTES as u32);
