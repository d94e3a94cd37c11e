//! Opening a disk that is on its donors, and settling what opening could not decide.
//!
//! | module | owns |
//! |---|---|
//! | `superblocks` | what the superblocks of all donors say together |
//! | `base` | merging a checkpoint with the units that were looked at |
//! | `load` | reading a checkpoint, or saying why it is not used |
//! | `enter` | entering the units of one group that were found |
//! | `scan` | making the map |
//! | `settle` | settling doubts once the disk is open |

pub(crate) mod base;
pub(crate) mod enter;
pub(crate) mod load;
pub(crate) mod scan;
pub(crate) mod settle;
pub(crate) mod superblocks;
