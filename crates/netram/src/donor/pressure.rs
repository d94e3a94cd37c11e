//! Detecting that a machine needs its memory itself.
//!
//! Numbers in, a decision out. Two signs are considered: how much memory is available, and for how
//! much of the last ten seconds some task stalled for lack of memory (the kernel's pressure stall
//! information, PSI). Little memory is enough by itself. Stalls count only while memory is not
//! ample: the kernel also stalls tasks while it reclaims page cache with nearly all memory
//! available, and lent memory does not cause that. Pressure begins at once. It ends when both signs
//! were well on the other side of their marks for `CALM_READINGS` readings, so that a donor does
//! not alternate between refusing and granting. A sign that cannot be read counts as absent;
//! without the available memory, stalls count alone. Left out: reading /proc, and what to do.

/// Thresholds at which pressure begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Marks {
    /// PSI's `some avg10` above this (percent of time).
    pub stall_percent: f64,
    /// Available memory below this (percent of the memory).
    pub available_percent: f64,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { stall_percent: 10.0, available_percent: 5.0 }
    }
}

/// The state of the machine; `None`: not known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    pub stall_percent: Option<f64>,
    pub available_percent: Option<f64>,
}

/// Stalls count while less than this multiple of the mark of available memory is available.
const AMPLE: f64 = 4.0;
/// Readings in a row without a sign that end pressure.
pub const CALM_READINGS: u32 = 10;
/// Hysteresis: pressure ends below this part of the stall mark, and above the available-memory mark
/// divided by it.
const RELEASE: f64 = 0.5;

/// Whether the machine is pressed, from one reading to the next.
#[derive(Clone, Debug)]
pub struct Gauge {
    marks: Marks,
    stalled: bool,
    short: bool,
    pressed: bool,
    /// Readings in a row without a sign.
    calm: u32,
}

impl Gauge {
    pub fn new(marks: Marks) -> Gauge {
        Gauge { marks, stalled: false, short: false, pressed: false, calm: 0 }
    }

    /// Takes a reading. Returns whether the machine is pressed now.
    pub fn observe(&mut self, reading: Reading) -> bool {
        self.stalled = reading.stall_percent.is_some_and(|stall| {
            let mark = self.marks.stall_percent;
            stall > if self.stalled { mark * RELEASE } else { mark }
        });
        self.short = reading.available_percent.is_some_and(|available| {
            let mark = self.marks.available_percent;
            available < if self.short { mark / RELEASE } else { mark }
        });
        let ample =
            reading.available_percent.is_some_and(|available| available >= self.marks.available_percent * AMPLE);
        let sign = self.short || (self.stalled && !ample);
        self.calm = if sign { 0 } else { self.calm.saturating_add(1) };
        self.pressed = sign || (self.pressed && self.calm < CALM_READINGS);
        self.pressed
    }
}

/// Returns `some avg10` of /proc/pressure/memory (percent).
pub fn parse_stall(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let value = some.split_whitespace().find_map(|word| word.strip_prefix("avg10="))?;
    value.parse().ok().filter(|percent: &f64| percent.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stall(percent: f64) -> Reading {
        Reading { stall_percent: Some(percent), ..Reading::default() }
    }

    fn available(percent: f64) -> Reading {
        Reading { available_percent: Some(percent), ..Reading::default() }
    }

    /// Repeats a reading for as long as pressure needs to end. Returns the last answer.
    fn settled(gauge: &mut Gauge, reading: Reading) -> bool {
        (0..CALM_READINGS).map(|_| gauge.observe(reading)).last().unwrap()
    }

    #[test]
    fn stalls_begin_pressure_above_their_mark_and_end_it_at_half_of_it() {
        let mut gauge = Gauge::new(Marks::default());
        assert_eq!([0.0, 10.0, 10.01].map(|percent| gauge.observe(stall(percent))), [false, false, true]);
        let seen = [9.0, 5.01, 5.0, 9.0, 10.5].map(|percent| settled(&mut gauge, stall(percent)));
        assert_eq!(seen, [true, true, false, false, true]);
    }

    #[test]
    fn little_memory_begins_pressure_below_its_mark_and_ends_it_at_twice_of_it() {
        let mut gauge = Gauge::new(Marks::default());
        assert_eq!([50.0, 5.0, 4.9].map(|percent| gauge.observe(available(percent))), [false, false, true]);
        let seen = [6.0, 9.9, 10.0, 6.0, 1.0].map(|percent| settled(&mut gauge, available(percent)));
        assert_eq!(seen, [true, true, false, false, true]);
    }

    #[test]
    fn stalls_count_only_where_memory_is_not_ample() {
        let both = |stall, available| Reading { stall_percent: Some(stall), available_percent: Some(available) };
        let mut gauge = Gauge::new(Marks::default());
        assert!(!gauge.observe(both(80.0, 95.0)), "the kernel reclaims page cache");
        assert!(!gauge.observe(both(80.0, 20.0)));
        assert!(gauge.observe(both(80.0, 19.9)));
        assert!(!settled(&mut gauge, both(80.0, 95.0)), "the pressure is gone, whatever stalls");
        assert!(gauge.observe(both(0.0, 1.0)), "little memory is enough");
        assert!(!settled(&mut gauge, Reading::default()), "pressure nobody can see has ended");
    }

    #[test]
    fn pressure_ends_only_when_every_reading_for_a_while_is_calm() {
        let mut gauge = Gauge::new(Marks::default());
        let calm = available(50.0);
        assert!(gauge.observe(available(1.0)));
        for _ in 1..CALM_READINGS {
            assert!(gauge.observe(calm));
        }
        // A new sign starts the count of calm readings again.
        assert!(gauge.observe(available(1.0)));
        for _ in 1..CALM_READINGS {
            assert!(gauge.observe(calm));
        }
        assert!(!gauge.observe(calm));
        assert!(!gauge.observe(calm));
    }

    #[test]
    fn the_kernels_file_is_read_and_nonsense_is_not() {
        let psi = "some avg10=12.34 avg60=1.00 avg300=0.10 total=9\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
        assert_eq!(parse_stall(psi), Some(12.34));
        for text in ["", "full avg10=1.00", "some avg60=1.00", "some avg10=", "some avg10=NaN"] {
            assert_eq!(parse_stall(text), None, "{text}");
        }
    }
}
