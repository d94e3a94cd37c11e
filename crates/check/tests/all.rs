//! The tests of the offline checker in one program: `--test all <module>::<part of a name>` runs
//! some of them. Shared code is compiled and linked once, and long tests run in parallel. Subjects:
//! findings, hostile bytes, salvage.

mod devices;
mod findings;
mod hostile;
mod salvage;
mod store;
mod witnesses;
