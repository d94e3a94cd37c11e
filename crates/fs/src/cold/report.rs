//! What files, inodes and directory entries take in the region, by their form.
//!
//! The report looks at every inode without a lock. Each file is seen as it was at one moment, the
//! store as a whole as it was between the beginning and the end.

use shoal_format::SlotRef;
use shoal_format::inode::{INODE_SUMMED, Inode, InodeSlot, Layout, TABLE_FANOUT, TABLE_NODE};
use shoal_format::object::{ChunkRef, Codec, GROUP, GROUP_CHUNKS};

use crate::cold::objects::Placed;
use crate::rooms::Cooling;
use crate::{Ino, Result, small};

/// How the bytes of a file, or of 128 KiB of one, lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As they were written.
    Plain,
    /// As they were written, with a checksum.
    Summed,
    /// In a packed object, not compressed.
    Stored,
    Lz4,
    Zstd,
    /// Compressed by zstd with a dictionary.
    ZstdDictionary,
    /// On bulk storage; only its head takes room here.
    Spilled,
}

/// All forms, in the order of [`PackingReport::forms`].
pub const FORMS: [Form; 7] =
    [Form::Plain, Form::Summed, Form::Stored, Form::Lz4, Form::Zstd, Form::ZstdDictionary, Form::Spilled];

impl Form {
    pub fn name(self) -> &'static str {
        match self {
            Form::Plain => "plain",
            Form::Summed => "checksum",
            Form::Stored => "stored",
            Form::Lz4 => "lz4",
            Form::Zstd => "zstd",
            Form::ZstdDictionary => "zstd+dict",
            Form::Spilled => "spilled",
        }
    }
}

/// What one form holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Files, or groups of 128 KiB of longer ones.
    pub groups: u64,
    /// Bytes of files.
    pub bytes: u64,
    /// Bytes of the region.
    pub stored: u64,
}

impl std::ops::AddAssign for Share {
    fn add_assign(&mut self, other: Share) {
        self.groups += other.groups;
        self.bytes += other.bytes;
        self.stored += other.stored;
    }
}

/// What files, inodes and entries take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackingReport {
    /// By [`FORMS`].
    pub forms: [Share; FORMS.len()],
    pub inodes: u64,
    /// Bytes of inode blocks, and of the nodes that lead to them.
    pub inode_bytes: u64,
    pub entries: u64,
    /// Bytes of buckets and nodes of directories.
    pub entry_bytes: u64,
    /// Dictionaries, and the bytes of both copies of them and of their list.
    pub dictionaries: u64,
    pub dictionary_bytes: u64,
}

impl PackingReport {
    /// Returns the sum of all forms.
    pub fn all(&self) -> Share {
        let mut all = Share::default();
        self.forms.iter().for_each(|&share| all += share);
        all
    }

    fn add(&mut self, form: Form, bytes: u64, stored: u64) {
        self.forms[form as usize] += Share { groups: 1, bytes, stored };
    }
}

impl<'a> Cooling<'a> {
    /// Returns what the store's files, inodes and entries take in the region.
    pub fn packing_report(self) -> Result<PackingReport> {
        let (dictionaries, dictionary_bytes) = self.fs.objects.dictionaries.stored();
        let mut report = PackingReport { dictionaries, dictionary_bytes, ..PackingReport::default() };
        for block in 0..self.fs.table.blocks() {
            let mut inodes = Vec::new();
            let exists = self.fs.table.for_block(&self.fs.region, block, &mut |_, slot| {
                if let InodeSlot::Used(inode) = slot {
                    inodes.push(inode);
                }
            })?;
            if exists {
                report.inode_bytes += self.fs.table.slot_of(&self.fs.region, block)?.capacity();
            }
            report.inodes += inodes.len() as u64;
            for inode in inodes {
                let own = inode.allocated.saturating_sub(inode.xattr.capacity());
                if inode.is_dir() {
                    report.entries += inode.size;
                    report.entry_bytes += own;
                } else if inode.is_file() {
                    let before = report;
                    // A file that cannot be read, because it is damaged or has changed since, is
                    // not counted.
                    if self.fs.region.while_still(|| self.add_file(&mut report, &inode)).is_err() {
                        report = before;
                    }
                }
            }
        }
        report.inode_bytes += self.fs.table.blocks().div_ceil(TABLE_FANOUT) * TABLE_NODE;
        Ok(report)
    }

    /// Returns what one file takes in the region.
    pub fn packing_of(self, ino: Ino) -> Result<PackingReport> {
        let _lock = self.fs.locks.read(ino);
        let mut report = PackingReport::default();
        self.add_file(&mut report, &self.fs.load(ino)?)?;
        Ok(report)
    }

    fn add_file(self, report: &mut PackingReport, inode: &Inode) -> Result<()> {
        match inode.layout {
            Layout::Direct => {
                let form = if inode.flags & INODE_SUMMED == 0 { Form::Plain } else { Form::Summed };
                report.add(form, inode.size, inode.root.capacity());
            }
            Layout::Packed => self.add_object(report, inode.root, inode.size)?,
            Layout::Chunked => {
                // The map belongs to the first group.
                let mut map = inode.root.capacity();
                for group in 0..inode.size.div_ceil(GROUP) {
                    let bytes = (inode.size - group * GROUP).min(GROUP);
                    let mut stored = std::mem::take(&mut map);
                    match small::chunk_ref(&self.fs.region, inode, group * GROUP_CHUNKS)? {
                        ChunkRef::Packed(head) => self.add_object(report, head, bytes)?,
                        ChunkRef::Slot(_) => {
                            for chunk in group * GROUP_CHUNKS..(group + 1) * GROUP_CHUNKS {
                                stored += small::chunk_slot(&self.fs.region, inode, chunk)?.capacity();
                            }
                            report.add(Form::Plain, bytes, 0);
                        }
                    }
                    report.forms[Form::Plain as usize].stored += stored;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn add_object(self, report: &mut PackingReport, head: SlotRef, bytes: u64) -> Result<()> {
        let placed = Placed::load(&self.fs.region, head)?;
        let form = match placed.object.codec {
            _ if placed.object.spilled => Form::Spilled,
            Codec::InPlace => Form::Summed,
            Codec::Stored => Form::Stored,
            Codec::Lz4 => Form::Lz4,
            Codec::Zstd if placed.object.dictionary != 0 => Form::ZstdDictionary,
            Codec::Zstd => Form::Zstd,
        };
        report.add(form, bytes, placed.capacity());
        Ok(())
    }
}
