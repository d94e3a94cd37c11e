//! The pace of a donor: how fast it answers, what it leaves unanswered, and whether it is set aside
//! for that.
//!
//! Owns: [`Pace`] and [`Aside`]. Rules: a donor is *slow* when its answers take, for a while,
//! longer than `SLOW_NS` on average and several times as long as those of the median donor. It is
//! fast again when, for a while, they take at most half of `SLOW_NS` or no longer several times as
//! long as the median donor's. A donor is *silent* when it left several writes unanswered while it
//! answered others. It is tried again after a pause, longer each time. Left out: what is done about
//! it (`membership::pace`).

/// A donor is slow if its average latency exceeds `SLOW_NS` (ns) and `TIMES_OTHERS` times that of
/// the others.
const SLOW_NS: u64 = 100_000_000;
const TIMES_OTHERS: u64 = 4;
/// How long a donor must be slow, or fast again, before that counts (ns).
const SUSTAINED_NS: u64 = 1_000_000_000;
/// Writes left unanswered within `SILENT_NS` (ns) that set a donor aside.
const SILENT_WRITES: u32 = 3;
const SILENT_NS: u64 = 60_000_000_000;
/// How long a silent donor is set aside (ns); doubles each time.
const PAUSE_NS: u64 = 30_000_000_000;
const PAUSE_DOUBLED_MAX: u32 = 5;

/// Why a donor gets nothing new.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aside {
    /// The donor answers much later than the others.
    Slow,
    /// The donor leaves writes unanswered.
    Silent,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    /// Average latency of the last answers (ns).
    latency_ns: u64,
    /// Writes it refused; writes it did not answer in time.
    pub refused: u64,
    pub unanswered: u64,
    /// Since when it has been slow, or fast although it is set aside (ns).
    turned_ns: Option<u64>,
    silent_writes: u32,
    silent_from_ns: u64,
    pauses: u32,
    aside: Option<(Aside, u64)>,
    /// The donor is not set aside before this time, because its room is needed (ns).
    needed_until_ns: u64,
}

impl Pace {
    pub fn latency_ns(&self) -> u64 {
        self.latency_ns
    }

    /// Why it is set aside, and since when (ns).
    pub fn aside(&self) -> Option<(Aside, u64)> {
        self.aside
    }

    /// Records an answer that took this long.
    pub fn answered(&mut self, took_ns: u64) {
        self.latency_ns = self.latency_ns - self.latency_ns / 8 + took_ns / 8;
    }

    /// Records that it left a write unanswered while it answered others.
    pub fn left_unanswered(&mut self, now_ns: u64) {
        self.unanswered += 1;
        if now_ns.saturating_sub(self.silent_from_ns) > SILENT_NS {
            (self.silent_writes, self.silent_from_ns) = (0, now_ns);
        }
        self.silent_writes += 1;
    }

    /// Keeps it in use for a while because its room is needed, however slow it is.
    pub fn is_needed(&mut self, now_ns: u64) {
        self.aside = None;
        self.needed_until_ns = now_ns + SILENT_NS;
    }

    /// Returns why the donor should be set aside, if it should. `others_ns`: median latency of the
    /// other donors (ns).
    pub fn wish(&mut self, others_ns: u64, now_ns: u64) -> Option<Aside> {
        if now_ns < self.needed_until_ns {
            return None;
        }
        if let Some((Aside::Silent, since_ns)) = self.aside {
            let pause_ns = PAUSE_NS << self.pauses.saturating_sub(1).min(PAUSE_DOUBLED_MAX);
            return (now_ns.saturating_sub(since_ns) < pause_ns).then_some(Aside::Silent);
        }
        if self.silent_writes >= SILENT_WRITES {
            return Some(Aside::Silent);
        }
        let is_slow = self.aside.is_some();
        let limit_ns = if is_slow { SLOW_NS / 2 } else { SLOW_NS };
        let turns = (self.latency_ns > limit_ns && self.latency_ns / TIMES_OTHERS > others_ns) != is_slow;
        if !turns {
            self.turned_ns = None;
        }
        let turned = turns && now_ns.saturating_sub(*self.turned_ns.get_or_insert(now_ns)) >= SUSTAINED_NS;
        (is_slow != turned).then_some(Aside::Slow)
    }

    /// Sets it aside, or uses it again.
    pub fn set(&mut self, aside: Option<Aside>, now_ns: u64) {
        self.turned_ns = None;
        self.aside = aside.map(|why| (why, now_ns));
        if aside == Some(Aside::Silent) {
            self.pauses += 1;
        }
        self.silent_writes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Records answers that each take `took_ms`, for `for_ms`. Returns why the donor should then be
    /// set aside, if it should.
    fn lives(pace: &mut Pace, now: &mut u64, took_ms: u64, for_ms: u64) -> Option<Aside> {
        let mut wish = None;
        for _ in 0..for_ms / 100 {
            *now += 100 * MS;
            pace.answered(took_ms * MS);
            wish = pace.wish(MS, *now);
            if wish != pace.aside().map(|(why, _)| why) {
                pace.set(wish, *now);
            }
        }
        wish
    }

    #[test]
    fn a_slow_donor_is_set_aside_and_comes_back_when_it_is_fast() {
        let (mut pace, mut now) = (Pace::default(), 0);
        assert_eq!(lives(&mut pace, &mut now, 90, 20_000), None);
        assert_eq!(lives(&mut pace, &mut now, 300, 500), None, "not at once");
        assert_eq!(lives(&mut pace, &mut now, 300, 3000), Some(Aside::Slow));
        assert_eq!(lives(&mut pace, &mut now, 80, 20_000), Some(Aside::Slow), "not fast enough");
        assert_eq!(lives(&mut pace, &mut now, 2, 5000), None);
    }

    #[test]
    fn where_all_are_slow_none_is() {
        let mut pace = Pace::default();
        (0..100).for_each(|_| pace.answered(300 * MS));
        assert_eq!((pace.wish(200 * MS, 0), pace.wish(200 * MS, 10 * SUSTAINED_NS)), (None, None));
    }

    #[test]
    fn a_silent_donor_pauses_longer_each_time() {
        let mut pace = Pace::default();
        let mut now = 0;
        for pause in [PAUSE_NS, 2 * PAUSE_NS, 4 * PAUSE_NS] {
            (0..SILENT_WRITES).for_each(|_| pace.left_unanswered(now));
            assert_eq!(pace.wish(MS, now), Some(Aside::Silent));
            pace.set(Some(Aside::Silent), now);
            assert_eq!(pace.wish(MS, now + pause - 1), Some(Aside::Silent));
            now += pause;
            assert_eq!(pace.wish(MS, now), None);
            pace.set(None, now);
        }
        // Two now and two much later do not make it silent.
        (0..2).for_each(|_| pace.left_unanswered(now));
        now += 2 * SILENT_NS;
        (0..2).for_each(|_| pace.left_unanswered(now));
        assert_eq!(pace.wish(MS, now), None);
    }
}
