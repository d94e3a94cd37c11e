//! Remedies for findings, which `shoal check --repair` carries out through the engine.
//!
//! Rules: a remedy is offered only if its finding is certain. While some directory, reference or
//! page of the image cannot be trusted, it may hold a reference to a seemingly unreferenced piece;
//! then no remedy is offered that depends on having seen everything. Records that do not decode are
//! freed first, with their entries; the next check sees the rest.
//! Left out: carrying remedies out, and findings that opening a store settles by itself (orphans,
//! truncations, the roots' counts).

use shoal_format::SlotRef;
use shoal_format::inode::Ino;

use crate::report::{FindingKind as K, Report};

/// A change that repairs part of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Removes an entry whose inode is not in use or cannot be read.
    RemoveEntry {
        directory: Ino,
        name: Vec<u8>,
        ino: Ino,
    },
    /// Frees a record that does not decode. The pieces it owned become a leak.
    FreeRecord {
        ino: Ino,
    },
    /// Gives an inode that no entry names a name in `lost+found`.
    Attach {
        ino: Ino,
    },
    LinkCount {
        ino: Ino,
        nlink: u32,
    },
    /// Corrects `allocated`.
    Allocated {
        ino: Ino,
        bytes: u64,
    },
    /// Corrects the size of a directory.
    Entries {
        directory: Ino,
        entries: u64,
    },
    /// Recounts the users of triplets and writes both copies of the tables of packed inodes.
    PackedTables,
    /// Rewrites the dictionaries that are damaged in one copy.
    Dictionaries,
    /// Frees pieces that nothing references.
    FreePieces {
        pieces: Vec<SlotRef>,
    },
    /// Frees bulk blocks that no file maps.
    FreeBlocks {
        first: u64,
        blocks: u64,
    },
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Remedy::RemoveEntry { directory, name, ino } => {
                let name = String::from_utf8_lossy(name);
                write!(f, "remove the entry {name:?} of directory {directory}: inode {ino} is lost")
            }
            Remedy::FreeRecord { ino } => write!(f, "free the record of inode {ino}, which does not decode"),
            Remedy::Attach { ino } => write!(f, "name inode {ino} lost+found/#{ino}"),
            Remedy::LinkCount { ino, nlink } => write!(f, "set the link count of inode {ino} to {nlink}"),
            Remedy::Allocated { ino, bytes } => write!(f, "set the allocated bytes of inode {ino} to {bytes}"),
            Remedy::Entries { directory, entries } => write!(f, "set the size of directory {directory} to {entries}"),
            Remedy::PackedTables => f.write_str("write the tables of packed inodes anew"),
            Remedy::Dictionaries => f.write_str("write the damaged copies of dictionaries anew"),
            Remedy::FreePieces { pieces } => {
                let bytes: u64 = pieces.iter().map(|piece| piece.capacity()).sum();
                write!(f, "free {} pieces ({bytes} bytes) that nothing references", pieces.len())
            }
            Remedy::FreeBlocks { first, blocks } => write!(f, "free bulk blocks {first} to {}", first + blocks - 1),
        }
    }
}

/// Drops the remedies that are not certain.
pub(crate) fn keep_certain(report: &mut Report) {
    let has = |kinds: &[K]| report.errors.iter().any(|finding| kinds.contains(&finding.kind));
    let partial = report.omitted > 0
        || has(&[K::PageSum, K::Roots, K::InodeTable, K::Reference, K::WrongClass, K::DoubleUse, K::SegmentEntry]);
    let names_unread = partial
        || has(&[K::InodeRecord, K::DirectoryNode, K::DirectoryBucket, K::EntryName, K::EntryTwice, K::RootDirectory]);
    let data_unread = names_unread || has(&[K::Chunk, K::PackedObject, K::ExtentMap, K::SegmentRun, K::DirectoryCycle]);
    let damaged: Vec<Ino> = report
        .errors
        .iter()
        .filter(|f| f.kind == K::InodeRecord)
        .filter_map(|finding| finding.inode.map(Ino::new))
        .collect();
    report.remedies.retain(|remedy| match remedy {
        // The root is never freed, because nothing can be mounted without it.
        Remedy::FreeRecord { ino } => *ino > Ino::ROOT,
        Remedy::RemoveEntry { ino, .. } => damaged.contains(ino) || !partial,
        Remedy::PackedTables | Remedy::Dictionaries => !partial,
        Remedy::Attach { .. } | Remedy::LinkCount { .. } | Remedy::Entries { .. } => !names_unread,
        Remedy::Allocated { .. } | Remedy::FreePieces { .. } | Remedy::FreeBlocks { .. } => !data_unread,
    });
}
