//! The tests of region and log in one program: `--test all <module>::<part of a name>` runs some.
//! Beside it is `planted`, which needs a feature and changes what the whole process does.
//! What they are about: crashes, promises, boots, slots.

mod assignment;
mod boots;
mod crash;
mod feature;
mod logged;
mod machine;
mod promise;
mod promises;
mod slots;
mod torn;
mod used_slots;
mod witness;
mod witnesses;
