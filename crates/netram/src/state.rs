//! The engine's state: donors and their units, groups, the block table, the caches; and the steps that change it at once.
//!
//! Owns: where a block is, what of a group is on its way, stored and safe, and when a unit may be used again.
//! Rules:
//! - A location is a group, one of its data units and a row. A block of an open group is in memory until the group is sealed.
//! - *Stored*: the donor has answered. *Safe*: stored, and its group's parity covers it. A flush waits for safe blocks.
//! - A unit that grows keeps its former version until the new one is there (`unit`). While a group grows, data units are
//!   stored before the parity that covers them: the parity on the donors never speaks of blocks that are not there.
//! - A group whose blocks are all dead is freed only when what took their place is safe, and its headers are erased
//!   before its units are used again. What cannot be erased yet is kept in mind (`Donor::erase`): until then lists of trims stay.
//!
//! Left out: everything that waits (`write`, `read`, `clean`, `repair`, `scan`).

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use shoal_format::ram::{LOST, TRIMMED, TrimmedRange, UnitHeader};

use crate::api::{Action, DiskError, DonorOp, Purpose};
use crate::checkpoints::Checkpoints;
use crate::config::{Config, Plan};
use crate::counts::Counts;
use crate::donors::Donor;
use crate::doubt::Doubt;
use crate::found::{FoundUnsafe, Opening};
use crate::group::Group;
use crate::place::{Location, Member};
use crate::schedule::Schedule;
use crate::unit::Shape;

/// A cache that fills one group at a time.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cache {
    pub group: Option<u32>,
    /// The block that would continue the stream.
    pub next: u32,
    /// Groups the victim has filled since this one last filled.
    pub waited: u32,
}

pub(crate) struct State {
    pub config: Config,
    pub plan: Plan,
    pub epoch: u64,
    /// Enough donors have the present epoch: no set of donors that can be opened without them knows an older one alone.
    pub epoch_stored: bool,
    /// The present epoch changes who belongs to the disk.
    pub epoch_changes: bool,
    pub next_born: u32,
    pub blocks: u64,
    pub shape: Shape,
    pub donors: Vec<Donor>,
    /// For each block its location + 1 in the low half, its checksum in the high half; 0: reads as zeros.
    pub table: Vec<u64>,
    pub groups: Vec<Group>,
    unused_groups: Vec<u32>,
    /// Streams, then the victim if there is one, then the cleaner's.
    pub caches: Vec<Cache>,
    /// Sealed groups by live blocks.
    pub by_live: BTreeSet<(u32, u32)>,
    /// Dead groups, by the sequence that killed their last block.
    pub dying: BTreeSet<(u64, u32)>,
    /// Groups with a memory.
    pub in_memory: Vec<u32>,
    pub next_sequence: u64,
    pub next_group: u64,
    /// Trimmed ranges not yet written down.
    pub trims: Vec<TrimmedRange>,
    pub trims_origin: u64,
    /// The same for blocks whose data is lost.
    pub losses: Vec<TrimmedRange>,
    pub now_ns: u64,
    pub last_request_ns: u64,
    /// Somebody found no room since this was last cleared.
    pub room_wanted: bool,
    /// Whoever waits for room was asked again, with nothing on its way.
    pub asked: bool,
    /// New groups go to the donors that have room, however few: nothing else would make some.
    pub narrow: bool,
    /// There is no room, and nothing on its way that would make some.
    pub stuck: bool,
    /// The map is complete: requests are served.
    pub ready: bool,
    pub opening: Opening,
    pub checkpoints: Checkpoints,
    pub failure: Option<DiskError>,
    /// Groups that lost a unit, or are to leave a donor: place and number.
    pub repair_queue: VecDeque<(u32, u64)>,
    /// Units with headers that count no more, to be erased after opening.
    pub strays: Vec<(Member, u64)>,
    /// What opening found and is not safe.
    pub found: FoundUnsafe,
    /// Blocks with entries that opening found and that may not be there.
    pub doubts: BTreeMap<u32, Doubt>,
    /// Groups from this number on were not there when the disk was opened.
    pub first_group: u64,
    /// Grows when a donor comes back, joins or is forgotten: what could not be done is tried again.
    pub returns: u64,
    /// Since when too few donors are there to write to.
    pub few_since_ns: Option<u64>,
    /// When what repair could not do is tried again.
    pub retry_at_ns: Option<u64>,
    pub retry_delay_ns: u64,
    /// Reads that ask other donors because one is late.
    pub hedges: usize,
    /// Groups that the cleaner empties.
    pub victims: Vec<u32>,
    /// Groups cleaned since a request got room, or something changed for the better.
    pub cleaned_in_vain: usize,
    /// Groups that are being repaired.
    pub repairing: usize,
    /// Groups that drains are emptying.
    pub emptied: usize,
    /// A group of a donor that is to leave waits for room.
    pub drain_waits: bool,
    /// Something died since the last look for a group to clean.
    pub victims_changed: bool,
    /// Blocks that the donors that are there can hold.
    pub room_blocks: u64,
    /// Where the next unit to move for evenness is looked for, and when.
    pub level_from: usize,
    pub level_at_ns: u64,
    pub repair_total: u64,
    pub repair_done: u64,
    pub repair_began_ns: u64,
    /// What repair moved is safe where it is now.
    pub repair_safe: bool,
    /// More was moved since the flush began that makes it safe.
    pub repair_moved: bool,
    /// Blocks whose data is lost: reads of them fail.
    pub lost_blocks: HashSet<u32>,
    pub counts: Counts,
    pub actions: Vec<Action>,
    pub schedule: Schedule,
}

impl State {
    pub fn new(config: &Config, plan: Plan, now_ns: u64) -> State {
        let caches = match plan.streams {
            // The one cache and the cleaner's.
            1 => 2,
            streams => streams + 2,
        };
        State {
            epoch: 1,
            epoch_stored: false,
            epoch_changes: false,
            next_born: 1,
            blocks: 0,
            shape: Shape {
                block_bytes: config.block_bytes as usize,
                header_bytes: UnitHeader::bytes(plan.data, plan.buffer),
                rows: plan.buffer,
            },
            donors: Vec::new(),
            table: Vec::new(),
            groups: Vec::new(),
            unused_groups: Vec::new(),
            caches: vec![Cache::default(); caches],
            by_live: BTreeSet::new(),
            dying: BTreeSet::new(),
            in_memory: Vec::new(),
            next_sequence: 1,
            next_group: 1,
            trims: Vec::new(),
            trims_origin: u64::MAX,
            losses: Vec::new(),
            now_ns,
            last_request_ns: now_ns,
            room_wanted: false,
            asked: false,
            narrow: false,
            stuck: false,
            ready: false,
            opening: Default::default(),
            checkpoints: Default::default(),
            failure: None,
            repair_queue: VecDeque::new(),
            strays: Vec::new(),
            found: Default::default(),
            doubts: BTreeMap::new(),
            first_group: 0,
            returns: 0,
            few_since_ns: None,
            retry_at_ns: None,
            retry_delay_ns: 1_000_000_000,
            hedges: 0,
            victims: Vec::new(),
            cleaned_in_vain: 0,
            repairing: 0,
            emptied: 0,
            drain_waits: false,
            victims_changed: true,
            room_blocks: u64::MAX,
            level_from: 0,
            level_at_ns: 0,
            repair_total: 0,
            repair_done: 0,
            repair_began_ns: 0,
            repair_safe: true,
            repair_moved: false,
            lost_blocks: HashSet::new(),
            counts: Counts::default(),
            actions: Vec::new(),
            schedule: Schedule::default(),
            config: config.clone(),
            plan,
        }
    }

    /// Something a condition reads has changed.
    pub fn wake(&mut self) {
        self.schedule.changed = true;
    }

    pub fn slots(&self) -> usize {
        self.plan.data * self.plan.buffer
    }

    pub fn set_blocks(&mut self, blocks: u64) {
        self.blocks = blocks;
        self.table = vec![0; blocks as usize];
    }

    pub fn pack(&self, at: Location, crc: u32) -> u64 {
        let slot = at.group as u64 * self.slots() as u64 + (at.unit * self.plan.buffer + at.row) as u64;
        debug_assert!(slot < u32::MAX as u64);
        (crc as u64) << 32 | (slot + 1)
    }

    /// Where a block is, and its checksum.
    pub fn find(&self, block: u32) -> Option<(Location, u32)> {
        let entry = self.table[block as usize];
        if entry == 0 {
            return None;
        }
        let slot = (entry as u32 - 1) as usize;
        let (group, slot) = (slot / self.slots(), slot % self.slots());
        let at = Location { group: group as u32, unit: slot / self.plan.buffer, row: slot % self.plan.buffer };
        Some((at, (entry >> 32) as u32))
    }

    pub fn table_mut(&mut self) -> &mut [u64] {
        &mut self.table
    }

    /// The block table as it is.
    pub fn raw_table(&self) -> &[u64] {
        &self.table
    }

    pub fn is_at(&self, block: u32, at: Location) -> bool {
        self.find(block).is_some_and(|(found, _)| found == at)
    }

    /// The bytes of a block that is in memory.
    pub fn in_memory(&self, at: Location) -> Option<&[u8]> {
        let memory = self.groups[at.group as usize].memory.as_ref()?;
        Some(&memory.buffers[at.unit][at.row * self.shape.block_bytes..][..self.shape.block_bytes])
    }

    /// Enters a block found on the donors.
    pub fn enter(&mut self, block: u32, at: Location, crc: u32) {
        self.table[block as usize] = self.pack(at, crc);
        self.groups[at.group as usize].live += 1;
        self.counts.mapped += 1;
    }

    /// Something has changed that may make room; what cleaning itself frees does not count.
    pub fn may_have_room(&mut self) {
        (self.stuck, self.cleaned_in_vain) = (false, 0);
    }

    /// Unmaps a block; what it was is dead from now on.
    pub fn unmap(&mut self, block: u32) -> bool {
        let Some((at, _)) = self.find(block) else { return false };
        self.table[block as usize] = 0;
        self.counts.mapped -= 1;
        self.kill(at.group);
        true
    }

    /// One block of the group is dead.
    pub fn kill(&mut self, index: u32) {
        let sequence = self.next_sequence;
        self.victims_changed = true;
        let group = &mut self.groups[index as usize];
        let live = group.live;
        (group.live, group.killed) = (live - 1, sequence);
        let (filed, repaired) = (group.memory.is_none() && !group.busy, live == 1 && group.incomplete().is_some());
        // It is over when what took the block's place is safe, and nobody else may ask for that.
        if repaired {
            self.repair_moves();
        }
        if filed {
            self.by_live.remove(&(live, index));
            self.file(index);
        }
    }

    /// What repair moves is not safe yet, nor covered by a flush that has begun.
    pub fn repair_moves(&mut self) {
        (self.repair_safe, self.repair_moved) = (false, true);
    }

    /// Does the block of this entry still count there?
    pub fn lives(&self, block: u32, at: Location) -> bool {
        match block {
            TRIMMED | LOST => self.groups[at.group as usize].notes().contains(&(at.unit, at.row)),
            block => self.is_at(block, at),
        }
    }

    /// A list of trimmed ranges counts no more.
    pub fn kill_note(&mut self, at: Location) {
        if self.groups[at.group as usize].remove_note((at.unit, at.row)) {
            self.kill(at.group);
        }
    }

    /// Puts a sealed group that nobody works on where the cleaner or the reaper finds it.
    pub fn file(&mut self, index: u32) {
        let group = &self.groups[index as usize];
        debug_assert!(group.memory.is_none() && !group.busy);
        self.victims_changed = true;
        match group.live {
            0 => drop(self.dying.insert((group.killed, index))),
            _ if group.hopeless => {}
            live => drop(self.by_live.insert((live, index))),
        }
        self.wake();
    }

    /// The same for all groups, when opening has found them.
    pub fn file_all(&mut self) {
        let groups = || self.groups.iter().enumerate().filter(|(_, group)| group.id != 0);
        let dead = groups().filter(|(_, group)| group.live == 0);
        self.dying = dead.map(|(index, group)| (group.killed, index as u32)).collect();
        let alive = groups().filter(|(_, group)| group.live > 0);
        self.by_live = alive.map(|(index, group)| (group.live, index as u32)).collect();
        self.unused_groups =
            (0..self.groups.len() as u32).rev().filter(|&index| self.groups[index as usize].id == 0).collect();
        self.victims_changed = true;
        self.wake();
    }

    /// Takes a sealed group away from cleaner and reaper.
    pub fn claim(&mut self, index: u32) {
        let group = &self.groups[index as usize];
        self.by_live.remove(&(group.live, index));
        self.dying.remove(&(group.killed, index));
        self.groups[index as usize].busy = true;
    }

    pub fn release(&mut self, index: u32) {
        self.groups[index as usize].busy = false;
        self.file(index);
    }

    /// Opening begins anew.
    pub fn forget_groups(&mut self) {
        self.groups.clear();
        self.unused_groups.clear();
        self.by_live.clear();
        self.dying.clear();
        self.strays.clear();
    }

    pub fn insert_group(&mut self, group: Group) -> u32 {
        match self.unused_groups.pop() {
            Some(index) => {
                self.groups[index as usize] = group;
                index
            }
            None => {
                self.groups.push(group);
                (self.groups.len() - 1) as u32
            }
        }
    }

    /// The group's place may be used again; its units are the caller's business.
    pub fn remove_group(&mut self, index: u32) -> Group {
        self.checkpoints.forget_group(index);
        self.unused_groups.push(index);
        std::mem::take(&mut self.groups[index as usize])
    }

    /// The cleaner's cache.
    pub fn cleaning(&self) -> usize {
        self.caches.len() - 1
    }

    pub fn count_op(&mut self, op: &DonorOp, purpose: Purpose) {
        let (bytes, reads) = match op {
            DonorOp::Read { len, .. } => (*len as u64, true),
            DonorOp::Write { bytes, .. } => (bytes.len() as u64, false),
            DonorOp::Trim { .. } => return,
        };
        let traffic = &mut self.counts.traffic[purpose as usize];
        traffic.operations += 1;
        if reads {
            traffic.read_bytes += bytes;
        } else {
            traffic.written_bytes += bytes;
        }
    }
}

impl State {
    pub fn complete(&mut self, ticket: u64, result: Result<Vec<u8>, DiskError>) {
        self.actions.push(Action::Complete { ticket, result });
    }
}
