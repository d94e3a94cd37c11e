//! The engine: a disk's state and its jobs, driven by events.
//!
//! Owns: creating and opening a disk, and the door through which requests, answers, losses and time come in and actions go out.
//! Rules: an event is handled completely before the call returns; the same events in the same order give the same actions.
//! Left out: carrying operations out, and time (the caller's).

use std::sync::Arc;

use shoal_format::ram::{DiskSuperblock, SUPERBLOCK_BYTES};
use shoal_media::Request;

use crate::api::{Action, DiskError, DonorError, DonorId, DonorInfo};
use crate::clean;
use crate::config::{Config, Policy};
use crate::read;
use crate::repair::{self, REPAIRERS};
use crate::scan;
use crate::state::{DonorState, State};
use crate::status::Status;
use crate::task::{Core, Jobs};
use crate::write;

/// Requests are multiples of this, whatever the size of blocks (bytes).
pub const SECTOR_BYTES: u32 = 512;

/// A network RAM disk without its network.
pub struct Engine {
    core: Arc<Core>,
    jobs: Jobs,
}

/// The disk a donor belongs to, and the epoch it knows. `None`: the donor is blank.
pub fn identify(superblock: &[u8]) -> Option<([u8; 16], u64)> {
    DiskSuperblock::decode(superblock).ok().map(|found| (found.uuid, found.epoch))
}

impl Engine {
    /// A new disk on donors whose contents do not matter.
    pub fn create(config: &Config, donors: Vec<DonorInfo>, now_ns: u64) -> Result<Engine, DiskError> {
        let plan = config.plan(donors.len())?;
        let mut state = State::new(config, plan, now_ns);
        for donor in donors {
            state.add_donor(donor);
        }
        let blocks = blocks(&state)?;
        state.set_blocks(blocks);
        let core = Core::new(state);
        core.lock().serve_when_known(&core);
        Ok(Engine::start(core))
    }

    /// A disk found on its donors. `superblocks`: the first 4096 bytes of each donor; `None` where it cannot be reached.
    /// Donors that hold nothing of this disk join it empty.
    pub fn open(config: &Config, donors: Vec<(DonorInfo, Option<Vec<u8>>)>, now_ns: u64) -> Result<Engine, DiskError> {
        let wrong = |text: String| Err(DiskError::Config(text));
        let found: Vec<Option<DiskSuperblock>> = donors
            .iter()
            .map(|(_, bytes)| bytes.as_ref().and_then(|bytes| DiskSuperblock::decode(bytes).ok()))
            .collect();
        let Some(newest) = found.iter().flatten().max_by_key(|superblock| superblock.epoch).cloned() else {
            return wrong("no donor holds a disk; create one".into());
        };
        if let Some(other) = found.iter().position(|one| one.as_ref().is_some_and(|one| one.uuid != newest.uuid)) {
            let name = &donors[other].0.name;
            return wrong(format!("donor {name} belongs to another disk; leave it out, or erase it with `new=yes`"));
        }
        let config = Config {
            policy: Policy::ALL[newest.policy as usize],
            uuid: newest.uuid,
            block_bytes: newest.block_bytes,
            buffer_blocks: newest.buffer_blocks,
            parity: newest.parity,
            streams: newest.streams,
            dedicated_parity: newest.flags & 1 != 0,
            width: if newest.policy == 2 { 0 } else { newest.data + newest.parity },
            ..config.clone()
        };
        let mut plan = config.plan(usize::MAX)?;
        plan.data = newest.data as usize;
        let mut state = State::new(&config, plan, now_ns);
        state.epoch = newest.epoch;
        let mut blank = Vec::new();
        let mut present: Vec<Option<DonorInfo>> = vec![None; newest.donors.len()];
        for ((info, bytes), superblock) in donors.into_iter().zip(&found) {
            match superblock {
                Some(own) if newest.donors.get(own.donor as usize) == Some(&true) => {
                    let place = &mut present[own.donor as usize];
                    if place.is_some() {
                        return wrong(format!("donor {} is given twice", info.name));
                    }
                    *place = Some(info);
                }
                // Stale, or never part of it; one that cannot be reached is not given a place.
                _ if bytes.is_some() => blank.push(info),
                _ => {}
            }
        }
        let missing = present.iter().zip(&newest.donors).filter(|(info, counts)| info.is_none() && **counts).count();
        let allowed = plan.parity;
        if missing > allowed {
            let have = newest.donors.iter().filter(|&&counts| counts).count() - missing;
            return Err(DiskError::TooFewDonors { have, need: have + missing - allowed });
        }
        for info in present {
            let there = info.is_some();
            let name = "a donor that is not there".to_string();
            let id = state.add_donor(info.unwrap_or(DonorInfo { name, bytes: 0 }));
            if !there {
                state.donors[id as usize].state = DonorState::Lost;
            }
        }
        state.set_blocks(newest.blocks);
        for donor in &mut state.donors {
            donor.blank = false;
        }
        for info in blank {
            let id = state.add_donor(info);
            state.donors[id as usize].state = DonorState::Joining;
        }
        let core = Core::new(state);
        core.lock().schedule.spawn(scan::scan(core.clone()));
        Ok(Engine::start(core))
    }

    fn start(core: Arc<Core>) -> Engine {
        {
            let schedule = &mut core.lock().schedule;
            schedule.spawn(clean::cleaner(core.clone()));
            schedule.spawn(clean::reaper(core.clone()));
            schedule.spawn(clean::trimmer(core.clone()));
            schedule.spawn(repair::herald(core.clone()));
            schedule.spawn(repair::guardian(core.clone()));
            for _ in 0..REPAIRERS {
                schedule.spawn(repair::repairer(core.clone()));
            }
        }
        let mut engine = Engine { core, jobs: Jobs::default() };
        engine.run();
        engine
    }

    fn run(&mut self) {
        self.jobs.run(&self.core);
        while self.core.lock().unstick(&self.core) {
            self.jobs.run(&self.core);
        }
    }

    pub fn bytes(&self) -> u64 {
        let state = self.core.lock();
        state.blocks * state.block_bytes as u64
    }

    pub fn block_bytes(&self) -> u32 {
        self.core.lock().block_bytes as u32
    }

    /// Its map is complete, and its donors know it: requests do not wait.
    pub fn is_ready(&self) -> bool {
        self.core.lock().ready
    }

    /// A request; [`Action::Complete`] will name the ticket, unique among those in flight.
    pub fn submit(&mut self, ticket: u64, request: Request, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            (state.now_ns, state.last_request_ns) = (now_ns, now_ns);
            let (at, len) = request.range();
            let bytes = state.blocks * state.block_bytes as u64;
            let sector = SECTOR_BYTES as u64;
            if at > bytes || len > bytes - at || !at.is_multiple_of(sector) || !len.is_multiple_of(sector) {
                state.complete(ticket, Err(DiskError::OutOfRange { at, len }));
                return;
            }
            match &request {
                Request::Read { .. } => state.counts.reads += 1,
                Request::Write { .. } => state.counts.writes += 1,
                _ => {}
            }
            let core = self.core.clone();
            state.schedule.spawn(async move {
                core.until(|state| state.ready.then_some(())).await;
                match request {
                    Request::Read { at, buffer } => read::read(core, ticket, at, buffer).await,
                    Request::Write { at, buffer, fua } => write::write(core, ticket, at, buffer, fua).await,
                    Request::Flush => {
                        let result = write::flush(&core).await;
                        core.lock().complete(ticket, result.map(|()| Vec::new()));
                    }
                    Request::Trim { at, len } => write::zero(core, ticket, at, len, false).await,
                    Request::WriteZeroes { at, len, fua } => write::zero(core, ticket, at, len, fua).await,
                }
            });
        }
        self.run();
    }

    /// The answer to [`Action::Donor`]: the bytes read, else nothing.
    pub fn done(&mut self, ticket: u64, result: Result<Vec<u8>, DonorError>, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.schedule.answer(ticket, result);
        }
        self.run();
    }

    /// A donor is gone for good. Its operations in flight must still be answered, with errors.
    pub fn lost(&mut self, donor: DonorId, now_ns: u64) {
        self.core.lock().now_ns = now_ns;
        repair::lose(&self.core, &mut self.core.lock(), donor);
        self.run();
    }

    /// A donor joins, empty.
    pub fn add(&mut self, donor: DonorInfo, now_ns: u64) -> DonorId {
        let id = {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            let id = state.add_donor(donor);
            state.donors[id as usize].state = DonorState::Joining;
            (state.stuck, state.failure) = (false, None);
            // What found no place before may find one now.
            for lost in 0..id {
                if state.donors[lost as usize].is_lost() {
                    repair::queue(state, lost);
                }
            }
            repair::new_epoch(state);
            state.wake();
            id
        };
        self.run();
        id
    }

    /// Everything is moved off a donor; then it is not used any more.
    pub fn drain(&mut self, donor: DonorId, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            state.schedule.spawn(repair::drain(self.core.clone(), donor));
        }
        self.run();
    }

    /// Time goes on: call it about twenty times a second.
    pub fn tick(&mut self, now_ns: u64) {
        {
            let state = &mut *self.core.lock();
            state.now_ns = now_ns;
            let timeout_ns = state.config.timeout_ms as u64 * 1_000_000;
            if timeout_ns > 0 && state.ready {
                let waited = |index: &u32| {
                    let memory = state.groups[*index as usize].memory.as_ref();
                    memory.is_some_and(|memory| {
                        memory.unsafe_from != u64::MAX && now_ns.saturating_sub(memory.unsafe_since_ns) >= timeout_ns
                    })
                };
                let overdue: Vec<u32> = state.in_memory.iter().copied().filter(waited).collect();
                for index in overdue {
                    write::send(&self.core, state, index, true);
                }
                if !state.trims.is_empty() && now_ns.saturating_sub(state.last_request_ns) >= timeout_ns {
                    let core = self.core.clone();
                    state.schedule.spawn(async move {
                        // An error is the next flush's to report.
                        let _ = write::flush(&core).await;
                    });
                }
            }
            state.wake();
        }
        self.run();
    }

    /// What is to be done now.
    pub fn actions(&mut self) -> Vec<Action> {
        std::mem::take(&mut self.core.lock().actions)
    }

    #[cfg(test)]
    pub(crate) fn answers_untaken(&self) -> usize {
        self.core.lock().schedule.untaken()
    }

    pub fn status(&self) -> Status {
        self.core.lock().status()
    }
}

/// Size of a new disk in blocks.
fn blocks(state: &State) -> Result<u64, DiskError> {
    let config = &state.config;
    let usable = state.groups_max().saturating_sub(state.groups_kept()) * state.slots() as u64;
    let room = usable * 100 / (100 + config.spare_percent as u64);
    let blocks = match config.bytes {
        None => room,
        Some(bytes) => bytes / config.block_bytes as u64,
    };
    if blocks == 0 || blocks > usable {
        let kept = state.groups_kept() * state.unit_bytes() as u64 + SUPERBLOCK_BYTES as u64;
        return Err(DiskError::Config(format!(
            "a disk of {} bytes does not fit: the donors have room for {} bytes of data (each needs {kept} bytes more); \
             give larger donors or a smaller size",
            config.bytes.unwrap_or(0),
            usable * config.block_bytes as u64,
        )));
    }
    if state.groups_max() * state.slots() as u64 >= u32::MAX as u64 {
        return Err(DiskError::Config("more than 2^32 blocks; use larger blocks".into()));
    }
    Ok(blocks)
}
