//! The tests of the virtual log in one program: `--test all <module>::<part of a name>` runs some.
//! Beside it is `planted`, which needs a feature and changes what the whole process does.
//! What they are about: models, crashes, checkpoints, damage.

mod checkpoint;
mod common;
mod crash;
mod fuzz;
mod model;
