//! Directories: entries in buckets, buckets under hash nodes.
//!
//! A name's hash has 60 bits. A packed directory is one bucket. A hashed directory is a tree of
//! nodes with 256 references. Level `l` is indexed by the 8 bits of the hash that follow the first
//! `8 * l`. Nodes use extendible hashing: a bucket of local depth `d` is referenced by `2^(8-d)`
//! neighbouring entries. A null reference is an empty range. Walking the tree from left to right is
//! walking in hash order, so a hash is a cookie that stays valid while the directory grows, shrinks
//! or splits. A bucket that has cooled may be packed (`packed`).

mod packed;

pub use packed::{PackedEntries, PackedEntry, is_packed_bucket, open_bucket, pack_bucket};

use crate::inode::Ino;
use crate::{FormatError, SlotRef, index, u16_at, u32_at, u64_at};

/// Bits of a name's hash.
pub const HASH_BITS: u32 = 60;
/// Bits of the hash that index one node.
pub const NODE_BITS: u32 = 8;
/// References in a node.
pub const NODE_FANOUT: usize = 1 << NODE_BITS;
/// Bytes of a node.
pub const NODE_BYTES: u64 = NODE_FANOUT as u64 * 8;
/// Maximum number of levels: below them no hash bits are left to split by.
pub const LEVELS_MAX: u32 = 7;
/// Bytes of a bucket of full size. A packed directory grows up to it through smaller slots.
pub const BUCKET_BYTES: usize = 1024;
/// Bytes of a bucket's header: used bytes (u16, header included), live entries (u16), and the
/// checksum of a packed bucket (u32), which is zero in a plain one.
pub const BUCKET_HEADER: usize = 8;
/// Bytes of an entry before its name: hash (u64), inode number (u32; 0 = removed), kind (u8), name length (u8).
pub const ENTRY_HEADER: usize = 14;
/// Longest name (bytes).
pub const NAME_MAX: usize = 255;

/// Returns the hash of a name under the store's key: the top 60 bits of XXH3-64, but never 0 (a
/// cookie's start).
pub fn name_hash(seed: u64, name: &[u8]) -> u64 {
    (xxhash_rust::xxh3::xxh3_64_with_seed(name, seed) >> (64 - HASH_BITS)).max(1)
}

/// Returns the index of `hash` in a node of `level` (0 is the root).
pub fn node_index(hash: u64, level: u32) -> usize {
    index(hash >> (HASH_BITS - NODE_BITS * (level + 1))) & (NODE_FANOUT - 1)
}

/// One entry of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dirent<'a> {
    pub hash: u64,
    /// 0 marks a removed entry.
    pub ino: Ino,
    /// The file type bits of the mode, shifted right by 12 (as in `d_type`).
    pub kind: u8,
    pub name: &'a [u8],
}

impl Dirent<'_> {
    pub fn encoded_len(&self) -> usize {
        ENTRY_HEADER + self.name.len()
    }

    /// Returns the bytes before the name.
    fn head(&self) -> [u8; ENTRY_HEADER] {
        let mut head = [0; ENTRY_HEADER];
        head[..8].copy_from_slice(&self.hash.to_le_bytes());
        head[8..12].copy_from_slice(&self.ino.get().to_le_bytes());
        head[12] = self.kind;
        head[13] = u8::try_from(self.name.len()).expect("a name has `NAME_MAX` bytes at most");
        head
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.head());
        out.extend_from_slice(self.name);
    }
}

/// Makes a bucket's header for `used` bytes and `live` entries.
pub fn bucket_header(used: usize, live: usize) -> [u8; BUCKET_HEADER] {
    let field = |value: usize| u16::try_from(value).expect("a bucket has `BUCKET_BYTES` at most").to_le_bytes();
    let mut header = [0; BUCKET_HEADER];
    header[..2].copy_from_slice(&field(used));
    header[2..4].copy_from_slice(&field(live));
    header
}

/// Returns used bytes and live entries from the header of a bucket in a slot of `capacity` bytes.
pub fn bucket_counts(header: &[u8; BUCKET_HEADER], capacity: usize) -> Result<(usize, usize), FormatError> {
    let what = "directory bucket";
    if is_packed_bucket(header) {
        return packed::counts(header, capacity);
    }
    let (used, live) = (u16_at(header, 0) as usize, u16_at(header, 2) as usize);
    if used < BUCKET_HEADER || used > capacity {
        return Err(FormatError::Range { what, field: "used bytes", found: used as u64 });
    }
    if live > (used - BUCKET_HEADER) / ENTRY_HEADER {
        return Err(FormatError::Range { what, field: "entries", found: live as u64 });
    }
    Ok((used, live))
}

/// The bytes of a plain bucket. Only the header has been validated.
#[derive(Clone, Copy)]
pub struct Bucket<'a> {
    bytes: &'a [u8],
    live: usize,
}

impl<'a> Bucket<'a> {
    /// Checks the header of a plain bucket. `bytes` is the whole slot.
    pub fn new(bytes: &'a [u8]) -> Result<Bucket<'a>, FormatError> {
        let Some(header) = bytes.first_chunk() else {
            return Err(FormatError::Short { what: "directory bucket", expected: BUCKET_HEADER, found: bytes.len() });
        };
        if u32_at(header, 4) != 0 {
            let (what, found) = ("directory bucket", u64::from(u32_at(header, 4)));
            return Err(FormatError::Range { what, field: "form", found });
        }
        let (used, live) = bucket_counts(header, bytes.len())?;
        Ok(Bucket { bytes: &bytes[..used], live })
    }

    /// Returns the number of bytes in use, header and removed entries included.
    pub fn used(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of entries that are not removed.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Finds the entry of that name that is not removed, with its position in the slot. Equivalent
    /// to a search through [`Bucket::entries`].
    pub fn find(&self, hash: u64, name: &[u8]) -> Result<Option<(usize, Dirent<'a>)>, FormatError> {
        let (mut rest, hash) = (&self.bytes[BUCKET_HEADER..], hash.to_le_bytes());
        while !rest.is_empty() {
            let entry = rest.split_first_chunk::<ENTRY_HEADER>();
            let named =
                entry.and_then(|(head, rest)| Some((head, rest.split_at_checked(head[ENTRY_HEADER - 1] as usize)?)));
            let Some((head, (entry_name, behind))) = named else {
                return self.entries().find_map(Result::err).map_or(Ok(None), Err);
            };
            if head[..8] == hash && head[ENTRY_INO_AT..ENTRY_INO_AT + 4] != [0; 4] && entry_name == name {
                let found = Dirent {
                    hash: u64_at(head, 0),
                    ino: Ino::new(u32_at(head, ENTRY_INO_AT)),
                    kind: head[12],
                    name: entry_name,
                };
                return Ok(Some((self.bytes.len() - rest.len(), found)));
            }
            rest = behind;
        }
        Ok(None)
    }

    /// Returns all entries, removed ones included, each with its position in the slot.
    pub fn entries(&self) -> BucketEntries<'a> {
        BucketEntries { bytes: self.bytes, at: BUCKET_HEADER }
    }
}

/// Iterator over a bucket. Stops after the first error.
pub struct BucketEntries<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for BucketEntries<'a> {
    type Item = Result<(usize, Dirent<'a>), FormatError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let at = self.at;
        if at == self.bytes.len() {
            return None;
        }
        let what = "directory entry";
        let end = at + ENTRY_HEADER;
        if end > self.bytes.len() || end + self.bytes[end - 1] as usize > self.bytes.len() {
            self.at = self.bytes.len();
            return Some(Err(FormatError::Short { what, expected: end, found: self.bytes.len() }));
        }
        let name_end = end + self.bytes[end - 1] as usize;
        self.at = name_end;
        Some(Ok((
            at,
            Dirent {
                hash: u64_at(self.bytes, at),
                ino: Ino::new(u32_at(self.bytes, at + 8)),
                kind: self.bytes[at + 12],
                name: &self.bytes[end..name_end],
            },
        )))
    }
}

/// Offset of the inode number within an entry. A removal or replacement rewrites 5 bytes from here
/// (number and kind).
pub const ENTRY_INO_AT: usize = 8;

/// A reference in a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRef {
    /// No entries in this range.
    Null,
    /// A bucket shared by `2^(8 - depth)` neighbouring references.
    Bucket { slot: SlotRef, depth: u32 },
    /// A node of the next level.
    Node(SlotRef),
}

const DEPTH_SHIFT: u32 = 56;
const IS_NODE: u64 = 1 << 63;

impl NodeRef {
    pub fn encode(self) -> u64 {
        match self {
            NodeRef::Null => 0,
            NodeRef::Bucket { slot, depth } => slot.bits() | u64::from(depth) << DEPTH_SHIFT,
            NodeRef::Node(slot) => slot.bits() | IS_NODE,
        }
    }

    pub fn decode(bits: u64) -> Result<NodeRef, FormatError> {
        let error = FormatError::Range { what: "directory node", field: "reference", found: bits };
        if bits == 0 {
            return Ok(NodeRef::Null);
        }
        let depth = (bits & !IS_NODE) >> DEPTH_SHIFT;
        let slot = SlotRef::from_bits(bits & ((1 << DEPTH_SHIFT) - 1)).filter(|s| !s.is_none()).ok_or(error.clone())?;
        let is_sized = match bits & IS_NODE {
            // Packed buckets are shorter.
            0 => slot.capacity() <= BUCKET_BYTES as u64,
            _ => slot.capacity() == NODE_BYTES && depth == 0,
        };
        if depth > u64::from(NODE_BITS) || !is_sized {
            return Err(error);
        }
        Ok(if bits & IS_NODE != 0 { NodeRef::Node(slot) } else { NodeRef::Bucket { slot, depth: depth as u32 } })
    }
}

/// Returns whether `name` may be an entry of a directory.
pub fn name_is_valid(name: &[u8]) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX
        && name != b"."
        && name != b".."
        && !name.iter().any(|&b| b == b'/' || b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_round_trip_and_torn_ones_are_refused() {
        let mut bytes = vec![0; BUCKET_HEADER];
        let entries = [
            Dirent { hash: 5, ino: Ino::new(7), kind: 8, name: b"alpha" },
            Dirent { hash: 6, ino: Ino::ZERO, kind: 0, name: b"gone" },
            Dirent { hash: 1 << 59, ino: Ino::new(9), kind: 4, name: &[b'x'; 255] },
        ];
        entries.iter().for_each(|e| e.encode(&mut bytes));
        let used = bytes.len();
        bytes[..BUCKET_HEADER].copy_from_slice(&bucket_header(used, 2));
        bytes.resize(BUCKET_BYTES, 0xee);
        let bucket = Bucket::new(&bytes).unwrap();
        let back: Vec<_> = bucket.entries().map(|e| e.unwrap().1).collect();
        assert_eq!(back, entries);
        let long = [b'x'; 255];
        for (name, entry) in
            [(&b"alpha"[..], Some(entries[0])), (b"gone", None), (&long, Some(entries[2])), (b"x", None)]
        {
            for hash in [5, 6, 1 << 59] {
                let through = bucket
                    .entries()
                    .map(Result::unwrap)
                    .find(|(_, e)| e.hash == hash && !e.ino.is_none() && e.name == name);
                assert_eq!(bucket.find(hash, name), Ok(through));
                assert_eq!(through.map(|(_, e)| e), entry.filter(|e| e.hash == hash));
            }
        }
        bytes[0] -= 1;
        let torn = Bucket::new(&bytes).unwrap();
        let error = torn.entries().find_map(Result::err).expect("the last entry is torn");
        assert_eq!(torn.find(1 << 59, &long), Err(error));
        assert_eq!(torn.find(5, b"alpha"), Ok(Some((BUCKET_HEADER, entries[0]))));
        bytes[1] = 0xff;
        assert!(Bucket::new(&bytes).is_err());
    }

    #[test]
    fn node_references_round_trip() {
        let bucket = SlotRef::slot(crate::Offset::new(65536), crate::slot::class_for(BUCKET_BYTES as u64).unwrap());
        let node = SlotRef::slot(crate::Offset::new(65536 * 2), crate::slot::class_for(NODE_BYTES).unwrap());
        for r in [NodeRef::Null, NodeRef::Bucket { slot: bucket, depth: 8 }, NodeRef::Node(node)] {
            assert_eq!(NodeRef::decode(r.encode()), Ok(r));
        }
        assert!(NodeRef::decode(NodeRef::Bucket { slot: node, depth: 1 }.encode()).is_err());
        assert!(NodeRef::decode(u64::MAX).is_err());
    }

    #[test]
    fn the_index_walks_the_hash_from_its_top_bits() {
        let hash = 0xabc_def0_1234_5678;
        assert_eq!(node_index(hash, 0), 0xab);
        assert_eq!(node_index(hash, 1), 0xcd);
        assert_eq!(node_index(hash, 6), 0x67);
        assert!(name_hash(1, b"a") < 1 << HASH_BITS);
    }

    #[test]
    fn names_no_directory_may_hold() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'a'; 256]] {
            assert!(!name_is_valid(bad));
        }
        assert!(name_is_valid(&[b'a'; 255]) && name_is_valid(b"..."));
    }
}
