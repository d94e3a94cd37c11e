//! Makes a network RAM disk (`shoal format netram:DONOR,DONOR,...?OPTIONS`).
//!
//! Rules: this is the only way to make a disk. Serving and mounting open an existing disk:
//! restarted donors hold nothing, and an empty disk in place of a full one would be a silent loss.
//! All donors must be there, and each must learn that it belongs to the disk. A donor that holds
//! something is overwritten only with `--force`; a donor that a client has open, never. A disk that
//! cannot be made at all is refused before any donor is written to. A later failure leaves the
//! donors blank.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use shoal_format::ram::DiskSuperblock;
use shoal_host::{FileLock, SystemClock};
use shoal_media::{BlockDevice, write_zeroes};
use shoal_netram::ownership::{Domains, Quorum};
use shoal_netram::{Disk, Engine, Policy};
use tracing::warn;

use super::lease::{self, Book, Ownership};
use super::lock;
use super::name::Netram;
use super::reach::{NotReached, Reached, export_name, key_of, reach_all};
use crate::device::Made;
use crate::device_name::{MakeOptions, Name, Tell};
use crate::donor_link::{FRONT_BYTES, Written};
use crate::failure::{During, Failure, Outcome};
use crate::overwrite;
use crate::size::human;
use crate::uuid::{new_uuid, uuid_text};

/// Time for writing superblocks: a few round trips.
const PATIENCE: Duration = Duration::from_secs(30);

/// Bytes of a donor that are zeroed with one request. A server that writes them must answer before the connection's
/// time-out, and before other clients take this one for dead.
const ZEROED_AT_ONCE: u64 = 16 << 20;

/// How often to say how far the zeroing of a donor is.
const TELL_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, Serialize)]
struct MadeNetram {
    device: String,
    uuid: String,
    policy: &'static str,
    size_bytes: u64,
    donors: usize,
    /// Donors that may be lost at the same time.
    parity: usize,
}

impl fmt::Display for MadeNetram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "network RAM disk {} holds {} on {} donors, of which {} may be lost; serve it with `shoal serve '{}' --nbd ...`, \
             or give it to `shoal format --bulk`",
            self.uuid,
            human(self.size_bytes),
            self.donors,
            self.parity,
            self.device
        )
    }
}

impl Made for MadeNetram {
    fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string_pretty(self)
    }
}

/// Makes a complete disk of this name.
pub(super) fn make(text: &str, options: &MakeOptions) -> Outcome<Box<dyn Made>> {
    let wrong = |what: &str, cause: &str, remedy: &str| Err(Failure::new(what, cause).remedy(remedy).misuse());
    let rest = text.strip_prefix("netram:").unwrap_or(text);
    let parsed = Netram::parse(rest).map_err(|error| Failure::told(error).misuse())?;
    if options.over.is_some() || options.size.is_some() {
        let cause = "belong to a virtual-log disk";
        return wrong("--over, --size", cause, "give the size of a network RAM disk as size=SIZE after its donors");
    }
    let wanted = parsed.with_absolute_paths().during(text)?;
    if wanted.uuid.is_some() {
        return wrong("uuid", "a new disk gets one of its own", "leave it out");
    }
    Ok(Box::new(make_on(&wanted, options)?))
}

fn make_on(wanted: &Netram, options: &MakeOptions) -> Outcome<MadeNetram> {
    let force = options.force;
    let tried = reach_all(wanted, &export_name(wanted)?);
    let all = tried.into_iter().map(|(_, reached)| reached).collect::<Result<Vec<Reached>, NotReached>>();
    let all = all.map_err(|error| match error {
        NotReached::Unfit(failure) => failure,
        away => Failure::told(format!("{away}; a new disk needs all of its donors")),
    })?;
    let reached: Vec<&Reached> = all.iter().collect();
    refuse_if_twice(&reached)?;
    refuse_if_in_use(&reached, force)?;
    let uuid = new_uuid();
    let what = || format!("network RAM disk {}", uuid_text(&uuid));
    let config = shoal_netram::Config { uuid, key: key_of(wanted, &uuid)?, ..wanted.config.clone() };
    if config.key.is_some() && matches!(config.policy, Policy::None | Policy::Cached) {
        warn!(
            "with policy={} no other donor knows what a donor held: one that returns zeros or former contents after a \
             restart is believed; choose a policy with parity unless you trust the donors",
            config.policy.name()
        );
    }
    // An engine without its donors tells whether such a disk is possible.
    let infos = reached.iter().map(|one| one.info()).collect();
    Engine::create(&config, infos, 0).map_err(|error| Failure::new("network RAM disk", error))?;
    let lock = lock(&uuid)?;
    let client = lease::client_id(lock.as_ref().map(FileLock::file))?;
    let quorum = Quorum { counting: reached.len(), parity: 0 };
    let domains = Domains::own(reached.len());
    let book = Book { uuid, key: config.key.clone() };
    let wish = lease::Wish { client, book: &book, takeover: false, quorum, domains, is_new: true };
    let (reached, ownership) = lease::enter(reached, &wish)?;
    // Check again: another client may have made a disk there before the claim.
    refuse_if_it_holds_a_disk(&reached.iter().collect::<Vec<_>>(), force)?;
    let made = write(&config, &reached, &ownership, options.tell).map_err(|failure| failure.within(&what()));
    if made.is_err() {
        // A half-made disk would be in the way of the next attempt. A donor that cannot be written
        // to holds nothing.
        reached.iter().for_each(|one| drop(one.wipe()));
    }
    // The next client need not wait for this one.
    ownership.release(&reached.iter().map(|one| one.link.clone()).collect::<Vec<_>>());
    let size_bytes = made?;
    let named = Netram { uuid: Some(uuid), ..wanted.clone() };
    let plan = config.plan(reached.len()).map_err(|error| Failure::new(what(), error))?;
    Ok(MadeNetram {
        device: named.without_secrets().to_string(),
        uuid: uuid_text(&uuid),
        policy: config.policy.name(),
        size_bytes,
        donors: reached.len(),
        parity: plan.parity,
    })
}

/// Refuses two addresses of one donor. Other servers do not say whose memory they are, and show it by their leases only.
fn refuse_if_twice(reached: &[&Reached]) -> Outcome<()> {
    let before = |number: usize, one: &Reached| reached[..number].iter().find(|other| one.is_same(other)).copied();
    match reached.iter().enumerate().find_map(|(number, one)| Some((one, before(number, one)?))) {
        Some((one, other)) => Err(lease::is_the_same(&one.donor, &other.donor)),
        None => Ok(()),
    }
}

fn refuse_if_in_use(reached: &[&Reached], force: bool) -> Outcome<()> {
    refuse_if_it_holds_a_disk(reached, force)?;
    reached
        .iter()
        .try_for_each(|one| overwrite::refuse_if_not_empty(&*one.device(), format!("donor {}", one.donor), force))
}

fn refuse_if_it_holds_a_disk(reached: &[&Reached], force: bool) -> Outcome<()> {
    for one in reached.iter().filter(|_| !force) {
        let donor = format!("donor {}", one.donor);
        if let Some(uuid) = one.disk() {
            let cause = format!("holds network RAM disk {}", uuid_text(&uuid));
            let remedy = "open that one with `shoal serve`, leave the donor out, or add --force: everything on that disk is lost";
            return Err(Failure::new(donor, cause).remedy(remedy));
        }
    }
    Ok(())
}

/// Writes the disk's superblock to every donor. Returns the size of the disk.
fn write(config: &shoal_netram::Config, reached: &[Reached], ownership: &Ownership, tell: Tell) -> Outcome<u64> {
    for one in reached {
        one.wipe()?;
        ownership.leave(&one.link)?;
        one.link.belongs_to(config.uuid, Written::NotYet);
    }
    if config.key.is_some() {
        zero(reached, ownership, tell)?;
    }
    let donors = reached.iter().map(|one| (one.info(), one.device())).collect();
    let disk = Disk::create(config, donors, Arc::new(SystemClock::new())).map_err(Failure::told)?;
    let begun = Instant::now();
    loop {
        let status = disk.status();
        let told = match status.ready && status.epoch_stored {
            true => first_without(reached, &config.uuid),
            false => Some("its donors".into()),
        };
        match told {
            None => return Ok(disk.geometry().bytes),
            Some(who) if begun.elapsed() > PATIENCE => {
                return Err(Failure::told(format!("{who}: the superblock could not be written; use other donors")));
            }
            Some(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Zeroes donors behind their start, all at the same time. An earlier disk may have left there what nobody should read,
/// and a server may keep what is trimmed.
fn zero(reached: &[Reached], ownership: &Ownership, tell: Tell) -> Outcome<()> {
    std::thread::scope(|scope| {
        let all: Vec<_> = reached.iter().map(|one| scope.spawn(move || zero_one(one, ownership, tell))).collect();
        all.into_iter().try_for_each(|one| one.join().expect("it panics no more than this one"))
    })
}

fn zero_one(one: &Reached, ownership: &Ownership, tell: Tell) -> Outcome<()> {
    let (mut at, end, mut told) = (FRONT_BYTES as u64, one.link.geometry().bytes, Instant::now());
    while at < end {
        let len = ZEROED_AT_ONCE.min(end - at);
        write_zeroes(&*one.device(), at, len).during(format_args!("donor {}", one.donor))?;
        at += len;
        if !one.link.is_fenced() {
            // Other clients see that this one lives, and keep out.
            ownership.leave(&one.link)?;
        }
        if told.elapsed() > TELL_EVERY {
            told = Instant::now();
            tell(&format!("donor {}: {} of {} zeroed", one.donor, human(at), human(end)));
        }
    }
    Ok(())
}

/// Returns a donor that does not say yet that it belongs to the disk.
fn first_without(reached: &[Reached], uuid: &[u8; 16]) -> Option<String> {
    let knows = |number: usize, one: &Reached| {
        let own = one.link.front().ok().and_then(|front| DiskSuperblock::decode(&front).ok());
        own.is_some_and(|own| own.uuid == *uuid && usize::from(own.donor) == number)
    };
    let without = reached.iter().enumerate().find(|(number, one)| !knows(*number, one));
    without.map(|(_, one)| format!("donor {}", one.donor))
}
