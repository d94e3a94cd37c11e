//! The tests of the offline checker in one program: `--test all <module>::<part of a name>` runs some.
//! What they share is compiled and linked once, and long tests run beside each other.
//! What they are about: findings, hostile bytes, salvage.

mod devices;
mod findings;
mod hostile;
mod salvage;
mod store;
mod witnesses;
