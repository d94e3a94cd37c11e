//! The tests of the experiments in one program: `--test all <module>::<part of a name>` runs some
//! of them. Shared code is compiled and linked once, and long tests run in parallel. Subjects:
//! studies whose results are known.

mod common;
mod conquest;
mod idle_time;
mod live;
mod mramfs;
mod netram;
mod pages;
mod traces;
mod trees;
mod update_policy;
