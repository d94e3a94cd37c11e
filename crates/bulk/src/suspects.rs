//! The bits that say in the region which blocks of a device are in doubt.
//!
//! Left out: what puts a block in doubt and what ends it ([`super::unit`]), and setting the bits
//! ([`super::devices`]).

use shoal_format::Offset;
use shoal_region::{Region, View};

use super::block_set::{Word, words};
use crate::Result;

/// Words that one transaction sets or clears.
pub(super) const WORDS_PER_STEP: usize = 8192;

/// Returns the words of the blocks in `[first, end)` that the region lists as suspect.
pub(super) fn listed_suspects(region: &Region, piece: Offset, first: u64, end: u64) -> Result<Vec<Word>> {
    let mut listed = Vec::new();
    for Word { number, bits: mask } in words(first, end) {
        let mut bits = [0; 8];
        region.read(piece + number * 8, &mut bits)?;
        let bits = u64::from_le_bytes(bits) & mask;
        listed.extend((bits != 0).then_some(Word { number, bits }));
    }
    Ok(listed)
}

/// Clears bits of suspects in the region. The caller holds the device's `doubting`.
pub(super) fn clear_suspects(region: &Region, piece: Offset, words: &[Word]) -> Result<()> {
    for step in words.chunks(WORDS_PER_STEP) {
        let mut tx = region.begin_reclaim();
        for word in step {
            tx.clear_bits(piece + word.number * 8, word.bits)?;
        }
        tx.commit()?;
    }
    Ok(())
}
