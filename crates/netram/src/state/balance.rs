//! Rebalancing: how evenly the donors are filled, and how far a rebalance is.
//!
//! Owns: [`Balance`]. Rules: a rebalance begins when it is asked for, and ends when the share in use of the fullest
//! donor is at most [`EVEN_PERCENT`] above that of the emptiest, when no unit can move from a fuller to an emptier
//! donor, when it is stopped, or when it has moved twice as many units as it had to at first: what clients write
//! meanwhile goes to the emptiest donors anyway. Left out: moving units (`level`, `repair`).

use crate::api::DonorId;
use crate::state::State;
use crate::status::{BalanceProgress, BalanceStatus};
use crate::views::Roster;

/// Donors whose shares in use differ by no more than this are evenly filled (percent).
const EVEN_PERCENT: u64 = 2;
/// Parts in which shares are counted.
const WHOLE: u64 = 1 << 32;
/// Fullest donors that are tried, each with as many emptiest ones.
const TRIED: usize = 4;

#[derive(Default)]
pub(crate) struct Balance {
    running: Option<Running>,
    completed: u64,
    moved_last: u64,
}

#[derive(Clone, Copy)]
struct Running {
    moved: u64,
    most: u64,
}

impl Balance {
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Counts a unit that was moved.
    pub fn moved(&mut self) {
        if let Some(running) = &mut self.running {
            running.moved += 1;
        }
    }

    /// Ends the rebalance. Returns whether there was one.
    pub fn end(&mut self) -> bool {
        let ended = self.running.take();
        if let Some(running) = ended {
            (self.completed, self.moved_last) = (self.completed + 1, running.moved);
        }
        ended.is_some()
    }

    fn has_moved_enough(&self) -> bool {
        self.running.is_some_and(|running| running.moved >= running.most)
    }
}

impl State {
    /// Begins a rebalance. Returns false if one is under way.
    pub fn begin_balance(&mut self) -> bool {
        let is_new = !self.balance.is_running();
        if is_new {
            let most = 2 * self.roster().units_to_move() + self.donors.len() as u64;
            self.balance.running = Some(Running { moved: 0, most });
            self.leveling.try_now();
        }
        is_new
    }

    /// Returns pairs of donors between which a unit should move, the most uneven first. Ends the rebalance if there
    /// are none.
    pub fn uneven_pairs(&mut self) -> Vec<(DonorId, DonorId)> {
        let mut order: Vec<usize> = self.roster().fillable();
        order.sort_by_key(|&number| self.roster().share(number));
        let empty = order.iter().take(TRIED);
        let pairs = order.iter().rev().take(TRIED).flat_map(|&full| empty.clone().map(move |&empty| (full, empty)));
        let even = WHOLE * EVEN_PERCENT / 100;
        let share = |number: usize| self.roster().share(number);
        let uneven = |&(full, empty): &(usize, usize)| {
            // A donor of a few units is even when one more would be too many.
            let unit = WHOLE / u64::from(self.donors[empty].units.count().max(1));
            share(full) > share(empty) + even.max(unit)
        };
        let pairs: Vec<(DonorId, DonorId)> =
            pairs.filter(uneven).map(|(full, empty)| (full as DonorId, empty as DonorId)).collect();
        match self.balance.has_moved_enough() {
            true => Vec::new(),
            false => pairs,
        }
    }

    pub fn balance_status(&self) -> BalanceStatus {
        let shares = || self.roster().fillable().into_iter().map(|number| self.roster().share(number));
        let percent = |share: Option<u64>| share.unwrap_or(0) as f64 * 100.0 / WHOLE as f64;
        BalanceStatus {
            completed: self.balance.completed,
            progress: self.balance.running.map(|running| BalanceProgress {
                units_moved: running.moved,
                units_left: self.roster().units_to_move(),
            }),
            units_moved_last: self.balance.moved_last,
            fullest_percent: percent(shares().max()),
            emptiest_percent: percent(shares().min()),
        }
    }
}

impl Roster<'_> {
    /// Donors that take units.
    fn fillable(&self) -> Vec<usize> {
        (0..self.donors.len()).filter(|&number| self.takes(number) && self.donors[number].units.count() > 0).collect()
    }

    fn used(&self, number: usize) -> u64 {
        let units = &self.donors[number].units;
        u64::from(units.count()).saturating_sub(units.free_soon() as u64)
    }

    /// Share of a donor's units in use.
    fn share(&self, number: usize) -> u64 {
        self.used(number) * WHOLE / u64::from(self.donors[number].units.count())
    }

    /// Units that fuller donors have beyond their part.
    fn units_to_move(&self) -> u64 {
        let donors = self.fillable();
        let used: u64 = donors.iter().map(|&number| self.used(number)).sum();
        let all: u64 = donors.iter().map(|&number| u64::from(self.donors[number].units.count())).sum();
        let part = |number: usize| used * u64::from(self.donors[number].units.count()) / all.max(1);
        donors.into_iter().map(|number| self.used(number).saturating_sub(part(number))).sum()
    }
}
