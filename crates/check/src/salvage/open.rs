//! Finds the region of a damaged store: the best image there is, and as much of the log as follows from it.
//!
//! Rules: an image that replays up to its seal is better than a newer one that does not; one with an anchor better than one
//! without; a superblock may come from the other image, because both hold the same.

use std::collections::HashSet;

use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::{PAGE, SEGMENT};

use super::SalvageSource;
use crate::region::{Base, Region};
use crate::replay::{self, Gap};
use crate::report::{FindingKind, Report};
use crate::{CheckError, ImageSource, Source, open};

pub(super) struct Opened<'a> {
    pub superblock: Superblock,
    pub region: Region<'a>,
    pub wrong_pages: HashSet<u64>,
}

pub(super) fn open<'a>(source: &SalvageSource<'a>, losses: &mut Vec<String>) -> Result<Option<Opened<'a>>, CheckError> {
    let (bases, names) = match source.image {
        ImageSource::Images([a, b]) => (vec![Base::Image(a), Base::Image(b)], ["image 0", "image 1"]),
        ImageSource::Memory(memory) if memory.len() >= 4 * PAGE => (vec![Base::Memory(memory)], ["the region", ""]),
        ImageSource::Memory(_) => return Ok(None),
    };
    let mut found = Vec::new();
    let mut any_superblock = None;
    for (base, name) in bases.into_iter().zip(names) {
        let mut page = vec![0; PAGE as usize];
        base.read(0, &mut page)?;
        let superblock = Superblock::decode(&page);
        base.read(PAGE, &mut page)?;
        let anchor = AnchorRecord::newest(&page);
        any_superblock = any_superblock.or(superblock.as_ref().ok().copied());
        found.push((base, name, superblock, anchor));
    }
    let Some(any) = any_superblock else { return Ok(None) };
    let generation = |anchor: &Result<AnchorRecord, _>| anchor.as_ref().map_or(0, |anchor| anchor.generation.get());
    // The newest first; one without an anchor last.
    found.sort_by_key(|(_, _, _, anchor)| std::cmp::Reverse(generation(anchor)));
    let mut best: Option<(Base<'a>, &str, Option<AnchorRecord>, Vec<String>)> = None;
    for (base, name, superblock, anchor) in found {
        let mut faults = Vec::new();
        if let Err(error) = &superblock {
            faults.push(format!("{name}: {error}"));
        }
        let anchor = match anchor {
            Ok(anchor) if anchor.uuid == any.uuid => {
                faults.extend(try_replay(source, &any, &anchor, base)?.1.iter().map(|why| format!("{name}: {why}")));
                Some(anchor)
            }
            Ok(_) => continue,
            Err(error) => {
                faults.push(format!("{name} has no anchor, so the log cannot be replayed over it: {error}"));
                None
            }
        };
        let sound = faults.is_empty();
        // Zeros are an image that never was written.
        let blank = anchor.is_none() && superblock.is_err();
        if sound || (best.is_none() && !blank) {
            if let Some((_, _, _, faults)) = &best {
                losses.extend(faults.iter().cloned());
                losses.push(format!("{name} is taken instead, though it is older: later changes are missing"));
            }
            best = Some((base, name, anchor, faults));
        }
        if sound {
            break;
        }
    }
    let Some((base, _, anchor, faults)) = best else { return Ok(None) };
    losses.extend(faults);
    let (region, wrong_pages) = match &anchor {
        Some(anchor) => {
            let wrong = wrong_pages(&base, &any, anchor, losses)?;
            (try_replay(source, &any, anchor, base)?.0, wrong)
        }
        None => (Region::new(base, any.region_bytes, any.region_bytes.min(stored(&base, &any))), HashSet::new()),
    };
    Ok(Some(Opened { superblock: any, region, wrong_pages }))
}

/// Bytes a medium without an anchor may hold.
fn stored(base: &Base<'_>, superblock: &Superblock) -> u64 {
    match base {
        Base::Image(_) => superblock.region_bytes,
        Base::Memory(memory) => memory.len() / SEGMENT * SEGMENT,
    }
}

/// The region after as much of the log as counts, and what is wrong with that.
fn try_replay<'a>(
    source: &SalvageSource<'a>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    base: Base<'a>,
) -> Result<(Region<'a>, Vec<String>), CheckError> {
    let used = match base {
        Base::Image(_) => anchor.used_bytes.get().min(superblock.region_bytes),
        Base::Memory(memory) => superblock.region_bytes.min(memory.len()),
    };
    let mut region = Region::new(base, superblock.region_bytes, used);
    let power_lost = source.power_lost;
    let media = Source { image: source.image, log: source.log, bulk_bytes: None, power_lost, sums: false };
    let ring = superblock.memory_kind.has_ring();
    if source.log.is_none() && !ring {
        return Ok((region, vec!["there is no log: what was done after the image was written is lost".into()]));
    }
    let (gaps, cut) = replay::replay_past_gaps(&media, superblock, anchor, &mut region)?;
    let name = |gap: &Gap| {
        let Gap { at, next } = gap;
        match (ring, power_lost) {
            (true, _) => format!(
                "a record of the log is damaged at position {at}, and {next} is the next that counts; what lies between them is \
                 taken from the region as it stands"
            ),
            (false, false) => format!(
                "a record of the log is damaged at position {at}, and left out: what it changed may be wrong or missing"
            ),
            (false, true) => format!(
                "the log breaks off at position {at}, and records that follow from {next} on are left out: lost with the power, or \
                 damaged"
            ),
        }
    };
    Ok((region, gaps.iter().map(name).chain(cut).collect()))
}

fn wrong_pages(
    base: &Base<'_>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    losses: &mut Vec<String>,
) -> Result<HashSet<u64>, CheckError> {
    let mut report = Report::default();
    if matches!(base, Base::Image(_)) {
        let used = anchor.used_bytes.get().min(superblock.region_bytes);
        open::verify_sums(base, superblock, used, &mut report, &mut |_| {})?;
    }
    let wrong: HashSet<u64> = report
        .errors
        .iter()
        .filter(|finding| finding.kind == FindingKind::PageSum)
        .filter_map(|finding| finding.offset.map(|at| at / PAGE))
        .collect();
    if !wrong.is_empty() {
        losses.push(format!("{} pages of the image have wrong checksums; what lies in them is named", wrong.len()));
    }
    Ok(wrong)
}
