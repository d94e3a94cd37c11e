//! Reads as much as possible of a damaged store and hands everything found to the caller.
//!
//! Owns: finding every remaining inode and name, and the bytes of files. Opening is in
//! `salvage/open`, inode blocks in `salvage/blocks`, the contents of one inode in
//! `salvage/contents`.
//! Rules: the store is never written. A structure that does not decode is not used; one that
//! decodes is used even if something beside it is damaged. Losses are reported with path, range and
//! reason. Every structure is visited once, so time and memory depend on the bytes on media. Inodes
//! without a name come last, below `lost+found`.
//! Left out: the directory that receives the copy ([`Sink`]), and allocation: a wrong bit is no
//! reason to lose a file.

mod blocks;
mod contents;
mod open;
mod pages;
mod sums;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use shoal_format::bulk_list::{BULK_LIST_AT, BulkDeviceEntry, decode_list, device_of, first_device};
use shoal_format::dir::{
    BUCKET_BYTES, LEVELS_MAX, NODE_BYTES, NODE_FANOUT, NodeRef, name_hash, name_is_valid, open_bucket,
};
use shoal_format::extent::{BulkBlock, Extent};
use shoal_format::inode::{INODE_BLOCK, Ino, Inode, Layout, TABLE_FANOUT, TABLE_NODE};
use shoal_format::superblock::{ROOTS_AT, Roots, Superblock};
use shoal_format::{BULK_BLOCK, Offset, PAGE, SEGMENT, SlotRef};
use shoal_media::LogDevice;
use zerocopy::FromBytes;

use pages::{BadPage, BadPages};

use crate::absorbed::{self, Pages};
use crate::dictionaries::Dictionaries;
use crate::packed::{PACKED_MAX, Tables};
use crate::region::Region;
use crate::{CheckError, ImageSource};
use blocks::{Place, place_in};

/// A store to salvage.
#[derive(Clone, Copy)]
pub struct SalvageSource<'a> {
    pub image: ImageSource<'a>,
    /// The log, if it is outside the region and readable.
    pub log: Option<&'a dyn LogDevice>,
    /// The bulk device, if there is one and it is readable.
    pub bulk: Option<&'a dyn BulkData>,
    /// Whether the machine went down since the store was last in use: data marked NEW then counts
    /// as lost.
    pub power_lost: bool,
    /// The boot ids that the log names if a flush of bulk storage failed since the store was last in
    /// use: what is marked NEW and in no cache then counts as lost.
    pub loss_boots: &'a [[u8; 16]],
    /// Whether the first bulk device has moved since the store was last in use. Counts only if the
    /// list of devices does not know its place.
    pub first_moved: bool,
}

/// The bytes of the bulk devices, addressed by the store's block numbers.
pub trait BulkData {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), String>;

    /// Returns the host's number for the place of the device that holds this byte; 0 if it is on no
    /// host.
    fn place(&self, _at: u64) -> u64 {
        0
    }

    /// Returns whether a write-back cache holds all of these bytes.
    fn is_held(&self, _at: u64, _len: u64) -> bool {
        false
    }
}

/// An inode found, to be created in the copy.
pub struct Item<'a> {
    /// Path below the store's root, without a leading slash; empty for the root itself.
    pub path: &'a [u8],
    pub inode: &'a Inode,
    /// Target of a symbolic link.
    pub target: &'a [u8],
    pub attributes: &'a [(Vec<u8>, Vec<u8>)],
}

/// Data that could not be read or cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Path below the store's root; `None` if the loss concerns more than one file.
    pub path: Option<Vec<u8>>,
    /// Bytes of the file: start and end.
    pub range: Option<(u64, u64)>,
    pub why: String,
}

/// The receiver of the copy.
pub trait Sink {
    /// Creates an inode; its contents follow. Returns false if it could not be created; then its
    /// contents are not sent.
    fn make(&mut self, item: &Item<'_>) -> bool;
    /// Receives bytes of the last file created. Bytes that are never sent are a hole.
    fn data(&mut self, at: u64, bytes: &[u8]);
    /// Ends the last file created.
    fn done(&mut self);
    /// Adds another name to a file that was created.
    fn link(&mut self, path: &[u8], first: &[u8]);
    fn lost(&mut self, loss: Loss);
    /// Receives a remark about the store that is not a loss.
    fn note(&mut self, why: &str);
}

/// Counts of a salvage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Salvaged {
    pub directories: u64,
    pub files: u64,
    /// Symbolic links, devices, sockets and pipes.
    pub others: u64,
    /// Names beyond the first of a file.
    pub links: u64,
    /// Bytes of file data sent.
    pub bytes: u64,
    /// Inodes without a name.
    pub unnamed: u64,
    pub losses: u64,
}

/// Copies out everything readable. Returns `None` if no superblock was found, so nothing can be
/// read.
pub fn salvage(
    source: SalvageSource<'_>,
    sink: &mut dyn Sink,
    progress: &mut dyn FnMut(&Salvaged),
) -> Result<Option<Salvaged>, CheckError> {
    let mut losses = Vec::new();
    let Some(opened) = open::open(&source, &mut losses)? else { return Ok(None) };
    let mut walk = Walk {
        region: &opened.region,
        superblock: opened.superblock,
        bad_pages: opened.bad_pages,
        source,
        sink,
        progress,
        records: HashMap::new(),
        tables: Tables::default(),
        dictionaries: Dictionaries::default(),
        spill_file: Vec::new(),
        devices: Vec::new(),
        absorbed: Pages::new(),
        sums_count: opened.is_current && losses.is_empty(),
        power_lost: source.power_lost && !opened.clean,
        data_lost: opened.data_lost,
        damaged: BTreeSet::new(),
        seen: HashMap::new(),
        found: Salvaged::default(),
    };
    losses.into_iter().for_each(|why| walk.lost(None, None, why));
    opened.notes.iter().for_each(|why| walk.sink.note(why));
    walk.find_inodes()?;
    walk.find_spill_file()?;
    if walk.records.contains_key(&(Ino::ROOT)) {
        walk.tree(Ino::ROOT, Vec::new())?;
    } else {
        walk.lost(Some(b""), None, "the root directory cannot be read: its files are below lost+found".into());
    }
    walk.unnamed()?;
    Ok(Some(walk.found))
}

/// A range of inode blocks that cannot be reached through the table.
struct Gap {
    from: u64,
    to: u64,
    /// The reference says that there are no blocks, so the gap may be a hole instead of damage.
    hole: bool,
}

struct Walk<'a, 'b> {
    region: &'a Region<'b>,
    superblock: Superblock,
    /// Pages of the image that are not known to be right.
    bad_pages: BadPages,
    source: SalvageSource<'a>,
    sink: &'a mut dyn Sink,
    progress: &'a mut dyn FnMut(&Salvaged),
    /// Location of each record in use.
    records: HashMap<Ino, Place>,
    /// The tables that decode packed blocks.
    tables: Tables,
    dictionaries: Dictionaries,
    /// Extents of the spill file.
    spill_file: Vec<Extent>,
    /// The bulk devices.
    devices: Vec<BulkDeviceEntry>,
    /// Pages of them that the region holds.
    absorbed: Pages,
    /// Whether the checksums describe what is on the devices now.
    sums_count: bool,
    power_lost: bool,
    /// A flush of the only bulk device failed.
    data_lost: bool,
    /// Inodes whose record does not decode.
    damaged: BTreeSet<Ino>,
    /// Inodes that were created, with their first path if they may have more than one.
    seen: HashMap<Ino, Option<Vec<u8>>>,
    found: Salvaged,
}

impl Walk<'_, '_> {
    fn lost(&mut self, path: Option<&[u8]>, range: Option<(u64, u64)>, why: String) {
        self.found.losses += 1;
        self.sink.lost(Loss { path: path.map(<[u8]>::to_vec), range, why });
    }

    fn fits(&self, slot: SlotRef) -> bool {
        !slot.is_none() && slot.offset().get().saturating_add(slot.capacity()) <= self.superblock.region_bytes
    }

    /// Reads without keeping the bytes. Bytes after the region's end are zeros.
    fn read(&self, mut at: Offset, mut out: &mut [u8]) -> Result<(), CheckError> {
        while !out.is_empty() {
            let take = ((SEGMENT - u64::from(at.in_segment())) as usize).min(out.len());
            let (part, rest) = out.split_at_mut(take);
            self.region.peek(at, part)?;
            (at, out) = (at + take as u64, rest);
        }
        Ok(())
    }

    fn piece(&self, slot: SlotRef) -> Result<Vec<u8>, CheckError> {
        let mut bytes = vec![0; slot.capacity() as usize];
        self.read(slot.offset(), &mut bytes)?;
        Ok(bytes)
    }

    /// Returns a page of `[at, at + len)` that is not known to be right.
    fn bad_page(&self, at: Offset, len: u64) -> Option<BadPage> {
        self.bad_pages.first_in(at.get(), len)
    }

    /// Collects the records that the inode table leads to. If a part of the table is gone, also
    /// collects allocated blocks that look like inode blocks.
    fn find_inodes(&mut self) -> Result<(), CheckError> {
        let mut bytes = [0; size_of::<Roots>()];
        self.read(ROOTS_AT, &mut bytes)?;
        let roots = Roots::read_from_bytes(&bytes).expect("size is given");
        let (height, blocks) = (roots.inode_height.get(), roots.inode_blocks.get());
        self.read_tables(&roots)?;
        self.read_devices()?;
        let mut reached = HashSet::new();
        let mut gaps: Vec<Gap> = Vec::new();
        match SlotRef::from_bits(roots.inode_root.get()).filter(|slot| slot.capacity() == TABLE_NODE) {
            Some(root) if (1..=4).contains(&height) && self.fits(root) => {
                self.node(root, height - 1, 0, blocks, &mut reached, &mut gaps)?;
            }
            _ => gaps.push(Gap { from: 0, to: blocks.max(1), hole: false }),
        }
        let strays = if gaps.is_empty() { Vec::new() } else { self.stray_blocks(&reached)? };
        // A table may have holes. They are no loss as long as no stray block is left.
        if strays.is_empty() && gaps.iter().all(|gap| gap.hole) {
            return Ok(());
        }
        // Freed blocks leave holes, so a stray block belongs to a broken part of the table if it
        // fits there.
        let broken: u64 = gaps.iter().filter(|gap| !gap.hole).map(|gap| gap.to - gap.from).sum();
        gaps.retain(|gap| !gap.hole || broken < strays.len() as u64);
        let gaps: Vec<(u64, u64)> = gaps.iter().map(|gap| (gap.from, gap.to)).collect();
        let missing: u64 = gaps.iter().map(|&(from, to)| to - from).sum();
        self.lost(
            None,
            None,
            format!("{missing} blocks of the inode table cannot be reached; looked for them by hand"),
        );
        let is_root = |block: &SlotRef| -> Result<bool, CheckError> {
            let slot = self.inode(place_in(*block, Ino::ROOT.place()))?;
            Ok(slot.is_some_and(|inode| inode.is_dir() && inode.parent == Ino::ROOT))
        };
        let mut rest = Vec::new();
        let mut known: Vec<(u64, SlotRef)> = Vec::new();
        let mut free: Vec<u64> = gaps.iter().flat_map(|&(from, to)| from..to.min(from + 100_000)).collect();
        for stray in strays {
            if free.first() == Some(&0) && is_root(&stray)? {
                free.remove(0);
                known.push((0, stray));
            } else {
                rest.push(stray);
            }
        }
        // Records do not hold their numbers. A single block for a single gap is unambiguous.
        // Otherwise the inodes get invented numbers above all others and end up below lost+found.
        if let ([number], [stray]) = (&free[..], &rest[..]) {
            known.push((*number, *stray));
            rest.clear();
        }
        let behind = (blocks.max(1) + self.superblock.segment_count).min((1 << 28) - 1 - rest.len() as u64);
        known.extend(rest.into_iter().enumerate().map(|(i, stray)| (behind + i as u64, stray)));
        for (number, at) in known {
            self.block(number, at)?;
        }
        Ok(())
    }

    /// Reads the list of bulk devices, or takes the superblock's single device if the list does not
    /// decode.
    fn read_devices(&mut self) -> Result<(), CheckError> {
        let mut page = vec![0; PAGE as usize];
        self.read(BULK_LIST_AT, &mut page)?;
        let listed = decode_list(&page, &self.superblock).unwrap_or_else(|why| {
            self.lost(None, None, format!("{why}: files on all bulk devices but the first cannot be read"));
            None
        });
        self.devices = listed.unwrap_or_else(|| first_device(&self.superblock).into_iter().collect());
        for device in self.devices.clone() {
            let Some(area) = device.absorbed else { continue };
            let mut entries = vec![0; area.places() as usize * 8];
            self.read(area.entry_at(0), &mut entries)?;
            let mut wrong = Vec::new();
            self.absorbed.extend(absorbed::pages(&device, &entries, &mut |_, why| wrong.push(why)));
            wrong.into_iter().for_each(|why| self.lost(None, None, format!("{why}: what it holds is lost")));
        }
        Ok(())
    }

    /// Lays absorbed pages over bytes from byte `at` of bulk storage, where the device may have lost
    /// them.
    fn lay_absorbed_over(&self, at: u64, out: &mut [u8]) -> Result<(), CheckError> {
        let end = at + out.len() as u64;
        for (&page, &place) in self.absorbed.range((at + 1).saturating_sub(PAGE)..end) {
            let is_held = self.source.bulk.is_some_and(|bulk| bulk.is_held(page, PAGE));
            let block = BulkBlock::new(page / BULK_BLOCK);
            if is_held || !self.power_lost && self.may_lack(block).is_none() {
                continue;
            }
            let mut bytes = [0; PAGE as usize];
            if let Some(place) = place {
                self.read(place, &mut bytes)?;
            }
            let (from, to) = (page.max(at), end.min(page + PAGE));
            out[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&bytes[(from - page) as usize..(to - page) as usize]);
        }
        Ok(())
    }

    /// Returns why the device of this block may have lost unflushed data while the machine kept
    /// running, if it may.
    fn may_lack(&self, block: BulkBlock) -> Option<&'static str> {
        match self.data_lost {
            true => Some("a flush of its bulk device failed, and no other had covered it"),
            false => self.was_away(block).then_some("its bulk device was away before a flush had covered it"),
        }
    }

    fn was_away(&self, block: BulkBlock) -> bool {
        let device = device_of(&self.devices, block, 1);
        let place = self.source.bulk.map_or(0, |bulk| bulk.place(block.byte()));
        device.is_some_and(|device| match device.place {
            0 => device.unsettled || device.number == 0 && self.source.first_moved,
            known => device.unsettled || known != place,
        })
    }

    /// Returns whether some of these blocks are in doubt because a flush of their device failed.
    fn is_doubtful(&self, first: u64, blocks: u64) -> Result<bool, CheckError> {
        let end = first.saturating_add(blocks);
        let holds = |device: &&BulkDeviceEntry| device.first() <= first && end <= device.end();
        let Some(device) = self.devices.iter().find(holds).filter(|device| !device.suspects.is_none()) else {
            return Ok(false);
        };
        let own = first - device.first()..end - device.first();
        let mut word = [0; 8];
        for block in own {
            if block.is_multiple_of(64) || word == [0; 8] {
                self.read(device.suspects.offset() + block / 64 * 8, &mut word)?;
            }
            if u64::from_le_bytes(word) >> (block % 64) & 1 == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn node(
        &mut self,
        slot: SlotRef,
        level: u32,
        first: u64,
        blocks: u64,
        reached: &mut HashSet<Offset>,
        gaps: &mut Vec<Gap>,
    ) -> Result<(), CheckError> {
        if !reached.insert(slot.offset()) {
            return Ok(());
        }
        if let Some(page) = self.bad_page(slot.offset(), TABLE_NODE) {
            self.lost(None, None, format!("the inode table lies in {page}"));
        }
        let step = TABLE_FANOUT.pow(level);
        for (i, bits) in self.piece(slot)?.chunks_exact(8).enumerate() {
            let block = first + i as u64 * step;
            if block >= blocks {
                break;
            }
            let sized = |slot: SlotRef| match level {
                0 => slot.capacity() == INODE_BLOCK || slot.capacity() <= PACKED_MAX,
                _ => slot.capacity() == TABLE_NODE,
            };
            let bits = u64::from_le_bytes(bits.try_into().expect("eight bytes"));
            match SlotRef::from_bits(bits).filter(|slot| sized(*slot) && self.fits(*slot)) {
                Some(slot) if level > 0 => self.node(slot, level - 1, block, blocks, reached, gaps)?,
                Some(slot) => {
                    if reached.insert(slot.offset()) {
                        self.block(block, slot)?;
                    }
                }
                None => gaps.push(Gap { from: block, to: blocks.min(block + step), hole: bits == 0 }),
            }
        }
        Ok(())
    }

    /// Creates an inode and everything below it. Pending paths are kept in a vector, so a deep tree
    /// does not need a deep call stack.
    fn tree(&mut self, top: Ino, path: Vec<u8>) -> Result<(), CheckError> {
        let mut waiting = vec![(top, path)];
        while let Some((ino, path)) = waiting.pop() {
            (self.progress)(&self.found);
            let Some(inode) = self.records.get(&ino).copied().map(|place| self.inode(place)).transpose()?.flatten()
            else {
                let why = if self.damaged.contains(&ino) { "does not decode" } else { "is not there" };
                self.lost(Some(&path), None, format!("the record of inode {ino} {why}"));
                continue;
            };
            if let Some(first) = self.seen.get(&ino) {
                match first.clone() {
                    Some(first) if !inode.is_dir() => {
                        self.found.links += 1;
                        self.sink.link(&path, &first);
                    }
                    _ => self.lost(Some(&path), None, format!("inode {ino} has a name already, and only one link")),
                }
                continue;
            }
            let first = (inode.nlink > 1 && !inode.is_dir()).then(|| path.clone());
            self.seen.insert(ino, first);
            if !self.make(ino, &inode, &path)? || !inode.is_dir() {
                continue;
            }
            let before = waiting.len();
            self.entries(&inode, &path, &mut waiting)?;
            waiting[before..].reverse();
        }
        Ok(())
    }

    /// Adds the entries of a directory to `into`.
    fn entries(&mut self, dir: &Inode, path: &[u8], into: &mut Vec<(Ino, Vec<u8>)>) -> Result<(), CheckError> {
        let mut pieces = vec![(dir.root, dir.layout == Layout::DirHashed, 0)];
        let mut visited = HashSet::new();
        if dir.layout == Layout::Empty {
            return Ok(());
        }
        while let Some((slot, is_node, level)) = pieces.pop() {
            let sized = if is_node { slot.capacity() == NODE_BYTES } else { slot.capacity() <= BUCKET_BYTES as u64 };
            if !sized || !self.fits(slot) || level > LEVELS_MAX {
                self.lost(Some(path), None, "a part of the directory is nowhere: the names in it are lost".into());
                continue;
            }
            if !visited.insert(slot.offset()) {
                continue;
            }
            if let Some(page) = self.bad_page(slot.offset(), slot.capacity()) {
                let why = format!("the directory lies in {page}: names may be, too");
                self.lost(Some(path), None, why);
            }
            let bytes = self.piece(slot)?;
            if !is_node {
                self.bucket(&bytes, slot.offset(), path, into);
                continue;
            }
            for i in (0..NODE_FANOUT).rev() {
                let bits = u64::from_le_bytes(bytes[i * 8..i * 8 + 8].try_into().expect("eight bytes"));
                match NodeRef::decode(bits) {
                    Ok(NodeRef::Null) => {}
                    Ok(NodeRef::Node(next)) => pieces.push((next, true, level + 1)),
                    Ok(NodeRef::Bucket { slot, .. }) => pieces.push((slot, false, level + 1)),
                    Err(error) => {
                        self.lost(Some(path), None, format!("{error}: the names of a part of the directory are lost"));
                    }
                }
            }
        }
        Ok(())
    }

    fn bucket(&mut self, bytes: &[u8], at: Offset, path: &[u8], into: &mut Vec<(Ino, Vec<u8>)>) {
        let broken =
            |error: &dyn std::fmt::Display| format!("{error} (at {:#x}): names in the directory are lost", at.get());
        let mut room = [0; BUCKET_BYTES];
        let bucket = match open_bucket(bytes, self.superblock.hash_seed, &mut room) {
            Ok(bucket) => bucket,
            Err(error) => return self.lost(Some(path), None, broken(&error)),
        };
        for entry in bucket.entries() {
            let entry = match entry {
                Ok((_, entry)) => entry,
                Err(error) => return self.lost(Some(path), None, broken(&error)),
            };
            if entry.ino.is_none() {
                continue;
            }
            if !name_is_valid(entry.name) {
                let name = String::from_utf8_lossy(entry.name);
                self.lost(Some(path), None, format!("{name:?} is no name an entry may have"));
                continue;
            }
            let mut below = path.to_vec();
            if !below.is_empty() {
                below.push(b'/');
            }
            below.extend_from_slice(entry.name);
            if name_hash(self.superblock.hash_seed, entry.name) != entry.hash {
                self.lost(Some(&below), None, "the name does not fit its hash, and may be another".into());
            }
            into.push((entry.ino, below));
        }
    }

    /// Creates the inodes without a name. Directories whose parent is not among them come first, so
    /// that trees stay together.
    fn unnamed(&mut self) -> Result<(), CheckError> {
        let mut left: BTreeMap<Ino, Inode> = BTreeMap::new();
        let unseen: Vec<(Ino, Place)> =
            self.records.iter().filter(|(ino, _)| !self.seen.contains_key(ino)).map(|(&ino, &at)| (ino, at)).collect();
        for (ino, at) in unseen {
            // An inode without links was deleted, but its space had not been reclaimed yet.
            if let Some(inode) = self.inode(at)?.filter(|inode| inode.nlink > 0) {
                left.insert(ino, inode);
            }
        }
        let is_top = |inode: &Inode| !left.get(&inode.parent).is_some_and(|parent| parent.is_dir());
        let (tops, others): (Vec<_>, Vec<_>) = left.iter().partition(|(_, inode)| inode.is_dir() && is_top(inode));
        let order: Vec<Ino> = tops.into_iter().chain(others).map(|(&ino, _)| ino).collect();
        for ino in order {
            if !self.seen.contains_key(&ino) {
                self.found.unnamed += 1;
                let path = format!("lost+found/#{ino}").into_bytes();
                self.lost(Some(&path), None, format!("no name leads to inode {ino}"));
                self.tree(ino, path)?;
            }
        }
        Ok(())
    }
}
