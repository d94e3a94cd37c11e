//! The map in memory: 8 bytes for each logical block.
//!
//! Owns: the packing of an entry. Zero means unmapped, so that blocks never mapped take no memory:
//! the allocation comes zeroed and stays untouched.

use shoal_format::vlog::{Entry, PIECE_BLOCKS};

#[derive(Default)]
pub(crate) struct Map(Vec<u64>);

fn pack(entry: Entry) -> u64 {
    entry.at as u64 | (entry.sum as u64) << 32
}

fn unpack(word: u64) -> Entry {
    Entry { at: word as u32, sum: (word >> 32) as u32 }
}

impl Map {
    /// Makes a map in which no block is mapped.
    pub fn new(logical_blocks: u32) -> Map {
        Map(vec![0; logical_blocks as usize])
    }

    pub fn bytes(&self) -> u64 {
        self.0.len() as u64 * 8
    }

    pub fn get(&self, logical: u32) -> Entry {
        unpack(self.0[logical as usize])
    }

    /// Returns the entry of a block, or `None` past the end.
    pub fn find(&self, logical: u32) -> Option<Entry> {
        self.0.get(logical as usize).copied().map(unpack)
    }

    /// Sets an entry and returns the former one.
    pub fn replace(&mut self, logical: u32, entry: Entry) -> Entry {
        unpack(std::mem::replace(&mut self.0[logical as usize], pack(entry)))
    }

    /// Returns the entries from a block on.
    pub fn from(&self, logical: u32) -> impl Iterator<Item = Entry> + '_ {
        self.0[logical as usize..].iter().copied().map(unpack)
    }

    pub fn iter(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        (0..).zip(self.from(0))
    }

    pub fn piece(&self, index: u32) -> [Entry; PIECE_BLOCKS as usize] {
        let mut entries = [Entry::default(); PIECE_BLOCKS as usize];
        entries.iter_mut().zip(self.from(index * PIECE_BLOCKS)).for_each(|(out, entry)| *out = entry);
        entries
    }

    /// Sets the entries of a piece, except those past the end.
    pub fn set_piece(&mut self, index: u32, entries: &[Entry; PIECE_BLOCKS as usize]) {
        let first = (index * PIECE_BLOCKS) as usize;
        self.0[first..].iter_mut().zip(entries).for_each(|(word, &entry)| *word = pack(entry));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_back_and_the_last_piece_is_cut() {
        let entry = |n: u32| Entry { at: n, sum: u32::MAX - n };
        let mut map = Map::new(13);
        assert_eq!(map.replace(3, entry(9)), Entry::default());
        assert_eq!((map.replace(3, entry(8)), map.get(3), map.find(13)), (entry(9), entry(8), None));
        let entries: [Entry; 8] = std::array::from_fn(|n| entry(n as u32 + 1));
        map.set_piece(1, &entries);
        assert_eq!(map.piece(1)[..5], entries[..5]);
        assert_eq!(map.piece(1)[5..], [Entry::default(); 3]);
        assert_eq!((map.iter().filter(|(_, entry)| entry.at != 0).count(), map.bytes()), (6, 104));
    }
}
