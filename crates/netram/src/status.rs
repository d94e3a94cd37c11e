//! The status of a disk: donors, groups, redundancy, repair, and traffic.
//!
//! Owns: [`Status`] and the counters. All sizes are bytes unless named otherwise. Rules: a status
//! is a snapshot of one moment; counters start when the disk is opened. Left out: printing.

use crate::api::DiskError;
use crate::config::Policy;
use crate::counts::Counts;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::{Donor, DonorState};
use crate::state::memory::Memory;
use crate::state::pace::Aside;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DonorStatus {
    pub name: String,
    pub state: DonorState,
    pub bytes: u64,
    pub used_bytes: u64,
    /// Blocks that it returned with other contents than it was sent.
    pub damaged: u64,
    /// Average latency of its last answers.
    pub latency_ns: u64,
    /// Writes that it refused; writes that it did not answer in time.
    pub refused: u64,
    pub unanswered: u64,
    /// Why it gets nothing new; `None`: it is not set aside.
    pub aside: Option<Aside>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairStatus {
    /// Groups that needed repair since the last loss or drain, and how many are done.
    pub groups: u64,
    pub groups_done: u64,
    pub running_ns: u64,
    /// Estimated from the rate so far; `None` before there is one.
    pub left_ns: Option<u64>,
}

/// Blocks that donors returned with other contents than they were sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageStatus {
    /// Blocks found since the disk was opened.
    pub found: u64,
    /// How many of them have not been written again yet.
    pub unrepaired: u64,
    /// How long ago the last one was found.
    pub last_ns_ago: Option<u64>,
}

/// Scrubs since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubStatus {
    pub completed: u64,
    /// Progress of the running scrub.
    pub progress: Option<ScrubProgress>,
    pub last: Option<LastScrub>,
}

/// Progress of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Groups examined.
    pub groups_done: u64,
    /// All groups.
    pub groups: u64,
}

/// The last scrub that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastScrub {
    pub ns_ago: u64,
    /// Damaged blocks found during it.
    pub found: u64,
}

/// Rebalances since the disk was opened, and how evenly the donors are filled.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BalanceStatus {
    pub completed: u64,
    /// Progress of the running rebalance.
    pub progress: Option<BalanceProgress>,
    /// Units that the last one moved.
    pub units_moved_last: u64,
    /// Shares in use of the fullest and of the emptiest donor.
    pub fullest_percent: f64,
    pub emptiest_percent: f64,
}

/// Progress of a rebalance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceProgress {
    pub units_moved: u64,
    /// Estimated from how the donors are filled now.
    pub units_left: u64,
}

/// Failure domains of donors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DomainStatus {
    /// Domains with donors that are there.
    pub there: usize,
    /// A client that opens the disk may do without as many domains as there is parity.
    pub in_force: bool,
    /// Groups with two units in one domain.
    pub groups_shared: u64,
}

/// A failed flush.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnflushedStatus {
    /// How long ago it failed.
    pub ns: u64,
    pub why: DiskError,
    /// Blocks in memory here that are not safe on donors.
    pub blocks: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    pub policy: Policy,
    pub ready: bool,
    pub bytes: u64,
    pub block_bytes: u32,
    pub data_units: usize,
    pub parity_units: usize,
    pub epoch: u64,
    /// All donors know which donors count.
    pub epoch_stored: bool,
    pub donors: Vec<DonorStatus>,
    /// `None`: each donor is a failure domain of its own.
    pub domains: Option<DomainStatus>,
    pub groups: u64,
    pub groups_open: u64,
    /// Groups with fewer units than they should have, or with a unit that is damaged.
    pub groups_degraded: u64,
    /// Data blocks that one more donor loss would lose, beyond what the policy accepts.
    pub blocks_unprotected: u64,
    pub blocks_lost: u64,
    pub damage: DamageStatus,
    pub scrub: ScrubStatus,
    pub balance: BalanceStatus,
    /// A flush failed, and no later one has succeeded.
    pub unflushed: Option<UnflushedStatus>,
    /// Every request fails, for this reason.
    pub failure: Option<DiskError>,
    /// A request found no room, and nothing in progress will make some.
    pub full: bool,
    pub repair: Option<RepairStatus>,
    pub counts: Counts,
    /// Why a disk that may have checkpoints was opened without one.
    pub checkpoint_unused: Option<&'static str>,
    /// Memory of the block table (bytes).
    pub table_bytes: u64,
}

impl State {
    fn damage_status(&self) -> DamageStatus {
        let left =
            self.groups.iter().filter(|(_, group)| group.live() > 0).map(|(_, group)| group.damaged_blocks() as u64);
        let damage = self.damage;
        DamageStatus {
            found: damage.found,
            unrepaired: left.sum(),
            last_ns_ago: (damage.found > 0).then(|| self.now_ns.saturating_sub(damage.last_ns)),
        }
    }

    fn domain_status(&self) -> Option<DomainStatus> {
        let is_wanted = |donor: &Donor| donor.is_final() || donor.domain == donor.wanted_domain;
        let named = |donor: &Donor| !donor.is_final() && (donor.wanted_domain != 0 || !is_wanted(donor));
        let in_force = self.domains.in_force && self.epoch.is_stored() && self.donors.iter().all(is_wanted);
        self.donors.iter().any(named).then(|| DomainStatus {
            there: self.roster().domains_with(|donor| donor.state == DonorState::Active),
            in_force,
            groups_shared: if in_force { 0 } else { self.roster().sharing_groups() },
        })
    }

    fn scrub_status(&self) -> ScrubStatus {
        ScrubStatus {
            completed: self.scrubs.completed(),
            progress: self.scrubs.progress(),
            last: self.scrubs.last(self.now_ns),
        }
    }

    fn unflushed_status(&self) -> Option<UnflushedStatus> {
        let (since_ns, why) = self.unflushed.first()?;
        let open = |memory: &Memory| {
            let safe = if is_planted(Bug::UnflushedStored) { &memory.stored } else { &memory.safe };
            memory.counts().iter().zip(safe).map(|(all, safe)| u64::from(all - safe)).sum::<u64>()
        };
        let blocks = self.groups.memories().map(|(_, memory)| open(memory)).sum();
        Some(UnflushedStatus { ns: self.now_ns.saturating_sub(since_ns), why: why.clone(), blocks })
    }

    pub fn audit(&self) -> Result<(), String> {
        for (number, donor) in self.donors.iter().enumerate().filter(|(_, donor)| donor.scanned && donor.counts()) {
            let number = number as u16;
            let members = self.groups.iter().flat_map(|(_, group)| group.members.iter());
            let own = members.filter(|member| member.is_on(number)).map(|member| member.unit);
            let mut units: Vec<u32> = own.chain(donor.units.unused()).collect();
            units.sort_unstable();
            if let Some(twice) = units.windows(2).find(|pair| pair[0] == pair[1]) {
                return Err(format!("unit {} of donor {number} is two things", twice[0]));
            }
        }
        let mut live = vec![0; self.groups.places() as usize];
        self.groups.iter().for_each(|(index, group)| live[index as usize] = group.notes().len() as u32);
        (0..self.map.blocks() as u32)
            .filter_map(|block| self.map.find(block))
            .for_each(|found| live[found.at.group as usize] += 1);
        match self.groups.iter().find(|(index, group)| group.live() != live[*index as usize]) {
            Some((_, group)) => Err(format!("group {} counts other live blocks than it has", group.id)),
            None => Ok(()),
        }
    }

    pub fn status(&self) -> Status {
        let unit_bytes = self.shape.unit_bytes() as u64;
        let donors = self.donors.iter().map(|donor| DonorStatus {
            name: donor.info.name.clone(),
            state: donor.state,
            bytes: donor.info.bytes,
            damaged: donor.damaged,
            latency_ns: donor.pace.latency_ns(),
            refused: donor.pace.refused,
            unanswered: donor.pace.unanswered,
            aside: donor.pace.aside().map(|(why, _)| why),
            used_bytes: match donor.is_final() {
                true => 0,
                false => (donor.units.count() as u64 - donor.units.free() as u64) * unit_bytes,
            },
        });
        let groups = || self.groups.iter().map(|(_, group)| group);
        let told = |state: DonorState| state != DonorState::Missing || !is_planted(Bug::MissingUntold);
        let lost = |donor: u16| self.donors[donor as usize].is_absent() && told(self.donors[donor as usize].state);
        let horizon = self.horizons().horizon();
        // A dead group counts until the successors of its blocks are safe.
        let degraded = groups().filter(|group| {
            !group.is_in_memory()
                && (group.live() > 0 || group.killed() > horizon)
                && (group.incomplete().is_some()
                    || group.is_damaged()
                    || group.members.iter().any(|member| member.exists() && member.count > 0 && lost(member.donor)))
        });
        let (groups_degraded, blocks_unprotected) =
            degraded.fold((0, 0), |(count, blocks), group| (count + 1, blocks + group.live() as u64));
        let repair = self.repairs.is_running().then(|| {
            let (groups, groups_done, began_ns) = self.repairs.progress();
            let running_ns = self.now_ns.saturating_sub(began_ns);
            let left_ns = running_ns.checked_mul(groups - groups_done).and_then(|ns| ns.checked_div(groups_done));
            RepairStatus { groups, groups_done, running_ns, left_ns }
        });
        Status {
            policy: self.config.policy,
            ready: self.ready,
            bytes: self.map.blocks() * self.shape.block_bytes as u64,
            block_bytes: self.shape.block_bytes as u32,
            data_units: self.plan.data,
            parity_units: self.plan.parity,
            epoch: self.epoch.number(),
            epoch_stored: self.epoch.is_stored(),
            donors: donors.collect(),
            domains: self.domain_status(),
            groups: groups().count() as u64,
            groups_open: self.groups.in_memory().len() as u64,
            groups_degraded,
            blocks_unprotected,
            blocks_lost: self.map.lost_count(),
            damage: self.damage_status(),
            scrub: self.scrub_status(),
            balance: self.balance_status(),
            unflushed: self.unflushed_status(),
            failure: self.failure.clone(),
            full: self.shortage.is_stuck(),
            repair,
            counts: Counts { mapped: self.map.mapped(), ..self.counts },
            // Unknown before the disk is ready.
            checkpoint_unused: self.checkpoints.unused.filter(|_| self.ready),
            table_bytes: self.map.blocks() * 8,
        }
    }
}
