//! Directories: walks every node and bucket, verifies every entry, and counts links.
//!
//! Rules: a walk goes as deep as the hash has bits, at most [`LEVELS_MAX`] levels, and visits a
//! node or bucket once. A duplicate name can occur only within one bucket, because its hash leads
//! to a single bucket. Under a node, only packed buckets are shorter than [`BUCKET_BYTES`]; each
//! has exactly one valid encoding.
//! Left out: judging the counts (`links`), which needs all directories.

use shoal_format::dir::{
    BUCKET_BYTES, Dirent, HASH_BITS, LEVELS_MAX, NODE_BITS, NODE_BYTES, NODE_FANOUT, NodeRef, is_packed_bucket,
    name_hash, name_is_valid, node_index, open_bucket, pack_bucket,
};
use shoal_format::inode::{Ino, Layout, S_IFDIR};
use shoal_format::superblock::FEATURE_BUCKETS;
use shoal_format::{Offset, SlotRef};

use crate::inodes::{DAMAGED, Directory, ENTRY_PACKED};
use crate::region::Region;
use crate::remedy::Remedy;
use crate::report::FindingKind;
use crate::{CheckError, Progress, Stage, State};

const KIND_DIRECTORY: u8 = (S_IFDIR >> 12) as u8;

/// Verifies all directories found by the inode walk.
pub(crate) fn walk(
    region: &Region<'_>,
    state: &mut State,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), CheckError> {
    let directories = std::mem::take(&mut state.inodes.directories);
    for (done, directory) in directories.iter().enumerate() {
        if done.is_multiple_of(1024) {
            let (done, total) = (done as u64, directories.len() as u64);
            progress(Progress { stage: Stage::Directories, done, total });
        }
        verify(region, state, directory)?;
    }
    Ok(())
}

fn verify(region: &Region<'_>, state: &mut State, directory: &Directory) -> Result<(), CheckError> {
    let ino = directory.ino;
    let mut walk =
        Walk { region, state, ino, live: 0, subdirectories: 0, allocated: directory.xattr_bytes, bucket: Vec::new() };
    let root = directory.root;
    match directory.layout {
        Layout::DirPacked if root.capacity() > BUCKET_BYTES as u64 => {
            let sentence = format!("a packed directory in a piece of {} bytes", root.capacity());
            walk.error(FindingKind::DirectoryBucket, root.offset(), sentence);
        }
        Layout::DirPacked => {
            walk.bucket(root, Place { prefix: 0, level: 0, from: 0, to: NODE_FANOUT, is_under_node: false })?
        }
        Layout::DirHashed if root.capacity() != NODE_BYTES => {
            let sentence = format!("a directory node in a piece of {} bytes", root.capacity());
            walk.error(FindingKind::DirectoryNode, root.offset(), sentence);
        }
        Layout::DirHashed => walk.node(root, 0, 0)?,
        _ => {}
    }
    let Walk { live, subdirectories, allocated, .. } = walk;
    if live != directory.size {
        let sentence = format!("the directory's size says {} entries, it has {live}", directory.size);
        state.report.error(FindingKind::EntryCount, Some(ino), None, sentence);
        state.report.offer(Remedy::Entries { directory: ino, entries: live });
    }
    if allocated != directory.allocated {
        let sentence = format!("says {} bytes are allocated, but its pieces have {allocated}", directory.allocated);
        state.report.error(FindingKind::Allocated, Some(ino), None, sentence);
        state.report.offer(Remedy::Allocated { ino, bytes: allocated });
    }
    if directory.nlink == 0 && live > 0 {
        let sentence = format!("a removed directory still has {live} entries");
        state.report.error(FindingKind::OrphanEntries, Some(ino), None, sentence);
    }
    if let Some(known) = state.inodes.state_mut(ino) {
        known.subdirectories = subdirectories;
    }
    Ok(())
}

/// The hashes that belong to a bucket. Their first `NODE_BITS * level` bits are `prefix`, and their
/// index in the node of `level` is in `from..to`.
struct Place {
    prefix: u64,
    level: u32,
    from: usize,
    to: usize,
    is_under_node: bool,
}

impl Place {
    fn holds(&self, hash: u64) -> bool {
        hash >> HASH_BITS == 0
            && hash >> (HASH_BITS - NODE_BITS * self.level) == self.prefix
            && (self.from..self.to).contains(&node_index(hash, self.level))
    }
}

/// Location of an entry. An entry of a packed bucket has the location of the bucket.
#[derive(Clone, Copy)]
struct Found {
    at: Offset,
    is_packed: bool,
}

struct Walk<'a, 'b> {
    region: &'a Region<'b>,
    state: &'a mut State,
    ino: Ino,
    live: u64,
    subdirectories: u32,
    /// Capacity of the pieces claimed (bytes).
    allocated: u64,
    /// Hashes and names of the bucket's entries, to find duplicates.
    bucket: Vec<(u64, Vec<u8>)>,
}

impl Walk<'_, '_> {
    fn error(&mut self, kind: FindingKind, at: Offset, sentence: String) {
        self.state.report.error(kind, Some(self.ino), Some(at.get()), sentence);
    }

    fn claim(&mut self, slot: SlotRef, what: &str) -> bool {
        let claimed = self.state.allocation.claim(slot, Some(self.ino), what, &mut self.state.report);
        if claimed {
            self.allocated += slot.capacity();
        }
        claimed
    }

    fn node(&mut self, slot: SlotRef, level: u32, prefix: u64) -> Result<(), CheckError> {
        if !self.claim(slot, "directory node") {
            return Ok(());
        }
        let bytes = self.region.bytes(slot.offset(), NODE_BYTES)?;
        let bits_at = |i: usize| u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
        let mut i = 0;
        while i < NODE_FANOUT {
            let at = slot.offset() + i as u64 * 8;
            let mut span = 1;
            match NodeRef::decode(bits_at(i)) {
                Ok(NodeRef::Null) => {}
                Ok(NodeRef::Node(_)) if level + 1 >= LEVELS_MAX => {
                    let sentence = format!("a directory node below level {level}, where no hash bits are left");
                    self.error(FindingKind::DirectoryNode, at, sentence);
                }
                Ok(NodeRef::Node(next)) => self.node(next, level + 1, prefix << NODE_BITS | i as u64)?,
                Ok(NodeRef::Bucket { slot: bucket, depth }) => {
                    span = NODE_FANOUT >> depth;
                    if !i.is_multiple_of(span) || (i..i + span).any(|other| bits_at(other) != bits_at(i)) {
                        let sentence = format!(
                            "the bucket of depth {depth} at index {i} is not referenced by {span} aligned entries"
                        );
                        self.error(FindingKind::DirectoryNode, at, sentence);
                        // Adjacent references that agree still count as references to one bucket.
                        span = (i..NODE_FANOUT).take_while(|&other| bits_at(other) == bits_at(i)).count();
                    }
                    self.bucket(bucket, Place { prefix, level, from: i, to: i + span, is_under_node: true })?;
                }
                Err(e) => self.error(FindingKind::DirectoryNode, at, e.to_string()),
            }
            i += span;
        }
        Ok(())
    }

    fn bucket(&mut self, slot: SlotRef, place: Place) -> Result<(), CheckError> {
        if !self.claim(slot, "directory bucket") {
            return Ok(());
        }
        let region = self.region;
        let bytes = region.bytes(slot.offset(), slot.capacity())?;
        let is_packed = bytes.first_chunk().is_some_and(is_packed_bucket);
        let mut room = [0; BUCKET_BYTES];
        let bucket = match open_bucket(&bytes, self.state.superblock.hash_seed, &mut room) {
            Ok(bucket) => bucket,
            Err(e) => {
                self.error(FindingKind::DirectoryBucket, slot.offset(), e.to_string());
                return Ok(());
            }
        };
        if is_packed && self.state.superblock.features & FEATURE_BUCKETS == 0 {
            let sentence = "a packed bucket, but the store lacks the feature".to_string();
            self.error(FindingKind::DirectoryBucket, slot.offset(), sentence);
        }
        if !is_packed && place.is_under_node && slot.capacity() != BUCKET_BYTES as u64 {
            let sentence = format!("a bucket that is not packed in a piece of {} bytes under a node", slot.capacity());
            self.error(FindingKind::DirectoryBucket, slot.offset(), sentence);
        }
        self.bucket.clear();
        let (mut live, mut entries) = (0, Vec::new());
        for entry in bucket.entries() {
            match entry {
                Ok((_, entry)) if entry.ino.is_none() => {}
                Ok((within, entry)) => {
                    live += 1;
                    entries.push(entry);
                    let at = if is_packed { slot.offset() } else { slot.offset() + within as u64 };
                    self.entry(&entry, Found { at, is_packed }, &place);
                }
                Err(e) => self.error(FindingKind::DirectoryBucket, slot.offset(), e.to_string()),
            }
        }
        if live != bucket.live() {
            let sentence = format!("a bucket says {} entries, it has {live}", bucket.live());
            self.error(FindingKind::EntryCount, slot.offset(), sentence);
        }
        if is_packed && !bytes.starts_with(&pack_bucket(&entries)) {
            let sentence = "a packed bucket is not coded as its entries are".to_string();
            self.error(FindingKind::DirectoryBucket, slot.offset(), sentence);
        }
        self.live += live as u64;
        Ok(())
    }

    fn entry(&mut self, entry: &Dirent<'_>, found: Found, place: &Place) {
        let (name, at) = (|| String::from_utf8_lossy(entry.name), found.at);
        if !name_is_valid(entry.name) {
            self.error(FindingKind::EntryName, at, format!("{:?} is no name an entry may have", name()));
        } else if name_hash(self.state.superblock.hash_seed, entry.name) != entry.hash {
            let sentence = format!("entry {:?} carries the hash {:#x}, not its name's", name(), entry.hash);
            self.error(FindingKind::EntryHash, at, sentence);
        } else if !place.holds(entry.hash) {
            let sentence = format!("entry {:?} lies in a bucket its hash does not lead to", name());
            self.error(FindingKind::EntryPlace, at, sentence);
        }
        if self.bucket.iter().any(|(hash, other)| *hash == entry.hash && other == entry.name) {
            self.error(FindingKind::EntryTwice, at, format!("the name {:?} is there twice", name()));
        }
        self.bucket.push((entry.hash, entry.name.to_vec()));
        self.target(found, entry);
    }

    fn target(&mut self, Found { at, is_packed }: Found, entry: &Dirent<'_>) {
        let name = || String::from_utf8_lossy(entry.name);
        let (ino, directory) = (entry.ino, self.ino);
        let found = self.state.inodes.state_mut(ino).filter(|found| found.kind != 0 || found.marks & DAMAGED != 0);
        let Some(found) = found else {
            let sentence = format!("entry {:?} names inode {ino}, which is not in use", name());
            self.state.report.offer(Remedy::RemoveEntry { directory, name: entry.name.to_vec(), ino });
            return self.error(FindingKind::EntryDangling, at, sentence);
        };
        found.links = found.links.saturating_add(1);
        if found.entry_at == Offset::ZERO {
            (found.holder, found.entry_at) = (directory, at);
            found.marks |= if is_packed { ENTRY_PACKED } else { 0 };
        }
        if found.marks & DAMAGED != 0 {
            self.state.report.offer(Remedy::RemoveEntry { directory, name: entry.name.to_vec(), ino });
            // The inode's type is unknown; taking it from the entry keeps the directory's link count right.
            self.subdirectories += u32::from(entry.kind == KIND_DIRECTORY);
            return;
        }
        let (kind, parent) = (found.kind, found.parent);
        if kind != entry.kind {
            let sentence = format!("entry {:?} says type {}, inode {ino} is of type {kind}", name(), entry.kind);
            self.error(FindingKind::EntryType, at, sentence);
        }
        if kind == KIND_DIRECTORY {
            self.subdirectories = self.subdirectories.saturating_add(1);
            if parent != directory {
                let sentence = format!("directory {ino} lies in directory {directory} but says its parent is {parent}");
                self.state.report.error(FindingKind::Parent, Some(ino), Some(at.get()), sentence);
            }
        }
    }
}
