//! Reading the superblocks of all donors together: which donors belong to the disk, and which
//! checkpoint counts.
//!
//! Rules:
//! - A donor that is gone is gone for ever, and a later birth ends an earlier one, whatever the epochs.
//! - What only a donor or two were told never counted: that a donor is gone or away does not count if donors of more
//!   domains than parity covers say otherwise in this epoch or a later one. Had it counted, their client would have
//!   met it. So a donor that shows a former superblock of its own changes nothing.
//! - Nobody chooses between donors that contradict each other: what never changes on a disk is the same in all
//!   superblocks, and no two donors have one place. Otherwise the disk stays closed until the administrator leaves a
//!   donor out.
//! - With a key only superblocks that it signed count (`sealed`). Without one, donors are trusted to return what
//!   they were given.
//!
//! Left out: reading superblocks (the engine's caller), the donors' states (`engine`).

use shoal_format::ram;
use shoal_format::ram::{DiskSuperblock, Standing};

use crate::api::DiskError;
use crate::planted::{Bug, is_planted};
use crate::sealed::{SealKey, superblock};
use crate::state::domains;
use crate::state::epoch::{BIRTHS_MAX, EPOCHS_MAX};

/// A donor's superblock as it was found, with the donor's name.
pub(crate) type Named<'a> = (&'a str, &'a DiskSuperblock);

/// Fails unless the disk can be read with this key: one of its superblocks counts. Each donor is given by its first
/// bytes.
pub(crate) fn check_key(fronts: &[&[u8]], key: Option<&SealKey>) -> Result<(), DiskError> {
    let found: Vec<DiskSuperblock> = fronts.iter().filter_map(|front| DiskSuperblock::decode(front).ok()).collect();
    let (is_sealed, is_plain) = (found.iter().any(|found| found.sealed), found.iter().any(|found| !found.sealed));
    let counts = || fronts.iter().any(|front| superblock(front, key).is_some());
    let why = match key {
        None if is_sealed && !is_plain => "the disk is encrypted; give its key with key=FILE",
        Some(_) if found.is_empty() || counts() => return Ok(()),
        Some(_) if is_sealed => "the key is not the one that the disk is encrypted with; give that one with key=FILE",
        Some(_) => {
            "the disk is not encrypted, as far as its donors show; leave key=FILE out if it was made without a key, \
             and do not open it if it was made with one: its donors then do not return what they held"
        }
        None => return Ok(()),
    };
    Err(DiskError::Config(why.into()))
}

/// Fails if the superblocks contradict each other.
pub(crate) fn check_agreement(all: &[Named<'_>]) -> Result<(), DiskError> {
    let wrong = |text: String| Err(DiskError::Config(text));
    for (place, &(name, own)) in all.iter().enumerate() {
        let other = all[..place].iter().find(|(_, other)| other.place() == own.place());
        if let Some((other, _)) = other {
            return wrong(format!(
                "donors {other} and {name} have the same place on the disk; leave out the one that does not belong \
                 there, or the second name if they are one"
            ));
        }
    }
    let agreeing = |own: &DiskSuperblock| all.iter().filter(|(_, other)| layout(other) == layout(own)).count();
    if let Some(&(odd, own)) = all.iter().min_by_key(|(_, own)| agreeing(own))
        && let Some((other, _)) = all.iter().find(|(_, other)| layout(other) != layout(own))
    {
        return wrong(format!(
            "donors {odd} and {other} say different things about the disk's layout; leave out the one that is damaged"
        ));
    }
    let is_beyond =
        |own: &DiskSuperblock| own.epoch > EPOCHS_MAX || own.donors.iter().any(|place| place.born > BIRTHS_MAX);
    match all.iter().find(|(_, own)| is_beyond(own)) {
        Some((name, _)) => wrong(format!("donor {name} tells of more changes than a disk can have seen; leave it out")),
        None => Ok(()),
    }
}

/// Returns the part of a superblock that never changes: it is the same on all donors of a disk.
fn layout(own: &DiskSuperblock) -> impl PartialEq {
    let groups = (own.policy, own.data, own.parity, own.streams, own.flags, own.buffer_blocks);
    (groups, own.block_bytes, own.checkpoint.is_some(), own.sums, own.sealed)
}

/// Decides which donors belong to the disk, from all superblocks together. The one with the highest
/// epoch is not enough: a client that died while it opened the disk may have written it to one
/// donor only, before another client went on without that donor. A donor that is gone is gone for
/// ever, and a later birth ends an earlier one. A donor that one superblock calls away may have
/// been taken back since: it was, if so many donors say so in a later epoch that no opening could
/// miss all of them. If they say so in the same epoch, or of a donor that is gone, the former client
/// told too few. If the disk could not be opened without it, the newest superblock decides.
pub(crate) fn merge(newest: &DiskSuperblock, all: &[&DiskSuperblock], parity: usize) -> Vec<ram::DonorPlace> {
    let in_force = are_in_force(newest, all, parity);
    let places = all.iter().map(|superblock| superblock.donors.len()).max().unwrap_or(0);
    let said = |number: usize| {
        let told = move |superblock: &&DiskSuperblock| Some((superblock.epoch, *superblock.donors.get(number)?));
        all.iter().filter_map(told)
    };
    let strictest = |number: usize| {
        let born = said(number).map(|(_, place)| place.born).max().unwrap_or(0);
        let back = |own: &&&DiskSuperblock| {
            own.donors.get(number).is_some_and(|place| place.born == born && place.standing == Standing::Counts)
        };
        let is_outdone = |epoch: u64| {
            let later = all.iter().filter(back).filter(|own| own.epoch >= epoch);
            let domain = |number: u16| newest.donors.get(usize::from(number)).filter(|_| in_force);
            let domains = later.map(|own| (own.donor.into(), domain(own.donor).map_or(0, |place| place.domain)));
            domains::count(domains) > parity
        };
        let counts = |&(epoch, place): &(u64, ram::DonorPlace)| {
            let is_out = matches!(place.standing, Standing::Away | Standing::Gone);
            place.born == born && !(is_out && is_outdone(epoch))
        };
        let standing = said(number).filter(counts).map(|(_, place)| place.standing);
        let rank = |standing: &Standing| match standing {
            Standing::Joins => 0,
            Standing::Counts => 1,
            Standing::Away => 2,
            Standing::Gone => 3,
        };
        // Domains are in force together: those of the newest superblock.
        let last = newest.donors.get(number).filter(|place| place.born == born);
        let domain = last.filter(|_| in_force).map_or(0, |place| place.domain);
        ram::DonorPlace { standing: standing.max_by_key(rank).unwrap_or_default(), born, domain }
    };
    let merged: Vec<ram::DonorPlace> = (0..places).map(strictest).collect();
    let is_there = |number: &usize| {
        let own = |superblock: &&&DiskSuperblock| {
            superblock.donor as usize == *number && superblock.donors[*number].born == merged[*number].born
        };
        merged[*number].standing == Standing::Counts && all.iter().any(|superblock| own(&superblock))
    };
    if domains_missing(&merged, |number| is_there(&number)) <= parity {
        return merged;
    }
    let lenient = |(number, place): (usize, &ram::DonorPlace)| match newest.donors.get(number) {
        Some(last) if place.standing == Standing::Away && last.born == place.born => *last,
        _ => *place,
    };
    merged.iter().enumerate().map(lenient).collect()
}

/// Returns whether the failure domains in the newest superblock count. A client may have died when it had told one
/// donor only, and another one may have gone on without that donor and with other domains. So either all superblocks
/// agree, or so many that no client could open the disk without meeting one.
fn are_in_force(newest: &DiskSuperblock, all: &[&DiskSuperblock], parity: usize) -> bool {
    let agrees = |other: &&&DiskSuperblock| {
        let mut both = newest.donors.iter().zip(&other.donors).filter(|(one, other)| one.born == other.born);
        both.all(|(one, other)| one.domain == other.domain) || is_planted(Bug::DomainsUnsettled)
    };
    let agreeing = all.iter().filter(agrees).filter_map(|own| {
        let number = usize::from(own.donor);
        Some((number, newest.donors.get(number)?.domain))
    });
    all.iter().all(|other| agrees(&other)) || domains::count(agreeing) > parity
}

/// Number of failure domains with donors that count and are not there.
pub(crate) fn domains_missing(donors: &[ram::DonorPlace], is_there: impl Fn(usize) -> bool) -> usize {
    let missing = donors.iter().enumerate().filter(|&(number, place)| counts(place) && !is_there(number));
    domains::count(missing.map(|(number, place)| (number, place.domain)))
}

/// Returns the checkpoint that all donors of the disk name; 0: none.
pub(crate) fn checkpoint_named(donors: &[ram::DonorPlace], all: &[&DiskSuperblock]) -> u64 {
    let own = |number: usize| {
        let of_it = |superblock: &&&DiskSuperblock| {
            superblock.donor as usize == number && superblock.donors[number].born == donors[number].born
        };
        all.iter().find(of_it).and_then(|superblock| superblock.checkpoint).unwrap_or(0)
    };
    let mut named = (0..donors.len()).filter(|&number| counts(&donors[number])).map(|number| {
        let is_source = donors[number].standing == Standing::Counts;
        if is_source { own(number) } else { 0 }
    });
    let first = named.next().unwrap_or(0);
    if named.all(|other| other == first) { first } else { 0 }
}

/// Returns whether a donor with this superblock still belongs to the disk.
pub(crate) fn belongs(own: &DiskSuperblock, newest: &DiskSuperblock) -> bool {
    let birth = |superblock: &DiskSuperblock| superblock.donors.get(own.donor as usize).map(|place| place.born);
    newest.donors.get(own.donor as usize).is_some_and(counts) && birth(own) == birth(newest)
}

pub(crate) fn counts(place: &ram::DonorPlace) -> bool {
    matches!(place.standing, Standing::Counts | Standing::Away)
}

#[cfg(test)]
mod tests {
    use shoal_format::Sums;
    use shoal_format::ram::DonorPlace;

    use super::*;

    /// A superblock of a disk with parity 1. Each donor: its standing and its domain.
    fn told(donor: u16, epoch: u64, donors: &[(Standing, u16)]) -> DiskSuperblock {
        let place = |(number, &(standing, domain)): (usize, &(Standing, u16))| DonorPlace {
            standing,
            born: 1 + number as u32,
            domain,
        };
        DiskSuperblock {
            uuid: [1; 16],
            epoch,
            donor,
            policy: 6,
            data: 2,
            parity: 1,
            streams: 2,
            buffer_blocks: 8,
            flags: 0,
            block_bytes: 4096,
            blocks: 100,
            checkpoint: Some(0),
            sums: Sums::Xxh3,
            sealed: false,
            donors: donors.iter().enumerate().map(place).collect(),
        }
    }

    /// Merges superblocks as an opening does. Returns each donor's standing and domain.
    fn merged(all: &[DiskSuperblock]) -> Vec<(Standing, u16)> {
        let newest = all.iter().max_by_key(|own| own.epoch).unwrap();
        let places = merge(newest, &all.iter().collect::<Vec<_>>(), 1);
        places.iter().map(|place| (place.standing, place.domain)).collect()
    }

    use Standing::{Away, Counts, Gone};

    #[test]
    fn domains_are_in_force_if_so_many_donors_say_so_that_no_opening_misses_them() {
        let (apart, shared) = ([(Counts, 0); 4], [(Counts, 7), (Counts, 7), (Counts, 0), (Counts, 0)]);
        assert_eq!(merged(&[told(0, 9, &shared), told(2, 8, &apart), told(3, 8, &apart)]), apart, "one was told");
        assert_eq!(
            merged(&[told(0, 9, &shared), told(1, 9, &shared), told(3, 8, &apart)]),
            apart,
            "one domain was told"
        );
        assert_eq!(merged(&[told(0, 9, &shared), told(2, 9, &shared), told(3, 8, &apart)]), shared);
        assert_eq!(merged(&[told(0, 9, &shared), told(2, 9, &shared)]), shared);
    }

    #[test]
    fn a_donor_that_was_away_is_back_if_so_many_donors_say_so_in_a_later_epoch() {
        let (all, without) = ([(Counts, 0); 3], [(Away, 0), (Counts, 0), (Counts, 0)]);
        assert_eq!(merged(&[told(0, 9, &all), told(1, 9, &all), told(2, 8, &without)]), all);
        // Both clients took the same epoch: the first had told one donor, which the second did not meet.
        assert_eq!(merged(&[told(0, 8, &all), told(1, 8, &all), told(2, 8, &without)]), all);
        // The client died when one donor was told.
        assert_eq!(merged(&[told(0, 9, &all), told(1, 8, &without), told(2, 8, &without)]), without);
        // Another client went on without it.
        assert_eq!(merged(&[told(0, 7, &all), told(1, 9, &without), told(2, 9, &without)]), without);
        let racks = [(Counts, 7), (Counts, 7), (Counts, 0)];
        let without = [(Counts, 7), (Counts, 7), (Away, 0)];
        assert_eq!(
            merged(&[told(0, 9, &racks), told(1, 9, &racks), told(2, 8, &without)]),
            without,
            "one domain was told"
        );
    }

    #[test]
    fn a_donor_that_is_gone_is_gone_unless_too_few_were_told() {
        let (all, without) = ([(Counts, 0); 4], [(Gone, 0), (Counts, 0), (Counts, 0), (Counts, 0)]);
        // The donor that was excluded does not know it.
        assert_eq!(merged(&[told(0, 7, &all), told(1, 8, &without), told(2, 8, &without)]), without);
        assert_eq!(merged(&[told(0, 7, &all), told(1, 9, &without), told(2, 7, &all), told(3, 7, &all)]), without);
        // Another client went on with it, because it met none that was told.
        for epoch in [8, 9] {
            let others = [told(0, epoch, &all), told(1, epoch, &all)];
            assert_eq!(merged(&[&others[..], &[told(2, 8, &without)]].concat()), all);
        }
    }
}
