//! An administrator's changes of a network RAM disk's donors: add, drain, lost, forget. Also the
//! cost of forgetting, scrubs, rebalances, and growing.
//!
//! Rules: each change is answered when it has begun, and the answer says in words what follows. A
//! donor that was dismissed stays away until it is added again. Left out: what the disk does about
//! it (`shoal_netram`), donors that come and go by themselves (`keeper`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use shoal_media::BlockDevice;
use shoal_nbd::Claim;
use shoal_netram::{Disk, DonorId, DonorState, DonorStatus};

use super::name::Donor;
use super::reach::{NotReached, reach};
use super::{Inner, find, keeper, lease};
use crate::device::DonorChange;
use crate::failure::{Failure, Outcome};
use crate::size::{Size, human};
use crate::uuid::uuid_text;

/// Time in which the donors learn of a change of the disk's members: a few round trips.
const SETTLING: Duration = Duration::from_secs(3);
/// How long a change that needs the whole disk waits while the disk is still being opened.
const OPENING: Duration = Duration::from_secs(5);

impl Inner {
    pub(super) fn change(&self, change: DonorChange, name: &str) -> Outcome<String> {
        let parse = || name.parse::<Donor>().map_err(Failure::told);
        match change {
            DonorChange::Add => self.add(parse()?),
            DonorChange::Drain => self.drain(&parse()?),
            DonorChange::Lost => self.lose(&parse()?),
            DonorChange::Forget => self.forget(&parse().map_or(name.into(), |donor| donor.to_string())),
            DonorChange::Cost => self.cost(&parse().map_or(name.into(), |donor| donor.to_string())),
            DonorChange::Scrub => Ok(self.scrub()),
            DonorChange::Rebalance => Ok(self.rebalance()),
            DonorChange::StopRebalance => Ok(self.stop_rebalance()),
            DonorChange::Grow => self.grow(name),
        }
    }

    /// Finds a donor that the disk uses.
    fn in_use(&self, donor: &Donor) -> Outcome<(Arc<Disk>, DonorId)> {
        find(&Arc::downgrade(&self.disk), &donor.to_string()).ok_or_else(|| {
            Failure::new(format_args!("donor {donor}"), "not in use by this disk")
                .remedy("name one that `shoal status` shows as active")
        })
    }

    fn add(&self, donor: Donor) -> Outcome<String> {
        let name = donor.to_string();
        if self.in_use(&donor).is_ok() {
            return Err(Failure::new(format_args!("donor {name}"), "is in use by this disk already"));
        }
        let mut disk_name = self.name.lock().clone();
        disk_name.donors.retain(|other| other.at != donor.at);
        disk_name.donors.push(donor.clone());
        disk_name.check_domains().map_err(Failure::told)?;
        let one = reach(&donor, &disk_name, &self.export).map_err(NotReached::into_failure)?;
        if let Some(other) = one.disk().filter(|uuid| *uuid != self.uuid) {
            return Err(Failure::new(
                format_args!("donor {name}"),
                format!("belongs to network RAM disk {}", uuid_text(&other)),
            )
            .remedy("use another name there (name=NAME), or let its owner restart it"));
        }
        match self.disk.donor_of(&one.front) {
            Some((_, other, true)) => {
                let cause = format!("is in use by this disk already, as donor {other}");
                return Err(Failure::new(format_args!("donor {name}"), cause));
            }
            // A missing donor is expected back with its contents. Only a dismissed donor whose
            // blocks are all on other donors joins again empty.
            Some((id, _, false)) if !self.dismissed.lock().contains(&name) || self.misses(id) => {
                return Ok(self.expect_back(donor));
            }
            _ => {}
        }
        // The keeper may be about to release the former member.
        let _joining = self.joining.lock();
        // The former member's connection would take the donor back from the new connection.
        let former = self.members.lock().remove(&name);
        // Drop it without the lock: its thread may be reporting pressure.
        drop(former);
        one.link
            .claim(Claim::Open(self.ownership.client, self.ownership.epoch()))
            .map_err(|error| lease::refused(&one.donor, &error))?;
        // Until all donors have learnt of a former change, the number of a donor that left cannot
        // be reused.
        let begun = Instant::now();
        while !self.disk.status().epoch_stored && begun.elapsed() < SETTLING {
            std::thread::sleep(Duration::from_millis(2));
        }
        // The donor may have been emptied just now. It must not be emptied again.
        if self.leaving.lock().remove(&name).is_some() {
            self.dismissed.lock().insert(name.clone());
        }
        self.take_in(&one)?;
        // Expect it back only now. Earlier, the keeper would take the donor back meanwhile.
        Ok(self.expect_back(donor))
    }

    /// Returns whether blocks would be lost if a donor's contents never came back.
    fn misses(&self, id: DonorId) -> bool {
        self.disk.forget_cost(id).map_or(true, |cost| cost.lost + cost.waiting > 0)
    }

    /// Lets the keeper take a donor back whenever it is missing.
    fn expect_back(&self, donor: Donor) -> String {
        let name = donor.to_string();
        self.leaving.lock().remove(&name);
        self.dismissed.lock().remove(&name);
        let donors = &mut self.name.lock().donors;
        let text = donor.text();
        match donors.iter_mut().find(|known| known.at == donor.at) {
            Some(known) => *known = donor,
            None => donors.push(donor),
        }
        format!("donor {text} joins; name it, too, when the disk is served again")
    }

    fn drain(&self, donor: &Donor) -> Outcome<String> {
        let name = donor.to_string();
        let (disk, id) = self.in_use(donor)?;
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

    fn lose(&self, donor: &Donor) -> Outcome<String> {
        let name = donor.to_string();
        let (disk, id) = self.in_use(donor)?;
        let mut dismissed = self.dismissed.lock();
        disk.lost(id);
        dismissed.insert(name.clone());
        Ok(format!("donor {name} is used no more; what it held is rebuilt from the others"))
    }

    fn scrub(&self) -> String {
        match self.disk.scrub() {
            true => "a scrub has begun; `shoal status` shows how far it is".into(),
            false => "a scrub is under way already".into(),
        }
    }

    fn rebalance(&self) -> String {
        match self.disk.rebalance() {
            true => "a rebalance has begun; `shoal status` shows how far it is".into(),
            false => "a rebalance is under way already".into(),
        }
    }

    fn stop_rebalance(&self) -> String {
        match self.disk.stop_rebalance() {
            true => "the rebalance has ended; what it moved stays where it is".into(),
            false => "no rebalance is under way".into(),
        }
    }

    fn grow(&self, size: &str) -> Outcome<String> {
        let what = || format!("network RAM disk {}", uuid_text(&self.uuid));
        let wanted: Size = size.parse().map_err(Failure::told)?;
        let begun = Instant::now();
        while !self.disk.is_ready() && begun.elapsed() < OPENING {
            std::thread::sleep(Duration::from_millis(10));
        }
        let bytes = self.disk.grow(wanted.0).map_err(|error| Failure::new(what(), error))?;
        let begun = Instant::now();
        while self.disk.geometry().bytes < bytes {
            if begun.elapsed() > SETTLING {
                let cause = "too few of its donors have stored the new size so far";
                return Err(Failure::new(what(), cause)
                    .remedy("bring donors back; `shoal status` shows the new size when it counts"));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(format!("the disk holds {} now; NBD clients see that when they connect again", human(bytes)))
    }

    /// Finds the donor of this name that the disk still refers to. A donor that came back empty has
    /// a new number but its former name. If the donor of the former number is missing, it is the
    /// one returned.
    fn referred(&self, name: &str) -> Outcome<(DonorStatus, DonorId)> {
        let mut status = self.disk.status();
        let named = |donor: &DonorStatus| donor.name == name || donor.name.split(' ').next() == Some(name);
        let is_referred = |donor: &DonorStatus| named(donor) && !donor.state.is_final();
        let is_missing = |donor: &DonorStatus| is_referred(donor) && donor.state == DonorState::Missing;
        let found = status.donors.iter().rposition(is_missing).or_else(|| status.donors.iter().rposition(is_referred));
        let id = found.ok_or_else(|| {
            Failure::new(format_args!("donor {name}"), "is none of this disk's")
                .remedy("name one as `shoal status` does")
        })?;
        Ok((status.donors.swap_remove(id), id as DonorId))
    }

    fn cost_of(&self, name: &str, id: DonorId) -> Outcome<String> {
        let cost = self.disk.forget_cost(id).map_err(|error| Failure::new(format_args!("donor {name}"), error))?;
        let lost = match cost.lost {
            0 => "no block is lost".into(),
            blocks => format!("{blocks} blocks are lost, and reads of them fail for ever"),
        };
        Ok(match cost.waiting {
            0 => lost,
            blocks => {
                format!("{lost}; {blocks} more can be read only when others come back ({})", cost.away.join(", "))
            }
        })
    }

    /// Says what `forget` would do.
    fn cost(&self, name: &str) -> Outcome<String> {
        let (_, id) = self.referred(name)?;
        Ok(format!("if donor {name} is forgotten now, {}; nothing was changed", self.cost_of(name, id)?))
    }

    /// Forgets a donor, on an administrator's word that it will not come back.
    fn forget(&self, name: &str) -> Outcome<String> {
        let (donor, id) = self.referred(name)?;
        let cost = self.cost_of(name, id)?;
        let mut dismissed = self.dismissed.lock();
        // Dismiss the name, unless a successor of the donor is in use under it.
        let donors = self.disk.status().donors;
        let mut others = donors.iter().enumerate().filter(|(other, _)| *other != usize::from(id));
        if !others.any(|(_, other)| other.name == donor.name && other.state.is_in_use()) {
            dismissed.insert(donor.name);
        }
        self.disk.forget(id).map_err(|error| Failure::new(format_args!("donor {name}"), error))?;
        Ok(format!("donor {name} is forgotten: {cost} (`shoal status` counts lost blocks)"))
    }
}
