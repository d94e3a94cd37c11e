//! A network RAM disk put together: connections to its donors, the disk over them, and reports on
//! both.
//!
//! | module | owns |
//! |---|---|
//! | `name` | the name of a disk: its donors and options |
//! | `reach` | connections to donors, and which disk they hold |
//! | `lease` | one client at a time |
//! | `make` | new disks |
//! | `change` | an administrator's changes of the donors |
//! | `keeper` | donors that went away and come back, need their memory, or are to leave |
//! | `report` | the status of a disk |
//! | `told` | changes of the status, in the log |
//!
//! Rules: opening never makes a disk (`make` does). One client has a disk open at a time. A donor
//! under memory pressure is drained if the others could take its blocks. Donors that went away are
//! taken back when they can be reached again. Left out: where blocks go (`shoal_netram`), short
//! breaks of connections (`shoal_nbd::Link`).

mod change;
mod keeper;
mod lease;
mod make;
mod name;
mod reach;
mod report;
mod told;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use serde_json::{Map, Value};
use shoal_host::{FileLock, SystemClock, Ticker};
use shoal_media::{BlockDevice, MediaError};
use shoal_nbd::export::BASE_ALLOCATION;
use shoal_nbd::{BlockStatus, Extent};
use shoal_netram::{Disk, DiskError, DonorId, DonorState, DonorStatus, Members, Past, SealKey};
use tracing::{info, warn};

use crate::allocation::extents;
use crate::device::{Device, DonorChange};
use crate::device_name::{DeviceName, Kind};
use crate::donor_link::{DonorLink, LinkListener, Written};
use crate::failure::{During, Failure, Outcome};
use crate::uuid::uuid_text;

pub use name::{Donor, Netram};
pub use report::DiskReport;

use lease::Ownership;
use reach::{Reached, choose, export_name, keep_signed, key_of, leave_out_unsigned, not_there, reach_all, which_disk};

pub static KIND: Kind = Kind {
    name: "netram",
    words: "network RAM disk",
    form: "netram:DONOR,DONOR,...?OPTIONS",
    about: "a network RAM disk, in the memory of other machines",
    schemes: &["netram"],
    // Opening writes leases, and starts the keeper.
    opening_writes: true,
    opens_files: true,
    parse: |text| text.strip_prefix("netram:").map(|rest| Netram::parse(rest).map(DeviceName::new)),
    make: Some(make::make),
    text: report::text,
};

/// The unit donors are read and written in (bytes).
const SECTOR_BYTES: u32 = shoal_netram::SECTOR_BYTES;

/// How long requests wait for a missing donor, as a multiple of `lost-after`.
const PATIENCE: u32 = 6;

/// An open network RAM disk.
pub(crate) struct NetramDisk {
    inner: Arc<Inner>,
    keeper: Ticker,
    renewals: Ticker,
    _lock: Option<FileLock>,
}

/// State shared by the disk and its keeper.
struct Inner {
    disk: Arc<Disk>,
    uuid: [u8; 16],
    ownership: Arc<Ownership>,
    /// The description with which the disk is opened again.
    name: Mutex<Netram>,
    export: String,
    members: Arc<Mutex<BTreeMap<String, Member>>>,
    /// Held while a donor joins or is released. What a thread found out before a donor joined must
    /// not make it release that donor, or the reverse.
    joining: Mutex<()>,
    /// Donors that must not be taken back.
    dismissed: Mutex<BTreeSet<String>>,
    /// Donors to be emptied, and then dismissed.
    leaving: Mutex<BTreeMap<String, keeper::Leaving>>,
    /// Donors that this process emptied, and that do not have the disk's superblock yet.
    emptied: Mutex<BTreeSet<String>>,
    told: Mutex<told::Told>,
}

/// A donor as this process knows it.
struct Member {
    link: Arc<DonorLink>,
    under_pressure: bool,
}

/// Returns who belongs to the disk, as far as these donors say.
fn members_of(reached: &[&Reached], uuid: &[u8; 16], key: Option<&SealKey>) -> Result<Members, DiskError> {
    let names: Vec<String> = reached.iter().map(|one| one.donor.to_string()).collect();
    let donors = names.iter().zip(reached).map(|(name, one)| (&**name, &*one.front));
    shoal_netram::members(&donors.collect::<Vec<(&str, &[u8])>>(), uuid, key)
}

impl NetramDisk {
    pub(crate) fn open(wanted: &Netram) -> Outcome<NetramDisk> {
        let export = export_name(wanted)?;
        let mut tried = reach_all(wanted, &export);
        choose(wanted, &mut tried);
        leave_out_unsigned(wanted, &mut tried)?;
        let reached: Vec<&Reached> = tried.iter().filter_map(|(_, reached)| reached.as_ref().ok()).collect();
        let Some(uuid) = which_disk(wanted, &reached)? else { return Err(not_there(wanted, tried)) };
        let what = || format!("network RAM disk {}", uuid_text(&uuid));
        let key = key_of(wanted, &uuid)?;
        let members = members_of(&reached, &uuid, key.as_ref()).map_err(|error| Failure::new(what(), error))?;
        let lock = lock(&uuid)?;
        let client = lease::client_id(lock.as_ref().map(FileLock::file))?;
        // A client that has the disk open is noticed before anything is written, and has stopped
        // before anything is read.
        let (takeover, quorum, domains) = (wanted.takeover, members.quorum, members.domains);
        let book = lease::Book { uuid, key };
        let wish = lease::Wish { client, book: &book, takeover, quorum, domains, is_new: false };
        let (mut reached, ownership) = lease::enter(reached, &wish)?;
        if let Some(key) = &book.key {
            reached.iter_mut().for_each(|one| _ = keep_signed(&mut one.front, key));
        }
        let reached: Vec<&Reached> = reached.iter().collect();
        if which_disk(wanted, &reached)? != Some(uuid) {
            return Err(Failure::new(what(), "is not on its donors any more"));
        }
        for one in &reached {
            // A blank donor has no superblock of this disk yet, so a reconnection cannot require
            // one.
            let written = if one.disk() == Some(uuid) { Written::Already } else { Written::NotYet };
            one.link.belongs_to(uuid, written);
            one.link.is_at(one.place());
        }
        // Wait for a missing donor longer than it takes to notice the loss, since most donors come
        // back.
        let patience_ms = (wanted.lost_after * PATIENCE).as_millis().try_into().unwrap_or(u32::MAX);
        let config = shoal_netram::Config { uuid, patience_ms, key: book.key, ..wanted.config.clone() };
        for error in tried.iter().filter_map(|(_, reached)| reached.as_ref().err()) {
            warn!("{error}; opening the disk without it");
        }
        let donors = reached.iter().map(|one| ((one.info(), one.device()), one.front.clone()));
        let disk = Disk::open(&config, donors.collect(), Arc::new(SystemClock::new()));
        let disk = Arc::new(disk.map_err(|error| {
            let more = "name more of its donors, or make a new disk in their place with `shoal format --force netram:...`; \
                        everything on this one is lost then";
            Failure::new(what(), error).remedy(more)
        })?);
        disk.permitted_by(ownership.clone());
        let policy = disk.status().policy;
        if policy != wanted.config.policy {
            warn!("the disk was made with policy={}, and keeps it", policy.name());
        }
        info!("network RAM disk {} opened", uuid_text(&uuid));
        // From here on the name stands for this disk only.
        let mut name = Netram { uuid: Some(uuid), ..wanted.clone() };
        name.config.policy = policy;
        let name = Mutex::new(name);
        let (members, dismissed, leaving) = (Arc::default(), Mutex::default(), Mutex::default());
        let (joining, emptied, told) = (Mutex::default(), Mutex::default(), Mutex::default());
        let inner = Arc::new(Inner {
            disk,
            uuid,
            ownership,
            name,
            export,
            members,
            joining,
            dismissed,
            leaving,
            emptied,
            told,
        });
        for one in reached {
            inner.join(&one.donor.to_string(), one.link.clone());
        }
        let what = "thread of the network RAM disk";
        let renewals = lease::start(&inner).during(what)?;
        let keeper = keeper::start(&inner).during(what)?;
        Ok(NetramDisk { inner, keeper, renewals, _lock: lock })
    }
}

impl Device for NetramDisk {
    fn name(&self) -> DeviceName {
        DeviceName::new(self.inner.name.lock().clone())
    }

    fn block_device(&self) -> Arc<dyn BlockDevice> {
        self.inner.disk.clone()
    }

    fn own_report(&self) -> Map<String, Value> {
        [("disk".into(), serde_json::json!(self.inner.report()))].into_iter().collect()
    }

    fn troubles(&self) -> Vec<String> {
        report::troubles(&self.inner.report())
    }

    /// Ends the use of the disk: stops its threads, releases its leases, and leaves its donors.
    fn close(&self) -> Outcome<()> {
        self.keeper.stop();
        self.renewals.stop();
        let links = self.inner.links();
        self.inner.ownership.release(&links);
        // The process may end before the last owner of a link drops it. A donor that gets no goodbye waits for this
        // client to come back.
        std::thread::scope(|scope| {
            for link in &links {
                scope.spawn(|| link.close());
            }
        });
        Ok(())
    }

    fn contexts(&self) -> Vec<Arc<dyn BlockStatus>> {
        vec![Arc::new(Redundancy(self.inner.clone())), Arc::new(Allocation(self.inner.clone()))]
    }

    fn change(&self, change: DonorChange, donor: &str) -> Outcome<String> {
        self.inner.change(change, donor)
    }
}

/// Which blocks hold something.
struct Allocation(Arc<Inner>);

impl BlockStatus for Allocation {
    fn context(&self) -> &str {
        BASE_ALLOCATION
    }

    fn status(&self, at: u64, len: u32, extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        Ok(extents(self.0.disk.allocation(at, len.into(), extents_max)))
    }
}

/// `shoal:redundancy`: 1 if the loss of a donor would lose data.
struct Redundancy(Arc<Inner>);

impl BlockStatus for Redundancy {
    fn context(&self) -> &str {
        "shoal:redundancy"
    }

    fn status(&self, _at: u64, len: u32, _extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        // Report one state for the whole disk: the set of repaired blocks changes while the answer
        // travels.
        Ok(vec![Extent { len, flags: u32::from(!self.0.report().survives_a_loss()) }])
    }
}

impl Inner {
    fn links(&self) -> Vec<Arc<DonorLink>> {
        self.members.lock().values().map(|member| member.link.clone()).collect()
    }

    /// Adds a member, and tells the disk of its events from here on.
    fn join(&self, name: &str, link: Arc<DonorLink>) {
        // A link may end after its donor has left the disk. The donor's name and its number may
        // belong to a successor by then.
        let device: Weak<dyn BlockDevice> = Arc::downgrade(&link) as _;
        let lost = {
            let (disk, device, name) = (Arc::downgrade(&self.disk), device.clone(), name.to_string());
            move || {
                if disk.upgrade().is_some_and(|disk| disk.lost_device(&device)) {
                    warn!("donor {name} cannot be reached; going on without it");
                }
            }
        };
        let pressure = {
            let (disk, members, name) = (Arc::downgrade(&self.disk), Arc::downgrade(&self.members), name.to_string());
            let mark = link.mark();
            move |on: bool| {
                if let Some(members) = members.upgrade()
                    && let Some(member) = members.lock().get_mut(&name).filter(|member| member.link.mark() == mark)
                {
                    member.under_pressure = on;
                }
                if on
                    && let Some(disk) = disk.upgrade()
                    && let Some(id) = disk.served_by(&device)
                    && !give_back(&disk, id, &name)
                {
                    warn!("donor {name} needs its memory itself, but the others cannot do without it; add a donor");
                }
            }
        };
        let taken_over = {
            let (disk, ownership, mark) = (Arc::downgrade(&self.disk), self.ownership.clone(), link.mark());
            move || {
                ownership.lost_to_another(mark);
                // The quorum decides, not this donor.
                if let Some(disk) = disk.upgrade().filter(|_| ownership.is_over()) {
                    stop(&disk);
                }
            }
        };
        self.ownership.uses(&link);
        // Insert the member first, so that an event told at once finds it.
        let former = self.members.lock().insert(name.to_string(), Member { link: link.clone(), under_pressure: false });
        former.iter().for_each(|former| self.ownership.lets_go(former.link.mark()));
        // Drop it without the lock: its thread may be reporting pressure.
        drop(former);
        link.listen(LinkListener {
            lost: Some(Box::new(lost)),
            taken_over: Some(Box::new(taken_over)),
            pressure: Some(Box::new(pressure)),
        });
    }

    /// Takes in a donor whose contents do not matter.
    fn take_in(&self, one: &Reached) -> Outcome<()> {
        let name = one.donor.to_string();
        // A server that is empty, although this process has not emptied it, was restarted, so
        // nothing is left of its former connections.
        let was_emptied = !self.emptied.lock().insert(name.clone());
        let may_write = !one.link.is_fenced() && (was_emptied || !one.is_blank());
        let past = if may_write { Past::MayWrite } else { Past::Over };
        one.wipe()?;
        one.link.belongs_to(self.uuid, Written::NotYet);
        self.disk
            .add(one.info(), one.device(), past)
            .map_err(|error| Failure::new(format_args!("donor {name}"), error))?;
        self.join(&name, one.link.clone());
        Ok(())
    }
}

/// Finds the donor of this name that is in use. A donor that left may have had the same name.
fn find(disk: &Weak<Disk>, name: &str) -> Option<(Arc<Disk>, DonorId)> {
    let disk = disk.upgrade()?;
    let in_use = |donor: &DonorStatus| donor.name == name && donor.state.is_in_use();
    let id = disk.status().donors.iter().rposition(in_use)?;
    Some((disk, id as DonorId))
}

/// Stops the disk, since another client has it.
fn stop(disk: &Disk) {
    if disk.is_taken_over() {
        return;
    }
    warn!("another client has taken the disk over; stopping");
    disk.taken_over();
}

/// Empties a donor if its contents fit on the others. Returns false if they do not.
fn drain_if_it_fits(disk: &Disk, id: DonorId) -> bool {
    let fits = disk.drain_room(id).fits();
    if fits {
        disk.drain(id);
    }
    fits
}

/// Gives a donor its memory back if its contents fit on the others. Returns false if they do not.
fn give_back(disk: &Disk, id: DonorId, name: &str) -> bool {
    let status = disk.status();
    let is_active = |donor: &DonorStatus| donor.state == DonorState::Active;
    let active = status.donors.iter().filter(|donor| is_active(donor)).count();
    if !status.donors.get(id as usize).is_some_and(is_active) {
        // The donor is already being emptied, or holds nothing yet.
        return true;
    }
    let is_emptied = active > status.parity_units + 1 && drain_if_it_fits(disk, id);
    if is_emptied {
        warn!("donor {name} needs its memory itself: it is being emptied");
    }
    is_emptied
}

/// Locks a disk, since two processes that open it would destroy it. Processes of other users and
/// machines do not see the lock; leases keep them out.
fn lock(uuid: &[u8; 16]) -> Outcome<Option<FileLock>> {
    let uuid = uuid_text(uuid);
    crate::disk_lock::lock("netram", &uuid, format_args!("network RAM disk {uuid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uuid::new_uuid;

    #[test]
    fn a_disk_is_opened_once_at_a_time() {
        let uuid = new_uuid();
        let Some(held) = lock(&uuid).unwrap() else { return };
        assert!(lock(&uuid).unwrap_err().to_string().contains("another process"));
        drop(held);
        lock(&uuid).unwrap();
        let _ = std::fs::remove_file(crate::run_directory().join(format!("netram-{}.lock", uuid_text(&uuid))));
    }
}
