//! A host file system with little room: what the images occupy, and when the host is full.
//!
//! An image takes whole pages by writing or reserving them, and keeps them. The log counts its own
//! segments. Before [`crate::World::fill_host`] the host has room for everything. After it, both
//! get only what the call left.

use std::collections::BTreeMap;

use shoal_media::{MediaError, Result};

const PAGE: u64 = 4096;

/// The pages that an image occupies on its host, as ranges that neither touch nor overlap, and the
/// number of pages it may still take.
#[derive(Clone, Default)]
pub(crate) struct Taken {
    ranges: BTreeMap<u64, u64>,
    pub left: Option<u64>,
}

impl Taken {
    /// Takes the pages of a byte range. Changes nothing if too few pages are left.
    pub fn take(&mut self, what: &str, at: u64, len: u64) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let (mut from, mut to) = (at / PAGE, (at + len).div_ceil(PAGE));
        let touched: Vec<(u64, u64)> =
            self.ranges.range(..=to).rev().take_while(|(_, end)| **end >= from).map(|(a, b)| (*a, *b)).collect();
        let there: u64 = touched.iter().map(|&(a, b)| b.min(to).saturating_sub(a.max(from))).sum();
        let wanted = to - from - there;
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(wanted).ok_or_else(|| MediaError::NoSpace { what: what.into() })?;
        }
        for (a, b) in touched {
            self.ranges.remove(&a);
            (from, to) = (from.min(a), to.max(b));
        }
        self.ranges.insert(from, to);
        Ok(())
    }

    /// Returns the pages from byte `from` on to the host.
    pub fn give_back(&mut self, from: u64) {
        let first = from.div_ceil(PAGE);
        let mut given = 0;
        self.ranges.retain(|start, end| {
            let kept = (*end).min(first.max(*start));
            given += *end - kept;
            *end = kept;
            *end > *start
        });
        if let Some(left) = &mut self.left {
            *left += given;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_given_back_can_be_taken_again() {
        let mut taken = Taken { left: Some(4), ..Taken::default() };
        taken.take("image", 0, 4 * PAGE).unwrap();
        taken.give_back(PAGE + 1);
        assert_eq!((taken.left, taken.ranges.clone().into_iter().next()), (Some(2), Some((0, 2))));
        taken.give_back(0);
        assert_eq!((taken.left, taken.ranges.len()), (Some(4), 0));
    }

    #[test]
    fn pages_are_taken_once_and_a_range_that_does_not_fit_takes_none() {
        let mut taken = Taken { left: Some(4), ..Taken::default() };
        taken.take("image", 5000, 10).unwrap();
        taken.take("image", 4096, 4096).unwrap();
        assert_eq!(taken.left, Some(3));
        taken.take("image", 3 * PAGE, 1).unwrap();
        assert!(taken.take("image", 0, 6 * PAGE).is_err());
        assert_eq!(taken.left, Some(2));
        taken.take("image", 0, 4 * PAGE).unwrap();
        assert_eq!((taken.left, taken.ranges.len()), (Some(0), 1));
        assert!(taken.take("image", 4 * PAGE, 1).is_err());
    }
}
