//! The dirty blocks of a cache in the order of their age, and the choice among them.
//!
//! Owns: [`DirtySet`]. A block is clean (not in the set), waiting, or being written. A block that
//! is modified while it is being written is both: its newer data have an age of their own, and it
//! is not handed out again before the first write has ended.
//! Rules: a waiting block has the age of its oldest data that no device holds. A choice examines
//! the blocks it hands out and one more.
//! Left out: the data, and the delay before a failed write is retried. The caller sets the delay by
//! when it calls [`DirtySet::failed`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::policy::{Load, Policy, Rule};
use crate::{BlockId, FileId};

/// Place in the order of age: when the block was first dirtied (ns), and a number that keeps equal times apart.
type Age = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Waiting {
    file: FileId,
    age: Age,
}

#[derive(Clone, Copy, Debug)]
struct Writing {
    file: FileId,
    since_ns: u64,
    /// When the block was first modified after it was handed out (ns).
    again_ns: Option<u64>,
}

/// Counters of a set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Modifications that made a clean block dirty, or made a block dirty again while it was being written.
    pub dirtied: u64,
    /// Modifications of blocks that were dirty already: writes saved.
    pub modified: u64,
    pub chosen: u64,
    /// Blocks examined in order to choose.
    pub examined: u64,
    /// Blocks that the report's algorithm would have looked at: every waiting block at every tick of the policy. For a
    /// policy without ticks, one timer for each block chosen.
    pub listed: u64,
}

/// What was handed out under the rule's shape.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    /// Number of the shape's tick.
    tick: u64,
    /// Blocks handed out in it.
    blocks: u64,
}

/// Dirty blocks under a rule.
#[derive(Clone, Debug, Default)]
pub struct DirtySet {
    rule: Rule,
    waiting: HashMap<BlockId, Waiting>,
    order: BTreeMap<Age, BlockId>,
    files: HashMap<FileId, BTreeSet<Age>>,
    writing: HashMap<BlockId, Writing>,
    sequence: u64,
    given: Given,
    /// Time up to which `counts.listed` is known (ns).
    listed_ns: u64,
    counts: Counts,
}

impl DirtySet {
    /// An empty set.
    pub fn new(rule: Rule) -> DirtySet {
        DirtySet { rule, ..DirtySet::default() }
    }

    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Changes the rule from `now_ns` on. All blocks keep their ages.
    pub fn set_rule(&mut self, rule: Rule, now_ns: u64) {
        self.pass_ticks(now_ns);
        (self.rule, self.given) = (rule, Given::default());
    }

    /// Records that a block of a file was modified in the cache. Returns false if it was already
    /// dirty, so that nothing changed.
    pub fn dirtied(&mut self, block: BlockId, file: FileId, now_ns: u64) -> bool {
        self.pass_ticks(now_ns);
        let is_new = match self.writing.get_mut(&block) {
            Some(writing) if writing.again_ns.is_some() => false,
            Some(writing) => {
                writing.again_ns = Some(now_ns);
                writing.file = file;
                true
            }
            None if self.waiting.contains_key(&block) => {
                self.belongs(block, file);
                false
            }
            None => {
                self.wait(block, file, now_ns);
                true
            }
        };
        let count = if is_new { &mut self.counts.dirtied } else { &mut self.counts.modified };
        *count += 1;
        is_new
    }

    /// Records that the write of a handed-out block has completed. Returns whether the block waits
    /// again because it was modified in the meantime. It may then be due sooner than
    /// [`DirtySet::next_ns`] said before.
    pub fn cleaned(&mut self, block: BlockId, now_ns: u64) -> bool {
        self.pass_ticks(now_ns);
        match self.writing.remove(&block) {
            Some(Writing { file, again_ns: Some(again_ns), .. }) => {
                self.wait(block, file, again_ns);
                true
            }
            _ => false,
        }
    }

    /// Records that the write of a handed-out block has failed. The block waits again with its old
    /// age.
    pub fn failed(&mut self, block: BlockId, now_ns: u64) {
        self.pass_ticks(now_ns);
        if let Some(Writing { file, since_ns, .. }) = self.writing.remove(&block) {
            self.wait(block, file, since_ns);
        }
    }

    /// Records that the contents of a block are obsolete. A write under way must still be ended by
    /// `cleaned` or `failed`.
    pub fn discarded(&mut self, block: BlockId, now_ns: u64) {
        self.pass_ticks(now_ns);
        self.leave(block);
        if let Some(writing) = self.writing.get_mut(&block) {
            writing.again_ns = None;
        }
    }

    /// Hands out the blocks to be written now, the oldest first; under Sprite's rule file by file. Each counts as being
    /// written until `cleaned` or `failed` is called.
    pub fn choose(&mut self, now_ns: u64, load: &Load) -> Vec<BlockId> {
        self.pass_ticks(now_ns);
        if let Some(shape) = &self.rule.shape {
            let tick = now_ns / shape.tick_ns.max(1);
            if self.given.tick != tick {
                self.given = Given { tick, blocks: 0 };
            }
        }
        let allowed = self.rule.allowance(load, self.given.blocks);
        let mut chosen = vec![];
        while let Some((&age, &block)) = self.order.first_key_value() {
            self.counts.examined += 1;
            let is_overdue = self.rule.overdue_ns(age.0) <= now_ns;
            let has_room = (chosen.len() as u64) < allowed;
            if self.rule.policy.due_ns(age.0) > now_ns || !is_overdue && !has_room {
                break;
            }
            match self.rule.policy {
                Policy::Sprite { .. } => self.hand_out_file(block, allowed, &mut chosen),
                Policy::Idle { .. } => self.hand_out_all(allowed, &mut chosen),
                _ => self.hand_out(block, &mut chosen),
            }
        }
        self.given.blocks += chosen.len() as u64;
        self.counts.chosen += chosen.len() as u64;
        if self.rule.policy.grain_ns().is_none() {
            self.counts.listed += chosen.len() as u64;
        }
        chosen
    }

    /// Hands out one block regardless of its age, because a caller waits for it. False if it is clean or being written.
    pub fn take(&mut self, block: BlockId, now_ns: u64) -> bool {
        self.pass_ticks(now_ns);
        if !self.waiting.contains_key(&block) || self.writing.contains_key(&block) {
            return false;
        }
        self.hand_out(block, &mut Vec::new());
        self.counts.chosen += 1;
        true
    }

    /// Hands out the oldest block that waits, regardless of its age.
    pub fn take_oldest(&mut self, now_ns: u64) -> Option<BlockId> {
        let (_, &block) = self.order.first_key_value()?;
        // Waiting blocks are not being written.
        self.take(block, now_ns).then_some(block)
    }

    /// Returns when `choose` should be called next (ns), after a call at `now_ns`; `None` if no
    /// block waits. It should also be called when a write fails or leaves its block dirty and, if
    /// the rule depends on the load ([`Rule::goes_by_load`]), when the load changes.
    pub fn next_ns(&self, now_ns: u64) -> Option<u64> {
        let (&(since_ns, _), _) = self.order.first_key_value()?;
        let due_ns = self.rule.policy.due_ns(since_ns);
        if due_ns > now_ns {
            return Some(due_ns);
        }
        // The oldest block is held back: until its bound, or until a new tick allows more.
        let tick_ns = self.rule.shape.map_or(u64::MAX, |shape| {
            let tick_ns = shape.tick_ns.max(1);
            (now_ns / tick_ns + 1).saturating_mul(tick_ns)
        });
        Some(self.rule.overdue_ns(since_ns).max(now_ns.saturating_add(1)).min(tick_ns))
    }

    /// When a block was first dirtied (ns): the time of its oldest data that no device is known to hold.
    pub fn since_ns(&self, block: BlockId) -> Option<u64> {
        let writing = self.writing.get(&block).map(|writing| writing.since_ns);
        writing.or_else(|| self.waiting.get(&block).map(|waiting| waiting.age.0))
    }

    /// When the oldest data that no device is known to hold was first dirtied (ns).
    pub fn oldest_ns(&self) -> Option<u64> {
        let waiting = self.order.first_key_value().map(|((since_ns, _), _)| *since_ns);
        let writing = self.writing.values().map(|writing| writing.since_ns).min();
        waiting.into_iter().chain(writing).min()
    }

    /// Blocks that wait; blocks being written are not counted.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Blocks that were handed out and are being written.
    pub fn being_written(&self) -> usize {
        self.writing.len()
    }

    /// Whether the device holds everything.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.writing.is_empty()
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    fn wait(&mut self, block: BlockId, file: FileId, since_ns: u64) {
        self.sequence += 1;
        let age = (since_ns, self.sequence);
        self.waiting.insert(block, Waiting { file, age });
        self.order.insert(age, block);
        self.files.entry(file).or_default().insert(age);
    }

    /// Moves a waiting block to the file that modified it last: its place was given to another one.
    fn belongs(&mut self, block: BlockId, file: FileId) {
        let Some(waiting) = self.waiting.get_mut(&block).filter(|waiting| waiting.file != file) else { return };
        let before = std::mem::replace(&mut waiting.file, file);
        let age = waiting.age;
        self.forget(before, age);
        self.files.entry(file).or_default().insert(age);
    }

    fn forget(&mut self, file: FileId, age: Age) {
        if let Some(ages) = self.files.get_mut(&file) {
            ages.remove(&age);
            if ages.is_empty() {
                self.files.remove(&file);
            }
        }
    }

    fn leave(&mut self, block: BlockId) -> Option<Waiting> {
        let waiting = self.waiting.remove(&block)?;
        self.order.remove(&waiting.age);
        self.forget(waiting.file, waiting.age);
        Some(waiting)
    }

    fn hand_out(&mut self, block: BlockId, chosen: &mut Vec<BlockId>) {
        if let Some(Waiting { file, age }) = self.leave(block) {
            self.writing.insert(block, Writing { file, since_ns: age.0, again_ns: None });
            chosen.push(block);
        }
    }

    /// Hands out a due block, and as many other waiting blocks of its file as are allowed.
    fn hand_out_file(&mut self, block: BlockId, allowed: u64, chosen: &mut Vec<BlockId>) {
        let Some(Waiting { file, .. }) = self.waiting.get(&block).copied() else { return };
        self.hand_out(block, chosen);
        let ages: Vec<Age> = self.files.get(&file).into_iter().flatten().copied().collect();
        for age in ages.into_iter().take(allowed.saturating_sub(chosen.len() as u64) as usize) {
            self.counts.examined += 1;
            self.hand_out(self.order[&age], chosen);
        }
    }

    /// Hands out as many waiting blocks as are allowed, and at least one.
    fn hand_out_all(&mut self, allowed: u64, chosen: &mut Vec<BlockId>) {
        let blocks: Vec<BlockId> = self.order.values().copied().collect();
        for block in blocks.into_iter().take(allowed.saturating_sub(chosen.len() as u64).max(1) as usize) {
            self.hand_out(block, chosen);
        }
    }

    /// Counts the blocks that the report's algorithm looks at in the ticks up to now. Called before the set changes.
    fn pass_ticks(&mut self, now_ns: u64) {
        if let Some(grain_ns) = self.rule.policy.grain_ns().filter(|grain_ns| *grain_ns > 0) {
            let ticks = (now_ns / grain_ns).saturating_sub(self.listed_ns / grain_ns);
            self.counts.listed += ticks * self.waiting.len() as u64;
        }
        self.listed_ns = self.listed_ns.max(now_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::S_NS;
    use crate::policy::Shape;

    const FILE: FileId = FileId(1);
    const IDLE: Load = Load { reads_waiting: 0, writes_queued: 0 };

    fn set_of(policy: Policy, blocks: u64) -> DirtySet {
        let mut set = DirtySet::new(Rule::of(policy));
        for block in 0..blocks {
            assert!(set.dirtied(BlockId(block), FILE, block + 1));
        }
        set
    }

    #[test]
    fn a_block_modified_again_keeps_its_first_time() {
        let mut set = set_of(Policy::Interval { age_ns: 100 }, 1);
        for now_ns in (10..100).step_by(10) {
            assert!(!set.dirtied(BlockId(0), FILE, now_ns) && set.choose(now_ns, &IDLE).is_empty());
        }
        assert_eq!(set.since_ns(BlockId(0)), Some(1));
        assert_eq!(set.choose(101, &IDLE), [BlockId(0)]);
        assert_eq!((set.counts().dirtied, set.counts().modified), (1, 9));
    }

    #[test]
    fn a_block_modified_while_it_is_being_written_has_a_new_age_and_waits_for_the_first_write() {
        let mut set = set_of(Policy::WriteThrough, 1);
        assert_eq!(set.choose(1, &IDLE), [BlockId(0)]);
        assert!(set.dirtied(BlockId(0), FILE, 50) && !set.dirtied(BlockId(0), FILE, 60));
        assert!(set.choose(70, &IDLE).is_empty(), "its first write is under way");
        assert_eq!(set.since_ns(BlockId(0)), Some(1), "until that has ended");
        assert!(set.cleaned(BlockId(0), 80));
        assert_eq!(set.since_ns(BlockId(0)), Some(50));
        assert_eq!(set.choose(80, &IDLE), [BlockId(0)]);
        assert!(!set.cleaned(BlockId(0), 90));
        assert!(set.is_empty());
    }

    #[test]
    fn a_failed_write_leaves_the_age_as_it_was() {
        let mut set = set_of(Policy::Interval { age_ns: 10 }, 2);
        assert_eq!(set.choose(11, &IDLE), [BlockId(0)]);
        set.dirtied(BlockId(0), FILE, 12);
        set.failed(BlockId(0), 20);
        assert_eq!(set.choose(20, &IDLE), [BlockId(0), BlockId(1)], "oldest first");
    }

    #[test]
    fn what_is_discarded_is_not_written() {
        let mut set = set_of(Policy::WriteThrough, 2);
        set.discarded(BlockId(0), 3);
        assert_eq!(set.choose(3, &IDLE), [BlockId(1)]);
        set.dirtied(BlockId(1), FILE, 4);
        set.discarded(BlockId(1), 5);
        set.cleaned(BlockId(1), 6);
        assert!(set.is_empty() && set.next_ns(6).is_none());
    }

    #[test]
    fn sprite_writes_a_file_with_its_oldest_block_and_leaves_other_files() {
        let mut set = DirtySet::new(Rule::of(Policy::SPRITE));
        for (block, file, at_s) in [(1, 1, 1), (2, 2, 2), (3, 1, 34), (4, 2, 34)] {
            set.dirtied(BlockId(block), FileId(file), at_s * S_NS);
        }
        assert!(set.choose(34 * S_NS, &IDLE).is_empty(), "between scans");
        assert_eq!(set.choose(35 * S_NS, &IDLE), [1, 3, 2, 4].map(BlockId));
        let mut set = DirtySet::new(Rule::of(Policy::SPRITE));
        for (block, file, at_s) in [(1, 1, 1), (2, 2, 6), (3, 1, 7)] {
            set.dirtied(BlockId(block), FileId(file), at_s * S_NS);
        }
        assert_eq!(set.choose(35 * S_NS, &IDLE), [1, 3].map(BlockId));
    }

    #[test]
    fn a_block_that_another_file_modifies_is_that_files_and_keeps_its_age() {
        let mut set = DirtySet::new(Rule::of(Policy::SPRITE));
        for (block, file, at_s) in [(1, 1, 1), (2, 1, 3), (2, 2, 7), (3, 2, 8)] {
            set.dirtied(BlockId(block), FileId(file), at_s * S_NS);
        }
        assert_eq!(set.since_ns(BlockId(2)), Some(3 * S_NS));
        assert_eq!(set.choose(32 * S_NS, &IDLE), []);
        assert_eq!(set.choose(35 * S_NS, &IDLE), [1, 2, 3].map(BlockId), "the oldest of the second file is 32 s old");
    }

    #[test]
    fn read_priority_gives_way_until_the_bound() {
        let policy = Policy::IntervalReadPriority { age_ns: 30 * S_NS, grain_ns: S_NS, age_max_ns: 60 * S_NS };
        let mut set = set_of(policy, 3);
        let reads = Load { reads_waiting: 1, writes_queued: 0 };
        assert!(set.choose(31 * S_NS, &reads).is_empty());
        assert_eq!(set.next_ns(31 * S_NS), Some(60 * S_NS + 1));
        assert_eq!(set.choose(31 * S_NS, &IDLE), [BlockId(0)], "one at a time");
        assert!(set.choose(31 * S_NS, &Load { reads_waiting: 0, writes_queued: 1 }).is_empty());
        assert_eq!(set.choose(60 * S_NS + 3, &reads), [BlockId(1), BlockId(2)], "too old to give way");
    }

    #[test]
    fn a_shape_bounds_what_leaves_in_a_tick_and_what_is_queued() {
        let shape = Shape { blocks_per_tick_max: 3, tick_ns: S_NS, queue_depth_max: 2, age_max_ns: 60 * S_NS };
        let mut set = DirtySet::new(Rule::shaped(Policy::aipu(30 * S_NS), shape));
        (0..10).for_each(|block| {
            set.dirtied(BlockId(block), FILE, 0);
        });
        let queued = |writes_queued| Load { reads_waiting: 9, writes_queued };
        assert_eq!(set.choose(30 * S_NS, &queued(0)).len(), 2);
        assert_eq!(set.choose(30 * S_NS, &queued(2)).len(), 0);
        assert_eq!(set.choose(30 * S_NS, &queued(0)).len(), 1, "three in this tick");
        assert_eq!(set.next_ns(30 * S_NS), Some(31 * S_NS));
        assert_eq!(set.choose(31 * S_NS, &queued(1)).len(), 1);
        assert_eq!(set.choose(60 * S_NS, &queued(2)).len(), 6, "too old to be held back");
    }

    #[test]
    fn the_reports_algorithm_scans_all_at_every_tick() {
        // 10 blocks, all dirtied in the first second: PU looks at each once, AIPU 30 times before they are old enough
        // and once more at the tick at which they are.
        for (policy, listed) in [(Policy::Periodic { interval_ns: 30 * S_NS }, 10), (Policy::default(), 10 * 31)] {
            let mut set = set_of(policy, 10);
            assert!(set.choose(29 * S_NS, &IDLE).is_empty());
            assert_eq!(set.choose(31 * S_NS, &IDLE).len(), 10);
            let counts = set.counts();
            assert_eq!(counts.listed, listed);
            assert!(counts.examined <= counts.chosen + 1, "{counts:?}");
        }
    }

    #[test]
    fn a_rule_is_changed_while_blocks_wait() {
        let mut set = set_of(Policy::Periodic { interval_ns: 30 * S_NS }, 2);
        set.set_rule(Rule::of(Policy::Interval { age_ns: 5 * S_NS }), 6 * S_NS);
        assert_eq!(set.choose(6 * S_NS, &IDLE).len(), 2);
    }
}
