//! Finds the region of a damaged store: the best image, and as much of the log as continues it.
//!
//! Rules: the newest image that replays up to its seal is the store; an older image replaces it
//! only if the newest is damaged. An older image that replays past the newest one's seal holds
//! everything that the newest held. An image with an anchor is better than one without. Each image
//! has its own layout: after a resize the other image may still have the previous one; then the log
//! does not continue it, and none of its pages can serve as a replacement. An image that lost its
//! superblock takes the one of the other image. `pages` handles single pages.

use shoal_format::superblock::{ANCHOR_CLEAN, AnchorRecord, Superblock};
use shoal_format::{Lsn, Offset, PAGE, SEGMENT};

use super::SalvageSource;
use super::pages::{self, BadPages};
use crate::region::{Base, Region};
use crate::replay::{self, Gap, PastGaps};
use crate::{CheckError, ImageSource, Source};

pub(super) struct Opened<'a> {
    pub superblock: Superblock,
    pub region: Region<'a>,
    pub bad_pages: BadPages,
    /// Whether the region is current, that is, not an image that the region in memory has outlived.
    pub is_current: bool,
    /// The store was unmounted cleanly and not changed since.
    pub clean: bool,
    /// The log notes that a flush of bulk storage failed.
    pub data_lost: bool,
    /// Remarks about the log that are not losses.
    pub notes: Vec<String>,
}

/// An image, or the region in place, with its faults.
struct Candidate<'a> {
    base: Base<'a>,
    name: &'static str,
    superblock: Superblock,
    anchor: Option<AnchorRecord>,
    /// Faults that lose data, in words.
    faults: Vec<String>,
    notes: Vec<String>,
    /// The image has no superblock of its own.
    headless: bool,
    /// The newest image has another layout, so the log does not continue this image.
    is_left_behind: bool,
    /// Bytes that are left if the image's end is missing.
    cut: Option<u64>,
    /// End of the log that continues the image.
    end: Lsn,
}

impl<'a> Candidate<'a> {
    /// Follows the log from `anchor`, if the log continues the candidate.
    fn examine(&mut self, source: &SalvageSource<'a>, anchor: AnchorRecord) -> Result<(), CheckError> {
        let name = self.name;
        if self.is_left_behind {
            self.end = anchor.replay_from();
            if self.end < anchor.sealed_to() {
                self.faults.push(format!("{name} is from before a resize, and its log is gone"));
            }
        } else {
            let replayed = replayed(source, &self.superblock, &anchor, self.base, &[])?;
            self.faults.extend(replayed.faults.iter().map(|why| format!("{name}: {why}")));
            (self.notes, self.end) = (replayed.notes, replayed.end);
        }
        self.cut = pages::cut(&self.base, &self.superblock, &anchor)?;
        self.faults.extend(self.cut.map(|bytes| format!("{name} ends at byte {bytes}: the rest is missing")));
        self.anchor = Some(anchor);
        Ok(())
    }

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
    let newest = found.iter().filter_map(|(.., superblock, anchor)| Some((anchor.as_ref().ok()?, superblock)));
    let newest = newest.max_by_key(|(anchor, _)| anchor.generation.get()).map(|(_, superblock)| superblock);
    let layout = *newest.and_then(|superblock| superblock.as_ref().ok()).unwrap_or(&any);
    for (base, name, own, anchor) in found {
        let superblock = own.as_ref().copied().unwrap_or(any);
        let mut candidate = Candidate {
            base,
            name,
            superblock,
            anchor: None,
            faults: Vec::new(),
            notes: Vec::new(),
            headless: own.is_err(),
            is_left_behind: !same_layout(&superblock, &layout),
            cut: None,
            end: Lsn::ZERO,
        };
        if let Err(error) = &own {
            candidate.faults.push(format!("{name}: {error}"));
        }
        match anchor {
            Ok(anchor) if anchor.uuid == any.uuid => candidate.examine(source, anchor)?,
            Ok(_) => continue,
            // An image of zeros was never written.
            Err(_) if candidate.headless => continue,
            Err(error) => {
                candidate.faults.push(format!("{name} has no anchor, so the log cannot be replayed over it: {error}"))
            }
        }
        candidates.push(candidate);
    }
    let generation = |candidate: &Candidate<'_>| candidate.anchor.as_ref().map_or(0, |anchor| anchor.generation.get());
    // The newest comes first, an image without an anchor last.
    candidates.sort_by_key(|candidate| std::cmp::Reverse(generation(candidate)));
    let mut candidates = candidates.into_iter();
    let Some(newest) = candidates.next() else { return Ok(None) };
    let (chosen, other) = choose(newest, candidates.next(), losses);
    opened(source, chosen, other, losses).map(Some)
}

/// Returns whether two superblocks describe the same layout.
fn same_layout(one: &Superblock, other: &Superblock) -> bool {
    // Features are added to one image after the other, without a change of layout.
    Superblock { features: other.features, ..*one } == *other
}

/// Opens the region of the chosen image.
fn opened<'a>(
    source: &SalvageSource<'a>,
    chosen: Candidate<'a>,
    other: Option<Candidate<'a>>,
    losses: &mut Vec<String>,
) -> Result<Opened<'a>, CheckError> {
    let superblock = chosen.superblock;
    let source = SalvageSource { log: source.log.filter(|_| !chosen.is_left_behind), ..*source };
    losses.extend(chosen.faults);
    let Some(anchor) = chosen.anchor else {
        let stored = superblock.region_bytes.min(stored(&chosen.base, &superblock));
        let region = Region::new(chosen.base, superblock.region_bytes, stored);
        return Ok(Opened {
            superblock,
            region,
            bad_pages: BadPages::default(),
            is_current: false,
            clean: false,
            data_lost: false,
            notes: Vec::new(),
        });
    };
    // The other image supplies pages, both as stored and after replay of its log.
    let other = other.filter(|other| same_layout(&other.superblock, &superblock));
    let rest = other.as_ref().map(|other| other.base);
    let mut found = pages::mend(chosen.base, chosen.cut, &superblock, &anchor, rest)?;
    let Replayed { mut region, end, boot_id, has_changes, .. } =
        replayed(&source, &superblock, &anchor, chosen.base, &found.pages)?;
    if let Some(Candidate { base, anchor: Some(anchor), faults, end: reached, .. }) = &other
        && !found.bad.is_empty()
        && faults.is_empty()
        && *reached == end
    {
        let replayed = replayed(&source, &superblock, anchor, *base, &[])?;
        pages::take_replayed(&mut region, &replayed.region, *base, &superblock, &mut found.bad)?;
    }
    let outlived = superblock.memory_kind.has_ring() && matches!(chosen.base, Base::Image(_));
    let ended_cleanly = anchor.flags.get() & ANCHOR_CLEAN != 0;
    let is_current = !outlived || ended_cleanly;
    losses.extend(found.bad.sentence());
    let data_lost = replay::names_loss(&boot_id, source.loss_boots);
    Ok(Opened {
        superblock,
        region,
        bad_pages: found.bad,
        is_current,
        clean: ended_cleanly && !has_changes,
        data_lost,
        notes: chosen.notes,
    })
}

/// Chooses the image that is the store, and the one that may supply pages. Adds the faults that
/// follow from the choice.
fn choose<'a>(
    mut newest: Candidate<'a>,
    other: Option<Candidate<'a>>,
    losses: &mut Vec<String>,
) -> (Candidate<'a>, Option<Candidate<'a>>) {
    let Some(mut other) = other else { return (newest, None) };
    if newest.is_sound() || !other.is_sound() {
        return (newest, Some(other));
    }
    if !other.is_left_behind && newest.sealed().is_some_and(|sealed| other.end >= sealed) {
        // The log since the older image was written covers everything in the newest one.
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

/// Returns the maximum number of bytes that a medium without an anchor may hold.
fn stored(base: &Base<'_>, superblock: &Superblock) -> u64 {
    match base {
        Base::Image(_) => superblock.region_bytes,
        Base::Memory(memory) => memory.len() / SEGMENT * SEGMENT,
    }
}

/// The region after replay of the valid part of the log.
struct Replayed<'a> {
    region: Region<'a>,
    /// Faults of the log that lose data.
    faults: Vec<String>,
    notes: Vec<String>,
    end: Lsn,
    /// The boot id that the log names last.
    boot_id: [u8; 16],
    /// The log has a transaction, or there is no log.
    has_changes: bool,
}

/// Replays the log. `patches` replace pages of `base`.
fn replayed<'a>(
    source: &SalvageSource<'a>,
    superblock: &Superblock,
    anchor: &AnchorRecord,
    base: Base<'a>,
    patches: &[(u64, Vec<u8>)],
) -> Result<Replayed<'a>, CheckError> {
    let used = match base {
        Base::Image(_) => anchor.used_bytes.get().min(superblock.region_bytes),
        Base::Memory(memory) => superblock.region_bytes.min(memory.len()),
    };
    let mut region = Region::new(base, superblock.region_bytes, used);
    for (page, bytes) in patches {
        region.write(Offset::new(page * PAGE), bytes)?;
    }
    let power_lost = source.power_lost;
    let media =
        Source { power_lost, loss_boots: source.loss_boots, sums: false, ..Source::of(source.image, source.log) };
    let ring = superblock.memory_kind.has_ring();
    if source.log.is_none() && !ring {
        let faults = vec!["there is no log: changes after the image was written are lost".into()];
        let (end, boot_id) = (anchor.replay_from(), anchor.boot_id);
        return Ok(Replayed { region, faults, notes: Vec::new(), end, boot_id, has_changes: true });
    }
    let PastGaps { gaps, cut, end, boot_id, has_changes } =
        replay::replay_past_gaps(&media, superblock, anchor, &mut region)?;
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    for Gap { at, next, is_damage } in gaps {
        if ring {
            faults.push(format!(
                "a record of the log is damaged at position {at}, and {next} is the next that counts; what lies between them is \
                 taken from the region as it stands"
            ));
        } else if is_damage {
            faults.push(format!(
                "a record of the log is damaged or missing at position {at}, and {next} is the next that counts: the data that was changed \
                 between them may be wrong or missing"
            ));
        } else {
            // In a file-based log, a power loss drops any part that was not synced. Before the
            // seal, the cut reported below is the loss.
            notes.push(format!(
                "the power was lost, and the log breaks off at position {at}: records from {next} on are left out, as a mount leaves them \
                 out, because nothing had promised them"
            ));
        }
    }
    faults.extend(cut);
    Ok(Replayed { region, faults, notes, end, boot_id, has_changes })
}
