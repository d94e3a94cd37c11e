//! Medians of a few runs, and their confidence.
//!
//! Owns: [`Median`], with an interval that contains the true median with at least 90% confidence.
//! Rules: the interval depends only on the order of the runs, without any assumption about their
//! distribution. For fewer than five runs the interval is the whole range measured.

/// Least confidence of an interval.
const CONFIDENCE: f64 = 0.9;

/// A median, and an interval for the true one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Median {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Median {
    pub fn of(values: impl IntoIterator<Item = f64>) -> Median {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let count = values.len();
        let value = (values[(count - 1) / 2] + values[count / 2]) / 2.0;
        let cut = cut_off(count);
        Median { value, low: values[cut], high: values[count - 1 - cut] }
    }

    /// Returns the interval's low end, the median, and the high end.
    pub fn bounds(self) -> [f64; 3] {
        [self.low, self.value, self.high]
    }

    /// Returns the median alone, with as many decimals as tables show.
    pub fn value_text(self) -> String {
        format!("{:.*}", self.decimals(), self.value)
    }

    /// Returns the median with its interval in brackets.
    pub fn text(self) -> String {
        let Median { value, low, high } = self;
        let decimals = self.decimals();
        format!("{value:.decimals$} ({low:.decimals$}-{high:.decimals$})")
    }

    fn decimals(self) -> usize {
        match self.value {
            value if value < 1.0 => 3,
            value if value < 100.0 => 2,
            _ => 0,
        }
    }
}

/// Returns how many values an interval for the median of `count` values may leave out at each end.
/// Each value is below the median with probability 1/2. The result is 0 if even the whole range has
/// less confidence than required.
fn cut_off(count: usize) -> usize {
    let mut tail = 0.5f64.powi(count as i32);
    let mut term = tail;
    let mut cut = 0;
    // `tail` is the probability that at most `cut` values are below the median.
    while cut + 1 < count.div_ceil(2) {
        term *= (count - cut) as f64 / (cut + 1) as f64;
        tail += term;
        if 1.0 - 2.0 * tail < CONFIDENCE {
            break;
        }
        cut += 1;
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_leaves_out_only_what_ninety_percent_allow() {
        // Two-sided: 1 - 2 * P(at most `cut` of n fair coins).
        let confidence = |count: u32, cut: u32| {
            let ways = |k| (0..k).fold(1.0, |ways, i| ways * f64::from(count - i) / f64::from(i + 1));
            1.0 - 2.0 * (0..=cut).map(ways).sum::<f64>() / 2f64.powi(count as i32)
        };
        for count in 5..40u32 {
            let cut = cut_off(count as usize) as u32;
            assert!(confidence(count, cut) >= CONFIDENCE, "{count}: {cut}");
            assert!(confidence(count, cut + 1) < CONFIDENCE, "{count}: {cut}");
        }
        assert_eq!([1, 2, 3, 4].map(cut_off), [0; 4]);
    }

    #[test]
    fn a_median_lies_within_its_interval() {
        assert_eq!(Median::of([3.0, 1.0, 2.0]), Median { value: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(Median::of([4.0, 1.0, 2.0, 3.0]).value, 2.5);
        let many = Median::of((1..=20).map(f64::from));
        assert_eq!((many.value, many.low, many.high), (10.5, 6.0, 15.0));
    }
}
