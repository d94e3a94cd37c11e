//! Types for numbers, so that a count of file blocks cannot pass for a count of device blocks.
//!
//! On media all of them are plain little-endian numbers. The layout structs have accessors that
//! return these types. `number!` makes a type that only names something. `position!` makes one that
//! also supports distances.

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name($inner);

        impl $name {
            pub const ZERO: $name = $name(0);
            /// The largest number, after all others.
            pub const MAX: $name = $name(<$inner>::MAX);

            pub const fn new(number: $inner) -> $name {
                $name(number)
            }

            pub const fn get(self) -> $inner {
                self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! position {
    ($(#[$doc:meta])* $name:ident) => {
        $crate::number::number!($(#[$doc])* $name(u64));

        /// The position at this distance after it.
        impl std::ops::Add<u64> for $name {
            type Output = $name;

            fn add(self, distance: u64) -> $name {
                $name(self.0 + distance)
            }
        }

        impl std::ops::AddAssign<u64> for $name {
            fn add_assign(&mut self, distance: u64) {
                self.0 += distance;
            }
        }

        /// The distance between two positions.
        impl std::ops::Sub for $name {
            type Output = u64;

            fn sub(self, earlier: $name) -> u64 {
                self.0 - earlier.0
            }
        }
    };
}

pub(crate) use {number, position};
