//! Checks the standby, the image that is not in use: may the next checkpoint, or a salvage, build
//! on it?
//!
//! Rules: every fault is a note, because the store does not depend on this image, and the next
//! checkpoint rewrites wrong pages. The image is judged by its own anchor and sums. Left out:
//! whether it agrees with the newest image, which a checkpoint finds out.

use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::{FormatError, PAGE};

use crate::open::verify_sums;
use crate::region::Base;
use crate::report::{FindingKind, Report};
use crate::{CheckError, Progress};

/// Reports the faults of image `number` as notes.
pub(crate) fn examine(
    base: Base<'_>,
    number: usize,
    anchor: &Result<AnchorRecord, FormatError>,
    newest: &Superblock,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), CheckError> {
    let mut page = vec![0; PAGE as usize];
    base.read(0, &mut page)?;
    let mut note = |kind, at, what: &str| {
        let sentence =
            format!("image {number}, which does not count, {what}; the next checkpoint writes the wrong pages again");
        report.note(kind, None, Some(at), sentence);
    };
    // An image without anchors was being written or never was written: a copy of a store has only
    // one image.
    let Ok(anchor) = anchor else { return Ok(()) };
    match Superblock::decode(&page) {
        Err(error) => note(FindingKind::Superblock, 0, &format!("has no superblock ({error})")),
        // A new feature is in the newest image first.
        Ok(superblock) if (Superblock { features: newest.features, ..superblock }) != *newest => {
            note(FindingKind::Superblock, 0, "has another superblock than the newest one");
        }
        Ok(_) => {
            let mut found = Report::default();
            let used = anchor.used_bytes.get().min(newest.region_bytes);
            verify_sums(&base, newest, used, &mut found, progress)?;
            let first = found.errors.iter().find_map(|finding| finding.offset);
            if let Some(at) = first {
                let count = found.errors.len();
                note(
                    FindingKind::PageSum,
                    at,
                    &format!("has {count} wrong page sums, the first of page {}", at / PAGE),
                );
            }
        }
    }
    Ok(())
}
