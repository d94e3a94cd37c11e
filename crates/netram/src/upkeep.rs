//! Background work: gaining room, restoring redundancy, emptying and evening out donors.
//!
//! | module | owns |
//! |---|---|
//! | `empty` | moving the live blocks of a group into others |
//! | `rebuild` | computing a lost unit, or copying one that is still there |
//! | `repair` | bringing the units of groups onto donors that keep them |
//! | `drain` | emptying a donor that is to leave |
//! | `level` | evening out donors of which one is full while another is empty |
//! | `clean` | which group is emptied next to gain room |
//! | `reflush` | making good a flush that failed |
//! | `scrub` | reading everything, to find damage |
//! | `reclaim` | from dead groups to free units |
//! | `stuck` | what is tried when a job waits for room and nothing is on its way |

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
