//! One client at a time has a disk open.
//!
//! Donors of ours know their client: a claim of another one is refused while it is connected, and seizing ends its
//! connections before ours transmits (`shoal_nbd::Claim`). On other donors the client leaves a record and renews it
//! every second. A client that opens such a disk watches the record for `WATCHED`: if it changes, its client lives; if
//! not, that client's requests have arrived by then, as far as a wait can tell. The old client reads its record before
//! each renewal, and stops when it finds another's. The first half of a client's id stands for the lock file it holds:
//! a client that holds the same file knows that the others are dead.

use std::collections::hash_map::DefaultHasher;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime};

use shoal_format::ram::{LEASE_AT, LEASE_BYTES, Lease};
use shoal_media::BlockDevice;
use shoal_nbd::{Claim, ClientId, ConnectError};

use super::name::Donor;
use super::reach::Reached;
use crate::donor_link::DonorLink;
use crate::failure::{During, Failure, Outcome};

/// Three renewals.
pub(super) const WATCHED: Duration = Duration::from_secs(3);

/// A new id: half of it for the lock, half at random.
pub(super) fn client_id(lock: Option<&File>) -> Outcome<ClientId> {
    let mut id: ClientId = shoal_host::random_bytes().during("random numbers")?;
    if let Some(found) = lock.and_then(|lock| lock.metadata().ok()) {
        let boot = shoal_host::boot_id().during("boot id")?;
        let mut hasher = DefaultHasher::new();
        (boot, found.dev(), found.ino()).hash(&mut hasher);
        id[..8].copy_from_slice(&hasher.finish().to_le_bytes());
    }
    Ok(id)
}

pub(super) fn refused(donor: &Donor, error: &ConnectError) -> Failure {
    let cause = match error {
        ConnectError::Handshake { source, .. } => source.to_string(),
        ConnectError::Connect { source, .. } | ConnectError::Io { source, .. } => source.to_string(),
        other => other.to_string(),
    };
    Failure::new(format_args!("donor {donor}"), cause)
}

/// Claims all donors for this client; the error names one that another client has. Returns them with their present
/// contents.
pub(super) fn claim(
    reached: Vec<&Reached>,
    client: ClientId,
    uuid: &[u8; 16],
    takeover: bool,
) -> Outcome<Vec<Reached>> {
    let how = if takeover { Claim::Seize(client) } else { Claim::Open(client) };
    for one in &reached {
        one.link.claim(how).map_err(|error| refused(&one.donor, &error))?;
    }
    let others: Vec<&&Reached> = reached.iter().filter(|one| !one.link.is_fenced()).collect();
    let before: Vec<Option<Lease>> = others.iter().map(|one| held(&one.link)).collect();
    let held_by_another = |lease: &Lease| !lease.released && lease.client != client;
    if before.iter().flatten().any(held_by_another) {
        if takeover {
            // The old client finds it at its next renewal.
            renew_all(others.iter().map(|one| &*one.link), uuid, client, false);
        }
        std::thread::sleep(WATCHED);
        let dead = |lease: &Lease| lease.client[..8] == client[..8];
        for (one, before) in others.iter().zip(&before) {
            let now = held(&one.link);
            let lives = now.filter(held_by_another).is_some_and(|lease| now != *before && !dead(&lease));
            if lives && !takeover {
                let cause = "another client has its disk open";
                return Err(Failure::new(format_args!("donor {}", one.donor), cause)
                    .remedy("stop it, or take the disk over with --takeover"));
            }
        }
    }
    let again = |one: &Reached| -> Outcome<Reached> {
        let front = one.link.front().during(format_args!("donor {}", one.donor))?;
        Ok(Reached { donor: one.donor.clone(), link: one.link.clone(), front })
    };
    reached.into_iter().map(again).collect()
}

/// The record that a client has left on a donor.
fn held(link: &DonorLink) -> Option<Lease> {
    let mut bytes = vec![0; LEASE_BYTES];
    link.read_into(LEASE_AT as u64, &mut bytes).ok()?;
    Lease::decode(&bytes)
}

/// Renews the records on donors that know no clients, or gives them up. Errors are noticed elsewhere.
pub(super) fn renew_all<'a>(
    links: impl IntoIterator<Item = &'a DonorLink>,
    uuid: &[u8; 16],
    client: ClientId,
    released: bool,
) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let lease = Lease { uuid: *uuid, client, renewed: now.as_nanos() as u64, released };
    for link in links.into_iter().filter(|link| !link.is_fenced() && link.state() == "connected") {
        let _ = link.write_from(LEASE_AT as u64, &lease.encode());
    }
}

/// Has another client left its record on this donor?
pub(super) fn is_anothers(link: &DonorLink, client: ClientId) -> bool {
    !link.is_fenced()
        && link.state() == "connected"
        && held(link).is_some_and(|lease| lease.client != client && !lease.released)
}
