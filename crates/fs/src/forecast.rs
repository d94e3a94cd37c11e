//! Forecasts when a tier will be full at its current rate of growth.
//!
//! [`Growth`] is a pure function over samples of a time and the bytes then in use. It keeps two
//! exponentially weighted means of the rate, over a quarter of an hour and over two hours. Each is
//! divided by the weight it has gathered, so that the first samples count fully. The smaller mean
//! counts: a copy that has ended is no trend, and neither is a short rush in a quiet store. It
//! makes no forecast
//! - before ten minutes of observation;
//! - if the tier is stable or shrinks, or fluctuates by much more than it gains;
//! - beyond 48 times the observed time, or 90 days: that would be a guess.
//!
//! [`Upkeep::forecast_tick`] takes the samples of an open store. It reports once that a tier will
//! be full within a day, and again only after that has not been so for an hour. Volatile: each
//! opening observes anew. Left out: threads and logs (the adapter's), words (the command line's).

use std::time::Duration;

use parking_lot::Mutex;

use crate::rooms::Upkeep;

const SECOND_NS: u64 = 1_000_000_000;
/// Time between two samples (ns).
const SAMPLE_NS: u64 = 10 * SECOND_NS;
/// Time constants of the two means (s).
const SHORT_S: f64 = 900.0;
const LONG_S: f64 = 7200.0;
/// Observation time before the first forecast (ns).
const BASE_NS: u64 = 600 * SECOND_NS;
/// How far ahead a forecast looks: in multiples of the observed time, and at most (ns).
const AHEAD: u64 = 48;
const AHEAD_NS_MAX: u64 = 90 * 86_400 * SECOND_NS;
/// The least gain that counts as a trend, as a share of all changes up and down.
const GAIN_LEAST: f64 = 0.2;
/// A tier that will be full sooner than `SOON_NS` is reported, and again only after it had longer
/// than `NOT_SOON_NS` for `QUIET_NS` (ns).
const SOON_NS: u64 = 86_400 * SECOND_NS;
const NOT_SOON_NS: u64 = 2 * SOON_NS;
const QUIET_NS: u64 = 3600 * SECOND_NS;

/// Exponentially weighted means of growth, and of changes up and down (bytes a second).
#[derive(Clone, Copy, Debug)]
struct Mean {
    constant_s: f64,
    gain: f64,
    change: f64,
    /// The weight of the samples so far: 1 after many.
    weight: f64,
}

impl Mean {
    fn new(constant_s: f64) -> Mean {
        Mean { constant_s, gain: 0.0, change: 0.0, weight: 0.0 }
    }

    fn note(&mut self, seconds: f64, growth: f64) {
        let new = 1.0 - (-seconds / self.constant_s).exp();
        let rate = growth / seconds;
        for (mean, value) in [(&mut self.gain, rate), (&mut self.change, rate.abs()), (&mut self.weight, 1.0)] {
            *mean += (value - *mean) * new;
        }
    }

    /// Returns the growth in bytes a second; 0 without a trend.
    fn rate(&self) -> f64 {
        if self.gain < self.change * GAIN_LEAST || self.weight <= 0.0 { 0.0 } else { self.gain / self.weight }
    }
}

/// The growth of one tier, from samples.
#[derive(Clone, Copy, Debug)]
pub struct Growth {
    begun_ns: Option<u64>,
    last_ns: u64,
    last_used: u64,
    short: Mean,
    long: Mean,
}

impl Default for Growth {
    fn default() -> Growth {
        let (short, long) = (Mean::new(SHORT_S), Mean::new(LONG_S));
        Growth { begun_ns: None, last_ns: 0, last_used: 0, short, long }
    }
}

impl Growth {
    /// Takes a sample: `used` bytes are in use at `now_ns`.
    pub fn note(&mut self, now_ns: u64, used: u64) {
        if self.begun_ns.is_none() {
            self.begun_ns = Some(now_ns);
        } else if now_ns > self.last_ns {
            let seconds = (now_ns - self.last_ns) as f64 / SECOND_NS as f64;
            let growth = used as f64 - self.last_used as f64;
            self.short.note(seconds, growth);
            self.long.note(seconds, growth);
        } else {
            return;
        }
        (self.last_ns, self.last_used) = (now_ns, used);
    }

    /// Returns how long `room` bytes last at this rate (ns, from the last sample on); `None` if
    /// there is no forecast.
    pub fn lasts_ns(&self, room: u64) -> Option<u64> {
        let observed = self.last_ns - self.begun_ns?;
        let rate = self.short.rate().min(self.long.rate());
        if observed < BASE_NS || rate <= 0.0 {
            return None;
        }
        let lasts = (room as f64 / rate * SECOND_NS as f64) as u64;
        (lasts <= observed.saturating_mul(AHEAD).min(AHEAD_NS_MAX)).then_some(lasts)
    }
}

/// Reports once that something is soon, and again only after it was not soon for a while.
#[derive(Clone, Copy, Debug, Default)]
struct Once {
    told: bool,
    quiet_since_ns: Option<u64>,
}

impl Once {
    /// Returns whether to report now. `lasts_ns`: how long the room lasts, if that is known.
    fn tells(&mut self, now_ns: u64, lasts_ns: Option<u64>) -> bool {
        if lasts_ns.is_some_and(|lasts| lasts < NOT_SOON_NS) {
            self.quiet_since_ns = None;
            let tells = !self.told && lasts_ns.is_some_and(|lasts| lasts < SOON_NS);
            self.told |= tells;
            return tells;
        }
        let since = *self.quiet_since_ns.get_or_insert(now_ns);
        self.told &= now_ns - since < QUIET_NS;
        false
    }
}

/// When a tier will be full to `percent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    pub within: Duration,
    /// The share of its size then in use: 100, or the limit from which on small files spill.
    pub percent: u8,
}

/// Outlooks of memory and bulk storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outlooks {
    pub memory: Option<Outlook>,
    pub bulk: Option<Outlook>,
}

#[derive(Clone, Copy, Default)]
struct Tier {
    growth: Growth,
    once: Once,
}

impl Tier {
    fn outlook(&self, room: u64, percent: u8) -> Option<Outlook> {
        self.growth.lasts_ns(room).map(|ns| Outlook { within: Duration::from_nanos(ns), percent })
    }
}

/// The samples of an open store.
#[derive(Default)]
pub(crate) struct Forecast {
    tiers: Mutex<[Tier; 2]>,
}

impl<'a> Upkeep<'a> {
    /// Returns when the tiers will be full, as far as that can be forecast.
    pub fn outlooks(self) -> Outlooks {
        self.outlooks_of(&self.fs.forecast.tiers.lock())
    }

    fn outlooks_of(self, tiers: &[Tier; 2]) -> Outlooks {
        let usage = self.fs.usage();
        let size = usage.region_used + usage.region_free;
        let limit = (u128::from(size) * u128::from(self.fs.spilling().spill_percent()) / 100) as u64;
        // Beyond the spilling limit, memory grows by data that cannot spill.
        let (room, percent) = match self.fs.spilling().spills() && usage.region_used < limit {
            true => (limit - usage.region_used, self.fs.spilling().spill_percent()),
            false => (usage.region_free, 100),
        };
        let bulk = self.fs.bulk.as_ref().and_then(|_| tiers[1].outlook(usage.bulk_free, 100));
        Outlooks { memory: tiers[0].outlook(room, percent), bulk }
    }

    /// Takes a sample if the last one is old enough. Returns what to report now: tiers that will be
    /// full within a day and were not reported yet.
    pub fn forecast_tick(self) -> Outlooks {
        let now = self.fs.clock.monotonic_ns();
        let mut tiers = self.fs.forecast.tiers.lock();
        if tiers[0].growth.begun_ns.is_some() && now < tiers[0].growth.last_ns + SAMPLE_NS {
            return Outlooks::default();
        }
        let usage = self.fs.usage();
        tiers[0].growth.note(now, usage.region_used);
        tiers[1].growth.note(now, usage.bulk_used + usage.bulk_pending);
        let found = self.outlooks_of(&tiers);
        let [memory, bulk] = &mut *tiers;
        let told = |tier: &mut Tier, outlook: Option<Outlook>| {
            let lasts = outlook.map(|outlook| outlook.within.as_nanos() as u64);
            outlook.filter(|_| tier.once.tells(now, lasts))
        };
        Outlooks { memory: told(memory, found.memory), bulk: told(bulk, found.bulk) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const HOUR_NS: u64 = 3600 * SECOND_NS;

    /// Samples `used` every ten seconds for `hours`.
    fn observed(hours: f64, used: impl Fn(u64) -> u64) -> Growth {
        let mut growth = Growth::default();
        for second in (0..=(hours * 3600.0) as u64).step_by(10) {
            growth.note(second * SECOND_NS + 77, used(second));
        }
        growth
    }

    fn hours(lasts: Option<u64>) -> f64 {
        lasts.expect("a forecast") as f64 / HOUR_NS as f64
    }

    #[test]
    fn steady_growth_is_told_from_ten_minutes_on_and_as_far_ahead_as_was_observed() {
        let steady = |second: u64| 100 * MIB + second * MIB;
        // An hour of room.
        let room = 3600 * MIB;
        assert_eq!(observed(0.16, steady).lasts_ns(room), None);
        for time in [0.17, 1.0, 5.0, 100.0] {
            let lasts = hours(observed(time, steady).lasts_ns(room));
            assert!((0.99..1.01).contains(&lasts), "after {time} hours: {lasts}");
        }
        assert_eq!(observed(0.5, steady).lasts_ns(25 * room), None, "25 hours after half an hour are a guess");
        assert!(observed(0.6, steady).lasts_ns(25 * room).is_some());
        assert_eq!(observed(100.0, steady).lasts_ns(91 * 24 * room), None);
        assert_eq!(observed(0.5, steady).lasts_ns(0), Some(0));
    }

    #[test]
    fn what_is_stable_shrinks_or_goes_up_and_down_is_told_nothing_of() {
        let room = 10 * MIB;
        assert_eq!(observed(5.0, |_| 77).lasts_ns(room), None);
        assert_eq!(observed(5.0, |second| (1 << 40) - second).lasts_ns(room), None);
        // A sawtooth of 100 MiB in five minutes, cut at any moment.
        for minutes in 60..70 {
            let saw = observed(f64::from(minutes) / 60.0, |second| second % 300 * MIB / 3);
            assert_eq!(saw.lasts_ns(room), None, "{minutes} minutes");
        }
        assert_eq!(Growth::default().lasts_ns(room), None);
    }

    #[test]
    fn one_copy_that_is_over_is_no_trend_and_a_rush_counts_as_the_mean() {
        let copy = |second: u64| second.min(1200) * MIB;
        assert!(observed(0.33, copy).lasts_ns(1000 * MIB).is_some());
        assert_eq!(observed(6.0, copy).lasts_ns(1000 * MIB), None, "five hours later");
        // 1 MiB a second for the last 12 minutes of ten hours: two hours of mean growth, not twelve minutes of it.
        let rush = |second: u64| second.saturating_sub(36_000) * MIB;
        let lasts = hours(observed(10.2, rush).lasts_ns(720 * MIB));
        assert!(lasts > 1.0, "{lasts}");
    }

    #[test]
    fn samples_at_odd_times_count_by_the_time_between_them() {
        let mut growth = Growth::default();
        let mut second = 0;
        for turn in 0..400u64 {
            second += 1 + turn * 7919 % 61;
            growth.note(second * SECOND_NS, second * MIB);
            // The clock stands still, and goes back.
            growth.note(second * SECOND_NS, 0);
            growth.note((second - 1) * SECOND_NS, 0);
        }
        let lasts = hours(growth.lasts_ns(3600 * MIB));
        assert!((0.99..1.01).contains(&lasts), "{lasts}");
    }

    #[test]
    fn what_is_soon_is_told_once_until_it_was_not_for_an_hour() {
        let mut once = Once::default();
        let mut tells = |hour: f64, lasts: Option<f64>| {
            once.tells((hour * HOUR_NS as f64) as u64, lasts.map(|lasts| (lasts * HOUR_NS as f64) as u64))
        };
        assert!(!tells(0.0, None) && !tells(0.1, Some(30.0)));
        assert!(tells(0.2, Some(23.0)));
        // Varies around a day; has no forecast for a moment; is longer for less than an hour.
        for (hour, lasts) in [(0.3, Some(25.0)), (0.4, Some(23.0)), (0.5, None), (0.6, Some(3.0)), (0.7, Some(60.0))] {
            assert!(!tells(hour, lasts), "{hour}");
        }
        assert!(!tells(1.6, Some(20.0)), "it was longer for 54 minutes");
        assert!(!tells(1.7, None) && !tells(2.8, Some(100.0)));
        assert!(tells(2.9, Some(20.0)) && !tells(3.0, Some(10.0)));
    }
}
