//! The tests of the experiments in one program: `--test all <module>::<part of a name>` runs some.
//! What they share is compiled and linked once, and long tests run beside each other.
//! What they are about: studies whose results are known.

mod common;
mod conquest;
mod idle_time;
mod live;
mod mramfs;
mod netram;
mod traces;
mod trees;
mod update_policy;
