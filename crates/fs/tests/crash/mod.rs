//! Crash enumeration of the file system: run a workload, crash everywhere, recover, compare.
//!
//! | file | owns |
//! |---|---|
//! | `workload` | the prepared tree and the operations tried on it |
//! | `layouts` | the same for files and directories of every layout |
//! | `operation` | operations, and the states that an interrupted operation may leave |
//! | `tree` | what users see, and its comparison with the states allowed |
//! | `run` | a workload run on a store, its crash points and what each promises |
//! | `explorer` | states, the oracle of T3, crashes during recovery |
//! | `aftermath` | what must still work afterwards: deleting, creating, remounting; the space is back |
//! | `faults` | failing media calls (T6), and a full store |
//! | `full_host` | a store on a file system without room |
//!
//! A failure names workload, point, state and seed, and the line that runs it again.

pub mod aftermath;
pub mod explorer;
pub mod faults;
pub mod full_host;
pub mod layouts;
pub mod operation;
pub mod run;
pub mod tree;
pub mod workload;

/// Returns whether `SHOAL_DEEP=1` asks for everything, unsampled.
pub fn deep() -> bool {
    std::env::var_os("SHOAL_DEEP").is_some()
}

/// Returns a number from the environment, if it is set.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Mixes numbers into one, for choices that a rerun makes again.
pub fn mix(parts: &[u64]) -> u64 {
    parts.iter().fold(0x9e37_79b9, |sum, &part| shoal_sim::Random::new(sum ^ part.rotate_left(23)).next_u64())
}
