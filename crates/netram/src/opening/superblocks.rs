//! Reading the superblocks of all donors together: which donors belong to the disk, and which
//! checkpoint counts.
//!
//! Rules: a donor that is gone is gone for ever, and a later birth ends an earlier one, whatever the epochs. Left
//! out: reading superblocks (the engine's caller), the donors' states (`engine`).

use shoal_format::ram;
use shoal_format::ram::{DiskSuperblock, Standing};

/// Decides which donors belong to the disk, from all superblocks together. The one with the highest
/// epoch is not enough: a client that died while it opened the disk may have written it to one
/// donor only, before another client went on without that donor. A donor that is gone is gone for
/// ever, and a later birth ends an earlier one. A donor that one superblock calls away may have
/// been taken back since. If the disk could not be opened without it, the newest superblock decides
/// whether it is away.
pub(crate) fn merge(newest: &DiskSuperblock, all: &[&DiskSuperblock], parity: usize) -> Vec<ram::DonorPlace> {
    let places = all.iter().map(|superblock| superblock.donors.len()).max().unwrap_or(0);
    let said = |number: usize| all.iter().filter_map(move |superblock| superblock.donors.get(number).copied());
    let strictest = |number: usize| {
        let born = said(number).map(|place| place.born).max().unwrap_or(0);
        let standing = said(number).filter(|place| place.born == born).map(|place| place.standing);
        let rank = |standing: &Standing| match standing {
            Standing::Joins => 0,
            Standing::Counts => 1,
            Standing::Away => 2,
            Standing::Gone => 3,
        };
        ram::DonorPlace { standing: standing.max_by_key(rank).unwrap_or_default(), born }
    };
    let merged: Vec<ram::DonorPlace> = (0..places).map(strictest).collect();
    let counting = merged.iter().filter(|place| counts(place)).count();
    let is_there = |number: &usize| {
        let own = |superblock: &&&DiskSuperblock| {
            superblock.donor as usize == *number && superblock.donors[*number].born == merged[*number].born
        };
        merged[*number].standing == Standing::Counts && all.iter().any(|superblock| own(&superblock))
    };
    if (0..places).filter(is_there).count() + parity >= counting {
        return merged;
    }
    let lenient = |(number, place): (usize, &ram::DonorPlace)| match newest.donors.get(number) {
        Some(last) if place.standing == Standing::Away && last.born == place.born => *last,
        _ => *place,
    };
    merged.iter().enumerate().map(lenient).collect()
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
