//! Which parts of a range hold data, as the NBD protocol tells it (`base:allocation`).
//!
//! Owns: the conversion to extents. Left out: what holds data (areas, and the disk over them).

use shoal_nbd::Extent;
use shoal_nbd::wire::transmission::{STATE_HOLE, STATE_ZERO};
use shoal_netram::Stretch;

/// Converts parts of a range that is at most as long as a `u32` says.
pub fn extents(parts: Vec<Stretch>) -> Vec<Extent> {
    let flags = |is_data| if is_data { 0 } else { STATE_HOLE | STATE_ZERO };
    parts.into_iter().map(|part| Extent { len: part.len as u32, flags: flags(part.is_data) }).collect()
}
