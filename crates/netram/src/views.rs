//! Views of the state: what it tells, by what is asked about.
//!
//! [`State`] holds the state and changes it. A view reads it for one subject, so that a call says
//! which subject it belongs to. The files of a subject hold its methods:
//!
//! | view | files |
//! |---|---|
//! | [`Roster`] | `state/roster`, `membership` |
//! | [`Room`] | `state/room`, `upkeep/clean` |
//! | [`Horizons`] | `state/horizon` |
//! | [`Window`] | `checkpoint` |

use std::ops::Deref;

use crate::state::State;

macro_rules! views {
    ($($(#[$about:meta])* $view:ident by $door:ident)*) => {
        $($(#[$about])*
        #[derive(Clone, Copy)]
        pub(crate) struct $view<'a>(&'a State);

        impl Deref for $view<'_> {
            type Target = State;

            fn deref(&self) -> &State {
                self.0
            }
        })*

        impl State {
            $($(#[$about])*
            pub fn $door(&self) -> $view<'_> {
                $view(self)
            })*
        }
    };
}

views! {
    /// The donors as a whole: which take units, which are expected back, whether there are enough.
    Roster by roster
    /// Room for blocks, for new groups, and for cleaning.
    Room by room
    /// Sequences below which everything is safe.
    Horizons by horizons
    /// The checkpoint that counts, the one being made, and the units that are open beside them.
    Window by window
}
