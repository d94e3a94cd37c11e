//! The rooms of the file system: what works on an open store, by what it is for.
//!
//! [`Fs`] holds the state and answers programs. Each room is a view of it with the steps of one
//! task, so that a call says which task it belongs to. The files of a room hold its methods:
//!
//! | room | files |
//! |---|---|
//! | [`Tree`] | `namespace`, `rename`, `dir`, `attr`, `xattr`, `method`, `threshold` |
//! | [`Data`] | `file`, `reading`, `gather`, `settle`, `data_lock` |
//! | [`Large`] | `large`, `rebalance` |
//! | [`Cooling`], [`Spilling`] | `cold` |
//! | [`Compacting`] | `needs`, `compact`, `inode` |
//! | [`Upkeep`] | `lifecycle`, `recovery`, `scrub`, `forecast`, `limits` |
//! | [`Devices`] | `devices` |
//! | [`Repair`] | `repair`, `damage` |

use crate::Fs;

macro_rules! rooms {
    ($($(#[$about:meta])* $sight:vis $room:ident by $door:ident)*) => {
        $($(#[$about])*
        #[derive(Clone, Copy)]
        $sight struct $room<'a> {
            pub(crate) fs: &'a Fs,
        })*

        impl Fs {
            $($(#[$about])*
            #[inline]
            $sight fn $door(&self) -> $room<'_> {
                $room { fs: self }
            })*
        }
    };
}

rooms! {
    /// The tree: names and attributes.
    pub(crate) Tree by tree
    /// Contents of files, wherever they are.
    pub Data by data
    /// Contents on bulk storage, and moves between there and the region.
    pub Large by large
    /// Files that have cooled: packed in the region.
    pub Cooling by cooling
    /// Packed files on bulk storage, and their way back.
    pub Spilling by spilling
    /// Room in the region.
    pub Compacting by compacting
    /// Work by age: commits, checkpoints, scrubbing, forecasts.
    pub Upkeep by upkeep
    /// The bulk devices.
    pub Devices by devices
    /// What `shoal check` mends.
    pub Repair by repair
}
