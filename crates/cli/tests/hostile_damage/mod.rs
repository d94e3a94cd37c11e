//! Every possible kind of damage to a store's files, applied to the files of a real store.
//!
//! Rules: the same seed does the same damage. A kind does nothing if the store lacks the part it
//! damages (a ring, bulk storage). With `sealed` the page sums of the image are correct afterwards,
//! as if a buggy writer had done the damage.

use std::fs;
use std::os::unix::fs::FileExt;

use shoal_format::inode::{INODE_RECORD, Inode, InodeSlot};
use shoal_format::superblock::{ANCHOR_AT, AnchorRecord, MemoryKind, Superblock};
use shoal_format::{PAGE, SEGMENT, SlotRef, checksum};
use shoal_sim::Random;

use crate::damaged_media::{Scene, seal};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Superblock,
    Anchors,
    ForgedAnchor,
    SegmentTable,
    Record,
    ForgedRecord,
    Directory,
    Extents,
    Attributes,
    Data,
    Sums,
    Log,
    Bulk,
    Truncated,
    Missing,
    Swapped,
    Replaced,
    ZeroedPage,
    Flips,
    Sector,
    Description,
}

pub const KINDS: [Kind; 21] = [
    Kind::Superblock,
    Kind::Anchors,
    Kind::ForgedAnchor,
    Kind::SegmentTable,
    Kind::Record,
    Kind::ForgedRecord,
    Kind::Directory,
    Kind::Extents,
    Kind::Attributes,
    Kind::Data,
    Kind::Sums,
    Kind::Log,
    Kind::Bulk,
    Kind::Truncated,
    Kind::Missing,
    Kind::Swapped,
    Kind::Replaced,
    Kind::ZeroedPage,
    Kind::Flips,
    Kind::Sector,
    Kind::Description,
];

/// Places in the region: offsets of inode records.
pub struct Targets {
    pub records: Vec<u64>,
}

/// A file that holds a store's region or an image of it, and the means to change it.
struct Medium<'a> {
    scene: &'a Scene,
    name: &'static str,
    superblock: Superblock,
    used: u64,
    sealed: bool,
}

impl Medium<'_> {
    fn bytes(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let file = self.scene.open(self.name);
        let _ = file.read_exact_at(&mut bytes, at);
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let file = self.scene.open(self.name);
        file.write_all_at(bytes, at).unwrap();
        if self.sealed && self.name.contains("image") {
            seal(&file, &self.superblock, at..at + bytes.len() as u64);
        }
    }

    /// Flips a bit, or overwrites a few bytes, within `len` bytes from `at`.
    fn hurt(&self, at: u64, len: u64, random: &mut Random) {
        let at = at + random.below(len.max(1));
        match random.below(3) {
            0 => self.write(at, &vec![random.below(256) as u8; 8.min(self.used.saturating_sub(at).max(1)) as usize]),
            _ => self.write(at, &[self.bytes(at, 1)[0] ^ 1 << random.below(8)]),
        }
    }

    fn inode(&self, at: u64) -> Option<Inode> {
        match Inode::decode(&self.bytes(at, INODE_RECORD).try_into().ok()?) {
            Ok(InodeSlot::Used(inode)) => Some(inode),
            _ => None,
        }
    }

    /// Returns a random piece of some inode, as chosen by `pick`.
    fn piece(&self, targets: &Targets, random: &mut Random, pick: impl Fn(&Inode) -> SlotRef) -> Option<SlotRef> {
        let inodes = targets.records.iter().filter_map(|&at| self.inode(at));
        let pieces: Vec<SlotRef> = inodes.map(|inode| pick(&inode)).filter(|piece| !piece.is_none()).collect();
        pieces.get(random.index(pieces.len())).copied()
    }

    /// Returns a random page with data, except the first two.
    fn page(&self, random: &mut Random) -> u64 {
        let ring = self.superblock.ring.page()..(self.superblock.ring + self.superblock.ring_bytes).page();
        let bytes = self.bytes(0, self.used as usize);
        let filled = bytes.chunks(PAGE as usize).enumerate().filter(|(_, page)| page.iter().any(|&byte| byte != 0));
        let pages: Vec<u64> = filled.map(|(number, _)| number as u64).filter(|n| *n > 1 && !ring.contains(n)).collect();
        pages[random.index(pages.len())]
    }
}

/// Returns the files of a store that may be damaged, by their names in the scene.
pub fn files(scene: &Scene) -> Vec<String> {
    let mut names: Vec<String> = ["region", "store/image.0", "store/image.1", "store/bulk", "store/shoal.json"]
        .into_iter()
        .filter(|name| scene.at(name).exists())
        .map(String::from)
        .collect();
    if let Ok(log) = fs::read_dir(scene.at("store/log")) {
        names.extend(log.map(|entry| format!("store/log/{}", entry.unwrap().file_name().to_str().unwrap())));
    }
    names.sort();
    names
}

fn media<'a>(scene: &'a Scene, random: &mut Random) -> Vec<Medium<'a>> {
    let medium = |name: &'static str, sealed| {
        let (superblock, anchor) = scene.head(name);
        let used = match superblock.memory_kind {
            MemoryKind::Battery if name == "region" => superblock.region_bytes,
            _ => anchor.used_bytes.get(),
        };
        Medium { scene, name, superblock, used, sealed }
    };
    let sealed = random.below(2) == 0;
    if scene.at("region").exists() {
        return vec![medium("region", sealed)];
    }
    let heads = ["store/image.0", "store/image.1"].map(|name| {
        let mut pages = vec![0; 2 * PAGE as usize];
        let read = scene.open(name).read_exact_at(&mut pages, 0);
        read.ok().and_then(|()| Some((name, AnchorRecord::newest(&pages[PAGE as usize..]).ok()?.generation.get())))
    });
    let mut whole: Vec<_> = heads.into_iter().flatten().collect();
    whole.sort_by_key(|(_, generation)| std::cmp::Reverse(*generation));
    // Damage only the newest, or both.
    whole.truncate(1 + random.below(2) as usize);
    whole.into_iter().map(|(name, _)| medium(name, sealed)).collect()
}

/// Does the damage. Returns a description.
pub fn damage(scene: &Scene, targets: &Targets, kind: Kind, seed: u64) -> String {
    let mut random = Random::new(seed);
    let names = files(scene);
    let name = names[random.index(names.len())].clone();
    let other = names[random.index(names.len())].clone();
    match kind {
        Kind::Truncated => {
            let len = fs::metadata(scene.at(&name)).unwrap().len();
            let kept =
                [0, 100, PAGE, len / 2, len.saturating_sub(1), len.saturating_sub(PAGE)][random.below(6) as usize];
            scene.open(&name).set_len(kept.min(len)).unwrap();
            return format!("{name} is cut to {kept} bytes");
        }
        Kind::Missing => {
            fs::create_dir_all(scene.at("aside")).unwrap();
            fs::rename(scene.at(&name), scene.at("aside").join(name.replace('/', "+"))).unwrap();
            return format!("{name} is missing");
        }
        Kind::Swapped => {
            let (first, second) = (fs::read(scene.at(&name)).unwrap(), fs::read(scene.at(&other)).unwrap());
            fs::write(scene.at(&name), second).unwrap();
            fs::write(scene.at(&other), first).unwrap();
            return format!("{name} and {other} are swapped");
        }
        Kind::Replaced => {
            fs::write(scene.at(&name), fs::read(scene.at(&other)).unwrap()).unwrap();
            return format!("{name} has the bytes of {other}");
        }
        Kind::Description => {
            let len = fs::metadata(scene.at("store/shoal.json")).unwrap().len();
            let at = random.below(len.max(1));
            scene.open("store/shoal.json").write_all_at(&[random.below(128) as u8; 3], at).unwrap();
            return format!("bytes at {at} of the description");
        }
        Kind::Bulk => {
            let Ok(bytes) = fs::read(scene.at("store/bulk")) else { return "no bulk storage".into() };
            let used: Vec<usize> = (0..bytes.len()).step_by(512).filter(|&at| bytes[at] != 0).collect();
            let at = used[random.index(used.len())] as u64;
            scene.open("store/bulk").write_all_at(&[0xa5; 512], at).unwrap();
            return format!("a sector of bulk storage at {at}");
        }
        Kind::Log => {
            let logs = names.iter().filter(|name| name.contains("/log/"));
            let log = logs.max_by_key(|name| fs::read(scene.at(name)).unwrap().iter().filter(|&&b| b != 0).count());
            let (name, range) = match log {
                Some(name) => (name.as_str(), 0..fs::metadata(scene.at(name)).unwrap().len()),
                None => {
                    let superblock = scene.head("region").0;
                    ("region", superblock.ring.get()..(superblock.ring + superblock.ring_bytes).get())
                }
            };
            let bytes = fs::read(scene.at(name)).unwrap();
            let used: Vec<u64> = range.filter(|&at| bytes[at as usize] != 0).collect();
            let Some(&at) = used.get(random.index(used.len())) else { return "an empty log".into() };
            match random.below(3) {
                0 => scene.open(name).write_all_at(&[0x5a; 512], at / 512 * 512).unwrap(),
                _ => scene.flip(name, at),
            }
            return format!("{name} at {at}");
        }
        _ => {}
    }
    let mut told = Vec::new();
    let seed = random.next_u64();
    for medium in media(scene, &mut random) {
        // Both images get the same damage.
        let mut random = Random::new(seed);
        let at = one(&medium, targets, kind, &mut random);
        told.push(format!("{kind:?} at {at:#x} of {}{}", medium.name, if medium.sealed { ", sealed" } else { "" }));
    }
    told.join("; ")
}

/// Damages the bytes of a region. Returns the offset.
fn one(medium: &Medium<'_>, targets: &Targets, kind: Kind, random: &mut Random) -> u64 {
    let superblock = medium.superblock;
    let record = targets.records[random.below(targets.records.len() as u64) as usize];
    let hurt_piece = |pick: &dyn Fn(&Inode) -> SlotRef, random: &mut Random| {
        let piece = medium.piece(targets, random, pick);
        let Some(piece) = piece.filter(|piece| piece.offset().get() + piece.capacity() <= medium.used) else {
            return 0;
        };
        medium.hurt(piece.offset().get(), piece.capacity().min(200), random);
        piece.offset().get()
    };
    match kind {
        Kind::Superblock => {
            medium.hurt(0, 144, random);
            0
        }
        Kind::Anchors => {
            for at in ANCHOR_AT.into_iter().take(1 + random.below(2) as usize) {
                medium.hurt(at, 100, random);
            }
            ANCHOR_AT[0]
        }
        Kind::ForgedAnchor => {
            forge_anchors(medium, random);
            ANCHOR_AT[0]
        }
        Kind::SegmentTable => {
            let at = superblock.segment_table.get() + random.below((medium.used / SEGMENT).max(1)) * 16;
            medium.hurt(at, 16, random);
            at
        }
        Kind::Record => {
            medium.hurt(record, INODE_RECORD as u64, random);
            record
        }
        Kind::ForgedRecord => {
            forge_record(medium, targets, record, random);
            record
        }
        Kind::Directory => hurt_piece(&|inode| if inode.is_dir() { inode.root } else { SlotRef::NONE }, random),
        Kind::Extents => {
            use shoal_format::inode::Layout::{Chunked, Extents};
            let mapped = |inode: &Inode| matches!(inode.layout, Extents | Chunked);
            hurt_piece(&|inode| if mapped(inode) { inode.root } else { SlotRef::NONE }, random)
        }
        Kind::Attributes => hurt_piece(&|inode| inode.xattr, random),
        Kind::Data => hurt_piece(&|inode| if inode.is_dir() { SlotRef::NONE } else { inode.root }, random),
        Kind::Sums => {
            let at = superblock.region_bytes.next_multiple_of(PAGE) + medium.page(random) * 4;
            // A region in place has no sums.
            if medium.name != "region" {
                medium.scene.open(medium.name).write_all_at(&[random.below(256) as u8], at).unwrap();
            }
            at
        }
        Kind::ZeroedPage => {
            let at = medium.page(random) * PAGE;
            medium.write(at, &[0; PAGE as usize]);
            at
        }
        Kind::Sector => {
            let at = medium.page(random) * PAGE + random.below(8) * 512;
            medium.write(at, &[random.below(256) as u8; 512]);
            at
        }
        _ => {
            let page = medium.page(random) * PAGE;
            for _ in 0..1 + random.below(8) {
                medium.hurt(page, PAGE, random);
            }
            page
        }
    }
}

/// Changes a field of every anchor and corrects its checksum.
fn forge_anchors(medium: &Medium<'_>, random: &mut Random) {
    for at in ANCHOR_AT {
        let mut anchor = medium.bytes(at, 128);
        if anchor[..8] == [0; 8] {
            continue;
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
        let (replay, used) = (word(&anchor[32..40]), word(&anchor[72..80]));
        match random.below(3) {
            0 => anchor[72..80].copy_from_slice(&(used / 2).to_le_bytes()),
            1 => anchor[72..80].copy_from_slice(&medium.superblock.region_bytes.to_le_bytes()),
            _ => anchor[32..40].copy_from_slice(&(replay + 4096).to_le_bytes()),
        }
        let crc = checksum(0, &anchor[..124]);
        anchor[124..].copy_from_slice(&crc.to_le_bytes());
        medium.write(at, &anchor);
    }
}

/// Changes a field of the inode record at `record` and corrects its checksum.
fn forge_record(medium: &Medium<'_>, targets: &Targets, record: u64, random: &mut Random) {
    let mut bytes = medium.bytes(record, INODE_RECORD);
    let field = [0, 2, 3, 4, 16, 64, 72, 80, 88][random.below(9) as usize];
    let from = targets.records[random.below(targets.records.len() as u64) as usize];
    let forged = match random.below(3) {
        0 => medium.inode(from).map_or(7, |inode| inode.root.bits()),
        1 => random.next_u64(),
        _ => random.below(64),
    };
    let width = [1, 2, 4, 8][random.below(4) as usize].min(92 - field);
    bytes[field..field + width].copy_from_slice(&forged.to_le_bytes()[..width]);
    let crc = checksum(0, &bytes[..92]);
    bytes[92..96].copy_from_slice(&crc.to_le_bytes());
    medium.write(record, &bytes);
}
