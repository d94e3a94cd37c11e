//! The limit on the memory that a process lends.
//!
//! Owns the sum of all areas' sizes. A grant reserves the full size, including what is never
//! written: a client that was granted an area never finds it full. Dropping the grant gives the
//! room back. The spare chunks are here, because all areas of a process share them. Left out: who
//! may have how much (the `shoal donate` command).

use std::sync::Arc;

use parking_lot::Mutex;

use super::chunk::Spares;

/// Why an area is not granted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    #[error(
        "no room for an area of {asked} bytes: {free} of the {total} bytes lent here are free; ask for a smaller area, \
         or ask another donor"
    )]
    Full { asked: u64, free: u64, total: u64 },
    #[error("an area of {asked} bytes is smaller than a block; ask for {block_bytes} bytes at least")]
    Small { asked: u64, block_bytes: u32 },
}

/// The memory a process lends, shared by all its areas.
pub struct Quota {
    total: u64,
    granted: Mutex<u64>,
    pub(super) spares: Spares,
}

/// A part of the quota, returned when dropped.
pub(super) struct Grant {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Quota {
    pub fn new(total: u64) -> Arc<Quota> {
        Arc::new(Quota { total, granted: Mutex::new(0), spares: Spares::default() })
    }

    /// Bytes lent at most.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Total size of all areas (bytes).
    pub fn granted(&self) -> u64 {
        *self.granted.lock()
    }

    /// Gives the chunks kept for later use back to the machine.
    pub fn drop_spares(&self) {
        self.spares.drop_all();
    }

    pub(super) fn grant(self: &Arc<Quota>, bytes: u64) -> Result<Grant, GrantError> {
        let mut granted = self.granted.lock();
        let free = self.total - *granted;
        if bytes > free {
            return Err(GrantError::Full { asked: bytes, free, total: self.total });
        }
        *granted += bytes;
        Ok(Grant { quota: self.clone(), bytes })
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        *self.quota.granted.lock() -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_never_exceed_the_quota_and_come_back() {
        let quota = Quota::new(1000);
        let first = quota.grant(600).unwrap();
        let error = quota.grant(401).err().unwrap();
        assert_eq!(error, GrantError::Full { asked: 401, free: 400, total: 1000 });
        assert!(error.to_string().starts_with("no room for an area of 401 bytes: 400 of the 1000 bytes"));
        let second = quota.grant(400).unwrap();
        assert!(quota.grant(1).is_err());
        assert_eq!(quota.granted(), 1000);
        drop(first);
        assert_eq!(quota.granted(), 400);
        assert!(quota.grant(u64::MAX).is_err(), "no overflow");
        drop(second);
        assert_eq!(quota.granted(), 0);
    }
}
