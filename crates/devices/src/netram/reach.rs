//! Reaching the donors of a network RAM disk, and what they hold.
//!
//! Owns the decision which disk is there. Donors that carry the superblock of one disk hold it;
//! blank donors may join it. Several disks, a disk other than the one asked for, or none at all are
//! errors that name the donors.
//! Rules: a donor counts as missing if it refuses us (wrong secret, no room), holds something else,
//! is shorter than it was, or cannot be reached. The disk's redundancy may allow that. A new disk
//! needs all of its donors. All donors are tried at the same time.

use std::collections::BTreeSet;
use std::io::Read;
use std::sync::Arc;
use std::{fmt, fs};

use shoal_format::FormatError;
use shoal_format::ram::{DiskSuperblock, LEASE_BYTES, Lease, OwnPlace, SLOT_BYTES, SLOTS_BYTES};
use shoal_media::BlockDevice;
use shoal_nbd::ConnectError;
use shoal_netram::ownership::bytes_of;
use shoal_netram::{DonorInfo, SEALED_ALIGNMENT, SealKey, Sealer, identify, sealed_bytes_inside, superblock};
use tracing::warn;
use zeroize::Zeroizing;

use super::SECTOR_BYTES;
use super::lease::is_the_same;
use super::name::{Donor, Netram};
use crate::donor_link::{DonorLink, FRONT_BYTES};
use crate::failure::{During, Failure, Outcome};
use crate::uuid::uuid_text;

/// A file with more than this is no key (bytes).
const KEY_FILE_BYTES_MAX: u64 = 1024;

/// Bytes of a donor that are looked at together: whole sectors.
const LOOKED_AT_ONCE: u64 = 1 << 20;

/// A donor that was reached.
pub(super) struct Reached {
    pub(super) donor: Donor,
    pub(super) link: Arc<DonorLink>,
    pub(super) front: Vec<u8>,
}

impl Reached {
    pub(super) fn disk(&self) -> Option<[u8; 16]> {
        identify(&self.front).map(|(uuid, _)| uuid)
    }

    /// The donor's place on its disk.
    pub(super) fn place(&self) -> Option<OwnPlace> {
        DiskSuperblock::decode(&self.front).ok().map(|own| own.place())
    }

    /// Returns an error if the donor is shorter than when it was last in use. Its contents beyond
    /// the new end are gone.
    pub(super) fn cut_short(&self) -> Option<Failure> {
        let leases = Lease::of_front(&self.front, &self.disk().unwrap_or_default());
        let (had, has) = (bytes_of(&leases), self.link.geometry().bytes);
        (has < had).then(|| {
            let cause = format!("has {has} bytes; it had {had} when it was last in use");
            Failure::new(format_args!("donor {}", self.donor), cause).remedy("give it its former size")
        })
    }

    pub(super) fn info(&self) -> DonorInfo {
        DonorInfo {
            name: self.donor.to_string(),
            bytes: self.link.geometry().bytes,
            domain: self.donor.domain_number(),
        }
    }

    pub(super) fn device(&self) -> Arc<dyn BlockDevice> {
        self.link.clone()
    }

    /// Returns whether both addresses lead to the same memory, as far as its server says.
    pub(super) fn is_same(&self, other: &Reached) -> bool {
        self.link.area().is_some_and(|area| other.link.area() == Some(area))
    }

    pub(super) fn is_blank(&self) -> bool {
        self.front.iter().all(|&byte| byte == 0)
    }

    /// Returns whether the donor's start holds nothing but what this disk has written there. The
    /// lease is there first: a donor that went away while it joined has no superblock yet.
    pub(super) fn holds_nothing_but(&self, disk: &[u8; 16]) -> bool {
        let (slots, leases) = self.front.split_at(SLOTS_BYTES);
        let is_ours = |lease: &[u8]| {
            lease.iter().all(|&byte| byte == 0) || Lease::decode(lease).is_some_and(|lease| lease.uuid == *disk)
        };
        let is_blank = slots.iter().all(|&byte| byte == 0) && leases.chunks(LEASE_BYTES).all(is_ours);
        is_blank || self.disk() == Some(*disk)
    }

    /// Zeroes the donor's start. An older disk's superblock would otherwise be found beside the new
    /// one's.
    pub(super) fn wipe(&self) -> Outcome<()> {
        let wiped = self.link.write_from(0, &[0; FRONT_BYTES]);
        wiped.during(format_args!("donor {}", self.donor))
    }
}

/// Returns the key of the disk with this uuid, if it is to be encrypted.
pub(super) fn key_of(wanted: &Netram, uuid: &[u8; 16]) -> Outcome<Option<SealKey>> {
    let Some(path) = &wanted.key else { return Ok(None) };
    let what = || format!("key {}", path.display());
    let mut text = Zeroizing::new(Vec::with_capacity(KEY_FILE_BYTES_MAX as usize));
    fs::File::open(path).and_then(|file| file.take(KEY_FILE_BYTES_MAX).read_to_end(&mut text)).during(what())?;
    let digits = text.trim_ascii();
    let mut owner = Zeroizing::new([0; 32]);
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let bytes = digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?));
    let is_key = digits.len() == 64
        && owner.iter_mut().zip(bytes).all(|(byte, found)| found.map(|found| *byte = found).is_some());
    if !is_key {
        let remedy = "make one with `openssl rand -hex 32 > FILE`, and keep it: without it the disk is lost";
        return Err(Failure::new(what(), "is not a text of 64 hexadecimal digits").remedy(remedy));
    }
    Ok(Some(SealKey::derive(&owner, uuid)))
}

/// Returns the export that this client asks donors for: its name, with its secret if it has one.
pub(super) fn export_name(wanted: &Netram) -> Outcome<String> {
    let Some(path) = &wanted.secret else { return Ok(wanted.name.clone()) };
    let text = fs::read_to_string(path).during(format_args!("secret {}", path.display()))?;
    let secret = text.lines().next().unwrap_or_default();
    if secret.is_empty() {
        return Err(Failure::new(format_args!("secret {}", path.display()), "the first line is empty"));
    }
    Ok(format!("{}:{secret}", wanted.name))
}

impl fmt::Display for NotReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotReached::Away(error) => f.write_str(error),
            NotReached::Unfit(failure) => write!(f, "{failure}"),
        }
    }
}

/// Reason why a donor was not reached.
pub(super) enum NotReached {
    /// The donor's machine or server is away.
    Away(String),
    /// The donor answers, but cannot be used.
    Unfit(Failure),
}

impl NotReached {
    pub(super) fn into_failure(self) -> Failure {
        match self {
            NotReached::Away(error) => Failure::told(error),
            NotReached::Unfit(failure) => failure,
        }
    }
}

pub(super) fn reach(donor: &Donor, wanted: &Netram, export: &str) -> Result<Reached, NotReached> {
    let uri = donor.uri(export, wanted.certificates.as_deref());
    let unfit = |cause: String, remedy: &str| {
        NotReached::Unfit(Failure::new(format_args!("donor {donor}"), cause).remedy(remedy))
    };
    let link = DonorLink::connect(&uri, wanted.lost_after).map_err(|error| match error {
        // The URI would reveal the secret.
        ConnectError::Connect { source, .. } => {
            NotReached::Away(format!("donor {donor}: {source}; check the address and that it runs"))
        }
        ConnectError::Io { source, .. } => NotReached::Away(format!("donor {donor}: {source}")),
        ConnectError::Handshake { source, .. } => unfit(source.to_string(), "check name, secret and address"),
        ConnectError::Tls { source, .. } => unfit(source.to_string(), "check the certificates"),
        ConnectError::NoTrust { .. } => unfit("no certificates to check it with".into(), "add tls-certificates=DIR"),
    })?;
    let geometry = link.geometry();
    if geometry.block_bytes > SECTOR_BYTES {
        let cause = format!("its blocks have {} bytes, more than {SECTOR_BYTES}", geometry.block_bytes);
        return Err(unfit(cause, "use another server"));
    }
    if wanted.key.is_some() && geometry.block_bytes > SEALED_ALIGNMENT {
        let cause = format!(
            "takes requests of whole {} bytes only, and an encrypted disk needs {SEALED_ALIGNMENT}",
            geometry.block_bytes
        );
        return Err(unfit(cause, "use a newer `shoal donate`, or leave key=FILE out"));
    }
    let front = link.front().map_err(|error| unfit(error.to_string(), "use another donor, or give it more memory"))?;
    Ok(Reached { donor: donor.clone(), link: Arc::new(link), front })
}

pub(super) type Tried = Vec<(Donor, Result<Reached, NotReached>)>;

/// Reaches all donors at the same time, so that the waits for several hanging donors do not add up.
pub(super) fn reach_all(wanted: &Netram, export: &str) -> Tried {
    let tried: Vec<_> = std::thread::scope(|scope| {
        let start = |donor| scope.spawn(move || reach(donor, wanted, export));
        let threads: Vec<_> = wanted.donors.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut all = Tried::new();
    for (donor, reached) in wanted.donors.iter().zip(tried) {
        let reached = reached.unwrap_or_else(|_| Err(NotReached::Away(format!("donor {donor}: its thread failed"))));
        all.push((donor.clone(), reached));
    }
    all
}

/// Leaves out donors that cannot belong to this disk: shorter than they were, part of another disk
/// if the disk is known, or named twice. Those of an encrypted disk may show the place of another on purpose
/// ([`leave_out_unsigned`]).
pub(super) fn choose(wanted: &Netram, tried: &mut Tried) {
    for number in 0..tried.len() {
        let (before, rest) = tried.split_at_mut(number);
        let (donor, tried) = &mut rest[0];
        let Ok(one) = tried else { continue };
        let place = one.disk().zip(one.place()).filter(|_| wanted.key.is_none());
        let is_same = |other: &&Reached| {
            one.is_same(other) || place.is_some_and(|place| other.disk().zip(other.place()) == Some(place))
        };
        let twin = before.iter().filter_map(|(_, tried)| tried.as_ref().ok()).find(is_same);
        let other = one.disk().filter(|uuid| wanted.uuid.is_some_and(|wanted| wanted != *uuid));
        let failure = match (one.cut_short(), other, twin) {
            (Some(failure), ..) => failure,
            (None, Some(other), _) => {
                let cause = format!("belongs to network RAM disk {}", uuid_text(&other));
                Failure::new(format_args!("donor {donor}"), cause).remedy("leave it out")
            }
            (None, None, Some(twin)) => is_the_same(donor, &twin.donor),
            (None, None, None) => continue,
        };
        warn!("{failure}");
        *tried = Err(NotReached::Unfit(failure));
    }
}

/// With a key, leaves out donors whose superblock it did not sign, if there are donors with one that it did. Then no
/// donor that was changed can keep the disk closed. If the key belongs to several disks, the one that most donors hold
/// is meant, unless the text names one.
pub(super) fn leave_out_unsigned(wanted: &Netram, tried: &mut Tried) -> Outcome<()> {
    let uuids: BTreeSet<[u8; 16]> = reached(tried).flat_map(|(_, one)| uuids_of(&one.front)).collect();
    let mut keys = Vec::new();
    for uuid in uuids.iter().filter(|uuid| wanted.uuid.is_none_or(|wanted| wanted == **uuid)) {
        let Some(key) = key_of(wanted, uuid)? else { return Ok(()) };
        let many = reached(tried).filter(|(_, one)| superblock(&one.front, Some(&key)).is_some()).count();
        keys.push((many, key));
    }
    keys.sort_by_key(|(many, _)| std::cmp::Reverse(*many));
    // With another key than the disk's this would be the wrong thing to say.
    let Some((many, key)) = keys.first().filter(|(many, _)| *many > 0) else { return Ok(()) };
    if keys.get(1).is_some_and(|(others, _)| others == many) {
        return Ok(());
    }
    for (donor, tried) in tried.iter_mut() {
        let Ok(one) = tried else { continue };
        let is_something = one.disk().is_some() || newer_disk(&one.front).is_some();
        if !is_something || keep_signed(&mut one.front, key) {
            continue;
        }
        let cause = "has a superblock that was not written with the disk's key, so what it holds does not count";
        *tried = Err(leave_out(donor, cause));
    }
    leave_out_copies(key, tried);
    Ok(())
}

/// The disks that the superblocks at a donor's start name, whether they count or not.
fn uuids_of(front: &[u8]) -> impl Iterator<Item = [u8; 16]> {
    let slots = front.chunks(SLOT_BYTES).take(2);
    slots.filter_map(|slot| Some(identify(&[slot, &[0; SLOT_BYTES]].concat())?.0))
}

/// Clears a superblock that the key did not sign beside one that it did, in what was read of a donor. Returns false if
/// it signed none.
pub(super) fn keep_signed(front: &mut [u8], key: &SealKey) -> bool {
    let is_one = superblock(front, Some(key)).is_some();
    let slots = front.chunks_mut(SLOT_BYTES).take(2);
    slots.filter(|slot| is_one && !key.has_signed(slot)).for_each(|slot| slot.fill(0));
    is_one
}

/// Of two donors with one place on the disk, leaves out the one that has nothing that was sealed for this place: it has
/// a copy of the other's superblock. If both have something, they are one donor at two addresses.
fn leave_out_copies(key: &SealKey, tried: &mut Tried) {
    let signed = |one: &Reached| superblock(&one.front, Some(key)).map(|(_, own)| own.place());
    let places: Vec<(usize, OwnPlace)> =
        reached(tried).filter_map(|(place, one)| Some((place, signed(one)?))).collect();
    let twins = |own: OwnPlace| places.iter().filter(move |(_, other)| *other == own).map(|(place, _)| *place);
    for &(first, own) in &places {
        if twins(own).count() < 2 || twins(own).next() != Some(first) {
            continue;
        }
        let is_home = |place: &usize| tried[*place].1.as_ref().is_ok_and(|one| is_at_home(one, key, own));
        let (home, copies): (Vec<usize>, Vec<usize>) = twins(own).partition(is_home);
        let Some((&genuine, again)) = home.split_first() else { continue };
        for place in copies {
            let cause = "has the superblock of another donor, and nothing that was written for that one";
            tried[place].1 = Err(leave_out(&tried[place].0, cause));
        }
        for &place in again {
            let failure = is_the_same(&tried[place].0, &tried[genuine].0);
            warn!("{failure}");
            tried[place].1 = Err(NotReached::Unfit(failure));
        }
    }
}

/// Returns whether the donor holds anything that was sealed for this place on the disk, and can be read up to there.
fn is_at_home(one: &Reached, key: &SealKey, own: OwnPlace) -> bool {
    let (sealer, end) = (Sealer::new(key), sealed_bytes_inside(one.link.geometry().bytes));
    let mut at = FRONT_BYTES as u64;
    while at < end {
        let len = LOOKED_AT_ONCE.min(end - at);
        let stored = Sealer::place(at, len);
        let mut sealed = vec![0; stored.len as usize];
        if shoal_media::read(&*one.link, stored.at, &mut sealed).is_err() {
            return false;
        }
        if sealer.knows(own, at, &sealed) {
            return true;
        }
        at += len;
    }
    false
}

fn reached(tried: &Tried) -> impl Iterator<Item = (usize, &Reached)> {
    tried.iter().enumerate().filter_map(|(place, (_, tried))| Some((place, tried.as_ref().ok()?)))
}

fn leave_out(donor: &Donor, cause: &str) -> NotReached {
    let failure = Failure::new(format_args!("donor {donor}"), cause).remedy("find out who changed it");
    warn!("{failure}");
    NotReached::Unfit(failure)
}

/// Returns why the disk is not there.
pub(super) fn not_there(wanted: &Netram, tried: Tried) -> Failure {
    let mut missing: Vec<NotReached> = tried.into_iter().filter_map(|(_, reached)| reached.err()).collect();
    match missing.iter().position(|error| matches!(error, NotReached::Unfit(_))) {
        Some(unfit) => missing.swap_remove(unfit).into_failure(),
        None => absent(wanted, missing.first()),
    }
}

/// The error if no donor that can be reached holds the disk. `away` is the error of a donor that
/// cannot be reached.
fn absent(wanted: &Netram, away: Option<&NotReached>) -> Failure {
    let donors: Vec<String> = wanted.donors.iter().map(|donor| donor.clone().without_secret().to_string()).collect();
    let donors = donors.join(", ");
    let what = match &wanted.uuid {
        Some(uuid) => format!("network RAM disk {} on {donors}", uuid_text(uuid)),
        None => format!("network RAM disk on {donors}"),
    };
    let (cause, remedy) = match (away, &wanted.uuid) {
        (Some(away), _) => (format!("no donor that can be reached holds it; {away}"), "bring its donors back"),
        (None, Some(_)) => (
            "none of its donors holds it any more: their memory is gone, and the disk with it".into(),
            "make a new, empty one with `shoal format netram:...`",
        ),
        (None, None) => (
            "none of the donors holds a disk: none was made there, or their memory is gone, as after a restart".into(),
            "make a new, empty one with `shoal format netram:...`",
        ),
    };
    Failure::new(what, cause).remedy(remedy)
}

/// Returns why a donor's superblock cannot be read although it is one: a newer program made the
/// disk.
fn newer_disk(front: &[u8]) -> Option<String> {
    DiskSuperblock::decode(front)
        .err()
        .filter(|error| matches!(error, FormatError::Version { .. }))
        .map(|error| error.to_string())
}

/// Returns the disk that the donors carry.
pub(super) fn which_disk(wanted: &Netram, reached: &[&Reached]) -> Outcome<Option<[u8; 16]>> {
    if let Some((one, why)) = reached.iter().find_map(|one| Some((one, newer_disk(&one.front)?))) {
        return Err(Failure::new(format_args!("donor {}", one.donor), why)
            .remedy("open it with the version of shoal that made it, or a newer one"));
    }
    let found: Vec<(&Reached, [u8; 16])> = reached.iter().filter_map(|one| Some((*one, one.disk()?))).collect();
    let expected = match (wanted.uuid, found.first()) {
        (Some(uuid), _) => uuid,
        (None, Some((_, uuid))) => *uuid,
        (None, None) => return Ok(None),
    };
    match found.iter().find(|(_, uuid)| *uuid != expected) {
        Some((one, other)) => Err(Failure::new(
            format_args!("donor {}", one.donor),
            format!("belongs to network RAM disk {}, not to {}", uuid_text(other), uuid_text(&expected)),
        )
        .remedy("leave it out, or make a new disk on all of them with `shoal format --force netram:...`")),
        None => Ok(found.first().map(|_| expected)),
    }
}

#[cfg(test)]
mod tests {
    use shoal_format::Sums;
    use shoal_format::ram::{DonorPlace, Standing};

    use super::*;

    #[test]
    fn a_disk_of_a_later_version_is_not_taken_for_none() {
        let superblock = DiskSuperblock {
            uuid: [7; 16],
            epoch: 1,
            donor: 0,
            policy: 6,
            data: 1,
            parity: 1,
            streams: 2,
            buffer_blocks: 8,
            flags: 0,
            block_bytes: 4096,
            blocks: 100,
            checkpoint: None,
            sums: Sums::Xxh3,
            sealed: false,
            donors: vec![DonorPlace { standing: Standing::Counts, born: 1, domain: 0 }; 2],
        };
        let mut front = superblock.encode();
        let slot = front.len();
        front.resize(FRONT_BYTES, 0);
        assert_eq!((newer_disk(&front), newer_disk(&[0; FRONT_BYTES])), (None, None));
        front[12] = 99;
        let sum = shoal_format::checksum(0, &front[4..slot]);
        front[..4].copy_from_slice(&sum.to_le_bytes());
        let why = newer_disk(&front).expect("it is one");
        assert!(why.contains("version is 99"), "{why}");
    }

    fn secret(text: &str) -> (tempfile::TempDir, Netram) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("s"), text).unwrap();
        let line = format!("a:1,b:2?name=me&secret={}", dir.path().join("s").display());
        (dir, Netram::parse(&line).unwrap())
    }

    #[test]
    fn a_key_is_64_hexadecimal_digits() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("k");
        let key = |text: &[u8]| {
            fs::write(&file, text).unwrap();
            key_of(&Netram::parse(&format!("a:1,b:2?key={}", file.display())).unwrap(), &[1; 16])
        };
        let digits = "00112233445566778899aabbccddeeff".repeat(2);
        let text = |text: &str| key(text.as_bytes());
        assert_eq!(text(&format!("{digits}\n")).unwrap(), text(&digits.to_uppercase()).unwrap());
        assert_ne!(text(&digits).unwrap(), text(&digits.replace('f', "e")).unwrap());
        let wrong = ["", &digits[1..], &digits.replace('f', "g"), &format!("{digits}0"), &"é".repeat(32)];
        for wrong in wrong.map(str::as_bytes).into_iter().chain([&[0xff; 32][..], &[0x80; 64], &[0; 4096]]) {
            let said = key(wrong).unwrap_err().to_string();
            assert!(said.contains("64 hexadecimal digits") && said.contains("openssl rand -hex 32"), "{said}");
        }
    }

    #[test]
    fn donors_are_asked_for_name_and_secret() {
        let (_dir, wanted) = secret("open sesame\nnot this\n");
        assert_eq!(export_name(&wanted).unwrap(), "me:open sesame");
        assert_eq!(export_name(&Netram { secret: None, ..wanted.clone() }).unwrap(), "me");
        let (_dir, wanted) = secret("\n");
        assert!(export_name(&wanted).unwrap_err().to_string().contains("first line is empty"));
        let missing = Netram { secret: Some("/nowhere/s".into()), ..wanted };
        assert!(export_name(&missing).unwrap_err().to_string().contains("/nowhere/s"));
    }
}
