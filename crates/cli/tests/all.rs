//! The tests of the command line in one program: `--test all <module>::<part of a name>` runs some
//! of them. Shared code is compiled and linked once, and long tests run in parallel. Subjects:
//! mount, damage, resize, profiles, lab, serve and donate with the built programs; most need /dev/fuse.

mod copy;
mod damage;
mod damage_fuzz;
mod damaged_log;
mod damaged_media;
mod donate;
mod doors;
mod hostile_damage;
mod hostile_store;
mod killed;
mod lab;
mod life;
mod marks;
mod older_copies;
mod profiles;
mod resize;
mod restore;
mod returns;
mod scene;
mod serve;
mod standby;
mod words;
