//! Methods that the test caches share.
//!
//! Owns: the methods of `WriteCache` that they need and do not test. Left out: the caches (`away`,
//! `forgetful`).

/// Implements a cache that may have lost anything and that every opener may adopt. With
/// `flushes_all` it has no age, flushes everything, and never gives up its data.
macro_rules! plain_cache {
    () => {
        fn may_have_lost(&self, _: u64, _: u64) -> bool {
            true
        }

        fn adopt(&self, _: bool) {}
    };
    (flushes_all) => {
        plain_cache!();

        fn give_up(&self) {}

        fn held_for_ns(&self) -> u64 {
            0
        }

        fn flush_ranges(&self, _: &[(u64, u64)]) -> shoal_media::Result<()> {
            shoal_media::flush(self)
        }
    };
}
