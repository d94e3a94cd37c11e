//! An axis: its limits, its ticks and their labels.
//!
//! Owns: where a value stands on an axis. Rules: the data choose the limits, with a little room at
//! both ends. A linear y axis begins at 0, because a truncated axis makes small differences look
//! large. Ticks are round numbers and are labelled with no more digits than they need. A value that
//! is not above 0 has no place on a logarithmic axis, except on one with a place for 0, which stands
//! apart at its left end. Left out: drawing.

/// The order of values along an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    Linear,
    /// Linear, and from 0 unless values are below.
    FromZero,
    Log,
    /// Logarithmic, with a place for 0 apart from the others.
    LogAndZero,
    /// A number of names. The place of a name is its index.
    Names(usize),
}

/// A mark on an axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Place on the axis, from 0 to 1.
    pub share: f64,
    /// Empty for a small mark between two labelled ones.
    pub label: String,
}

/// Limits are logarithms if the scale is logarithmic.
#[derive(Clone, Debug)]
pub struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    pub ticks: Vec<Tick>,
}

/// Room at each end, as a share of the values' range.
const ROOM: f64 = 0.04;
/// Place of 0 on a logarithmic axis that has one, and where the others begin.
const ZERO: f64 = 0.03;
const AFTER_ZERO: f64 = 0.1;
/// Ticks that a linear axis has at most, and that a logarithmic axis has at least.
const TICKS_MAX: f64 = 8.0;
const TICKS_MIN: usize = 4;
/// Leading digits of the labels of a logarithmic axis, from the fewest to the most labels.
const DIGITS: [&[u32]; 4] = [&[1], &[1, 3], &[1, 2, 5], &[1, 2, 3, 4, 5, 7]];

/// Returns the smallest step of 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|digit| digit * power).find(|step| *step >= least * 0.999).unwrap_or(10.0 * power)
}

/// Formats a number with as many decimals as its step needs, and with commas from 10,000.
fn label(value: f64, step: f64) -> String {
    let decimals = (-(step.log10() + 1e-9).floor()).max(0.0) as usize;
    let text = format!("{:.decimals$}", if value.abs() < step / 1e6 { 0.0 } else { value });
    let (whole, rest) = text.split_once('.').map_or((text.as_str(), ""), |(whole, _)| (whole, &text[whole.len()..]));
    let digits = whole.trim_start_matches('-');
    if digits.len() < 5 {
        return text;
    }
    let mut grouped = String::from(&whole[..whole.len() - digits.len()]);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

/// Returns the round values between two limits, with their step.
fn round_values(low: f64, high: f64) -> (Vec<f64>, f64) {
    let step = round_step((high - low) / TICKS_MAX);
    let (from, to) = ((low / step - 1e-9).ceil() as i64, (high / step + 1e-9).floor() as i64);
    ((from..=to).map(|count| count as f64 * step).collect(), step)
}

impl Axis {
    /// Chooses limits and ticks for some values. Those without a place do not count. Returns `None`
    /// if there is no other.
    pub fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Option<Axis> {
        let placed = values.filter_map(|value| match scale {
            Scale::Log | Scale::LogAndZero => (value > 0.0).then(|| value.log10()),
            _ => Some(value),
        });
        let range = |(low, high): (f64, f64), value: f64| (low.min(value), high.max(value));
        let (low, high) = placed.filter(|value| value.is_finite()).fold((f64::INFINITY, f64::NEG_INFINITY), range);
        if low > high {
            return None;
        }
        let (low, high) = limits(scale, low, high);
        let mut axis = Axis { scale, low, high, ticks: vec![] };
        axis.ticks = axis.choose_ticks();
        Some(axis)
    }

    /// Returns the place of a value from 0 to 1, if it has one.
    pub fn share(&self, value: f64) -> Option<f64> {
        let share = |placed: f64| (placed - self.low) / (self.high - self.low);
        match self.scale {
            _ if !value.is_finite() => None,
            Scale::Linear | Scale::FromZero => Some(share(value)),
            Scale::Log => (value > 0.0).then(|| share(value.log10())),
            Scale::LogAndZero if value == 0.0 => Some(ZERO),
            Scale::LogAndZero => (value > 0.0).then(|| AFTER_ZERO + share(value.log10()) * (1.0 - AFTER_ZERO)),
            Scale::Names(count) => Some((value + 0.5) / count as f64),
        }
    }

    /// Returns the place of a bound, which is an end of the axis if the bound is beyond it.
    pub fn bound(&self, value: f64) -> f64 {
        let end = if value == f64::INFINITY { 1.0 } else { 0.0 };
        self.share(value).unwrap_or(end).clamp(0.0, 1.0)
    }

    /// Returns where the place of 0 ends on an axis on which it stands apart.
    pub fn after_zero(&self) -> Option<f64> {
        (self.scale == Scale::LogAndZero).then_some((ZERO + AFTER_ZERO) / 2.0)
    }

    fn tick(&self, value: f64, label: String) -> Option<Tick> {
        let share = self.share(value).filter(|share| (-1e-9..=1.0 + 1e-9).contains(share))?;
        Some(Tick { share, label })
    }

    fn choose_ticks(&self) -> Vec<Tick> {
        match self.scale {
            Scale::Names(_) => vec![],
            Scale::Linear | Scale::FromZero => {
                let (values, step) = round_values(self.low, self.high);
                values.into_iter().filter_map(|value| self.tick(value, label(value, step))).collect()
            }
            Scale::Log => self.log_ticks(),
            Scale::LogAndZero => self.tick(0.0, "0".into()).into_iter().chain(self.log_ticks()).collect(),
        }
    }

    /// Labels powers of ten if there are enough of them, and otherwise values between them, too.
    fn log_ticks(&self) -> Vec<Tick> {
        let powers = self.low.floor() as i32..=self.high.floor() as i32;
        let of = |digits: &[u32], stride: usize| -> Vec<(f64, f64)> {
            let powers = powers.clone().step_by(stride);
            let all = powers.flat_map(|power| digits.iter().map(move |digit| (f64::from(*digit), 10f64.powi(power))));
            let all = all.map(|(digit, power)| (digit * power, power));
            all.filter(|(value, _)| (self.low - 1e-9..=self.high + 1e-9).contains(&value.log10())).collect()
        };
        let decades = self.high - self.low;
        let stride = (decades / TICKS_MAX).ceil().max(1.0) as usize;
        let enough = DIGITS.map(|digits| of(digits, stride)).into_iter().find(|ticks| ticks.len() >= TICKS_MIN);
        let labelled = enough.unwrap_or_else(|| {
            let (values, step) = round_values(10f64.powf(self.low), 10f64.powf(self.high));
            values.into_iter().map(|value| (value, step)).collect()
        });
        let mut ticks: Vec<Tick> =
            labelled.iter().filter_map(|(value, step)| self.tick(*value, label(*value, *step))).collect();
        if decades <= TICKS_MAX {
            let small = of(&[1, 2, 3, 4, 5, 6, 7, 8, 9], 1).into_iter();
            let is_new = |value: f64| labelled.iter().all(|(other, _)| (other / value - 1.0).abs() > 1e-6);
            let small = small.filter(|(value, _)| is_new(*value));
            ticks.extend(small.filter_map(|(value, _)| self.tick(value, String::new())));
        }
        ticks
    }
}

/// Returns the limits of an axis whose values reach from `low` to `high`.
fn limits(scale: Scale, low: f64, high: f64) -> (f64, f64) {
    let from_zero = match scale {
        Scale::Names(_) => return (0.0, 1.0),
        Scale::FromZero => low >= 0.0,
        // Zero is close enough to be shown. Points at zero itself would lie on the other axis.
        Scale::Linear => low > 0.0 && low <= high * 0.25,
        Scale::Log | Scale::LogAndZero => false,
    };
    let low = if from_zero { 0.0 } else { low };
    let room = match high - low {
        0.0 if matches!(scale, Scale::Log | Scale::LogAndZero) => 0.3,
        0.0 => low.abs().max(1.0) * 0.5,
        range => range * ROOM,
    };
    (if from_zero { 0.0 } else { low - room }, high + room)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, values: &[f64]) -> Axis {
        Axis::new(scale, values.iter().copied()).unwrap()
    }

    fn labels(scale: Scale, values: &[f64]) -> Vec<String> {
        let ticks = axis(scale, values).ticks.into_iter();
        ticks.map(|tick| tick.label).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn ticks_are_round_and_have_no_more_digits_than_they_need() {
        assert_eq!(labels(Scale::Linear, &[31.1, 31.9]), ["31.2", "31.4", "31.6", "31.8"]);
        assert_eq!(labels(Scale::FromZero, &[0.07, 0.3]), ["0.00", "0.05", "0.10", "0.15", "0.20", "0.25", "0.30"]);
        assert_eq!(labels(Scale::FromZero, &[250_000.0]), ["0", "50,000", "100,000", "150,000", "200,000", "250,000"]);
        assert_eq!(labels(Scale::FromZero, &[-2.0, 3.0]), ["-2", "-1", "0", "1", "2", "3"]);
        assert_eq!(labels(Scale::Log, &[0.02, 300.0]), ["0.1", "1", "10", "100"]);
        assert_eq!(labels(Scale::Log, &[15.0, 800.0]), ["20", "50", "100", "200", "500"]);
        assert_eq!(labels(Scale::Log, &[31.0, 33.0]), ["31.0", "31.5", "32.0", "32.5", "33.0"]);
        assert!(labels(Scale::Log, &[1e-9, 1e15]).len() <= 9);
    }

    #[test]
    fn limits_follow_the_data_and_leave_a_little_room() {
        for (scale, low, high) in [(Scale::Log, 40.0, 9000.0), (Scale::Log, 2e-4, 3e-4), (Scale::Linear, 70.0, 90.0)] {
            let axis = axis(scale, &[low, high]);
            let (first, last) = (axis.share(low).unwrap(), axis.share(high).unwrap());
            assert!((0.02..0.06).contains(&first) && (0.94..0.98).contains(&last), "{scale:?}: {first} {last}");
        }
        assert_eq!(axis(Scale::FromZero, &[70.0, 90.0]).share(0.0), Some(0.0));
        assert_eq!(axis(Scale::Linear, &[5.0, 90.0]).share(0.0), Some(0.0));
        assert!(axis(Scale::Linear, &[5.0]).share(5.0).unwrap() > 0.0);
        assert!(axis(Scale::Linear, &[0.0, 90.0]).share(0.0).unwrap() > 0.02, "a point on the other axis");
        assert!((0.4..0.6).contains(&axis(Scale::Log, &[5.0]).share(5.0).unwrap()));
        assert!(Axis::new(Scale::Log, [0.0, -1.0].into_iter()).is_none());
    }

    #[test]
    fn zero_stands_apart_on_a_logarithmic_axis_that_has_a_place_for_it() {
        assert_eq!(axis(Scale::Log, &[1.0, 10.0]).share(0.0), None);
        let axis = axis(Scale::LogAndZero, &[0.0, 0.01, 1.0]);
        let (zero, apart) = (axis.share(0.0).unwrap(), axis.after_zero().unwrap());
        assert!(zero < apart && apart < axis.share(0.01).unwrap());
        assert_eq!(axis.ticks[0], Tick { share: zero, label: "0".into() });
    }

    #[test]
    fn a_bound_beyond_an_axis_stands_at_its_end() {
        let axis = axis(Scale::Log, &[1.0, 100.0]);
        assert_eq!([f64::NEG_INFINITY, 0.0, f64::INFINITY, 1e9].map(|value| axis.bound(value)), [0.0, 0.0, 1.0, 1.0]);
    }
}
