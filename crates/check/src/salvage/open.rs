//! Finds the region of a damaged store: the best image, and as much of the log as continues it.
//!
//! Rules: the newest image that replays up to its seal is the store; an older image replaces it only if the newest is
//! damaged. An older image that replays past the newest one's seal holds everything that the newest held. An image with
//! an anchor is better than one without; a superblock may come from the other image, because both hold the same. Single
//! pages are `pages`' business.

use shoal_format::superblock::{AnchorRecord, Superblock};
use shoal_format::{Lsn, Offset, PAGE, SEGMENT};

use super::SalvageSource;
use super::pages::{self, BadPages};
use crate::region::{Base, Region};
use crate::replay::{self, Gap};
use crate::{CheckError, ImageSource, Source};

pub(super) struct Opened<'a> {
    pub superblock: Superblock,
    pub region: Region<'a>,
    pub bad_pages: BadPages,
}

/// An image, or the region in place, with the faults of the whole.
struct Candidate<'a> {
    base: Base<'a>,
    name: &'static str,
    anchor: Option<AnchorRecord>,
    /// Faults that lose data, in words.
    faults: Vec<String>,
    /// The image has no superblock of its own.
    headless: bool,
    /// Bytes that are left, if the image's end is missing.
    cut: Option<u64>,
    /// End of the log that continues the image.
    end: Lsn,
}

impl Candidate<'_> {
    fn is_sound(&self) -> bool {
        self.faults.is_empty() && !self.headless
    }

    fn sealed(&self) -> Option<Lsn> {
        self.anchor.as_ref().map(AnchorRecord::sealed_to)
    }
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
    let mut candidates = Vec::new();
    for (base, name, superblock, anchor) in found {
        let (mut faults, mut end, mut cut) = (Vec::new(), Lsn::ZERO, None);
        let headless = superblock.is_err();
        if let Err(error) = &superblock {
            faults.push(format!("{name}: {error}"));
        }
        let anchor = match anchor {
            Ok(anchor) if anchor.uuid == any.uuid => {
                let (_, why, reached) = replayed(source, &any, &anchor, base, &[])?;
                faults.extend(why.iter().map(|why| format!("{name}: {why}")));
                end = reached;
                cut = pages::cut(&base, &any, &anchor)?;
                faults.extend(cut.map(|bytes| format!("{name} ends at byte {bytes}: the rest is missing")));
                Some(anchor)
            }
            Ok(_) => continue,
            // An image of zeros was never written.
            Err(_) if headless => continue,
            Err(error) => {
                faults.push(format!("{name} has no anchor, so the log cannot be replayed over it: {error}"));
                None
            }
        };
        candidates.push(Candidate { base, name, anchor, faults, headless, cut, end });
    }
    let generation = |candidate: &Candidate<'_>| candidate.anchor.as_ref().map_or(0, |anchor| anchor.generation.get());
    // The newest first; one without an anchor last.
    candidates.sort_by_key(|candidate| std::cmp::Reverse(generation(candidate)));
    let mut candidates = candidates.into_iter();
    let Some(newest) = candidates.next() else { return Ok(None) };
    let other = candidates.next();
    let (chosen, other) = choose(newest, other, losses);
    let Some(anchor) = chosen.anchor else {
        losses.extend(chosen.faults);
        let region = Region::new(chosen.base, any.region_bytes, any.region_bytes.min(stored(&chosen.base, &any)));
        return Ok(Some(Opened { superblock: any, region, bad_pages: BadPages::default() }));
    };
    losses.extend(chosen.faults);
    // The other image, at rest and after its log.
    let rest = other.as_ref().map(|other| other.base);
    let mut found = pages::mend(chosen.base, chosen.cut, &any, &anchor, rest)?;
    let (mut region, _, end) = replayed(source, &any, &anchor, chosen.base, &found.pages)?;
    if let Some(Candidate { base, anchor: Some(anchor), faults, end: reached, .. }) = &other
        && !found.bad.is_empty()
        && faults.is_empty()
        && *reached == end
    {
        let (replayed, ..) = replayed(source, &any, anchor, *base, &[])?;
        pages::take_replayed(&mut region, &replayed, *base, &any, &mut found.bad)?;
    }
    losses.extend(found.bad.sentence());
    Ok(Some(Opened { superblock: any, region, bad_pages: found.bad }))
}

/// Chooses the image that is the store, and the one that may supply pages. Adds the faults that follow from the choice.
fn choose<'a>(
    mut newest: Candidate<'a>,
    other: Option<Candidate<'a>>,
    losses: &mut Vec<String>,
) -> (Candidate<'a>, Option<Candidate<'a>>) {
    let Some(mut other) = other else { return (newest, None) };
    if newest.is_sound() || !other.is_sound() {
        return (newest, Some(other));
    }
    if newest.sealed().is_some_and(|sealed| other.end >= sealed) {
        // The log since the older image was written holds everything that the newest has.
        return (other, Some(newest));
    }
    if newest.faults.len() == 1 && newest.headless {
        newest.faults.clear();
        return (newest, Some(other));
    }
    losses.append(&mut newest.faults);
    let taken = format!("{} is taken instead, though it is older: later changes are missing", other.name);
    other.faults.push(taken);
    (other, None)
}

/// Bytes a medium without an anchor may hold.
fn stored(base: &Base<'_>, superblock: &Superblock) -> u64 {
    match base {
        Base::Image(_) => superblock.region_bytes,
        Base::Memory(memory) => memory.len() / SEGMENT * SEGMENT,
    }
}

/// The region after replay of the valid part of the log, the log's faults, and its end. `patches` are pages that are
/// better than those of `base`.
fn replayed<'a>(
    source: &SalvageSource<'a>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    base: Base<'a>,
    patches: &[(u64, Vec<u8>)],
) -> Result<(Region<'a>, Vec<String>, Lsn), CheckError> {
    let used = match base {
        Base::Image(_) => anchor.used_bytes.get().min(superblock.region_bytes),
        Base::Memory(memory) => superblock.region_bytes.min(memory.len()),
    };
    let mut region = Region::new(base, superblock.region_bytes, used);
    for (page, bytes) in patches {
        region.write(Offset::new(page * PAGE), bytes)?;
    }
    let power_lost = source.power_lost;
    let media = Source { image: source.image, log: source.log, bulk_bytes: None, power_lost, sums: false, bulk: None };
    let ring = superblock.memory_kind.has_ring();
    if source.log.is_none() && !ring {
        let why = "there is no log: changes after the image was written are lost".into();
        return Ok((region, vec![why], anchor.replay_from()));
    }
    let (gaps, cut, end) = replay::replay_past_gaps(&media, superblock, anchor, &mut region)?;
    let name = |gap: &Gap| {
        let Gap { at, next } = gap;
        match (ring, power_lost) {
            (true, _) => format!(
                "a record of the log is damaged at position {at}, and {next} is the next that counts; what lies between them is \
                 taken from the region as it stands"
            ),
            (false, false) => format!(
                "a record of the log is damaged at position {at}, and left out: the data it changed may be wrong or missing"
            ),
            (false, true) => format!(
                "the log breaks off at position {at}, and records that follow from {next} on are left out: lost with the power, or \
                 damaged"
            ),
        }
    };
    Ok((region, gaps.iter().map(name).chain(cut).collect(), end))
}
