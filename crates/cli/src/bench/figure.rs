//! A figure of a bench report: the median and spread of a rate over several rounds.
//!
//! Owns [`Sample`], one round of one kind of work, and [`Figure`], the report line computed from
//! the samples of all rounds.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::requests::Requests;

/// One round of one kind of work.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub operations: u64,
    /// Bytes moved; 0 if a rate in bytes is meaningless.
    pub bytes: u64,
    pub time: Duration,
}

/// One line of the report.
#[derive(Debug, Serialize)]
pub struct Figure {
    pub name: String,
    pub threads: usize,
    pub operations: u64,
    pub operations_per_s: Spread,
    /// Median time between two operations of one thread.
    pub us_per_operation: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mib_per_s: Option<Spread>,
    /// The kernel's requests per operation, by name, over all rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<BTreeMap<String, f64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    pub fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Spread { median, min: values[0], max: values[values.len() - 1] }
    }
}

impl Figure {
    pub fn of(name: &str, threads: usize, samples: &[Sample]) -> Figure {
        let rate = |amount: &dyn Fn(&Sample) -> f64| {
            Spread::of(samples.iter().map(|s| amount(s) / s.time.as_secs_f64().max(1e-9)).collect())
        };
        let operations_per_s = rate(&|s| s.operations as f64);
        let mib_per_s = (samples[0].bytes > 0).then(|| rate(&|s| s.bytes as f64 / (1 << 20) as f64));
        Figure {
            name: name.into(),
            threads,
            operations: samples[0].operations,
            us_per_operation: threads as f64 * 1e6 / operations_per_s.median,
            operations_per_s,
            mib_per_s,
            requests: None,
        }
    }

    /// Adds the requests counted over all rounds.
    pub fn with_requests(self, samples: &[Sample], requests: &Requests) -> Figure {
        let operations: u64 = samples.iter().map(|sample| sample.operations).sum();
        let each = requests.iter().map(|(name, &count)| (name.clone(), count as f64 / operations as f64));
        Figure { requests: Some(each.collect()), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_or_the_mean_of_the_two_middles() {
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(vec![4.0, 1.0, 2.0, 3.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
    }

    #[test]
    fn a_figure_counts_all_threads_time() {
        let sample = Sample { operations: 1000, bytes: 0, time: Duration::from_millis(500) };
        let figure = Figure::of("create", 4, &[sample]);
        assert_eq!((figure.operations_per_s.median, figure.us_per_operation), (2000.0, 2000.0));
        assert!(figure.mib_per_s.is_none());
        let counted = Requests::from([("MKNOD".to_string(), 2000), ("WRITE".to_string(), 500)]);
        let figure = figure.with_requests(&[sample, sample], &counted).requests.unwrap();
        assert_eq!(figure.into_values().collect::<Vec<_>>(), [1.0, 0.25]);
    }
}
