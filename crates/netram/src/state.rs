//! The engine's state: its parts, each with one owner, and the few steps that change several of
//! them.
//!
//! | module | owns |
//! |---|---|
//! | `place`, `bits`, `unit` | members of groups and locations of blocks; sets of numbers; unit sizes and growth |
//! | `memory`, `group` | groups in memory; all groups, and the orders in which jobs search them |
//! | `map`, `notes` | where each block is; trims and losses that are in no list yet |
//! | `open_groups` | the groups that are being filled |
//! | `units`, `donors`, `pace` | the units of one donor; the donor itself; how fast it answers |
//! | `domains` | donors that may be lost together |
//! | `epoch`, `checkpoints` | the number of the present membership; the checkpoint that counts and the next one |
//! | `repairs`, `retry`, `shortage` | work and groups for repair; trying again; whether room is short |
//! | `doubt`, `found` | blocks that opening found and that are not safe yet |
//! | `balance` | filling the donors evenly |
//! | `unflushed`, `damage`, `scrubs` | a failed flush; blocks that fail their checksum; scrubbing |
//! | `schedule` | jobs, and what they wait for |
//! | `roster`, `room`, `fill`, `horizon` | queries and steps that need several of these |
//!
//! Rules that no single part can keep:
//! - A location is a group, one of its data units and a row. A block of an open group is in memory until the group is
//!   sealed.
//! - *Stored*: the donor has answered. *Safe*: stored, and covered by its group's parity. A flush
//!   waits until blocks are safe.
//! - A unit that grows keeps its former version until the new one is stored (`unit`). While a group
//!   grows, data units are stored before the parity that covers them, so parity on the donors never
//!   covers blocks that are not there.
//! - A group whose blocks are all dead is freed only when their successors are safe. Its headers
//!   stay until those of another group replace them, or are erased (`units`). Lists of trims are
//!   kept as long as any header may list something older.
//!
//! Left out: everything that waits (`requests`, `upkeep`, `membership`, `opening`, `checkpoint`).

pub(crate) mod balance;
pub(crate) mod bits;
pub(crate) mod checkpoints;
pub(crate) mod damage;
pub(crate) mod domains;
pub(crate) mod donors;
pub(crate) mod doubt;
pub(crate) mod epoch;
pub(crate) mod fill;
pub(crate) mod found;
pub(crate) mod group;
pub(crate) mod horizon;
pub(crate) mod map;
pub(crate) mod memory;
pub(crate) mod notes;
pub(crate) mod open_groups;
pub(crate) mod pace;
pub(crate) mod place;
pub(crate) mod repairs;
pub(crate) mod retry;
pub(crate) mod room;
pub(crate) mod roster;
pub(crate) mod schedule;
pub(crate) mod scrubs;
pub(crate) mod shortage;
pub(crate) mod unflushed;
pub(crate) mod unit;
pub(crate) mod units;

use shoal_format::ram::{LOST, TRIMMED, UnitHeader};

use crate::api::{Action, DiskError, DonorOp, Purpose};
use crate::config::{Config, Plan};
use crate::counts::Counts;
use crate::state::balance::Balance;
use crate::state::checkpoints::Checkpoints;
use crate::state::damage::Damage;
use crate::state::domains::Domains;
use crate::state::donors::Donor;
use crate::state::epoch::Epoch;
use crate::state::found::{FoundUnsafe, Opening};
use crate::state::group::{Group, Groups};
use crate::state::map::BlockMap;
use crate::state::notes::Notes;
use crate::state::open_groups::OpenGroups;
use crate::state::place::Location;
use crate::state::repairs::Repairs;
use crate::state::room::GROUPS_AHEAD;
use crate::state::schedule::Schedule;
use crate::state::scrubs::Scrubs;
use crate::state::shortage::{Leveling, Shortage};
use crate::state::unflushed::Unflushed;
use crate::state::unit::Shape;

pub(crate) struct State {
    pub config: Config,
    pub plan: Plan,
    pub shape: Shape,
    pub epoch: Epoch,
    pub donors: Vec<Donor>,
    pub domains: Domains,
    pub groups: Groups,
    pub open: OpenGroups,
    pub map: BlockMap,
    /// The disk's size once enough donors know it, if it grows (blocks).
    pub growing: Option<u64>,
    pub notes: Notes,
    /// Sequence of the next entry.
    pub next_sequence: u64,
    pub shortage: Shortage,
    pub leveling: Leveling,
    pub balance: Balance,
    pub repairs: Repairs,
    pub checkpoints: Checkpoints,
    pub opening: Opening,
    /// Blocks that opening found and that are not safe yet.
    pub found: FoundUnsafe,
    /// The map is complete, and requests are served.
    pub ready: bool,
    pub failure: Option<DiskError>,
    pub unflushed: Unflushed,
    pub damage: Damage,
    pub scrubs: Scrubs,
    pub now_ns: u64,
    pub last_request_ns: u64,
    /// When the donors became too few to write to; `None`: they are enough.
    pub few_since_ns: Option<u64>,
    /// Reads in flight that ask other donors because one is late.
    pub hedges: usize,
    pub counts: Counts,
    pub actions: Vec<Action>,
    pub schedule: Schedule,
}

impl State {
    pub fn new(config: &Config, plan: Plan, now_ns: u64) -> State {
        State {
            shape: Shape {
                block_bytes: config.block_bytes as usize,
                header_bytes: UnitHeader::bytes(plan.data, plan.buffer),
                rows: plan.buffer,
                block_sums: config.sums,
            },
            epoch: Epoch::default(),
            donors: Vec::new(),
            domains: Domains::default(),
            groups: Groups::new(),
            open: OpenGroups::new(plan.streams, plan.has_hot, config.stalled),
            map: BlockMap::new(plan.data, plan.buffer),
            growing: None,
            notes: Notes::default(),
            next_sequence: 1,
            shortage: Shortage::default(),
            leveling: Leveling::default(),
            balance: Balance::default(),
            repairs: Repairs::default(),
            checkpoints: Checkpoints::default(),
            opening: Opening::default(),
            found: FoundUnsafe::default(),
            ready: false,
            failure: None,
            unflushed: Unflushed::default(),
            damage: Damage::default(),
            scrubs: Scrubs::opened(now_ns),
            now_ns,
            last_request_ns: now_ns,
            few_since_ns: None,
            hedges: 0,
            counts: Counts::default(),
            actions: Vec::new(),
            schedule: Schedule::default(),
            config: config.clone(),
            plan,
        }
    }

    /// Tells waiting jobs that something their conditions read has changed.
    pub fn wake(&mut self) {
        self.schedule.changed = true;
    }

    /// Takes the sequence for a new entry or range.
    pub fn take_sequence(&mut self) -> u64 {
        self.next_sequence += 1;
        self.next_sequence - 1
    }

    /// Marks a sequence as used: later ones are higher.
    pub fn meets_sequence(&mut self, sequence: u64) {
        self.next_sequence = self.next_sequence.max(sequence + 1);
    }

    /// Returns the bytes of a block if it is in memory.
    pub fn in_memory(&self, at: Location) -> Option<&[u8]> {
        let memory = self.groups[at.group].memory()?;
        Some(memory.block(at.unit, at.row, self.shape.block_bytes))
    }

    /// Enters a block found on the donors.
    pub fn enter(&mut self, block: u32, at: Location, sum: u32) {
        self.map.insert(block, at, sum);
        self.groups.gain(at.group);
    }

    /// Unmaps a block; its copy is dead from now on. False if it was not mapped.
    pub fn unmap(&mut self, block: u32) -> bool {
        let Some(found) = self.map.remove(block) else { return false };
        self.kill(found.at.group);
        true
    }

    /// Counts one block of the group as dead.
    pub fn kill(&mut self, index: u32) {
        let killed = self.groups.kill(index, self.next_sequence);
        // Repair is over only when the block's new copy is safe, and there may be no other reason
        // to flush it.
        if killed.ends_repair {
            self.repairs.moves();
        }
        // Almost every write kills a block. While there is room, the cleaner looks with the ticks.
        if killed.is_dead || killed.filed && !self.room().has_room(GROUPS_AHEAD) {
            self.wake();
        }
    }

    /// Returns whether the entry's block still counts at this location.
    pub fn lives(&self, block: u32, at: Location) -> bool {
        match block {
            TRIMMED | LOST => self.groups[at.group].notes().contains(&at.spot()),
            block => self.map.is_at(block, at),
        }
    }

    /// Ends a list of trimmed ranges: it no longer counts.
    pub fn kill_note(&mut self, at: Location) {
        if self.groups[at.group].remove_note(at.spot()) {
            self.kill(at.group);
        }
    }

    /// Schedules another repair attempt, because this one was incomplete.
    pub fn retry_later(&mut self) {
        self.repairs.retry_later(self.now_ns);
    }

    /// Ends a job's claim on a group.
    pub fn release(&mut self, index: u32) {
        self.groups.release(index);
        self.wake();
    }

    /// Forgets all groups, because opening starts again.
    pub fn forget_groups(&mut self) {
        self.groups.clear();
        self.opening.strays.clear();
    }

    /// Removes a group and frees its place. The caller handles its units.
    pub fn remove_group(&mut self, index: u32) -> Group {
        self.checkpoints.forget_group(index);
        self.groups.remove(index)
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
