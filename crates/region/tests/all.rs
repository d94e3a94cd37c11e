//! All tests of region and log in one program: `--test all <module>::<part of a name>` runs some.
//! Only `planted` is separate: it needs a feature and changes the behavior of the whole process.
//! Topics: crashes, promises, boots, slots.

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
