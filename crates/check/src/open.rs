//! Finds the region: the valid image, its superblock, its anchor, its page sums.
//!
//! Rules: the image with the highest anchor generation is valid; an image whose anchors do not
//! decode was being written and does not count. Sums are verified before replay, because replay may
//! change the pages.
//! Left out: the log (`replay`).

use shoal_format::superblock::{ANCHOR_AT, AnchorRecord, ROOTS_AT, Superblock};
use shoal_format::{FormatError, PAGE};

use crate::region::{Base, Region};
use crate::report::{FindingKind, Report};
use crate::{CheckError, ImageSource, Progress, Source, Stage, standby};

/// Pages verified between two reports of progress.
const BATCH_PAGES: u64 = 256;
/// Number of wrong sums after which the rest is not verified: the file is not an image of a store,
/// or is damaged throughout.
const WRONG_SUMS_MAX: u64 = 1000;
/// Consecutive pages that were never written (4 GiB) after which the size is assumed to be forged.
const UNWRITTEN_PAGES_MAX: u64 = 1 << 20;

pub(crate) struct Opened<'a> {
    pub superblock: Superblock,
    pub anchor: AnchorRecord,
    pub region: Region<'a>,
}

/// Opens the region. Returns `None` if the report says why there is nothing to check.
pub(crate) fn open<'a>(
    source: &Source<'a>,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<Option<Opened<'a>>, CheckError> {
    let mut other = None;
    let (base, anchor) = match source.image {
        ImageSource::Images(images) => {
            let anchors = [anchor(Base::Image(images[0]))?, anchor(Base::Image(images[1]))?];
            let newest = match &anchors {
                [Ok(a), Ok(b)] => usize::from(b.generation.get() > a.generation.get()),
                [Err(_), Ok(_)] => 1,
                _ => 0,
            };
            for (i, anchor) in anchors.iter().enumerate() {
                // An image of zeros was never written and is not a finding.
                if let Err(e) = anchor
                    && !matches!(e, FormatError::Magic { found: 0, .. })
                {
                    let sentence = format!("image {i} does not count: {e}");
                    report.note(FindingKind::NoAnchor, None, Some(ANCHOR_AT[0]), sentence);
                }
            }
            other = Some((1 - newest, Base::Image(images[1 - newest]), anchors[1 - newest].clone()));
            (Base::Image(images[newest]), anchors[newest].clone())
        }
        ImageSource::Memory(memory) => {
            let base = Base::Memory(memory);
            if memory.len() < 4 * PAGE {
                let sentence = format!("the memory has {} bytes, too few for a region", memory.len());
                report.error(FindingKind::Superblock, None, None, sentence);
                return Ok(None);
            }
            (base, anchor(base)?)
        }
    };
    let anchor = match anchor {
        Ok(anchor) => anchor,
        Err(e) => {
            let sentence = format!("no valid anchor, so there is nothing to recover from: {e}");
            report.error(FindingKind::NoAnchor, None, Some(ANCHOR_AT[0]), sentence);
            return Ok(None);
        }
    };
    let mut page = vec![0; PAGE as usize];
    base.read(0, &mut page)?;
    let superblock = match Superblock::decode(&page) {
        Ok(superblock) => superblock,
        Err(e) => {
            report.error(FindingKind::Superblock, None, Some(0), e.to_string());
            return Ok(None);
        }
    };
    if !fits(&superblock, &anchor, source, report) {
        return Ok(None);
    }
    if source.sums && matches!(base, Base::Image(_)) {
        verify_sums(&base, &superblock, anchor.used_bytes.get(), report, progress)?;
    }
    if source.sums
        && let Some((number, base, others)) = &other
    {
        standby::examine(*base, *number, others, &superblock, report, progress)?;
    }
    let stored_bytes = match base {
        // Bytes after the end of the file are zeros, whatever the anchor says, and need not be
        // read.
        Base::Image(_) => anchor.used_bytes.get().min(base.stored_bytes()?),
        Base::Memory(_) => superblock.region_bytes,
    };
    let region = Region::new(base, superblock.region_bytes, stored_bytes);
    Ok(Some(Opened { superblock, anchor, region }))
}

fn anchor(base: Base<'_>) -> Result<Result<AnchorRecord, FormatError>, CheckError> {
    let mut page = vec![0; PAGE as usize];
    base.read(PAGE, &mut page)?;
    Ok(AnchorRecord::newest(&page))
}

fn fits(superblock: &Superblock, anchor: &AnchorRecord, source: &Source<'_>, report: &mut Report) -> bool {
    if anchor.uuid != superblock.uuid {
        let sentence = "the anchor carries another store's uuid".to_string();
        report.error(FindingKind::Anchor, None, Some(PAGE), sentence);
        return false;
    }
    let used = anchor.used_bytes.get();
    if used > superblock.region_bytes || used < ROOTS_AT.get() {
        let sentence = format!("the anchor says {used} bytes are used of a region of {}", superblock.region_bytes);
        report.error(FindingKind::Anchor, None, Some(PAGE), sentence);
        return false;
    }
    if let ImageSource::Memory(memory) = source.image {
        if memory.len() < superblock.region_bytes {
            let (has, needs) = (memory.len(), superblock.region_bytes);
            let sentence = format!("the memory has {has} bytes, the region needs {needs}: it was cut");
            report.error(FindingKind::Superblock, None, Some(0), sentence);
            return false;
        }
        if !superblock.memory_kind.has_ring() && source.log.is_none() {
            let sentence = "a region in place has no log ring: its kind is logged".to_string();
            report.error(FindingKind::Superblock, None, Some(0), sentence);
            return false;
        }
    }
    true
}

pub(crate) fn verify_sums(
    base: &Base<'_>,
    superblock: &Superblock,
    used_bytes: u64,
    report: &mut Report,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), CheckError> {
    let sums_at = superblock.region_bytes.next_multiple_of(PAGE);
    let pages = used_bytes.div_ceil(PAGE);
    // A page after the end of the file is zero. So is its sum, which lies after all pages. There is
    // nothing to compare.
    let stored_pages = pages.min(base.stored_bytes()?.div_ceil(PAGE));
    let mut bytes = vec![0; (BATCH_PAGES * PAGE) as usize];
    let mut sums = vec![0; (BATCH_PAGES * 4) as usize];
    let mut wrong = 0;
    let mut unwritten = 0;
    let mut first = 0;
    while first < stored_pages {
        let count = BATCH_PAGES.min(stored_pages - first);
        let (bytes, sums) = (&mut bytes[..(count * PAGE) as usize], &mut sums[..(count * 4) as usize]);
        base.read(first * PAGE, bytes)?;
        base.read(sums_at + first * 4, sums)?;
        for (i, page) in bytes.chunks_exact(PAGE as usize).enumerate() {
            let number = first + i as u64;
            let expected = u32::from_le_bytes(sums[i * 4..i * 4 + 4].try_into().expect("four bytes"));
            // A page never written to this image is zero and has no sum.
            let blank = expected == 0 && page.iter().all(|&byte| byte == 0);
            unwritten = if blank { unwritten + 1 } else { 0 };
            // The anchors are written after the sums.
            if blank || number == 1 {
                continue;
            }
            let found = superblock.sums().of_page(number, page);
            if found != expected {
                wrong += 1;
                let sentence = format!("page {number}: checksum is {found:#010x}, expected {expected:#010x}");
                report.error(FindingKind::PageSum, None, Some(number * PAGE), sentence);
            }
        }
        first += count;
        progress(Progress { stage: Stage::Sums, done: first * PAGE, total: stored_pages * PAGE });
        if unwritten >= UNWRITTEN_PAGES_MAX && first < stored_pages {
            let sentence = format!("{unwritten} pages in a row were never written; the pages behind were not verified");
            report.note(FindingKind::PageSum, None, Some(first * PAGE), sentence);
            break;
        }
        if wrong >= WRONG_SUMS_MAX {
            let sentence = format!("{wrong} wrong page sums; the pages behind were not verified");
            report.error(FindingKind::PageSum, None, Some(first * PAGE), sentence);
            break;
        }
    }
    let behind = pages - stored_pages;
    if behind >= UNWRITTEN_PAGES_MAX {
        let sentence = format!("the last {behind} of {pages} pages in use lie behind the end of the image");
        report.note(FindingKind::PageSum, None, Some(stored_pages * PAGE), sentence);
    }
    Ok(())
}
