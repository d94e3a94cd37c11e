//! When a block is due, and what holds due blocks back.
//!
//! Owns: [`Policy`], a function from the time a block was first dirtied to the time it is due; [`Shape`], which spreads
//! bursts; [`Rule`], both. Rules: a younger block is never due before an older one, so that a choice can stop at the
//! first that is not due; ticks are multiples of a policy's grain on the caller's clock. A policy that yields (to
//! reads, or to a bound on the queue) bounds the age, so that nothing starves.
//!
//! Read priority is built above the device's queue, not in it: due blocks stay in the cache while reads wait, and leave
//! in small numbers when none does. So drivers need no change, and a drive with a queue of its own never holds many of
//! these writes.

use crate::S_NS;

/// When dirty blocks are due. Times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Due at once.
    WriteThrough,
    /// PU: at each multiple of the interval all blocks are due.
    Periodic { interval_ns: u64 },
    /// AIPU: at each multiple of the grain, the blocks that have reached the age.
    ApproximateInterval { age_ns: u64, grain_ns: u64 },
    /// IPU: each block when it reaches the age.
    Interval { age_ns: u64 },
    /// PURP: blocks are due as under PU, but yield to reads until they are `age_max_ns` old.
    PeriodicReadPriority { interval_ns: u64, age_max_ns: u64 },
    /// Blocks are due as under AIPU, but yield to reads until they are `age_max_ns` old.
    IntervalReadPriority { age_ns: u64, grain_ns: u64, age_max_ns: u64 },
    /// Sprite's policy: at each multiple of the scan, all blocks of the files whose oldest block
    /// has reached the age.
    Sprite { age_ns: u64, scan_ns: u64 },
    /// For a disk that should stand still: all blocks, when the oldest has reached the age or
    /// something else wakes the disk.
    Idle { age_ns: u64 },
}

/// Maximum writes that a policy with read priority gives a device at the same time. An arriving
/// read waits for no more than these.
pub(crate) const READ_PRIORITY_DEPTH: u64 = 1;

impl Policy {
    /// AIPU with the report's grain of one second.
    pub const fn aipu(age_ns: u64) -> Policy {
        Policy::ApproximateInterval { age_ns, grain_ns: S_NS }
    }

    /// Sprite's own figures: an age of 30 s, a scan every 5 s.
    pub const SPRITE: Policy = Policy::Sprite { age_ns: 30 * S_NS, scan_ns: 5 * S_NS };

    /// Time between two looks at the set; none if blocks are due at any instant.
    pub fn grain_ns(&self) -> Option<u64> {
        match *self {
            Policy::WriteThrough | Policy::Interval { .. } | Policy::Idle { .. } => None,
            Policy::Periodic { interval_ns } | Policy::PeriodicReadPriority { interval_ns, .. } => Some(interval_ns),
            Policy::ApproximateInterval { grain_ns, .. } | Policy::IntervalReadPriority { grain_ns, .. } => {
                Some(grain_ns)
            }
            Policy::Sprite { scan_ns, .. } => Some(scan_ns),
        }
    }

    /// Returns when a block first dirtied at `since_ns` is due (ns). Under Sprite's rule an older
    /// block of its file may take it along sooner.
    pub fn due_ns(&self, since_ns: u64) -> u64 {
        match *self {
            Policy::WriteThrough => since_ns,
            Policy::Interval { age_ns } | Policy::Idle { age_ns } => since_ns.saturating_add(age_ns),
            // A block dirtied exactly at a tick is seen by the next one.
            Policy::Periodic { interval_ns } | Policy::PeriodicReadPriority { interval_ns, .. } => {
                next_tick(since_ns.saturating_add(1), interval_ns)
            }
            Policy::ApproximateInterval { age_ns, grain_ns }
            | Policy::IntervalReadPriority { age_ns, grain_ns, .. } => {
                next_tick(since_ns.saturating_add(age_ns), grain_ns)
            }
            Policy::Sprite { age_ns, scan_ns } => next_tick(since_ns.saturating_add(age_ns), scan_ns),
        }
    }

    pub fn yields_to_reads(&self) -> bool {
        matches!(self, Policy::PeriodicReadPriority { .. } | Policy::IntervalReadPriority { .. })
    }

    fn age_max_ns(&self) -> Option<u64> {
        match *self {
            Policy::PeriodicReadPriority { age_max_ns, .. } | Policy::IntervalReadPriority { age_max_ns, .. } => {
                Some(age_max_ns)
            }
            _ => None,
        }
    }

    /// The report's name, for users.
    pub fn name(&self) -> &'static str {
        match self {
            Policy::WriteThrough => "WT",
            Policy::Periodic { .. } => "PU",
            Policy::ApproximateInterval { .. } => "AIPU",
            Policy::Interval { .. } => "IPU",
            Policy::PeriodicReadPriority { .. } => "PURP",
            Policy::IntervalReadPriority { .. } => "interval with read priority",
            Policy::Sprite { .. } => "Sprite",
            Policy::Idle { .. } => "hold",
        }
    }
}

impl Default for Policy {
    /// AIPU at 30 s.
    fn default() -> Policy {
        Policy::aipu(30 * S_NS)
    }
}

/// The first multiple of the grain at or after an instant (ns). A grain of 0 is no grain.
fn next_tick(at_ns: u64, grain_ns: u64) -> u64 {
    match grain_ns {
        0 => at_ns,
        grain_ns => at_ns.div_ceil(grain_ns).saturating_mul(grain_ns),
    }
}

/// How bursts are spread: due blocks beyond the bounds stay in the cache until they reach a maximum age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Blocks handed out in a tick, at most.
    pub blocks_per_tick_max: u64,
    /// Length of a tick (ns), above 0.
    pub tick_ns: u64,
    /// Writes that the device has at the same time, at most.
    pub queue_depth_max: u64,
    /// Age from which a block is held back no longer (ns).
    pub age_max_ns: u64,
}

/// A policy, and how its bursts are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    pub policy: Policy,
    pub shape: Option<Shape>,
}

impl Rule {
    /// A policy whose bursts are left as they are.
    pub const fn of(policy: Policy) -> Rule {
        Rule { policy, shape: None }
    }

    pub const fn shaped(policy: Policy, shape: Shape) -> Rule {
        Rule { policy, shape: Some(shape) }
    }

    /// Whether due blocks may be held back, so that a choice depends on the load.
    pub fn goes_by_load(&self) -> bool {
        self.shape.is_some() || self.policy.yields_to_reads()
    }

    /// Returns the time from which nothing holds a block back (ns): when it is due or, if due
    /// blocks may be held back, at its bound, but never before it is due.
    pub fn overdue_ns(&self, since_ns: u64) -> u64 {
        let bounds = [self.policy.age_max_ns(), self.shape.map(|shape| shape.age_max_ns)];
        let bound_ns = bounds.into_iter().flatten().min().unwrap_or(0);
        self.policy.due_ns(since_ns).max(since_ns.saturating_add(bound_ns))
    }

    /// The longest time for which a block is held back (ns), if the device is not overloaded.
    pub fn held_ns_max(&self) -> u64 {
        match self.policy {
            Policy::WriteThrough => 0,
            // A block dirtied just after a tick waits for the next one.
            policy => self.overdue_ns(1).saturating_sub(1).max(policy.due_ns(policy.grain_ns().unwrap_or(0))),
        }
    }

    /// Blocks that may leave now though they are not overdue, after `given` have left in this tick.
    pub(crate) fn allowance(&self, load: &Load, given: u64) -> u64 {
        let mut allowed = u64::MAX;
        if self.policy.yields_to_reads() {
            let depth = READ_PRIORITY_DEPTH.saturating_sub(load.writes_queued);
            allowed = if load.reads_waiting > 0 { 0 } else { depth };
        }
        if let Some(shape) = &self.shape {
            allowed = allowed
                .min(shape.blocks_per_tick_max.saturating_sub(given))
                .min(shape.queue_depth_max.saturating_sub(load.writes_queued));
        }
        allowed
    }
}

/// The present load of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Reads, and other requests that a caller waits for.
    pub reads_waiting: u64,
    /// Writes handed out that have not completed.
    pub writes_queued: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_due_when_the_report_says() {
        let (interval_ns, age_ns, grain_ns) = (30 * S_NS, 30 * S_NS, S_NS);
        let due = |policy: Policy, since_ns: u64| policy.due_ns(since_ns);
        assert_eq!(due(Policy::WriteThrough, 7), 7);
        let pu = Policy::Periodic { interval_ns };
        assert_eq!([0, 1, 29 * S_NS, 30 * S_NS].map(|since| due(pu, since) / S_NS), [30, 30, 30, 60]);
        let aipu = Policy::ApproximateInterval { age_ns, grain_ns };
        assert_eq!([0, 1, S_NS, S_NS + 1].map(|since| due(aipu, since) / S_NS), [30, 31, 31, 32]);
        assert_eq!(due(Policy::Interval { age_ns }, 5), age_ns + 5);
        assert_eq!([0, 1, 5 * S_NS].map(|since| due(Policy::SPRITE, since) / S_NS), [30, 35, 35]);
        assert_eq!(Policy::default(), aipu);
    }

    #[test]
    fn a_bound_never_makes_a_block_leave_before_it_is_due() {
        let rule = Rule::of(Policy::IntervalReadPriority { age_ns: 30 * S_NS, grain_ns: S_NS, age_max_ns: 10 * S_NS });
        assert_eq!(rule.overdue_ns(0), 30 * S_NS);
        let shape = Shape { blocks_per_tick_max: 1, tick_ns: S_NS, queue_depth_max: 1, age_max_ns: 50 * S_NS };
        assert_eq!(Rule::shaped(Policy::default(), shape).overdue_ns(S_NS), 51 * S_NS);
        assert_eq!(Rule::default().overdue_ns(0), 30 * S_NS);
    }

    #[test]
    fn times_at_the_end_of_the_clock_do_not_overflow() {
        for policy in [Policy::default(), Policy::Periodic { interval_ns: 3 }, Policy::SPRITE] {
            assert!(Rule::of(policy).overdue_ns(u64::MAX) >= u64::MAX - 60 * S_NS);
        }
    }
}
