//! References from outside: how many times the kernel (or a library user) holds each inode.
//!
//! Kept in memory only. An inode without links lives as long as it is held; the last `forget`
//! reclaims it. After a crash nobody holds anything, and recovery reclaims all inodes without
//! links.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::Ino;

const SHARDS: usize = 64;

pub(crate) struct RefTable {
    shards: Box<[Mutex<HashMap<Ino, u64>>]>,
}

impl RefTable {
    pub fn new() -> RefTable {
        RefTable { shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect() }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, u64>> {
        &self.shards[ino.get() as usize % SHARDS]
    }

    pub fn hold(&self, ino: Ino) {
        *self.shard(ino).lock().entry(ino).or_insert(0) += 1;
    }

    /// Drops `count` references; returns true when none is left.
    pub fn release(&self, ino: Ino, count: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(held) = shard.get_mut(&ino) else { return true };
        *held = held.saturating_sub(count);
        if *held == 0 {
            shard.remove(&ino);
            return true;
        }
        false
    }

    pub fn is_held(&self, ino: Ino) -> bool {
        self.shard(ino).lock().contains_key(&ino)
    }

    pub fn clear(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }
}
