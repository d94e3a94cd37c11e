//! The result of a check: findings with kind, object and sentence, and counts.
//!
//! Rules: an error is damage (a state that no writer leaves behind, even after a crash); a note is
//! a state that recovery or the next mount settles by itself. The lists are bounded: hostile bytes
//! must not use unbounded memory.
//! Left out: rendering as JSON (`json`) and as text (the command line).

use serde::Serialize;
use shoal_format::inode::Ino;

use crate::remedy::Remedy;

/// Maximum number of findings kept in each list. Further ones are only counted.
pub const FINDINGS_MAX: usize = 10_000;

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum FindingKind {
    /// No image holds a valid anchor, or the region's anchors do not decode.
    NoAnchor,
    /// The superblock does not decode, or does not fit the medium.
    Superblock,
    /// The anchor contradicts the superblock.
    Anchor,
    /// The region in memory is gone, and the images lack the changes since they were saved. Found
    /// by the caller, which knows where the region should be.
    RegionGone,
    /// A page of the image does not match its checksum.
    PageSum,
    /// The log ends before the anchor's seal.
    LogCut,
    /// A committed record holds an entry that no writer writes.
    LogEntry,
    /// The roots are out of range.
    Roots,
    /// The roots' counts, which a clean unmount writes, are wrong.
    RootCounts,
    /// An entry of the segment table does not decode.
    SegmentEntry,
    /// A run of segments is not continued as its head says, or has no head.
    SegmentRun,
    /// A fixed area is not marked reserved, or another segment is.
    SegmentReserved,
    /// A node of the inode table holds an invalid reference.
    InodeTable,
    /// An inode does not decode.
    InodeRecord,
    /// A copy of the tables of packed inodes does not decode, or the two differ.
    PackedTables,
    /// A copy of the list of dictionaries, or of a dictionary, does not decode, or the two differ.
    Dictionaries,
    /// The count of a triplet is not the number of packed inodes that name it.
    TripletCount,
    /// Inode 0, which stands for "none", is in use.
    InodeZero,
    /// Inode 1 is not a directory that is its own parent.
    RootDirectory,
    /// A reference has bits that no writer sets, or points past the region.
    Reference,
    /// A reference points into a segment of another class, or to a run of another length.
    WrongClass,
    /// A referenced piece is not marked allocated.
    NotAllocated,
    /// A piece is referenced twice.
    DoubleUse,
    /// Pieces are allocated that nothing references.
    Leak,
    /// A symbolic link's size or target is impossible.
    SymbolicLink,
    /// A chunk of a file is longer than a chunk.
    Chunk,
    /// A packed object does not decode, does not match its file, or its contents do not match their
    /// checksum.
    PackedObject,
    /// The spill file violates its rules.
    SpillFile,
    /// Two spilled objects name the same bytes.
    SpilledDoubleUse,
    /// A spilled object names bytes that the spill file does not have.
    SpilledNowhere,
    /// The payload of a spilled object does not match its checksum, or cannot be read (a note if no
    /// payload could be read).
    SpilledData,
    /// The bytes of a file do not match its checksum.
    DataSum,
    /// An extent map does not decode or contradicts itself.
    ExtentMap,
    /// An extent is marked NEW but its inode lacks the flag, so recovery would not look for it.
    NewUnflagged,
    /// Data allocated beyond the end of a file (a note: preallocation does that).
    BeyondEnd,
    /// Data marked NEW (a note after a crash, an error after a clean unmount).
    NewData,
    /// A truncation is not finished (a note after a crash, an error after a clean unmount).
    Truncation,
    /// Extended attributes do not decode, or contain a duplicate name.
    ExtendedAttributes,
    /// `allocated` is not the sum of the inode's pieces and bulk blocks.
    Allocated,
    /// A directory node does not decode, or its references contradict their depth.
    DirectoryNode,
    /// A directory bucket does not decode.
    DirectoryBucket,
    /// A directory's size or a bucket's count is not the number of entries.
    EntryCount,
    /// An entry's name is not allowed in a directory.
    EntryName,
    /// An entry's hash is not the hash of its name.
    EntryHash,
    /// An entry lies in a bucket to which its hash does not lead.
    EntryPlace,
    /// A name occurs twice in its directory.
    EntryTwice,
    /// An entry names an inode that is not in use.
    EntryDangling,
    /// An entry's type differs from its inode's.
    EntryType,
    /// The link count is not the number of entries.
    LinkCount,
    /// A directory has more than one entry.
    DirectoryLinks,
    /// A directory's parent field is not the directory that holds it.
    Parent,
    /// Directories hold each other and are unreachable from the root.
    DirectoryCycle,
    /// An inode without links (a note after a crash, an error after a clean unmount).
    Orphan,
    /// A removed directory still has entries.
    OrphanEntries,
    /// The list of bulk devices does not decode, or contradicts the store.
    BulkDevices,
    /// Contents of files are in doubt because a flush of a bulk device failed (a note).
    BulkSuspect,
    /// A bulk device is smaller than the superblock or the list says, or its units are too large.
    BulkSize,
    /// The store's description does not say where a bulk device of the list is.
    BulkNowhere,
    /// A bulk device lacks its mark, or has one that does not decode (a note: it could not be compared).
    BulkMark,
    /// A bulk device belongs to another store.
    BulkOtherStore,
    /// A bulk device is a different device of the same store.
    BulkSwapped,
    /// A bulk device is an older copy of itself: it misses the store's last mounts.
    BulkOlder,
    /// A bulk device was used in a later mount than the region knows of, so the region is an older
    /// copy.
    BulkNewer,
    /// A bulk block is mapped twice.
    BulkDoubleUse,
    /// A mapped bulk block is not marked in use.
    BulkNotAllocated,
    /// A bulk block is marked in use, but no file maps it.
    BulkLeak,
}

impl FindingKind {
    /// Returns whether the finding makes every mount refuse the store, because its bulk devices are
    /// not those of its region. No program can repair an error of this kind.
    pub fn refuses_mounts(self) -> bool {
        use FindingKind::{BulkMark, BulkNewer, BulkNowhere, BulkOlder, BulkOtherStore, BulkSize, BulkSwapped};
        matches!(self, BulkMark | BulkNewer | BulkNowhere | BulkOlder | BulkOtherStore | BulkSize | BulkSwapped)
    }
}

/// A finding: what is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub kind: FindingKind,
    /// The inode concerned.
    pub inode: Option<u32>,
    /// A path of the inode, if the directories lead to it.
    pub path: Option<String>,
    /// Offset in the region, the log or the bulk device, by kind (bytes; bulk kinds: blocks).
    pub offset: Option<u64>,
    /// The finding in a sentence.
    pub sentence: String,
}

/// Counts of the store's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Inodes in use, orphans included.
    pub inodes: u64,
    pub directories: u64,
    pub files: u64,
    /// Files with data on the bulk device.
    pub large_files: u64,
    pub symlinks: u64,
    /// Devices, sockets and pipes.
    pub others: u64,
    /// Inodes without links.
    pub orphans: u64,
    /// Files with data or preallocated space past their end.
    pub preallocated: u64,
    /// Bytes of pieces that hold file data in the region.
    pub small_bytes: u64,
    /// Bytes of bulk blocks that files map.
    pub large_bytes: u64,
    /// Bytes of bulk storage that spilled small files occupy.
    pub spilled_bytes: u64,
    /// Slots and runs referenced.
    pub slots: u64,
    /// Segments that are not free, fixed areas included.
    pub segments_used: u64,
    /// Bytes of the segments in use.
    pub region_bytes_used: u64,
    /// Bulk blocks marked in use.
    pub bulk_blocks_used: u64,
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Damage, in the order found; at most [`FINDINGS_MAX`].
    pub errors: Vec<Finding>,
    /// States worth knowing that are not damage; at most [`FINDINGS_MAX`].
    pub notes: Vec<Finding>,
    /// Errors and notes beyond the limit.
    pub omitted: u64,
    /// Remedies for errors, in the order in which to carry them out.
    pub remedies: Vec<Remedy>,
    pub counts: Counts,
    /// Records of the log that were replayed, epoch records included.
    pub replayed_records: u64,
    /// Bytes of the log that were replayed.
    pub log_bytes: u64,
    /// Whether the store was unmounted cleanly and the log holds no change since.
    pub clean: bool,
}

impl Report {
    /// Returns whether nothing is damaged.
    pub fn is_sound(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns the exit code of `fsck(8)`: 0 no errors, 4 errors left uncorrected.
    pub fn exit_code(&self) -> u8 {
        if self.is_sound() { 0 } else { 4 }
    }

    pub(crate) fn error(&mut self, kind: FindingKind, inode: Option<Ino>, offset: Option<u64>, sentence: String) {
        let finding = Finding { kind, inode: inode.map(Ino::get), path: None, offset, sentence };
        push(&mut self.errors, &mut self.omitted, finding);
    }

    pub(crate) fn note(&mut self, kind: FindingKind, inode: Option<Ino>, offset: Option<u64>, sentence: String) {
        let finding = Finding { kind, inode: inode.map(Ino::get), path: None, offset, sentence };
        push(&mut self.notes, &mut self.omitted, finding);
    }

    /// Offers a remedy; at most [`FINDINGS_MAX`] are kept.
    pub(crate) fn offer(&mut self, remedy: Remedy) {
        if self.remedies.len() < FINDINGS_MAX {
            self.remedies.push(remedy);
        }
    }

    /// Reports a leftover: a note after a crash, an error after a clean unmount.
    pub(crate) fn leftover(&mut self, kind: FindingKind, inode: Ino, clean: bool, sentence: String) {
        if clean {
            self.error(kind, Some(inode), None, sentence + ", though the store was unmounted cleanly");
        } else {
            self.note(kind, Some(inode), None, sentence + "; the next mount settles it");
        }
    }
}

fn push(list: &mut Vec<Finding>, omitted: &mut u64, finding: Finding) {
    if list.len() < FINDINGS_MAX {
        list.push(finding);
    } else {
        *omitted += 1;
    }
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}")?;
            if let Some(path) = &self.path {
                write!(f, " ({path})")?;
            }
            f.write_str(": ")?;
        }
        f.write_str(&self.sentence)?;
        if let Some(offset) = self.offset {
            write!(f, " [at {offset:#x}]")?;
        }
        Ok(())
    }
}
