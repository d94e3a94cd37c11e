//! What experiments on live file systems take from the command line alike: how much of the work, and which parts.
//!
//! Owns: `--scale` and what `--quick` makes of it; the parts chosen by `--only`, and the words that choose them again. Left out: what
//! the parts are, which each experiment says.

use clap::ValueEnum;

/// The share of the work that `--quick` does, at most.
const QUICK: f64 = 0.01;
/// Its rounds, at most.
const QUICK_RUNS: u32 = 2;

/// The value of `--scale`.
pub fn scale(text: &str) -> Result<f64, String> {
    let scale: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if scale > 0.0 && scale <= 1.0 { Ok(scale) } else { Err("not above 0 and at most 1".into()) }
}

/// A number of files or calls at this scale: at least one.
pub fn scaled(count: impl Into<f64>, scale: f64) -> u32 {
    (count.into() * scale).round().max(1.0) as u32
}

/// Rounds and scale, with `--quick` taken into account.
pub fn amount(is_quick: bool, runs: u32, scale: f64) -> (u32, f64) {
    if is_quick { (runs.min(QUICK_RUNS), scale.min(QUICK)) } else { (runs, scale) }
}

/// The parts to run, in order, each once: those of `--only`, or all.
pub fn parts<P: ValueEnum + Ord>(only: &[P]) -> Vec<P> {
    let mut parts = if only.is_empty() { P::value_variants().to_vec() } else { only.to_vec() };
    parts.sort_unstable();
    parts.dedup();
    parts
}

/// The words of a command line that choose these parts.
pub fn only<P: ValueEnum>(parts: &[P]) -> String {
    let named = parts.iter().filter_map(P::to_possible_value);
    named.map(|part| format!(" --only {}", part.get_name())).collect()
}
