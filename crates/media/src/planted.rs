//! Bugs to plant, so that tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the macro that turns a list of rules into an enum `Bug` and its switch. Rules: with the
//! feature `planted` of the calling crate, one bug at a time is switched on for the whole process.
//! Without it `is_planted` is `false` at compile time, and none of this is left in the program.
//! Left out: the bugs themselves, and the tests that search for them.

/// Defines `Bug` and, for the crate alone, `is_planted`. The feature `planted` adds `Bug::ALL` and
/// `plant`.
///
/// ```
/// mod planted {
///     shoal_media::plantable! {
///         /// A rule, left out.
///         pub enum Bug {
///             /// A flush ends without one of the device below.
///             FlushEarly,
///         }
///     }
/// }
/// assert!(!planted::is_planted(planted::Bug::FlushEarly));
/// ```
#[macro_export]
macro_rules! plantable {
    ($(#[$about:meta])* pub enum Bug { $($(#[$doc:meta])* $bug:ident,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)+
        }

        #[cfg(feature = "planted")]
        impl Bug {
            pub const ALL: [Bug; [$(Bug::$bug),+].len()] = [$(Bug::$bug),+];
        }

        #[cfg(feature = "planted")]
        mod switch {
            use std::sync::atomic::{AtomicU32, Ordering};

            use super::Bug;

            /// The planted bug's number, counted from 1. 0: none.
            static PLANTED: AtomicU32 = AtomicU32::new(0);

            /// Switches one bug on, or all off.
            pub fn plant(bug: Option<Bug>) {
                PLANTED.store(bug.map_or(0, |bug| bug as u32 + 1), Ordering::SeqCst);
            }

            pub(crate) fn is_planted(bug: Bug) -> bool {
                PLANTED.load(Ordering::SeqCst) == bug as u32 + 1
            }
        }

        #[cfg(not(feature = "planted"))]
        mod switch {
            #[inline(always)]
            pub(crate) const fn is_planted(_bug: super::Bug) -> bool {
                false
            }
        }

        pub(crate) use switch::is_planted;
        #[cfg(feature = "planted")]
        pub use switch::plant;
    };
}
