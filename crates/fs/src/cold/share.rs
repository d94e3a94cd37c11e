//! How much packing may do while others work, as a function of time, of what they write to the log,
//! and of how full the memory is.
//!
//! Owns: [`share_percent`], the share of a processor, and [`Load`], which grants time and log bytes
//! at that rate. Rules: no state but the two balances and what they were counted from, no clock and
//! no I/O; unused grants do not add up beyond [`SAVED_NS`] and [`SAVED_LOG`]; what was used beyond
//! a grant is taken from the next ones, so that the rates hold however long one file takes. Left
//! out: idle time, all of which packing may use.

use shoal_region::Lsn;

/// Memory fills up from the first mark on, and counts as full at the second (percent in use).
const FILLING: u64 = 70;
const FULL: u64 = 95;
/// Most time granted at once: two ticks of a share, and the length of a slice.
const SAVED_NS: u64 = 200_000_000;
const SLICE_NS: u64 = 50_000_000;
/// Packing, and the unpacking that it causes, write at most this part of what others write to the log (percent).
const LOG_PERCENT: u64 = 50;
const SAVED_LOG: u64 = 16 << 20;

/// Returns the share of a processor that packing may use while others work (percent): `percent`,
/// and more as memory fills, so that a store that is never idle is packed before it is full.
/// Returns 0 if `percent` is 0.
pub(crate) fn share_percent(percent: u32, used: u64, size: u64) -> u32 {
    if percent == 0 {
        return 0;
    }
    let percent = percent.min(100);
    let filled = (u128::from(used) * 100 / u128::from(size.max(1))) as u64;
    percent + (100 - percent) * (filled.clamp(FILLING, FULL) - FILLING) as u32 / (FULL - FILLING) as u32
}

/// What may be used now while others work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Granted {
    pub ns: u64,
    pub log_bytes: u64,
}

/// Balances of time (ns) and of log bytes; below 0 if more was used than granted.
pub(crate) struct Load {
    time: i64,
    log: i64,
    /// Everything is counted until this time (monotonic, ns) and up to this end of the log, which
    /// includes `own` bytes of packing.
    since_ns: u64,
    seen: Lsn,
    own: u64,
}

impl Default for Load {
    fn default() -> Load {
        Load { time: 0, log: SAVED_LOG as i64, since_ns: 0, seen: Lsn::default(), own: 0 }
    }
}

impl Load {
    /// Notes that the store is idle: nothing is earned, and no time has to be paid back.
    pub fn rest(&mut self, now: u64, last: Lsn, own: u64) {
        (self.since_ns, self.seen, self.own) = (now, last, own);
        self.time = self.time.max(0);
    }

    /// Grants what `percent` of the time since the last call is worth, and a part of what others
    /// wrote to the log. The log ends at `last` now; packing and unpacking have written `own` bytes
    /// of it since the store was opened.
    pub fn earn(&mut self, now: u64, percent: u32, last: Lsn, own: u64) -> Granted {
        let percent = i64::from(percent);
        if self.since_ns == 0 {
            self.rest(now, last, own);
        }
        let elapsed = now.saturating_sub(self.since_ns).min(SAVED_NS) as i64;
        let saved = if percent >= 100 { SLICE_NS as i64 } else { SAVED_NS as i64 * percent / 100 };
        self.time = (self.time + elapsed * percent / 100).min(saved);
        if percent >= 100 {
            // Packing goes on without pause: each slice has its full time.
            self.time = saved;
        }
        let own_since = own.saturating_sub(self.own);
        let others = (last - self.seen).saturating_sub(own_since);
        self.log = (self.log + (others * LOG_PERCENT / 100) as i64).min(SAVED_LOG as i64) - own_since as i64;
        (self.since_ns, self.seen, self.own) = (now, last, own);
        Granted { ns: self.time.max(0) as u64, log_bytes: self.log.max(0) as u64 }
    }

    /// Charges the time that packing has worked.
    pub fn spend(&mut self, ns: u64) {
        self.time -= i64::try_from(ns).unwrap_or(i64::MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: u64 = 100_000_000;

    #[test]
    fn the_share_grows_as_memory_fills_and_none_stays_none() {
        let at = |percent, used| share_percent(percent, used, 1000);
        assert_eq!([at(0, 0), at(0, 1000)], [0, 0]);
        assert_eq!([at(10, 0), at(10, 700), at(10, 950), at(10, 1000)], [10, 10, 100, 100]);
        assert_eq!([at(100, 0), at(200, 500), at(100, 999)], [100, 100, 100]);
        assert!((0..1000).all(|used| at(7, used) <= at(7, used + 1)));
        assert_eq!(share_percent(10, u64::MAX, u64::MAX), 100);
        assert_eq!(share_percent(10, 0, 0), 10);
    }

    /// Works on files of `file_ns` for as long as is granted at each of `ticks`; returns all time
    /// worked.
    fn worked(percent: u32, file_ns: u64, ticks: u64) -> u64 {
        let (mut load, mut all) = (Load::default(), 0);
        for tick in 1..=ticks {
            let granted = load.earn(tick * TICK, percent, Lsn::new(tick << 30), 0);
            let mut used = 0;
            while used < granted.ns {
                used += file_ns;
            }
            load.spend(used);
            all += used;
        }
        all
    }

    #[test]
    fn the_share_holds_however_long_a_file_takes() {
        for percent in [1, 5, 10, 50, 99] {
            for file_ns in [1000, 700_000, 30_000_000, 400_000_000] {
                let (all, fair) = (worked(percent, file_ns, 1000), 1000 * TICK / 100 * u64::from(percent));
                assert!(all <= fair + file_ns, "{percent}%, {file_ns} ns: {all}");
                assert!(all + TICK >= fair, "{percent}%, {file_ns} ns: {all}");
            }
        }
        assert_eq!(worked(0, 1000, 100), 0);
        assert_eq!(worked(100, 1_000_000, 100), 100 * SLICE_NS, "a slice whenever it asks");
    }

    #[test]
    fn a_thread_that_was_late_does_not_catch_up_by_a_long_burst() {
        let mut load = Load::default();
        load.earn(TICK, 10, Lsn::new(0), 0);
        assert_eq!(load.earn(1000 * TICK, 10, Lsn::new(0), 0).ns, SAVED_NS / 10);
        load.spend(SAVED_NS / 10);
        load.rest(5000 * TICK, Lsn::new(0), 0);
        assert_eq!(load.earn(5001 * TICK, 10, Lsn::new(0), 0).ns, TICK / 10, "idle time earns nothing");
    }

    #[test]
    fn packing_and_unpacking_write_half_of_what_others_do() {
        let (mut load, mut own, mut others) = (Load::default(), 0, 0);
        for tick in 1..2000 {
            others += 1 << 20;
            let granted = load.earn(tick * TICK, 100, Lsn::new(others + own), own);
            // Each step writes more than was granted, if it may write at all; and others unpack.
            own += if granted.log_bytes > 0 { 3 << 20 } else { 0 } + (1 << 18);
        }
        assert!(own <= others / 2 + SAVED_LOG + (4 << 20), "{own} of {others}");
        assert!(own >= others / 2 - (4 << 20), "{own} of {others}");
    }
}
