//! Ranges as parts that are all data or all holes.
//!
//! Owns: [`Stretch`], and [`join_up`], which makes the longest ones of short ones. Left out: what is a
//! hole (an area's chunks, a disk's map).

/// A part of a range that is all data or all holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Bytes.
    pub len: u64,
    pub is_data: bool,
}

/// Joins neighbours of one kind. Returns at most `parts_max` parts, and leaves out what is behind
/// them.
pub(crate) fn join_up(parts: impl Iterator<Item = Stretch>, parts_max: usize) -> Vec<Stretch> {
    let mut found: Vec<Stretch> = Vec::new();
    for part in parts {
        let is_full = found.len() >= parts_max;
        match found.last_mut() {
            Some(last) if last.is_data == part.is_data => last.len += part.len,
            _ if is_full => break,
            _ => found.push(part),
        }
    }
    found
}
