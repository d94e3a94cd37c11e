//! Owner, group and mode of many inodes, with each combination stored once.
//!
//! Owns: [`Triplets`], the table that a store shares: an index for each combination in use and a
//! count of the inodes that use it. mramfs calls the entries pseudo-ACLs. Rules: an index stays
//! with its combination while anything refers to it. The lowest free index is given out first,
//! because small ones have short codes. The table has a limit; when it is full the caller writes
//! the record verbatim. Left out: where the table is kept; `entries` and `restore` are for the code
//! that keeps it.

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasherDefault, Hasher};

/// Maximum number of combinations in a table: an index has at most 14 bits, as in the paper.
pub const TRIPLETS_MAX: usize = 1 << 14;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Triplet {
    pub uid: u32,
    pub gid: u32,
    pub mode: u16,
}

impl Triplet {
    /// Hashes the combination to a place in a table of `1 << bits` places.
    #[inline]
    pub(crate) fn place(&self, bits: u32) -> usize {
        let mixed = (u64::from(self.uid) << 32 | u64::from(self.gid)) ^ u64::from(self.mode) << 20;
        ((mixed ^ mixed >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits)) as usize
    }
}

/// A hash for the few triplets of a store. No user can choose enough of them to make it slow.
#[derive(Clone, Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32((*byte).into()));
    }

    #[inline]
    fn write_u16(&mut self, value: u16) {
        self.write_u32(value.into());
    }

    #[inline]
    fn write_u32(&mut self, value: u32) {
        self.0 = (self.0.rotate_left(23) ^ u64::from(value)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

#[derive(Clone, Debug, Default)]
pub struct Triplets {
    entries: Vec<(Triplet, u64)>,
    index_of: HashMap<Triplet, u16, BuildHasherDefault<Mix>>,
    free: BTreeSet<u16>,
}

impl Triplets {
    pub fn new() -> Triplets {
        Triplets::default()
    }

    /// Adds a user of a combination and returns its index, or `None` when the table is full.
    pub fn acquire(&mut self, triplet: Triplet) -> Option<u16> {
        if let Some(&index) = self.index_of.get(&triplet) {
            self.entries[usize::from(index)].1 += 1;
            return Some(index);
        }
        let index = match self.free.pop_first() {
            Some(index) => {
                self.entries[usize::from(index)] = (triplet, 1);
                index
            }
            None if self.entries.len() < TRIPLETS_MAX => {
                self.entries.push((triplet, 1));
                (self.entries.len() - 1) as u16
            }
            None => return None,
        };
        self.index_of.insert(triplet, index);
        Some(index)
    }

    /// Removes a user; the last one frees the index. Returns whether the combination was known.
    pub fn release(&mut self, triplet: Triplet) -> bool {
        let Some(&index) = self.index_of.get(&triplet) else { return false };
        let users = &mut self.entries[usize::from(index)].1;
        *users -= 1;
        if *users == 0 {
            self.index_of.remove(&triplet);
            self.free.insert(index);
        }
        true
    }

    #[inline]
    pub fn find(&self, triplet: Triplet) -> Option<u16> {
        self.index_of.get(&triplet).copied()
    }

    #[inline]
    pub fn get(&self, index: u64) -> Option<Triplet> {
        let (triplet, users) = self.entries.get(usize::try_from(index).ok()?)?;
        (*users > 0).then_some(*triplet)
    }

    /// Counts the inodes that use a combination.
    pub fn users(&self, triplet: Triplet) -> u64 {
        self.find(triplet).map_or(0, |index| self.entries[usize::from(index)].1)
    }

    /// Counts the combinations in use.
    pub fn len(&self) -> usize {
        self.index_of.len()
    }

    pub fn is_empty(&self) -> bool {
        self.index_of.is_empty()
    }

    /// Returns index, combination and users of every combination in use.
    pub fn entries(&self) -> impl Iterator<Item = (u16, Triplet, u64)> {
        let used = self.entries.iter().enumerate().filter(|(_, (_, users))| *users > 0);
        used.map(|(index, (triplet, users))| (index as u16, *triplet, *users))
    }

    /// Restores the table from its entries, in any order. Returns `None` if two entries contradict
    /// each other, or an index or count is out of range.
    pub fn restore(entries: impl IntoIterator<Item = (u16, Triplet, u64)>) -> Option<Triplets> {
        let mut table = Triplets::default();
        for (index, triplet, users) in entries {
            let at = usize::from(index);
            if at >= TRIPLETS_MAX || users == 0 || table.index_of.insert(triplet, index).is_some() {
                return None;
            }
            if at >= table.entries.len() {
                table.free.extend(table.entries.len() as u16..=index);
                table.entries.resize(at + 1, (Triplet::default(), 0));
            }
            if !table.free.remove(&index) {
                return None;
            }
            table.entries[at] = (triplet, users);
        }
        Some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_sim::Random;

    fn triplet(uid: u64) -> Triplet {
        Triplet { uid: uid as u32, gid: 7, mode: 0o100644 }
    }

    #[test]
    fn an_index_lives_as_long_as_its_users_and_the_lowest_free_one_comes_first() {
        let mut random = Random::new(3);
        let mut table = Triplets::new();
        let mut users: HashMap<Triplet, (u16, u64)> = HashMap::new();
        for _ in 0..50_000 {
            let which = triplet(random.below(60));
            if random.below(2) == 0 {
                let taken: BTreeSet<u16> = users.values().map(|(index, _)| *index).collect();
                let lowest = (0..).find(|index| !taken.contains(index)).unwrap();
                let entry = users.entry(which).or_insert((lowest, 0));
                entry.1 += 1;
                assert_eq!(table.acquire(which), Some(entry.0));
            } else {
                assert_eq!(table.release(which), users.contains_key(&which));
                if let Some(entry) = users.get_mut(&which) {
                    entry.1 -= 1;
                    if entry.1 == 0 {
                        users.remove(&which);
                    }
                }
            }
            assert_eq!(table.find(which), users.get(&which).map(|(index, _)| *index));
            assert_eq!(table.len(), users.len());
        }
        let copy = Triplets::restore(table.entries().collect::<Vec<_>>().into_iter().rev()).unwrap();
        assert!(copy.entries().eq(table.entries()));
        let (mut copy, next) = (copy, triplet(1000));
        assert_eq!(copy.acquire(next), table.acquire(next));
    }

    #[test]
    fn a_full_table_gives_nothing_and_a_free_index_names_nothing() {
        let mut table = Triplets::new();
        for uid in 0..TRIPLETS_MAX as u64 {
            assert_eq!(table.acquire(triplet(uid)), Some(uid as u16));
        }
        assert_eq!(table.acquire(triplet(1 << 20)), None);
        assert!(table.release(triplet(5)));
        assert_eq!(table.get(5), None);
        assert_eq!(table.get(u64::MAX), None);
        assert_eq!(table.acquire(triplet(1 << 20)), Some(5));
    }

    #[test]
    fn entries_that_contradict_each_other_are_refused() {
        let one = (0, triplet(1), 1);
        assert!(Triplets::restore([one, (0, triplet(2), 1)]).is_none());
        assert!(Triplets::restore([one, (1, triplet(1), 1)]).is_none());
        assert!(Triplets::restore([(0, triplet(1), 0)]).is_none());
        assert!(Triplets::restore([(TRIPLETS_MAX as u16, triplet(1), 1)]).is_none());
        assert!(Triplets::restore([one, (9, triplet(2), 3)]).is_some());
    }
}
