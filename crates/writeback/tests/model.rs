//! Every policy against a naive model, and the invariants of all policies, under random histories.
//!
//! Owns: a model that keeps blocks in a list and looks at all of them; histories of modifications, completions,
//! failures, discards and choices under random load. The set and the model must choose the same blocks, and the
//! invariants must hold for the blocks that the set hands out. Seeds are printed with every failure.

use std::collections::HashMap;

use shoal_sim::Random;
use shoal_writeback::{BlockId, DirtySet, FileId, Load, Policy, Rule, S_NS, Shape};

#[derive(Clone, Copy, Debug)]
struct Held {
    block: BlockId,
    file: FileId,
    since_ns: u64,
    /// Order of arrival among blocks of equal age.
    at: u64,
}

#[derive(Default)]
struct Model {
    waiting: Vec<Held>,
    writing: HashMap<BlockId, (Held, Option<u64>)>,
    next: u64,
    tick: (u64, u64),
}

impl Model {
    fn wait(&mut self, block: BlockId, file: FileId, since_ns: u64) {
        self.next += 1;
        self.waiting.push(Held { block, file, since_ns, at: self.next });
    }

    fn dirtied(&mut self, block: BlockId, file: FileId, now_ns: u64) {
        match self.writing.get_mut(&block) {
            Some((held, again @ None)) => (held.file, *again) = (file, Some(now_ns)),
            Some(_) => {}
            None if self.waiting.iter().any(|held| held.block == block) => {}
            None => self.wait(block, file, now_ns),
        }
    }

    fn ended(&mut self, block: BlockId, is_ok: bool) {
        if let Some((held, again)) = self.writing.remove(&block) {
            match again {
                Some(again_ns) if is_ok => self.wait(block, held.file, again_ns),
                _ if is_ok => {}
                _ => self.wait(block, held.file, held.since_ns),
            }
        }
    }

    fn discarded(&mut self, block: BlockId) {
        self.waiting.retain(|held| held.block != block);
        if let Some((_, again)) = self.writing.get_mut(&block) {
            *again = None;
        }
    }

    /// Follows the definition of each policy from tick to tick, without the arithmetic of the code under test.
    fn is_due(policy: &Policy, since_ns: u64, now_ns: u64) -> bool {
        let at_tick = |grain_ns: u64, is_due: &dyn Fn(u64) -> bool| {
            (0..=now_ns / grain_ns).map(|tick| tick * grain_ns).any(|tick_ns| tick_ns >= since_ns && is_due(tick_ns))
        };
        let aged = |age_ns: u64| move |tick_ns: u64| tick_ns - since_ns >= age_ns;
        match *policy {
            Policy::WriteThrough => true,
            Policy::Interval { age_ns } | Policy::Idle { age_ns } => now_ns - since_ns >= age_ns,
            Policy::Periodic { interval_ns } | Policy::PeriodicReadPriority { interval_ns, .. } => {
                at_tick(interval_ns, &|tick_ns| tick_ns > since_ns)
            }
            Policy::ApproximateInterval { age_ns, grain_ns }
            | Policy::IntervalReadPriority { age_ns, grain_ns, .. } => at_tick(grain_ns, &aged(age_ns)),
            Policy::Sprite { age_ns, scan_ns } => at_tick(scan_ns, &aged(age_ns)),
        }
    }

    fn is_overdue(rule: &Rule, since_ns: u64, now_ns: u64) -> bool {
        let bound_ns = match rule.policy {
            Policy::PeriodicReadPriority { age_max_ns, .. } | Policy::IntervalReadPriority { age_max_ns, .. } => {
                age_max_ns
            }
            _ => u64::MAX,
        };
        let bound_ns = bound_ns.min(rule.shape.map_or(u64::MAX, |shape| shape.age_max_ns));
        now_ns - since_ns >= bound_ns
    }

    fn choose(&mut self, rule: &Rule, now_ns: u64, load: &Load) -> Vec<BlockId> {
        self.waiting.sort_by_key(|held| (held.since_ns, held.at));
        let mut room = u64::MAX;
        if rule.policy.yields_to_reads() {
            room = u64::from(load.reads_waiting == 0 && load.writes_queued == 0);
        }
        if let Some(shape) = &rule.shape {
            if self.tick.0 != now_ns / shape.tick_ns {
                self.tick = (now_ns / shape.tick_ns, 0);
            }
            room = room.min(shape.blocks_per_tick_max.saturating_sub(self.tick.1));
            room = room.min(shape.queue_depth_max.saturating_sub(load.writes_queued));
        }
        let mut chosen: Vec<Held> = vec![];
        let mut left = self.waiting.clone();
        while let Some(first) = left.first().copied() {
            let is_overdue = Self::is_overdue(rule, first.since_ns, now_ns);
            let has_room = (chosen.len() as u64) < room;
            if !Self::is_due(&rule.policy, first.since_ns, now_ns) || !(is_overdue || has_room) {
                break;
            }
            chosen.push(left.remove(0));
            let is_idle = matches!(rule.policy, Policy::Idle { .. });
            if is_idle || matches!(rule.policy, Policy::Sprite { .. }) {
                while let Some(at) = left.iter().position(|held| is_idle || held.file == first.file) {
                    if chosen.len() as u64 >= room {
                        break;
                    }
                    chosen.push(left.remove(at));
                }
            }
        }
        self.tick.1 += chosen.len() as u64;
        self.waiting = left;
        chosen.iter().for_each(|held| {
            self.writing.insert(held.block, (*held, None));
        });
        chosen.iter().map(|held| held.block).collect()
    }
}

fn rules(random: &mut Random) -> Vec<Rule> {
    let mut seconds = |least: u64, most: u64| (least + random.below(most - least + 1)) * S_NS;
    let policies = [
        Policy::WriteThrough,
        Policy::Periodic { interval_ns: seconds(1, 30) },
        Policy::ApproximateInterval { age_ns: seconds(0, 30), grain_ns: seconds(1, 7) },
        Policy::Interval { age_ns: seconds(0, 30) },
        Policy::PeriodicReadPriority { interval_ns: seconds(1, 30), age_max_ns: seconds(0, 60) },
        Policy::IntervalReadPriority { age_ns: seconds(0, 30), grain_ns: seconds(1, 7), age_max_ns: seconds(0, 60) },
        Policy::Sprite { age_ns: seconds(1, 30), scan_ns: seconds(1, 7) },
        Policy::Idle { age_ns: seconds(1, 30) },
    ];
    let shape = Shape {
        blocks_per_tick_max: random.below(5),
        tick_ns: (1 + random.below(3)) * S_NS,
        queue_depth_max: random.below(4),
        age_max_ns: random.below(60) * S_NS,
    };
    policies.into_iter().flat_map(|policy| [Rule::of(policy), Rule::shaped(policy, shape)]).collect()
}

fn seeds() -> std::ops::Range<u64> {
    0..if std::env::var_os("SHOAL_DEEP").is_some() { 2000 } else { 40 }
}

/// One random history under one rule.
fn live(seed: u64, rule: Rule) {
    let of = format!("seed {seed}, {rule:?}");
    let mut random = Random::new(seed);
    let (mut set, mut model) = (DirtySet::new(rule), Model::default());
    let (mut now_ns, mut in_flight) = (0, Vec::<BlockId>::new());
    for _ in 0..400 {
        now_ns += random.below(3) * random.below(S_NS);
        let block = BlockId(random.below(24));
        match random.below(10) {
            0..5 => {
                // A block stays in its file.
                set.dirtied(block, FileId(block.0 / 6), now_ns);
                model.dirtied(block, FileId(block.0 / 6), now_ns);
            }
            5 => {
                set.discarded(block, now_ns);
                model.discarded(block);
            }
            6..8 if !in_flight.is_empty() => {
                let block = in_flight.swap_remove(random.below(in_flight.len() as u64) as usize);
                let is_ok = random.below(4) > 0;
                if is_ok {
                    set.cleaned(block, now_ns);
                } else {
                    set.failed(block, now_ns);
                }
                model.ended(block, is_ok);
            }
            _ => {
                let load = Load { reads_waiting: random.below(2), writes_queued: in_flight.len() as u64 };
                let before = set.counts();
                let ages: HashMap<BlockId, u64> =
                    (0..24).filter_map(|n| Some((BlockId(n), set.since_ns(BlockId(n))?))).collect();
                let chosen = set.choose(now_ns, &load);
                assert_eq!(chosen, model.choose(&rule, now_ns, &load), "{of}");
                assert!(chosen.iter().all(|block| !in_flight.contains(block)), "{of}: a block is written twice");
                if !matches!(rule.policy, Policy::Sprite { .. }) {
                    assert!(chosen.is_sorted_by_key(|block| ages[block]), "{of}: not the oldest first");
                }
                let examined = set.counts().examined - before.examined;
                assert!(examined <= chosen.len() as u64 + 1, "{of}: {examined} for {}", chosen.len());
                in_flight.extend(chosen);
                let too_old = |block: &BlockId| {
                    set.since_ns(*block).is_some_and(|since_ns| rule.overdue_ns(since_ns) <= now_ns)
                        && !in_flight.contains(block)
                };
                let stays = (0..24).map(BlockId).find(too_old);
                assert_eq!(stays, None, "{of}: too old at {now_ns}");
                // A caller that comes back when `next_ns` says so misses nothing.
                if let Some(next_ns) = set.next_ns(now_ns) {
                    assert!(next_ns > now_ns, "{of}");
                    let mut waits = set.clone();
                    let early_ns = now_ns + random.below(next_ns - now_ns);
                    assert!(waits.choose(early_ns, &load_after(&load, &in_flight)).is_empty(), "{of}: at {early_ns}");
                } else {
                    assert_eq!(set.len(), 0, "{of}");
                }
            }
        }
        assert_eq!(set.len(), model.waiting.len(), "{of}");
        assert_eq!(set.being_written(), model.writing.len(), "{of}");
    }
}

fn load_after(load: &Load, in_flight: &[BlockId]) -> Load {
    Load { writes_queued: in_flight.len() as u64, ..*load }
}

#[test]
fn every_policy_chooses_what_a_naive_model_chooses() {
    for seed in seeds() {
        for rule in rules(&mut Random::new(seed ^ 0x5eed)) {
            live(seed, rule);
        }
    }
}

#[test]
fn under_steady_load_nothing_starves_and_everything_is_written_once() {
    // Reads wait all the time, so a block that yields to them leaves only at its bound.
    for seed in seeds() {
        for rule in rules(&mut Random::new(seed)) {
            let mut random = Random::new(seed);
            let mut set = DirtySet::new(rule);
            let load = Load { reads_waiting: 1, writes_queued: u64::MAX };
            let (mut written, mut now_ns) = (0, 0);
            for block in 0..100 {
                now_ns += random.below(S_NS);
                set.dirtied(BlockId(block), FileId(block % 7), now_ns);
            }
            let began_ns = now_ns;
            loop {
                for block in set.choose(now_ns, &load) {
                    let since_ns = set.since_ns(block).unwrap();
                    let latest_ns = rule.overdue_ns(since_ns).max(began_ns);
                    assert!(now_ns <= latest_ns, "seed {seed}, {rule:?}: {since_ns} left at {now_ns}");
                    set.cleaned(block, now_ns);
                    written += 1;
                }
                let Some(next_ns) = set.next_ns(now_ns) else { break };
                now_ns = next_ns;
            }
            assert_eq!((written, set.counts().chosen), (100, 100), "seed {seed}, {rule:?}");
        }
    }
}
