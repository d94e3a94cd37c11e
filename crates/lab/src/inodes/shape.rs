//! What table 3.1 says of a tree.
//!
//! Owns: [`Shape`], counted over a tree's inodes. Rules: an owner counts from 0.1% of the inodes; a
//! size belongs to the class of its bits; system files are those of root, bin and adm, as in the
//! thesis.

use std::collections::HashMap;

use shoal_pack::Triplet;

use crate::tree::Tree;

/// Ids of root, bin and adm, of Red Hat and of Debian.
const SYSTEM_IDS: [u32; 4] = [0, 1, 2, 3];

#[derive(Clone, Debug)]
pub struct Shape {
    pub name: String,
    pub inodes: u64,
    /// Different combinations of owner and permissions.
    pub triplets: u64,
    pub system_percent: f64,
    /// Inodes with the most frequent triplet (percent).
    pub first_percent: f64,
    /// Owners of at least 0.1% of the inodes.
    pub owners: u64,
    /// Bits of the most frequent size.
    pub size_bits: u32,
}

impl Shape {
    pub fn of(tree: &Tree) -> Shape {
        let (mut triplets, mut uids, mut sizes) =
            (HashMap::<Triplet, u64>::new(), HashMap::<u32, u64>::new(), [0u64; 65]);
        for record in &tree.records {
            *triplets.entry(record.triplet()).or_default() += 1;
            *uids.entry(record.uid).or_default() += 1;
            sizes[(64 - record.size.leading_zeros()) as usize] += 1;
        }
        let inodes = tree.records.len() as u64;
        let percent = |count: u64| count as f64 * 100.0 / inodes as f64;
        let system = SYSTEM_IDS.iter().filter_map(|uid| uids.get(uid)).sum();
        let most = (0..sizes.len()).max_by_key(|bits| (sizes[*bits], usize::MAX - bits)).unwrap_or(0);
        Shape {
            name: tree.name.clone(),
            inodes,
            triplets: triplets.len() as u64,
            system_percent: percent(system),
            first_percent: percent(triplets.values().copied().max().unwrap_or(0)),
            owners: uids.values().filter(|count| **count * 1000 >= inodes).count() as u64,
            size_bits: most as u32,
        }
    }

    /// Names the most frequent sizes.
    pub fn size_class(&self) -> String {
        size_class(self.size_bits)
    }
}

/// Names the sizes that have so many bits.
pub fn size_class(bits: u32) -> String {
    let least = |bits: u32| if bits == 0 { 0 } else { 1u64 << (bits - 1) };
    format!("{}-{} B", least(bits), least(bits + 1))
}
