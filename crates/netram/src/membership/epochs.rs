//! Epochs: telling the donors which of them belong to the disk.
//!
//! Rules: an epoch that changes membership counts once donors of *parity + 1* failure domains have stored it. A later
//! opening needs all donors but those of *parity* domains, so it meets one of them. Superblocks are written one
//! epoch after the other, never over the newest one. Left out: the number itself (`state::epoch`).

use std::sync::Arc;

use shoal_format::ram::{DiskSuperblock, DonorPlace, SLOTS_BYTES, Standing};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::config::Policy;
use crate::membership::growth::grown;
use crate::planted::{Bug, is_planted};
use crate::state::State;
use crate::state::donors::{Donor, DonorState};
use crate::state::epoch::Membership;
use crate::state::retry::try_again;
use crate::task::{Core, Op};

impl State {
    /// Builds the write of a donor's superblock. Returns its slot, too: never that of the newest
    /// superblock, because the write may be done in part. If the donor's superblock may be
    /// anything, the write also covers the other slot.
    fn superblock_op(&self, number: usize) -> (usize, DonorOp) {
        let mut slot = self.superblock(number).encode();
        if let Some(key) = &self.config.key {
            key.sign(&mut slot);
        }
        let donor = &self.donors[number];
        let place = match donor.slot {
            Some(newest) if is_planted(Bug::SlotOverwritten) => newest,
            Some(newest) => 1 - newest,
            None => 0,
        };
        let at = place * slot.len();
        if !donor.blank {
            return (place, DonorOp::Write { at: at as u64, bytes: slot });
        }
        let mut bytes = vec![0; SLOTS_BYTES];
        bytes[at..at + slot.len()].copy_from_slice(&slot);
        (place, DonorOp::Write { at: 0, bytes })
    }

    pub fn superblock(&self, donor: usize) -> DiskSuperblock {
        let policy = Policy::ALL.iter().position(|&policy| policy == self.config.policy).expect("all are listed");
        let place = |donor: &Donor| {
            let standing = match donor.state {
                DonorState::Joining if donor.blank => Standing::Joins,
                DonorState::Joining => Standing::Counts,
                _ if !donor.counts() => Standing::Gone,
                _ if donor.stale => Standing::Away,
                _ => Standing::Counts,
            };
            let domain = if self.domains.in_force { donor.domain } else { 0 };
            DonorPlace { standing, born: donor.born, domain }
        };
        DiskSuperblock {
            uuid: self.config.uuid,
            epoch: self.epoch.number(),
            donor: donor as u16,
            policy: policy as u8,
            data: self.plan.data as u8,
            parity: self.plan.parity as u8,
            streams: self.config.streams,
            buffer_blocks: self.plan.buffer as u16,
            flags: self.config.dedicated_parity as u8,
            block_bytes: self.config.block_bytes,
            blocks: self.growing.unwrap_or(self.map.blocks()),
            checkpoint: self.checkpoints.enabled.then_some(self.checkpoints.named),
            sums: self.config.sums,
            sealed: self.config.key.is_some(),
            donors: self.donors.iter().map(place).collect(),
        }
    }
}

/// Begins an epoch, which tells the donors which of them belong to the disk.
pub(crate) fn new_epoch(state: &mut State, membership: Membership) {
    if membership == Membership::Changed {
        state.drop_checkpoint();
    }
    state.epoch.begin(membership);
    state.wake();
}

fn hears(donor: &Donor) -> bool {
    use DonorState::{Active, Draining, Joining, Returning};
    matches!(donor.state, Active | Draining | Returning) || (donor.state == Joining && !donor.blank)
}

fn is_source(donor: &Donor) -> bool {
    donor.counts() && !donor.stale
}

/// Returns whether enough donors could store an epoch that excludes this absent donor. Otherwise
/// nobody would know of the exclusion, and the donor must be taken back as it was.
pub(crate) fn can_store_without(state: &State, number: usize) -> bool {
    let others = || (0..state.donors.len()).filter(|&other| other != number && is_source(&state.donors[other]));
    let all = state.roster().domains(others().filter(|&n| state.donors[n].state != DonorState::Forgotten));
    let there = state.roster().domains(others().filter(|&n| hears(&state.donors[n])));
    there >= (state.plan.parity + 1).min(all).max(1) || is_planted(Bug::LastExcluded)
}

/// Checks whether enough donors know the present epoch.
pub(crate) fn check_epoch(state: &mut State) {
    let (epoch, quorum) = (state.epoch.number(), state.plan.parity + usize::from(!is_planted(Bug::EpochSmall)));
    let is_left = |donor: &Donor| is_source(donor) && donor.state != DonorState::Forgotten;
    // If all donors were given up, those that join are the disk.
    let begins_anew = !state.donors.iter().any(is_left);
    let sources = |donor: &Donor| is_source(donor) || begins_anew && donor.state == DonorState::Joining && !donor.blank;
    let domains = |has: &dyn Fn(&Donor) -> bool| state.roster().domains_with(|donor| sources(donor) && has(donor));
    let there = domains(&hears);
    let known = domains(&|donor| hears(donor) && donor.epoch == epoch);
    let all = domains(&|donor| donor.state != DonorState::Forgotten);
    let waits = state.donors.iter().any(|donor| hears(donor) && donor.epoch < epoch && donor.refusals == 0);
    let announced = known >= quorum.min(all);
    let is_new = |donor: &Donor| donor.state == DonorState::Joining && donor.blank;
    state.donors.iter_mut().filter(|donor| is_new(donor)).for_each(|donor| donor.announced |= announced);
    // Without that many donors none joins, and the disk is read from those that are there.
    let joins = there >= quorum.min(all) && state.donors.iter().any(|donor| is_new(donor) && donor.refusals == 0);
    let need = if state.epoch.changes() { quorum.min(all) } else { quorum.min(there) };
    if !state.epoch.is_stored() && (known < need.max(1) || waits || joins) {
        return;
    }
    if !state.epoch.is_stored() {
        state.epoch.store();
        grown(state);
    }
    let mut joined = false;
    for donor in &mut state.donors {
        let joins = donor.state == DonorState::Joining && !donor.blank;
        let returns = donor.state == DonorState::Returning && !donor.stale && donor.scanned;
        if (joins || returns) && donor.epoch == epoch {
            donor.state = if donor.drains { DonorState::Draining } else { DonorState::Active };
            joined = true;
        }
    }
    if joined {
        state.count_donors();
        try_again(state);
    }
    state.wake();
}

/// Writes superblocks, one epoch after the other, because a late write must not undo a newer one.
/// Runs as long as the disk.
pub(crate) async fn herald(core: Arc<Core>) {
    loop {
        let targets = core.until(|state| targets(state)).await;
        let (epoch, ops) = {
            let state = &mut *core.lock();
            let mut send = |&number: &usize| {
                let (place, op) = state.superblock_op(number);
                (core.op(state, number as DonorId, op, Purpose::Upkeep), place)
            };
            let ops: Vec<(Op, usize)> = targets.iter().map(&mut send).collect();
            (state.epoch.number(), ops)
        };
        for (number, (op, place)) in targets.into_iter().zip(ops) {
            let stored = op.await.is_ok();
            let state = &mut *core.lock();
            let donor = &mut state.donors[number];
            if !stored || donor.is_absent() {
                continue;
            }
            donor.slot = Some(place);
            if donor.state == DonorState::Joining && donor.blank {
                donor.blank = false;
                new_epoch(state, Membership::Changed);
            } else {
                (donor.blank, donor.epoch) = (false, epoch);
            }
        }
        let state = &mut *core.lock();
        check_epoch(state);
        state.wake();
    }
}

/// Lists donors to write superblocks to, if any. A joining donor must store its number before the
/// others count it. Before that they must know its birth: it may be away when the next client
/// assigns births.
fn targets(state: &State) -> Option<Vec<usize>> {
    let with = |wanted: &dyn Fn(&Donor) -> bool| -> Vec<usize> {
        let ready = |donor: &Donor| state.now_ns >= donor.refused_until_ns;
        (0..state.donors.len()).filter(|&n| wanted(&state.donors[n]) && ready(&state.donors[n])).collect()
    };
    let announced = |donor: &Donor| donor.announced || is_planted(Bug::BornTwice);
    let joining = with(&|donor| donor.state == DonorState::Joining && donor.blank && announced(donor));
    let behind = || with(&|donor| hears(donor) && donor.epoch < state.epoch.number());
    let targets = if joining.is_empty() { behind() } else { joining };
    (!targets.is_empty()).then_some(targets)
}
