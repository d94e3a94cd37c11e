//! Options shared by the experiments on live file systems: the amount of work, and the parts to
//! run.
//!
//! Owns: `--scale` and how `--quick` changes it; the parts chosen by `--only`, and the words that
//! choose them again. Left out: the parts themselves, which each experiment defines.

use clap::ValueEnum;

/// Largest share of the work under `--quick`.
const QUICK: f64 = 0.01;
/// Maximum number of rounds under `--quick`.
const QUICK_RUNS: u32 = 2;

/// Parses the value of `--scale`.
pub fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if scale > 0.0 && scale <= 1.0 { Ok(scale) } else { Err("not above 0 and at most 1".into()) }
}

/// Scales a number of files or calls, to at least one.
pub fn scaled(count: impl Into<f64>, scale: f64) -> u32 {
    (count.into() * scale).round().max(1.0) as u32
}

/// Returns rounds and scale after `--quick` is applied.
pub fn amount(is_quick: bool, runs: u32, scale: f64) -> (u32, f64) {
    if is_quick { (runs.min(QUICK_RUNS), scale.min(QUICK)) } else { (runs, scale) }
}

/// Returns the parts to run, in order, each once: those of `--only`, or all.
pub fn parts<P: ValueEnum + Ord>(only: &[P]) -> Vec<P> {
    let mut parts = if only.is_empty() { P::value_variants().to_vec() } else { only.to_vec() };
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// Returns the words of a command line that choose these parts.
pub fn only<P: ValueEnum>(parts: &[P]) -> String {
    let named = parts.iter().filter_map(P::to_possible_value);
    named.map(|part| format!(" --only {}", part.get_name())).collect()
}
