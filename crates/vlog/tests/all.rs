//! All tests of the virtual log in one program: `--test all <module>::<part of a name>` runs some.
//! Only `planted` is separate: it needs a feature and changes the behavior of the whole process.
//! Topics: models, crashes, checkpoints, damage.

mod checkpoint;
mod common;
mod crash;
mod fuzz;
mod model;
