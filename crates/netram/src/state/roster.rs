//! The donors as a whole: which take units, which are expected back, and whether there are enough.
//!
//! Rules: a donor takes new units while it is in use, has not just refused a write, and is not set
//! aside. Requests wait for donors that are expected back as long as the disk's patience lasts.
//! Left out: how donors come and go (`membership`).

use shoal_format::ram::{DONORS_MAX, SUPERBLOCK_BYTES};
use shoal_format::ram_checkpoint;

use crate::api::{DiskError, DonorId, DonorInfo};
use crate::sealed;
use crate::state::State;
use crate::state::donors::{Donor, DonorState};
use crate::state::place::Member;
use crate::state::units::FreeUnit;
use crate::views::Roster;

impl State {
    /// Enters a donor that holds nothing, at the place of a donor that is gone or behind the
    /// others. `None`: there are too many.
    pub fn add_donor(&mut self, info: DonorInfo) -> Option<DonorId> {
        let born = self.epoch.next_birth()?;
        let donor = self.roster().new_donor(info, born);
        let place = (0..self.donors.len()).find(|&place| self.roster().is_vacant(place));
        match place {
            Some(place) => self.donors[place] = donor,
            None if self.donors.len() < DONORS_MAX => self.donors.push(donor),
            None => return None,
        }
        Some(place.unwrap_or(self.donors.len() - 1) as DonorId)
    }

    pub fn patience_ns(&self) -> u64 {
        self.config.patience_ms as u64 * 1_000_000
    }

    /// Checks whether enough donors are there at all.
    pub fn count_donors(&mut self) {
        self.measure_room();
        let there = self.roster().domains_with(|donor| donor.state == DonorState::Active);
        self.few_since_ns = match there < self.plan.parity + 1 {
            true => Some(self.few_since_ns.unwrap_or(self.now_ns)),
            false => None,
        };
    }

    /// Frees a unit to which nothing was sent.
    pub fn give_back(&mut self, member: Member) {
        let donor = &mut self.donors[member.donor as usize];
        if member.exists() && !donor.is_final() {
            donor.units.put_free(FreeUnit { unit: member.unit, has_memory: false });
            self.shortage.has_unit();
        }
        self.wake();
    }

    /// Queues a unit that may have a header to be erased and then freed, unless its donor is gone
    /// for good.
    pub fn erase_later(&mut self, member: Member, first_sequence: u64) {
        let donor = &mut self.donors[member.donor as usize];
        if member.exists() && !donor.is_final() {
            donor.units.erase_later(member.unit, first_sequence);
        }
        self.wake();
    }
}

impl Roster<'_> {
    /// Number of units of a donor of this size.
    pub fn units_of(&self, info: &DonorInfo) -> u32 {
        let (front, unit_bytes) = (SUPERBLOCK_BYTES as u64, self.shape.unit_bytes());
        let bytes = if self.config.key.is_some() { sealed::bytes_inside(info.bytes) } else { info.bytes };
        if self.checkpoints.enabled {
            return ram_checkpoint::units(bytes, front, unit_bytes, self.plan.buffer);
        }
        let room = bytes.saturating_sub(front) / unit_bytes as u64;
        room.min(u32::MAX as u64 - 1) as u32
    }

    pub fn new_donor(&self, info: DonorInfo, born: u32) -> Donor {
        let units = self.units_of(&info);
        Donor::new(info, units, born)
    }

    /// Returns whether another donor may take this place, because nothing refers to the last one
    /// any more.
    pub fn is_vacant(&self, place: usize) -> bool {
        let number = place as DonorId;
        self.donors[place].is_over()
            && self.epoch.is_stored()
            && !self.schedule.is_asked(number)
            && !self.groups.are_on(number)
    }

    /// Returns whether new units can be put on the donor now.
    pub fn takes(&self, donor: usize) -> bool {
        let donor = &self.donors[donor];
        let is_free = donor.pace.aside().is_none() && !donor.units.are_all_quarantined();
        donor.state == DonorState::Active && self.now_ns >= donor.refused_until_ns && is_free
    }

    /// Number of domains in which new units can be put now.
    pub fn takers(&self) -> usize {
        self.domains((0..self.donors.len()).filter(|&donor| self.takes(donor)))
    }

    /// Returns whether a unit can be put on the donor now while `reserve` units stay free.
    pub fn is_roomy(&self, donor: usize, reserve: usize) -> bool {
        self.takes(donor) && self.donors[donor].units.open() > reserve
    }

    /// Number of domains a new group can spread over now while `reserve` units stay free on each donor.
    pub fn width(&self, reserve: usize) -> usize {
        let roomy = self.domains((0..self.donors.len()).filter(|&n| self.is_roomy(n, reserve)));
        (self.plan.data + self.plan.parity).min(roomy)
    }

    /// Number of domains with donors that store what they are sent.
    pub fn healthy_donors(&self) -> usize {
        self.domains_with(|donor| donor.state == DonorState::Active && donor.refusals == 0)
    }

    /// Returns whether a donor is away and expected back.
    pub fn awaits(&self) -> bool {
        self.donors.iter().any(|donor| match donor.state {
            DonorState::Missing => self.now_ns.saturating_sub(donor.missing_since_ns) < self.patience_ns(),
            DonorState::Returning => !donor.scanned,
            _ => false,
        })
    }

    /// Returns whether a donor is expected back, or refuses writes for the moment.
    pub fn expects(&self) -> bool {
        use DonorState::{Active, Draining, Joining};
        let refuses = |donor: &Donor| donor.refusals > 0 && self.now_ns < donor.refused_until_ns;
        let is_here = |donor: &Donor| matches!(donor.state, Active | Draining | Joining);
        self.awaits() || self.donors.iter().any(|donor| is_here(donor) && refuses(donor))
    }

    /// Returns whether units will be usable in some seconds: quarantined ones, once no write of a
    /// broken connection can reach them any more, and ones with a late write, once it is answered.
    pub fn awaits_units(&self) -> bool {
        let awaits = |donor: &Donor| donor.units.is_quarantined() || donor.units.has_late();
        self.donors.iter().any(|donor| !donor.is_absent() && awaits(donor))
    }

    /// Returns why a write that has waited since `begun_ns` must fail, if it must.
    pub fn gives_up(&self, begun_ns: u64) -> Option<DiskError> {
        if let Some(error) = &self.failure {
            return Some(error.clone());
        }
        let (need, have) = (self.plan.parity + 1, self.healthy_donors());
        let long = |since: u64| self.now_ns.saturating_sub(since) > self.patience_ns();
        let over = (have < need && long(begun_ns)) || self.few_since_ns.is_some_and(long);
        over.then_some(DiskError::TooFewDonors { have, need })
    }

    /// Decides whether a request that came at `begun_ns` may go on. `None`: it waits.
    pub fn serves(&self, begun_ns: u64) -> Option<Result<(), DiskError>> {
        if let Some(error) = &self.failure {
            return Some(Err(error.clone()));
        }
        let (need, have) = (self.plan.parity + 1, self.healthy_donors());
        let long = self.now_ns.saturating_sub(begun_ns) > self.patience_ns();
        match self.ready {
            true => Some(Ok(())),
            false if long && have >= need => Some(Err(DiskError::NotOpen)),
            false => long.then_some(Err(DiskError::TooFewDonors { have, need })),
        }
    }
}
