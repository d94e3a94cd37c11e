//! Packed inode blocks and the tables that decode them, from `docs/spec/pack.md` alone.
//!
//! Owns: [`Tables`], which both the walk over inodes and the salvage use. Codes are in `codes`.
//! Rules: each part of the tables comes from the first of the two copies that has it undamaged;
//! damage is named.
//! Left out: what a decoded record may contain (`shoal_format::inode`).

mod codes;

use shoal_format::inode::{INODE_RECORD, Inode, InodeRecord, InodeSlot};
use shoal_format::packed::{InodeTables, TRIPLET_RECORD, TripletRecord};
use shoal_format::superblock::Roots;
use shoal_format::{SlotRef, checksum};
use zerocopy::IntoBytes;

use codes::{Profile, Stripped, Triplet};

/// A value, or the reason why it cannot be read.
pub(crate) type Read<T> = codes::Read<T>;

/// The largest slot of a packed block (bytes).
pub(crate) const PACKED_MAX: u64 = 1280;
/// Records of a block.
const RECORDS: usize = 16;
/// Length of the longest code. A longer one is verbatim.
const STRIPPED: usize = 54;

/// The tables of a store's packed blocks, and statistics about them.
#[derive(Default)]
pub(crate) struct Tables {
    profiles: Vec<Profile>,
    triplets: Vec<Option<(Triplet, u64)>>,
    /// Number of codes that name each triplet, over the blocks decoded.
    users: Vec<u64>,
    /// Some block did not decode, so the counts of users are meaningless.
    incomplete: bool,
}

/// A finding about a copy of the tables.
pub(crate) struct Defect {
    pub at: u64,
    pub sentence: String,
}

type Entry = Result<Option<(Triplet, u64)>, String>;

/// A copy of the tables, as far as it can be read.
struct Copy {
    at: u64,
    profile: Vec<u8>,
    profiles: Vec<Profile>,
    entries: Vec<Entry>,
}

impl Copy {
    fn read(at: u64, bytes: &[u8]) -> Read<Copy> {
        let (_, profile, triplets) = InodeTables::decode(bytes).map_err(|error| error.to_string())?;
        let entry = |bytes: &[u8]| -> Entry {
            let found = TripletRecord::decode(bytes.try_into().expect("chunk size")).map_err(|e| e.to_string())?;
            Ok(found.map(|r| ((r.uid.get(), r.gid.get(), r.mode.get()), r.users.get())))
        };
        let entries = triplets.chunks_exact(TRIPLET_RECORD).map(entry).collect();
        Ok(Copy { at, profile: profile.to_vec(), profiles: codes::profiles(profile)?, entries })
    }
}

/// Returns the references to the copies; `None` for bits that are no reference.
pub(crate) fn copies(roots: &Roots) -> [Option<SlotRef>; 2] {
    roots.inode_tables.map(|bits| SlotRef::from_bits(bits.get()))
}

impl Tables {
    /// Reads two copies, given as offset and bytes of each one that exists.
    pub fn read(found: Vec<(u64, Vec<u8>)>, defects: &mut Vec<Defect>) -> Tables {
        let mut copies = Vec::new();
        for (at, bytes) in &found {
            match Copy::read(*at, bytes) {
                Ok(copy) => copies.push(copy),
                Err(why) => {
                    let sentence = format!("a copy of the tables of packed inodes: {why}");
                    defects.push(Defect { at: *at, sentence });
                }
            }
        }
        let mut copies = copies.into_iter();
        let Some(mut copy) = copies.next() else { return Tables::default() };
        if let Some(other) = copies.next() {
            if other.profile != copy.profile || other.entries.len() != copy.entries.len() {
                let sentence = "the copies of the tables of packed inodes differ".to_string();
                defects.push(Defect { at: other.at, sentence });
            }
            for (index, (entry, other_entry)) in copy.entries.iter_mut().zip(other.entries).enumerate() {
                let sentence = match (&*entry, &other_entry) {
                    (Ok(one), Ok(two)) if one == two => continue,
                    (Ok(_), Ok(_)) => format!("triplet {index} differs in the two copies of the tables"),
                    (Err(why), _) | (_, Err(why)) => format!("triplet {index} in a copy of the tables: {why}"),
                };
                let at = if entry.is_err() { copy.at } else { other.at };
                defects.push(Defect { at, sentence });
                if entry.is_err() {
                    *entry = other_entry;
                }
            }
        }
        let triplets: Vec<_> = copy.entries.into_iter().map(|entry| entry.unwrap_or_default()).collect();
        let mut sorted: Vec<Triplet> = triplets.iter().flatten().map(|(triplet, _)| *triplet).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            defects.push(Defect { at: copy.at, sentence: "a triplet is in the table twice".into() });
        }
        Tables { profiles: copy.profiles, users: vec![0; triplets.len()], triplets, incomplete: false }
    }

    /// Returns whether no profile could be read.
    pub fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }

    /// Returns the triplets whose count differs from the number of codes that name them: index,
    /// count in the table, count found.
    pub fn wrong_counts(&self) -> Vec<(usize, u64, u64)> {
        if self.incomplete {
            return Vec::new();
        }
        let counts = self.triplets.iter().zip(&self.users).enumerate();
        let counts = counts.map(|(index, (entry, found))| (index, entry.map_or(0, |(_, users)| users), *found));
        counts.filter(|(_, says, found)| says != found).collect()
    }

    /// Decodes the records of a packed block at the beginning of `slot`. Fails if the block as a
    /// whole does not decode.
    pub fn block(&self, slot: &[u8]) -> Read<[Read<Record>; RECORDS]> {
        let packed = Packed::open(slot)?;
        let mut rest = packed.codes;
        Ok(packed.lengths.map(|length| {
            let (code, behind) = rest.split_at(code_bytes(length));
            rest = behind;
            self.record(&packed, length, code)
        }))
    }

    /// Counts the codes of a block by the triplets they name.
    pub fn count(&mut self, records: &Read<[Read<Record>; RECORDS]>) {
        let Ok(records) = records else {
            self.incomplete = true;
            return;
        };
        for record in records {
            match record {
                Ok(Record { index: Some(index), .. }) => self.users[*index as usize] += 1,
                Ok(_) => {}
                Err(_) => self.incomplete = true,
            }
        }
    }

    fn record(&self, packed: &Packed<'_>, length: u8, code: &[u8]) -> Read<Record> {
        if length == 0 || length >= 0x80 {
            let generation = code.iter().rev().fold(0, |value, &byte| value << 8 | u32::from(byte));
            if code.last() == Some(&0) {
                return Err("a free number's generation has more bytes than it needs".into());
            }
            return Ok(Record { slot: InodeSlot::Free { generation }, index: None });
        }
        let stripped = if code.len() > STRIPPED {
            verbatim(code)?
        } else {
            let profile = self.profiles.get(usize::from(packed.profile));
            let profile = profile.ok_or_else(|| format!("profile {} is not there", packed.profile))?;
            let find = |index: u64| self.triplets.get(index as usize).copied().flatten().map(|(triplet, _)| triplet);
            profile.decode(code, &packed.bases, &find)?
        };
        Ok(Record { slot: plain(&stripped)?, index: stripped.index })
    }
}

/// A record, and the index of the triplet that its code names.
pub(crate) struct Record {
    pub slot: InodeSlot,
    pub index: Option<u64>,
}

/// A packed block whose checksum is right.
struct Packed<'a> {
    profile: u8,
    bases: Vec<i64>,
    lengths: [u8; RECORDS],
    codes: &'a [u8],
}

fn code_bytes(length: u8) -> usize {
    usize::from(length & 0x7f)
}

impl<'a> Packed<'a> {
    fn open(slot: &'a [u8]) -> Read<Packed<'a>> {
        let bases = usize::from(slot.get(5).copied().unwrap_or(u8::MAX));
        if bases > 3 {
            return Err(format!("packed inodes: {bases} bases"));
        }
        let at = 6 + bases * 8;
        let lengths = slot.get(at..at + RECORDS).ok_or_else(|| format!("packed inodes in {} bytes", slot.len()))?;
        let lengths: [u8; RECORDS] = lengths.try_into().expect("sixteen bytes");
        for length in lengths {
            if !matches!(length, 0..=96 | 129..=132) {
                return Err(format!("packed inodes: length byte {length}"));
            }
        }
        let end = at + RECORDS + lengths.iter().map(|&length| code_bytes(length)).sum::<usize>();
        let Some(codes) = slot.get(at + RECORDS..end) else {
            return Err(format!("packed inodes: {end} bytes in a slot of {}", slot.len()));
        };
        if slot[..4] != checksum(0, &slot[4..end]).to_le_bytes() {
            return Err("packed inodes: the checksum is wrong".into());
        }
        let base = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        Ok(Packed { profile: slot[4], bases: slot[6..at].chunks_exact(8).map(base).collect(), lengths, codes })
    }
}

fn verbatim(code: &[u8]) -> Read<Stripped> {
    let mut at = 0;
    let mut take = |bytes: usize| -> Read<u64> {
        let taken = code.get(at..at + bytes).ok_or("a verbatim record ends too early")?;
        at += bytes;
        Ok(taken.iter().rev().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    };
    let mask = take(1)?;
    let mode = take(2)? as u16;
    let links = take(4)? as u32;
    let (uid, gid) = (take(4)? as u32, take(4)? as u32);
    let size = take(8)?;
    let [ctime, mtime, atime, btime] = [take(8)?, take(8)?, take(8)?, take(8)?].map(|time| time as i64);
    let mut optional = [0; 8];
    for (field, bytes) in [4, 4, 4, 8, 8, 8, 4, 1].into_iter().enumerate().filter(|(field, _)| mask >> field & 1 == 1) {
        optional[field] = take(bytes)?;
        if optional[field] == 0 {
            return Err(format!("optional field {field} is there and 0"));
        }
    }
    if at != code.len() {
        return Err("a verbatim record has bytes too many".into());
    }
    Ok(Stripped { triplet: (uid, gid, mode), links, size, times: [ctime, btime, mtime, atime], optional, index: None })
}

/// Converts a packed record to the inode it stands for.
fn plain(record: &Stripped) -> Read<InodeSlot> {
    let narrow = |field: usize| u32::try_from(record.optional[field]).map_err(|_| format!("optional field {field}"));
    let (uid, gid, mode) = record.triplet;
    let usual = match mode >> 12 {
        _ if record.size == 0 => 0,
        0o4 => 4,
        0o10 | 0o12 => 1,
        _ => 0u8,
    };
    // Bit 46 marks the reference of a slot. The reference of a run has class 63.
    let reference = |stored: u64| if stored >> 40 & 63 == 63 { stored } else { stored & !(1 << 46) };
    let (xattr, root) = (reference(record.optional[3]), reference(record.optional[4]));
    let capacity = |bits| SlotRef::from_bits(bits).map_or(0, SlotRef::capacity);
    let flags = u8::try_from(record.optional[0]).map_err(|_| "flags of more than a byte".to_string())?;
    let layout = u8::try_from(record.optional[7]).map_err(|_| "a layout of more than a byte".to_string())?;
    let [ctime, btime, mtime, atime] = record.times;
    let mut bytes = InodeRecord {
        mode: mode.into(),
        layout: layout.wrapping_add(usual),
        flags,
        nlink: record.links.into(),
        uid: uid.into(),
        gid: gid.into(),
        size: record.size.into(),
        atime: atime.into(),
        mtime: mtime.into(),
        ctime: ctime.into(),
        btime: btime.into(),
        generation: narrow(1)?.wrapping_add(1).into(),
        rdev: narrow(2)?.into(),
        root: root.into(),
        xattr: xattr.into(),
        allocated: record.optional[5].wrapping_add(capacity(root) + capacity(xattr)).into(),
        parent: narrow(6)?.into(),
        crc: 0.into(),
    };
    bytes.crc = checksum(0, &bytes.as_bytes()[..INODE_RECORD - 4]).into();
    match Inode::decode(bytes.as_bytes().try_into().expect("size is exact")) {
        Ok(InodeSlot::Free { .. }) => Err("a packed record in use has mode 0".into()),
        decoded => decoded.map_err(|error| error.to_string()),
    }
}
