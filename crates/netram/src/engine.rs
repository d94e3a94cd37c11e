//! The engine: a disk's state and its jobs, driven by events.
//!
//! Owns: creating and opening a disk, and the interface through which requests, answers, losses and
//! time come in and actions go out. Rules: an event is handled completely before the call returns;
//! the same events in the same order give the same actions. Left out: carrying operations out, and
//! the clock (the caller has it).

use shoal_media::Request;

use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_format::ram;
use shoal_format::ram::{DiskSuperblock, DonorPlace, OwnPlace, SUPERBLOCK_BYTES, Standing};

use crate::api::{Action, DiskError, DonorError, DonorId, DonorInfo, ForgetCost, NotBack, Past};
use crate::checkpoint;
use crate::checkpoint::ending;
use crate::checkpoint::window;
use crate::config::{Config, Policy};
use crate::membership;
use crate::membership::absence;
use crate::membership::epochs;
use crate::membership::growth;
use crate::membership::pace;
use crate::opening::scan;
use crate::opening::settle;
use crate::opening::superblocks::{
    Named, belongs, check_agreement, check_key, checkpoint_named, counts, domains_missing, merge,
};
use crate::ownership::{Domains, Quorum};
use crate::requests::abandon::abandon;
use crate::requests::read;
use crate::requests::send;
use crate::requests::write;
use crate::sealed::{SealKey, superblock};
use crate::spans::{Stretch, join_up};
use crate::state::State;
use crate::state::domains;
use crate::state::donors::{Donor, DonorState};
use crate::state::epoch::Membership;
use crate::state::retry;
use crate::state::room::DrainRoom;
use crate::state::schedule::DonorLost;
use crate::status::Status;
use crate::task::{Core, Jobs};
use crate::upkeep::clean;
use crate::upkeep::drain;
use crate::upkeep::level;
use crate::upkeep::reclaim;
use crate::upkeep::reflush;
use crate::upkeep::repair;
use crate::upkeep::scrub;

/// Alignment of requests, whatever the block size (bytes).
pub const SECTOR_BYTES: u32 = 512;

/// A network RAM disk without its network.
pub struct Engine {
    core: Arc<Core>,
    jobs: Jobs,
}

/// Returns the disk a donor belongs to and the epoch it knows. `None`: the donor is blank.
pub fn identify(superblock: &[u8]) -> Option<([u8; 16], u64)> {
    DiskSuperblock::decode(superblock).ok().map(|found| (found.uuid, found.epoch))
}

/// Starts the job of a request. Each kind of request has its own job: one job for all kinds would
/// be as large as the largest of them, and the allocator keeps no blocks of that size at hand.
///
/// Returns the answer of a write that went into caches as a whole: it needs no job.
pub(crate) fn begin(core: &Arc<Core>, state: &mut State, ticket: u64, request: Request) -> Option<Vec<u8>> {
    let cached = match &request {
        Request::Write { at, buffer, fua: false } => write::write_cached(core, state, *at, buffer),
        _ => 0,
    };
    let core = core.clone();
    let schedule = &mut state.schedule;
    match request {
        Request::Read { at, buffer } => schedule.spawn(read::read(core, ticket, at, buffer)),
        Request::Write { buffer, fua: false, .. } if cached > 0 && cached == buffer.len() => return Some(buffer),
        Request::Write { at, buffer, fua } => schedule.spawn(write::write(core, ticket, at, buffer, cached, fua)),
        Request::Flush => schedule.spawn(async move {
            let result = write::flush_asked(&core).await;
            core.lock().complete(ticket, result.map(|()| Vec::new()));
        }),
        Request::Trim { at, len } => schedule.spawn(write::trim(core, ticket, at, len)),
        Request::WriteZeroes { at, len, fua } => schedule.spawn(write::zero(core, ticket, at, len, fua)),
    }
    None
}

/// The donors of a disk, according to the superblocks that could be read.
#[derive(Clone, Debug)]
pub struct Members {
    pub quorum: Quorum,
    /// Failure domains in force.
    pub domains: Domains,
    /// The place of each donor, in the order given; `None`: it does not belong to the disk.
    pub places: Vec<Option<OwnPlace>>,
}

/// Finds out which donors belong to the disk. Each is given by its name and its first bytes. Fails if none does, if
/// this is not the disk's key, or if they contradict each other.
pub fn members(donors: &[(&str, &[u8])], disk: &[u8; 16], key: Option<&SealKey>) -> Result<Members, DiskError> {
    let fronts: Vec<&[u8]> = donors.iter().map(|(_, front)| *front).collect();
    check_key(&fronts, key)?;
    let own = |front: &&[u8]| Some(superblock(front, key)?.1).filter(|superblock| superblock.uuid == *disk);
    let found: Vec<Option<DiskSuperblock>> = fronts.iter().map(own).collect();
    let named = donors.iter().zip(&found).filter_map(|((name, _), own)| Some((*name, own.as_ref()?)));
    check_agreement(&named.collect::<Vec<Named<'_>>>())?;
    let all: Vec<&DiskSuperblock> = found.iter().flatten().collect();
    let newest = all.iter().max_by_key(|superblock| superblock.epoch);
    let mut newest = (**newest.ok_or(DiskError::TooFewDonors { have: 0, need: 1 })?).clone();
    newest.donors = merge(&newest, &all, newest.parity.into());
    let members = found.iter().map(|own| own.as_ref().filter(|own| belongs(own, &newest)));
    let places: Vec<Option<OwnPlace>> = members.map(|own| own.map(DiskSuperblock::place)).collect();
    let domain = |number: usize| domains::key(number, newest.donors[number].domain);
    let mut sizes = BTreeMap::new();
    for number in (0..newest.donors.len()).filter(|&number| counts(&newest.donors[number])) {
        *sizes.entry(domain(number)).or_default() += 1;
    }
    let of = places.iter().map(|place| place.map(|place| domain(place.number.into()))).collect();
    let quorum = Quorum { counting: sizes.len(), parity: newest.parity.into() };
    Ok(Members { quorum, domains: Domains { of, sizes }, places })
}

/// Saves elsewhere a group that a donor did not take.
fn rescue(core: &Arc<Core>, lost: DonorLost) {
    abandon(core, &mut core.lock(), lost.group);
}

/// A donor of the disk that can be reached, with the epoch and the slot of its superblock.
struct Present {
    info: DonorInfo,
    epoch: u64,
    slot: Option<usize>,
}

/// Returns the configuration of a disk that was found.
fn config_of(superblock: &DiskSuperblock, config: &Config) -> Config {
    let policy = Policy::ALL[superblock.policy as usize];
    Config {
        policy,
        uuid: superblock.uuid,
        block_bytes: superblock.block_bytes,
        buffer_blocks: superblock.buffer_blocks,
        parity: superblock.parity,
        streams: superblock.streams,
        dedicated_parity: superblock.flags & 1 != 0,
        sums: superblock.sums,
        width: if policy == Policy::Mirrored { 0 } else { superblock.data + superblock.parity },
        ..config.clone()
    }
}

/// Fails if this machine has no memory for the map of a disk of this size.
fn check_memory(blocks: u64) -> Result<(), DiskError> {
    let bytes = blocks * size_of::<u64>() as u64;
    match Vec::<u64>::new().try_reserve_exact(blocks as usize) {
        Ok(()) => Ok(()),
        Err(_) => Err(DiskError::Config(format!(
            "the disk has {blocks} blocks, and there is no memory for the {bytes} bytes that their places need; give \
             this machine more"
        ))),
    }
}

/// Fails unless enough donors are there to find every block of the disk.
fn enough(present: &[Option<Present>], places: &[DonorPlace], parity: usize) -> Result<(), DiskError> {
    // A donor that was away at an earlier opening does not help.
    let helps = |number: usize| present[number].is_some() && places[number].standing == Standing::Counts;
    let (all, missing) = (domains_missing(places, |_| false), domains_missing(places, helps));
    match missing > parity {
        true => Err(DiskError::TooFewDonors { have: all - missing, need: all - parity }),
        false => Ok(()),
    }
}

/// Fails if the donors are in so few failure domains that nothing could be written, although there are enough donors.
fn enough_domains(state: &State) -> Result<(), DiskError> {
    let there = || state.donors.iter().enumerate().filter(|(_, donor)| !donor.is_final());
    let (have, need) = (domains::count(there().map(|(n, donor)| (n, donor.wanted_domain))), state.plan.parity + 1);
    // The caller's domain of a donor that is not there is not known.
    let all_there = there().all(|(_, donor)| donor.state != DonorState::Missing);
    match have < need && all_there && there().count() >= need {
        true => Err(DiskError::Config(format!(
            "the donors are in {have} failure domains, and each block must be in {need}; \
             name donors of other domains, or leave `@NAME` out"
        ))),
        false => Ok(()),
    }
}

/// Lets a donor that holds nothing of the disk join while the disk is being opened. It gets a place behind the others,
/// or, when all are taken, that of a donor that is gone. `found`: the places according to the superblocks.
///
/// A place may be reused before the map is complete. Nothing referred to its donor when that was excluded, nothing has
/// been written to it since, and it is not scanned. A checkpoint made earlier does not count any more. Headers and
/// superblocks name the donor's birth, and the new one is higher: a superblock that says so ends the former donor as
/// one does that says it is gone. A place whose donor joins stays: that donor may have stored that it counts.
fn join(state: &mut State, found: &[DonorPlace], info: DonorInfo) -> Result<(), DiskError> {
    let born = state.epoch.next_birth().ok_or_else(too_many)?;
    let donor = Donor { state: DonorState::Joining, ..state.roster().new_donor(info, born) };
    if state.donors.len() < ram::DONORS_MAX {
        state.donors.push(donor);
        return Ok(());
    }
    let is_free = |&place: &usize| found[place].standing == Standing::Gone && state.donors[place].is_over();
    let place = (0..found.len()).find(is_free).ok_or_else(too_many)?;
    state.donors[place] = donor;
    Ok(())
}

/// Builds a donor of a disk that is being opened. `present`: `None` if it cannot be reached.
fn found_donor(state: &State, number: usize, present: Option<Present>, place: &DonorPlace) -> Donor {
    let there = present.is_some();
    let present = present.unwrap_or_else(|| {
        let info = DonorInfo { name: format!("#{number} (not there)"), bytes: 0, domain: place.domain };
        Present { info, epoch: 0, slot: None }
    });
    Donor {
        blank: false,
        scanned: false,
        domain: place.domain,
        epoch: present.epoch,
        slot: present.slot,
        stale: place.standing == Standing::Away,
        missing_since_ns: state.now_ns,
        state: match (place.standing, there) {
            (Standing::Gone | Standing::Joins, _) => DonorState::Lost,
            (_, false) => DonorState::Missing,
            (Standing::Away, true) => DonorState::Returning,
            (Standing::Counts, true) => DonorState::Active,
        },
        ..state.roster().new_donor(present.info, place.born)
    }
}

impl Engine {
    /// Makes a new disk on donors whose contents do not matter.
    pub fn create(config: &Config, donors: Vec<DonorInfo>, now_ns: u64) -> Result<Engine, DiskError> {
        let domains = domains::count(donors.iter().map(|donor| donor.domain).enumerate());
        let plan = config.plan(domains)?;
        let mut state = State::new(config, plan, now_ns);
        state.domains.in_force = true;
        state.checkpoints.enabled = config.checkpoints;
        for donor in donors {
            state.add_donor(donor).ok_or_else(too_many)?;
        }
        let blocks = blocks(&state)?;
        state.map.reset(blocks);
        let core = Core::new(state);
        core.lock().serve_when_known(&core);
        Ok(Engine::start(core))
    }

    /// Opens a disk found on its donors. The first 4096 bytes of each donor are given; `None`: it
    /// cannot be reached. Donors that hold nothing of this disk join it empty.
    pub fn open(config: &Config, donors: Vec<(DonorInfo, Option<Vec<u8>>)>, now_ns: u64) -> Result<Engine, DiskError> {
        let wrong = |text: String| Err(DiskError::Config(text));
        let (slots, found): (Vec<Option<usize>>, Vec<Option<DiskSuperblock>>) = donors
            .iter()
            .map(|(_, bytes)| bytes.as_ref().and_then(|bytes| superblock(bytes, config.key.as_ref())).unzip())
            .unzip();
        let fronts: Vec<&[u8]> = donors.iter().filter_map(|(_, bytes)| bytes.as_deref()).collect();
        check_key(&fronts, config.key.as_ref())?;
        let Some(mut newest) = found.iter().flatten().max_by_key(|superblock| superblock.epoch).cloned() else {
            return match donors.iter().all(|(_, bytes)| bytes.is_some()) {
                true => wrong("no donor holds a disk; create one".into()),
                // The disk may be on one of those that are away.
                false => Err(DiskError::TooFewDonors { have: 0, need: 1 }),
            };
        };
        if let Some(other) = found.iter().position(|one| one.as_ref().is_some_and(|one| one.uuid != newest.uuid)) {
            let name = &donors[other].0.name;
            return wrong(format!("donor {name} belongs to another disk; leave it out"));
        }
        let named = donors.iter().zip(&found).filter_map(|((info, _), own)| Some((&*info.name, own.as_ref()?)));
        check_agreement(&named.collect::<Vec<Named<'_>>>())?;
        let config = config_of(&newest, config);
        let mut plan = config.plan(usize::MAX)?;
        plan.data = newest.data as usize;
        let mut state = State::new(&config, plan, now_ns);
        state.epoch.meets(newest.epoch);
        state.checkpoints.enabled = newest.checkpoint.is_some();
        let all: Vec<&DiskSuperblock> = found.iter().flatten().collect();
        all.iter().for_each(|superblock| state.epoch.knows_births(superblock));
        newest.donors = merge(&newest, &all, plan.parity);
        if config.checkpoints {
            state.checkpoints.named = checkpoint_named(&newest.donors, &all);
        }
        let mut blank = Vec::new();
        let mut present: Vec<Option<Present>> = newest.donors.iter().map(|_| None).collect();
        for (((info, bytes), superblock), slot) in donors.into_iter().zip(&found).zip(slots) {
            match superblock {
                Some(own) if belongs(own, &newest) => {
                    present[own.donor as usize] = Some(Present { info, epoch: own.epoch, slot });
                }
                // The donor is stale or was never part of the disk. A donor that cannot be reached
                // gets no place.
                _ if bytes.is_some() => blank.push(info),
                _ => {}
            }
        }
        enough(&present, &newest.donors, plan.parity)?;
        for (number, (present, place)) in present.into_iter().zip(&newest.donors).enumerate() {
            let donor = found_donor(&state, number, present, place);
            state.donors.push(donor);
        }
        state.domains.in_force = newest.donors.iter().any(|place| place.domain != 0);
        // The last client may have died when one donor knew that the disk had grown.
        let grown = found.iter().flatten().filter(|own| belongs(own, &newest)).map(|own| own.blocks).max();
        let blocks = grown.unwrap_or_default().max(newest.blocks);
        check_memory(blocks)?;
        state.map.reset(blocks);
        blank.into_iter().try_for_each(|info| join(&mut state, &newest.donors, info))?;
        enough_domains(&state)?;
        let core = Core::new(state);
        core.lock().schedule.spawn(scan::scan(core.clone()));
        Ok(Engine::start(core))
    }

    fn start(core: Arc<Core>) -> Engine {
        {
            let schedule = &mut core.lock().schedule;
            schedule.spawn(clean::cleaner(core.clone()));
            schedule.spawn(reclaim::reaper(core.clone()));
            schedule.spawn(reclaim::trimmer(core.clone()));
            schedule.spawn(epochs::herald(core.clone()));
            schedule.spawn(membership::excluder(core.clone()));
            schedule.spawn(reclaim::eraser(core.clone()));
            schedule.spawn(repair::guardian(core.clone()));
            schedule.spawn(level::leveler(core.clone()));
            schedule.spawn(scrub::scrubber(core.clone()));
            schedule.spawn(pace::prober(core.clone()));
            schedule.spawn(reflush::reflusher(core.clone()));
            schedule.spawn(settle::settler(core.clone()));
            schedule.spawn(window::opener(core.clone()));
            schedule.spawn(checkpoint::keeper(core.clone()));
            schedule.spawn(ending::ender(core.clone()));
            schedule.spawn(repair::repairer(core.clone()));
        }
        let mut engine = Engine { core, jobs: Jobs::default() };
        engine.run();
        engine
    }

    fn run(&mut self) {
        self.jobs.run(&self.core, rescue);
        while self.core.lock().unstick(&self.core) {
            self.jobs.run(&self.core, rescue);
        }
    }

    pub fn bytes(&self) -> u64 {
        let state = self.core.lock();
        state.map.blocks() * state.shape.block_bytes as u64
    }

    pub fn block_bytes(&self) -> u32 {
        self.core.shape.block_bytes as u32
    }

    /// Returns whether the map is complete and the donors know the present epoch, so that requests
    /// are served at once.
    pub fn is_ready(&self) -> bool {
        self.core.lock().ready
    }

    /// Submits a request. `ticket` is unique among those in flight, and [`Action::Complete`] will
    /// name it.
    pub fn submit(&mut self, ticket: u64, request: Request, now_ns: u64) {
        if let Some(result) = self.submit_or_answer(ticket, request, now_ns) {
            self.core.lock().complete(ticket, result);
        }
    }

    /// Like [`Engine::submit`], but returns the answer of a request that is done already. No
    /// [`Action::Complete`] follows then.
    pub fn submit_or_answer(
        &mut self,
        ticket: u64,
        request: Request,
        now_ns: u64,
    ) -> Option<Result<Vec<u8>, DiskError>> {
        let answer = {
            let state = &mut *self.core.lock();
            (state.now_ns, state.last_request_ns) = (now_ns, now_ns);
            let (at, len) = request.range();
            let bytes = state.map.blocks() * state.shape.block_bytes as u64;
            let sector = SECTOR_BYTES as u64;
            if at > bytes || len > bytes - at || !at.is_multiple_of(sector) || !len.is_multiple_of(sector) {
                return Some(Err(DiskError::OutOfRange { at, len }));
            }
            match &request {
                Request::Read { .. } => state.counts.reads += 1,
                Request::Write { .. } => state.counts.writes += 1,
                _ => {}
            }
            match state.roster().serves(now_ns) {
                Some(Ok(())) => begin(&self.core, state, ticket, request).map(Ok),
                Some(Err(error)) => Some(Err(error)),
                None => {
                    let core = self.core.clone();
                    state.schedule.spawn(async move {
                        let served = core.until(|state| state.roster().serves(now_ns)).await;
                        let state = &mut *core.lock();
                        let answer = match served {
                            Ok(()) => begin(&core, state, ticket, request).map(Ok),
                            Err(error) => Some(Err(error)),
                        };
                        answer.into_iter().for_each(|answer| state.complete(ticket, answer));
                    });
                    None
                }
            }
        };
        self.run();
        answer
    }

    /// Takes the answer to [`Action::Donor`]: the bytes that were read, or no bytes for a write or
    /// trim.
    pub fn done(&mut self, ticket: u64, result: Result<Vec<u8>, DonorError>, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            let asked = state.schedule.take_asked(ticket);
            if let Some(asked) = asked {
                membership::answered(&self.core, state, asked, &result);
            }
            // Nobody waits any more for an answer that came too late.
            if !asked.is_some_and(|asked| asked.expired) {
                state.schedule.answer(ticket, result);
            }
        }
        self.run();
    }

    /// Reports that a donor cannot be reached. Its operations in flight must still be answered,
    /// with [`crate::Trouble::Away`].
    pub fn lost(&mut self, donor: DonorId, now_ns: u64) {
        self.core.lock().now_ns = now_ns;
        absence::miss(&self.core, &mut self.core.lock(), donor);
        self.run();
    }

    /// Reports that a donor can be reached again, and returns its number. `superblock`: its first
    /// bytes; `fenced`: no operation sent to it before can reach it any more.
    pub fn back(&mut self, info: DonorInfo, superblock: &[u8], fenced: bool, now_ns: u64) -> Result<DonorId, NotBack> {
        let id = {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            membership::back(&self.core, state, info, superblock, fenced)
        };
        self.run();
        id
    }

    /// Gives a donor up for good: data that only it holds is lost. Refused while the disk is being
    /// opened, because a lost block could not be told from one that was never written.
    pub fn forget(&mut self, donor: DonorId, now_ns: u64) -> Result<(), DiskError> {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            if !state.ready {
                return Err(DiskError::Config("the disk is still being opened; wait, or bring donors back".into()));
            }
            membership::forget(&self.core, state, donor);
        }
        self.run();
        Ok(())
    }

    /// Returns what [`Engine::forget`] would cost now.
    pub fn forget_cost(&self, donor: DonorId) -> Result<ForgetCost, DiskError> {
        let state = self.core.lock();
        match state.ready {
            true => Ok(state.roster().forget_cost(donor)),
            false => Err(DiskError::Config("the disk is still being opened; wait, or bring donors back".into())),
        }
    }

    /// Returns a donor's number and birth.
    pub(crate) fn place(&self, donor: DonorId) -> OwnPlace {
        OwnPlace { number: donor, born: self.core.lock().donors[usize::from(donor)].born }
    }

    /// Finds the donor of the disk whose superblock these bytes hold. Returns its number, its name,
    /// and whether it is in use.
    pub fn donor_of(&self, front: &[u8]) -> Option<(DonorId, String, bool)> {
        let state = self.core.lock();
        let (_, own) = superblock(front, state.config.key.as_ref())?;
        let own = Some(own).filter(|own| own.uuid == state.config.uuid)?;
        let OwnPlace { number, born } = own.place();
        let donor = state.donors.get(usize::from(number))?;
        let same = born == donor.born && !donor.is_final();
        same.then(|| (number, donor.info.name.clone(), donor.state.is_in_use()))
    }

    /// Lists donors that are no longer used and owe no answer.
    pub fn vacant(&self) -> Vec<DonorId> {
        let state = self.core.lock();
        let vacant = |&number: &usize| state.donors[number].is_over() && !state.schedule.is_asked(number as DonorId);
        (0..state.donors.len()).filter(vacant).map(|number| number as DonorId).collect()
    }

    /// Stops the disk because another client owns it now: nothing more is sent to donors, and every
    /// request fails.
    pub fn taken_over(&mut self, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.failure = Some(DiskError::TakenOver);
            state.wake();
        }
        self.run();
    }

    /// Adds an empty donor.
    pub fn add(&mut self, donor: DonorInfo, past: Past, now_ns: u64) -> Result<DonorId, DiskError> {
        let id = {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            let id = state.add_donor(donor).ok_or_else(too_many)?;
            state.donors[id as usize].state = DonorState::Joining;
            if past == Past::MayWrite {
                state.donors[id as usize].units.taint_all();
            }
            retry::try_again(state);
            epochs::new_epoch(state, Membership::Changed);
            state.wake();
            id
        };
        self.run();
        Ok(id)
    }

    /// Returns whether the stored data would fit without this donor.
    pub fn drain_room(&self, donor: DonorId) -> DrainRoom {
        self.core.lock().room().drain_room(donor)
    }

    /// Moves everything off a donor and then stops using it. Ask [`Engine::drain_room`] first:
    /// without room elsewhere the donor stays in use.
    pub fn drain(&mut self, donor: DonorId, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.schedule.spawn(drain::drain(self.core.clone(), donor));
        }
        self.run();
    }

    /// Begins to move units until all donors are evenly filled, while requests go on. Returns false if that is under
    /// way.
    pub fn rebalance(&mut self, now_ns: u64) -> bool {
        let is_new = {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.wake();
            state.begin_balance()
        };
        self.run();
        is_new
    }

    /// Ends a rebalance; what has moved stays where it is. Returns false if none is under way.
    pub fn stop_rebalance(&mut self) -> bool {
        self.core.lock().balance.end()
    }

    /// Grows the disk to this size (bytes). Returns the size that it has once enough donors know it.
    pub fn grow(&mut self, bytes: u64, now_ns: u64) -> Result<u64, DiskError> {
        let grown = {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            growth::grow(state, bytes)
        };
        self.run();
        grown
    }

    /// Reads and compares everything on the donors while requests go on. Returns false if a scrub
    /// is already under way.
    pub fn scrub(&mut self, now_ns: u64) -> bool {
        let is_new = {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.wake();
            state.scrubs.ask()
        };
        self.run();
        is_new
    }

    /// Lets time pass. Call it about twenty times a second.
    pub fn tick(&mut self, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.schedule.tick();
            membership::tick(&self.core, state);
            let timeout_ns = state.config.timeout_ms as u64 * 1_000_000;
            if timeout_ns > 0 && state.ready {
                let waited = |index: &u32| {
                    let memory = state.groups[*index].memory();
                    memory.is_some_and(|memory| memory.is_overdue(now_ns, timeout_ns))
                };
                let overdue: Vec<u32> = state.groups.in_memory().iter().copied().filter(waited).collect();
                for index in overdue {
                    send::send(&self.core, state, index);
                }
                if !state.notes.is_empty() && now_ns.saturating_sub(state.last_request_ns) >= timeout_ns {
                    let core = self.core.clone();
                    state.schedule.spawn(async move {
                        // Ignore an error here: the next flush reports it.
                        let _ = write::flush(&core).await;
                    });
                }
            }
            state.wake();
        }
        self.run();
    }

    /// Takes the operations and completions to carry out now. Each is returned once.
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.core.lock().actions)
    }

    #[cfg(test)]
    pub(crate) fn answers_untaken(&self) -> usize {
        self.core.lock().schedule.untaken()
    }

    /// Returns the checksum of each block that holds something, for tests.
    #[doc(hidden)]
    pub fn checksums(&self) -> Vec<Option<u32>> {
        let state = self.core.lock();
        (0..state.map.blocks() as u32).map(|block| state.map.find(block).map(|found| found.sum)).collect()
    }

    /// Checks that each unit has one use only and that each block is in an existing group, for
    /// tests.
    #[doc(hidden)]
    pub fn audit(&self) -> Result<(), String> {
        self.core.lock().audit()
    }

    /// Stands for the failure domain of each donor in use, by name.
    pub fn domains(&self) -> Vec<(String, u32)> {
        let state = self.core.lock();
        let in_use = (0..state.donors.len()).filter(|&number| state.donors[number].state.is_in_use());
        in_use.map(|number| (state.donors[number].info.name.clone(), state.roster().domain(number))).collect()
    }

    /// Number of groups with two units in one failure domain, for tests.
    #[doc(hidden)]
    pub fn sharing_groups(&self) -> u64 {
        self.core.lock().roster().sharing_groups()
    }

    pub fn status(&self) -> Status {
        self.core.lock().status()
    }

    /// Lists which parts of a range hold data: together `len` bytes unless there are more than
    /// `parts_max` parts. While the disk is being opened, everything is data.
    pub fn allocation(&self, at: u64, len: u64, parts_max: usize) -> Vec<Stretch> {
        let state = self.core.lock();
        let block_bytes = state.shape.block_bytes as u64;
        let end = at.saturating_add(len).min(state.map.blocks() * block_bytes);
        if !state.ready {
            return vec![Stretch { len, is_data: true }];
        }
        let blocks = at / block_bytes..end.div_ceil(block_bytes);
        let stretches = blocks.map(|block| {
            let from = at.max(block * block_bytes);
            let to = end.min((block + 1) * block_bytes);
            Stretch { len: to - from, is_data: !state.map.is_hole(block as u32) }
        });
        join_up(stretches, parts_max)
    }
}

fn too_many() -> DiskError {
    let most = ram::DONORS_MAX;
    DiskError::Config(format!("a disk has at most {most} donors; drain one that is not needed first"))
}

/// Returns the size of a new disk in blocks.
fn blocks(state: &State) -> Result<u64, DiskError> {
    let config = &state.config;
    let room = state.room().largest_disk();
    let blocks = config.bytes.map_or(room, |bytes| bytes / config.block_bytes as u64);
    if blocks == 0 || blocks > room {
        let kept = state.room().groups_kept() * state.shape.unit_bytes() as u64 + SUPERBLOCK_BYTES as u64;
        return Err(DiskError::Config(format!(
            "a disk of {} bytes does not fit: the donors have room for {} bytes of data beside the {}% that are kept for \
             cleaning (each needs {kept} bytes more); give larger donors, a smaller size, or less `spare`",
            config.bytes.unwrap_or(0),
            room * config.block_bytes as u64,
            config.spare_percent,
        )));
    }
    if state.room().groups_max() * state.map.slots() as u64 >= u32::MAX as u64 {
        return Err(DiskError::Config("more than 2^32 blocks; use larger blocks".into()));
    }
    Ok(blocks)
}
