//! Maps keyed by our own numbers: blocks, jobs, tickets. Owns: [`Numbered`], [`Numbers`] and their
//! hash. Nobody else chooses these numbers to make them collide, so the hash needs no secret. Each
//! request looks up several such maps, so it must be fast.

use std::hash::{BuildHasherDefault, Hasher};

use std::collections::{HashMap, HashSet};

pub(crate) type Numbered<K, V> = HashMap<K, V, BuildHasherDefault<Spread>>;
pub(crate) type Numbers<K> = HashSet<K, BuildHasherDefault<Spread>>;

/// Spreads a number over a table.
#[derive(Default)]
pub(crate) struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(byte.into()));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 ^= self.0 >> 32;
    }
}
