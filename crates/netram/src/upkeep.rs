//! Background work: gaining room, restoring redundancy, emptying and levelling donors.
//!
//! | module | owns |
//! |---|---|
//! | `empty` | moving the live blocks of a group into others |
//! | `rebuild` | computing a lost unit, or copying one that is still there |
//! | `repair` | moving the units of groups to donors that keep them |
//! | `drain` | emptying a donor that must leave |
//! | `level` | moving units from full donors to empty ones |
//! | `clean` | choosing the next group to empty to gain room |
//! | `reflush` | making good a flush that failed |
//! | `scrub` | reading everything, to find damage |
//! | `reclaim` | turning dead groups into free units |
//! | `stuck` | last resorts when a job waits for room and nothing is in flight |

pub(crate) mod clean;
pub(crate) mod drain;
pub(crate) mod empty;
pub(crate) mod level;
pub(crate) mod rebuild;
pub(crate) mod reclaim;
pub(crate) mod reflush;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod stuck;
