//! A network RAM disk put together: connections to its donors, the disk over them, and what is said about both.
//!
//! Owns the decision which disk is there: donors that carry the superblock of one disk open it, blank
//! ones join it; several disks, another disk than the one asked for, or none at all, are errors that name
//! the donors.
//! Rules: opening never makes a disk (`format` does). A donor that refuses us (wrong secret, no room) is an error, one that cannot be
//! reached is missing, which the disk's redundancy may allow. One client has a disk open at a time (`lease`). A donor
//! under memory pressure is drained while another could take its blocks. Donors that went away are taken back when they
//! can be reached again (`keeper`). Left out: where blocks go (`shoal_netram`), short breaks of connections (`nbd_link`).

mod format;
mod keeper;
mod lease;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;
use shoal_host::SystemClock;
use shoal_media::BlockDevice;
use shoal_nbd::{Claim, ClientId, ConnectError};
use shoal_netram::{Disk, DonorId, DonorInfo, DonorState, DonorStatus, Status, identify};
use tracing::{info, warn};

use crate::control::DonorChange;
use crate::device::{Donor, Netram};
use crate::failure::{During, Failure, Outcome};
use crate::nbd_link::{Contents, FRONT_BYTES, Link, Watch};
use crate::size::human;
use crate::status::{self, Checkpoints, Counts, DiskReport, DonorReport, Groups, Rebuild, Redundancy};
use crate::store::uuid_text;

pub use format::format;

/// The unit donors are read and written in (bytes).
const SECTOR_BYTES: u32 = shoal_netram::SECTOR_BYTES;

/// Changes of who belongs to the disk are known to its donors after a few round trips.
const SETTLING: Duration = Duration::from_secs(3);
/// Requests that need a donor that is away wait for so many times `lost-after`.
const PATIENCE: u32 = 6;

pub struct NetramDisk {
    inner: Arc<Inner>,
    keeper: keeper::Keeper,
    _lock: Option<Flock<File>>,
}

/// What the disk and its keeper share.
struct Inner {
    disk: Arc<Disk>,
    uuid: [u8; 16],
    /// What this client is to donors.
    client: ClientId,
    /// As it is to be opened again.
    description: Mutex<Netram>,
    export: String,
    members: Arc<Mutex<BTreeMap<String, Member>>>,
    /// Donors that are not to be taken back.
    dismissed: Mutex<BTreeSet<String>>,
    /// Donors that are to be emptied, and dismissed then.
    leaving: Mutex<BTreeMap<String, keeper::Leaving>>,
}

/// A donor as this process knows it.
struct Member {
    link: Arc<Link>,
    under_pressure: bool,
}

/// A donor that was tried to be reached.
struct Reached {
    donor: Donor,
    link: Arc<Link>,
    front: Vec<u8>,
}

impl Reached {
    fn disk(&self) -> Option<[u8; 16]> {
        identify(&self.front).map(|(uuid, _)| uuid)
    }

    fn info(&self) -> DonorInfo {
        DonorInfo { name: self.donor.to_string(), bytes: self.link.geometry().bytes }
    }

    fn device(&self) -> Arc<dyn BlockDevice> {
        self.link.clone()
    }

    /// An older disk's superblock would be found beside the new one's.
    fn wipe(&self) -> Outcome<()> {
        let wiped = self.link.write_from(0, &[0; FRONT_BYTES]);
        wiped.during(format_args!("donor {}", self.donor))
    }
}

impl NetramDisk {
    pub fn open(wanted: &Netram) -> Outcome<NetramDisk> {
        let export = export_name(wanted)?;
        let tried = reach_all(wanted, &export)?;
        let reached: Vec<&Reached> = tried.iter().filter_map(|(_, reached)| reached.as_ref().ok()).collect();
        let missing = || tried.iter().filter_map(|(_, reached)| reached.as_ref().err());
        let found = which_disk(wanted, &reached)?;
        let uuid = found.ok_or_else(|| absent(wanted, missing().next()))?;
        let lock = lock(&uuid)?;
        let client = lease::client_id(lock.as_deref())?;
        // A client that has the disk open is noticed before anything is written, and has stopped before anything is read.
        let reached = lease::claim(reached, client, &uuid, wanted.takeover)?;
        let reached: Vec<&Reached> = reached.iter().collect();
        if which_disk(wanted, &reached)? != Some(uuid) {
            return Err(Failure::new(
                format!("network RAM disk {}", uuid_text(&uuid)),
                "is not on its donors any more",
            ));
        }
        for one in &reached {
            // What a blank donor holds of an older disk is gone with the first write.
            one.link.belongs_to(uuid, one.disk() == Some(uuid));
        }
        lease::renew_all(reached.iter().map(|one| &*one.link), &uuid, client, false);
        // A donor that is away is waited for longer than it takes to notice that it is: most come back.
        let patience_ms = (wanted.lost_after * PATIENCE).as_millis().try_into().unwrap_or(u32::MAX);
        let config = shoal_netram::Config { uuid, patience_ms, ..wanted.config.clone() };
        for error in missing() {
            warn!("{error}; opening the disk without it");
        }
        let donors = reached.iter().map(|one| ((one.info(), one.device()), one.front.clone()));
        let disk = Disk::open(&config, donors.collect(), Arc::new(SystemClock::new()));
        let disk = Arc::new(disk.map_err(|error| {
            let more = "name more of its donors, or make a new disk in their place with `shoal format --force netram:...`; \
                        everything on this one is lost then";
            Failure::new(format_args!("network RAM disk {}", uuid_text(&uuid)), error).remedy(more)
        })?);
        let policy = disk.status().policy;
        if policy != wanted.config.policy {
            warn!("the disk was made with policy={}, and keeps it", policy.name());
        }
        info!("network RAM disk {} opened", uuid_text(&uuid));
        // From here on it is this disk, and no other.
        let mut description = Netram { uuid: Some(uuid), ..wanted.clone() };
        description.config.policy = policy;
        let description = Mutex::new(description);
        let (members, dismissed, leaving) = (Arc::default(), Mutex::default(), Mutex::default());
        let inner = Arc::new(Inner { disk, uuid, client, description, export, members, dismissed, leaving });
        for one in reached {
            inner.join(&one.donor.to_string(), one.link.clone());
        }
        let keeper = keeper::Keeper::start(&inner).during("thread of the network RAM disk")?;
        Ok(NetramDisk { inner, keeper, _lock: lock })
    }

    pub fn description(&self) -> Netram {
        self.inner.description.lock().clone()
    }

    pub fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.inner.disk.clone()
    }

    pub fn change(&self, change: DonorChange, name: &str) -> Outcome<String> {
        self.inner.change(change, name)
    }

    pub fn report(&self) -> DiskReport {
        self.inner.report()
    }

    /// Nobody has the disk open any more.
    pub fn close(&self) {
        self.keeper.stop();
        self.inner.renew_leases(true);
    }
}

impl Inner {
    fn links(&self) -> Vec<Arc<Link>> {
        self.members.lock().values().map(|member| member.link.clone()).collect()
    }

    fn renew_leases(&self, released: bool) {
        lease::renew_all(self.links().iter().map(|link| &**link), &self.uuid, self.client, released);
    }

    /// Tells the disk what happens to this donor from here on.
    fn join(&self, name: &str, link: Arc<Link>) {
        let lost = {
            let (disk, name) = (Arc::downgrade(&self.disk), name.to_string());
            move || {
                if let Some((disk, id)) = find(&disk, &name) {
                    warn!("donor {name} cannot be reached; going on without it");
                    disk.lost(id);
                }
            }
        };
        let pressure = {
            let (disk, members, name) = (Arc::downgrade(&self.disk), Arc::downgrade(&self.members), name.to_string());
            move |on: bool| {
                if let Some(members) = members.upgrade()
                    && let Some(member) = members.lock().get_mut(&name)
                {
                    member.under_pressure = on;
                }
                if on
                    && let Some((disk, id)) = find(&disk, &name)
                    && !give_back(&disk, id, &name)
                {
                    warn!("donor {name} needs its memory itself, but the others cannot do without it; add a donor");
                }
            }
        };
        let taken_over = {
            let disk = Arc::downgrade(&self.disk);
            move || {
                if let Some(disk) = disk.upgrade() {
                    stop(&disk);
                }
            }
        };
        // First, so that what the watch is told at once has a place.
        self.members.lock().insert(name.to_string(), Member { link: link.clone(), under_pressure: false });
        link.watch(Watch {
            lost: Some(Box::new(lost)),
            taken_over: Some(Box::new(taken_over)),
            pressure: Some(Box::new(pressure)),
        });
    }

    fn change(&self, change: DonorChange, name: &str) -> Outcome<String> {
        if change == DonorChange::Forget {
            return self.forget(name);
        }
        let donor: Donor = name.parse().map_err(|error: String| Failure::told(error))?;
        let name = donor.to_string();
        let known = find(&Arc::downgrade(&self.disk), &name);
        let unknown = || {
            Failure::new(format_args!("donor {name}"), "not in use by this disk")
                .remedy("name one that `shoal status` shows as active")
        };
        match change {
            DonorChange::Add => {
                if known.is_some() {
                    return Err(Failure::new(format_args!("donor {name}"), "is in use by this disk already"));
                }
                let description = self.description.lock().clone();
                let one = reach(&donor, &description, &self.export).map_err(NotReached::into_failure)?;
                if let Some(other) = one.disk().filter(|uuid| *uuid != self.uuid) {
                    return Err(Failure::new(
                        format_args!("donor {name}"),
                        format!("belongs to network RAM disk {}", uuid_text(&other)),
                    )
                    .remedy("use another name there (name=NAME), or let its owner restart it"));
                }
                one.link.claim(Claim::Open(self.client)).map_err(|error| lease::refused(&one.donor, &error))?;
                // While the donors learn of a former change, the number of one that left cannot be another's yet.
                let begun = Instant::now();
                while !self.disk.status().epoch_stored && begun.elapsed() < SETTLING {
                    std::thread::sleep(Duration::from_millis(2));
                }
                // It may have been emptied only just now: it is not to be emptied again.
                if self.leaving.lock().remove(&name).is_some() {
                    self.dismissed.lock().insert(name.clone());
                }
                self.take_in(&one)?;
                // Not before: the keeper would take it back meanwhile.
                self.dismissed.lock().remove(&name);
                let donors = &mut self.description.lock().donors;
                if !donors.contains(&donor) {
                    donors.push(donor);
                }
                Ok(format!("donor {name} joins; name it, too, when the disk is served again"))
            }
            DonorChange::Drain => {
                let (disk, id) = known.ok_or_else(unknown)?;
                let room = disk.drain_room(id);
                if !room.fits() {
                    let cause = format!(
                        "cannot be emptied: {} are stored, and the other donors have room for {} without it",
                        human(room.stored_bytes),
                        human(room.room_bytes)
                    );
                    return Err(Failure::new(format_args!("donor {name}"), cause)
                        .remedy("add a donor first (`shoal donor add`), or trim what is not needed"));
                }
                let mut leaving = self.leaving.lock();
                disk.drain(id);
                leaving.insert(name.clone(), keeper::Leaving::default());
                Ok(format!("donor {name} is being emptied; `shoal status` shows when it is drained"))
            }
            DonorChange::Lost => {
                let (disk, id) = known.ok_or_else(unknown)?;
                let mut dismissed = self.dismissed.lock();
                disk.lost(id);
                dismissed.insert(name.clone());
                Ok(format!("donor {name} is used no more; what it held is rebuilt from the others"))
            }
            DonorChange::Forget => unreachable!("it was done above"),
        }
    }

    /// Takes in a donor whose contents do not matter.
    fn take_in(&self, one: &Reached) -> Outcome<()> {
        one.wipe()?;
        one.link.belongs_to(self.uuid, false);
        let name = one.donor.to_string();
        self.disk.add(one.info(), one.device()).map_err(|error| Failure::new(format_args!("donor {name}"), error))?;
        lease::renew_all([&*one.link], &self.uuid, self.client, false);
        self.join(&name, one.link.clone());
        Ok(())
    }

    /// An administrator's word that a donor will not come back.
    fn forget(&self, name: &str) -> Outcome<String> {
        let status = self.disk.status();
        let named = |donor: &DonorStatus| donor.name == name || donor.name.split(' ').next() == Some(name);
        let found = status.donors.iter().rposition(|donor| named(donor) && !donor.state.is_final());
        let id = found.ok_or_else(|| {
            Failure::new(format_args!("donor {name}"), "is none of this disk's")
                .remedy("name one as `shoal status` does")
        })?;
        let before = status.blocks_lost;
        let mut dismissed = self.dismissed.lock();
        dismissed.insert(status.donors[id].name.clone());
        self.disk.forget(id as DonorId).map_err(|error| Failure::new(format_args!("donor {name}"), error))?;
        Ok(format!(
            "donor {name} is forgotten: what only it held is lost, and reads of it fail ({before} blocks were lost \
             before; `shoal status` counts them)"
        ))
    }

    fn report(&self) -> DiskReport {
        let status = self.disk.status();
        let members = self.members.lock();
        let leaving = self.leaving.lock();
        let donors = status.donors.iter().map(|donor| {
            let member = members.get(&donor.name);
            // Between two tries it is used like the others.
            let rests = donor.state == DonorState::Active && leaving.contains_key(&donor.name);
            let state = if rests { DonorState::Draining } else { donor.state };
            DonorReport {
                name: donor.name.clone(),
                state: state_name(state).into(),
                connection: member.map_or("missing", |member| member.link.state()).into(),
                size_bytes: donor.bytes,
                used_bytes: donor.used_bytes,
                under_pressure: member.is_some_and(|member| member.under_pressure),
            }
        });
        report(&status, self.uuid, donors.collect())
    }
}

fn report(status: &Status, uuid: [u8; 16], donors: Vec<DonorReport>) -> DiskReport {
    // Without parity, what a group misses is gone.
    let blocks_lost = status.blocks_lost + if status.parity_units == 0 { status.blocks_unprotected } else { 0 };
    let state = if blocks_lost > 0 {
        status::LOST
    } else if !status.policy.is_redundant() {
        status::NONE
    } else if status.groups_degraded > 0 || !status.ready {
        status::DEGRADED
    } else {
        status::FULL
    };
    let counts = &status.counts;
    let seconds = |ns: u64| ns as f64 / 1e9;
    DiskReport {
        uuid: uuid_text(&uuid),
        policy: status.policy.name().into(),
        ready: status.ready,
        block_bytes: status.block_bytes,
        data_units: status.data_units,
        parity_units: status.parity_units,
        donors,
        groups: Groups { all: status.groups, open: status.groups_open, degraded: status.groups_degraded },
        redundancy: Redundancy { state: state.into(), blocks_unprotected: status.blocks_unprotected, blocks_lost },
        rebuild: status.repair.map(|repair| Rebuild {
            groups: repair.groups,
            groups_done: repair.groups_done,
            seconds: seconds(repair.running_ns),
            seconds_left: repair.left_ns.map(seconds),
        }),
        checkpoints: Checkpoints {
            completed: counts.checkpoints,
            opened: counts.opened_by_checkpoint,
            unused: status.checkpoint_unused.map(Into::into),
        },
        counts: Counts {
            blocks_mapped: counts.mapped,
            blocks_read: counts.blocks_read,
            blocks_written: counts.blocks_written,
            blocks_absorbed: counts.absorbed,
            sent_data: counts.sent_data,
            sent_parity: counts.sent_parity,
            cleaned: counts.cleaned_data + counts.cleaned_parity,
            reconstructed: counts.reconstructed,
        },
    }
}

fn state_name(state: DonorState) -> &'static str {
    match state {
        DonorState::Joining => "joining",
        DonorState::Active => "active",
        DonorState::Draining => "draining",
        DonorState::Returning => "returning",
        DonorState::Missing => "missing",
        DonorState::Forgotten => "forgotten",
        DonorState::Drained => "drained",
        DonorState::Lost => "lost",
    }
}

/// The donor of this name that is in use. One that left may have had the same name.
fn find(disk: &Weak<Disk>, name: &str) -> Option<(Arc<Disk>, DonorId)> {
    let disk = disk.upgrade()?;
    let in_use = |donor: &DonorStatus| donor.name == name && donor.state.is_in_use();
    let id = disk.status().donors.iter().rposition(in_use)?;
    Some((disk, id as DonorId))
}

/// Another client has the disk.
fn stop(disk: &Disk) {
    warn!("another client has taken the disk over; stopping");
    disk.taken_over();
}

/// Gives a donor its memory back, if what is stored fits on the others. False if not.
fn give_back(disk: &Disk, id: DonorId, name: &str) -> bool {
    let status = disk.status();
    let is_active = |donor: &DonorStatus| donor.state == DonorState::Active;
    let active = status.donors.iter().filter(|donor| is_active(donor)).count();
    if !status.donors.get(id as usize).is_some_and(is_active) {
        // It is being emptied already, or does not hold anything yet.
        return true;
    }
    let fits = active > status.parity_units + 1 && disk.drain_room(id).fits();
    if fits {
        warn!("donor {name} needs its memory itself: it is being emptied");
        disk.drain(id);
    }
    fits
}

/// What this client asks donors for: its name, with its secret if it has one.
fn export_name(wanted: &Netram) -> Outcome<String> {
    let Some(path) = &wanted.secret else { return Ok(wanted.name.clone()) };
    let text = fs::read_to_string(path).during(format_args!("secret {}", path.display()))?;
    let secret = text.lines().next().unwrap_or_default();
    if secret.is_empty() {
        return Err(Failure::new(format_args!("secret {}", path.display()), "the first line is empty"));
    }
    Ok(format!("{}:{secret}", wanted.name))
}

/// Why a donor is not there.
enum NotReached {
    /// Its machine or its server is away.
    Away(String),
    /// It answers, and will not do.
    Unfit(Failure),
}

impl NotReached {
    fn into_failure(self) -> Failure {
        match self {
            NotReached::Away(error) => Failure::told(error),
            NotReached::Unfit(failure) => failure,
        }
    }
}

fn reach(donor: &Donor, wanted: &Netram, export: &str) -> Result<Reached, NotReached> {
    let uri = donor.uri(export, wanted.certificates.as_deref());
    let unfit = |cause: String, remedy: &str| {
        NotReached::Unfit(Failure::new(format_args!("donor {donor}"), cause).remedy(remedy))
    };
    let link = Link::connect(&uri, Contents::Donor, wanted.lost_after).map_err(|error| match error {
        // The URI would tell the secret.
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
    let front = link.front().map_err(|error| unfit(error.to_string(), "use another donor, or give it more memory"))?;
    Ok(Reached { donor: donor.clone(), link: Arc::new(link), front })
}

type Tried = Vec<(Donor, Result<Reached, String>)>;

/// All donors at the same time: one that hangs must not add its patience to the others'.
fn reach_all(wanted: &Netram, export: &str) -> Outcome<Tried> {
    let tried: Vec<_> = std::thread::scope(|scope| {
        let start = |donor| scope.spawn(move || reach(donor, wanted, export));
        let threads: Vec<_> = wanted.donors.iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut all = Tried::new();
    for (donor, reached) in wanted.donors.iter().zip(tried) {
        let reached = reached.unwrap_or_else(|_| Err(NotReached::Away(format!("donor {donor}: its thread failed"))));
        let reached = match reached {
            Ok(one) => Ok(one),
            Err(NotReached::Away(error)) => Err(error),
            Err(NotReached::Unfit(failure)) => return Err(failure),
        };
        all.push((donor.clone(), reached));
    }
    Ok(all)
}

/// No donor that can be reached holds the disk. `away`: what is known of one that cannot be.
fn absent(wanted: &Netram, away: Option<&String>) -> Failure {
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

/// The disk that the donors carry.
fn which_disk(wanted: &Netram, reached: &[&Reached]) -> Outcome<Option<[u8; 16]>> {
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

/// Two processes that open one disk would destroy it. Those of other users and machines cannot be seen.
fn lock(uuid: &[u8; 16]) -> Outcome<Option<Flock<File>>> {
    let path = status::run_directory().join(format!("netram-{}.lock", uuid_text(uuid)));
    let open = || {
        fs::create_dir_all(path.parent().unwrap_or(Path::new("/")))?;
        File::options().create(true).append(true).open(&path)
    };
    let file = match open() {
        Ok(file) => file,
        Err(error) => {
            warn!("{}: {error}; nothing keeps another process from opening the disk", path.display());
            return Ok(None);
        }
    };
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(Some(lock)),
        Err(_) => Err(Failure::new(
            format_args!("network RAM disk {}", uuid_text(uuid)),
            "another process on this machine has it open",
        )
        .remedy("stop that one first, or use other donors")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::new_uuid;

    fn secret(text: &str) -> (tempfile::TempDir, Netram) {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("s"), text).unwrap();
        let line = format!("netram:a:1,b:2?name=me&secret={}", dir.path().join("s").display());
        let crate::device::Description::Netram(wanted) = line.parse().unwrap() else { panic!() };
        (dir, *wanted)
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

    #[test]
    fn a_disk_is_opened_once_at_a_time() {
        let uuid = new_uuid().unwrap();
        assert_eq!((uuid[6] >> 4, uuid[8] >> 6), (4, 2));
        let Some(held) = lock(&uuid).unwrap() else { return };
        assert!(lock(&uuid).unwrap_err().to_string().contains("another process"));
        drop(held);
        lock(&uuid).unwrap();
        let _ = fs::remove_file(status::run_directory().join(format!("netram-{}.lock", uuid_text(&uuid))));
    }
}
