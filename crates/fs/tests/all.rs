//! The tests of the file system in one program: `cargo test -p shoal-fs --test all <module>::<part
//! of a name>` runs some of them.
//!
//! They cover data, names, damage, resizing, crashes at every point, and two operations at once.
//! `planted` and `recorded` are programs of their own, because they need features and change what
//! the whole process does.

mod absorbed;
mod actors;
mod beside_load;
mod checksums;
mod cold;
mod compacted;
mod compaction;
mod compaction_crash;
mod crash;
mod crowd;
mod damage;
mod data_lock_stress;
mod data_store;
mod device_errors;
mod devices;
mod dictionaries;
mod edges;
mod end_of_file;
mod enumeration;
mod failed_behind_cache;
mod failed_first;
mod failures;
mod file_data;
mod flags_and_whiteouts;
mod full_of_packed;
mod methods;
mod model;
mod packed;
mod packed_damage;
mod packed_directories;
mod packed_files;
mod packing;
mod promised_room;
mod reading;
mod rebalance;
mod resize;
mod resting;
mod restored_devices;
mod rewritten_when_full;
mod saved;
mod saved_image;
mod several_devices;
mod slow_device;
mod spilled;
mod spilling;
mod store;
mod summed;
mod thresholds;
mod tiers;
mod tree;
mod two_actors;
