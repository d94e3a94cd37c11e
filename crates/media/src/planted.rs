//! Bugs to plant, so that tests can show that they would find them (docs/design/testing.md, T7).
//!
//! Owns: the macro that turns a list of rules into an enum `Bug` and its switch, and which bugs a
//! run tries. Rules: with the
//! feature `planted` of the calling crate, one bug at a time is switched on for the whole process.
//! Without it `is_planted` is `false` at compile time, and none of this is left in the program.
//! Left out: the bugs themselves, and the tests that search for them.

/// Returns whether the environment chooses a planted bug: `SHOAL_BUG=NAME` chooses one,
/// `SHOAL_PLANTS=K/N` every Nth from the Kth on (counted from 0). Without them every bug is chosen.
///
/// # Panics
/// If `SHOAL_PLANTS` is something else.
pub fn is_chosen(number: usize, name: &str) -> bool {
    if let Ok(only) = std::env::var("SHOAL_BUG") {
        return only == name;
    }
    std::env::var("SHOAL_PLANTS").map_or(true, |part| {
        let numbers = part.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        let (k, n): (usize, usize) = numbers.expect("SHOAL_PLANTS is K/N");
        number % n == k % n
    })
}

/// Defines `Bug` and, for the crate alone, `is_planted`. The feature `planted` adds `Bug::ALL`,
/// `Bug::chosen` and `plant`.
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

            /// Returns the bugs that this run tries, and says how many these are.
            pub fn chosen() -> Vec<Bug> {
                let is_chosen = |bug: &Bug| $crate::planted::is_chosen(*bug as usize, &format!("{bug:?}"));
                let chosen: Vec<Bug> = Bug::ALL.into_iter().filter(is_chosen).collect();
                println!("planted bugs: {} of {}", chosen.len(), Bug::ALL.len());
                chosen
            }
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
