//! The lab: experiments of the papers, on Shoal's own code.
//!
//! | module | owns |
//! |---|---|
//! | `experiment` | the registry of experiments and the options they share |
//! | `all` | all experiments of the papers, one after the other |
//! | `exhibits` | the figures and tables of the papers that hold results |
//! | `kept` | the full runs that are kept, and what they say of each figure and table |
//! | `report` | tables with the paper's figure beside ours; CSV, JSON, SVG |
//! | `trace` | requests to disks: from traces or from a seed |
//! | `plan` | the amount of work and the parts to run, shared by several experiments |
//! | `places` | the file systems to compare, and what they promise |
//! | `median` | medians of a few runs, with intervals |
//! | `progress` | progress of a long experiment |
//! | `parallel` | many runs on several processors |
//! | `network` | the model of a network, in simulated time |
//! | `idle_time` | file systems on simulated disks, with and without idle time |
//! | `netram` | the network RAM disk's policies under a trace and a network |
//! | `ramdisk` | the network RAM disk's section 4, live: real processes, mounts and donors |
//! | `tree` | the inodes of directories and of ext images |
//! | `profile` | a profile of packed inodes as JSON |
//! | `stored` | the inodes of a tree as a store keeps them |
//! | `inodes` | mramfs' compressors of inodes on real trees |
//! | `processor` | processor time of a thread |
//! | `small_files` | compressors of file data on real trees |
//! | `world` | what an experiment makes on this machine, and its removal |
//! | `disk_store` | a store in this process with its large files on a disk |
//! | `target` | calls on files, of a store in this process or of any directory |
//! | `postmark` | PostMark: many small files, as of a mail server |
//! | `conquest` | Conquest's benchmarks, on any file systems side by side and on the engine |
//! | `threshold` | which files should be kept in memory, on a recorded build |
//! | `trees` | everyday work on a source tree, on any file systems side by side |
//! | `mramfs` | mramfs' benchmarks of the file system, on the engine and on directories |
//! | `update_policy` | update policies in front of a simulated disk, and the response times of reads |
//!
//! Rules: the code under test is the code that serves users, never a copy of it. Only the world
//! around it is modelled, and the model's time is called simulated wherever it is shown. The same
//! seed gives the same result.

#![forbid(unsafe_code)]

pub mod all;
pub mod conquest;
mod disk_store;
pub mod exhibits;
pub mod experiment;
pub mod idle_time;
pub mod inodes;
pub mod kept;
mod median;
pub mod mramfs;
pub mod netram;
pub mod network;
mod parallel;
mod places;
mod plan;
pub mod postmark;
mod processor;
pub mod profile;
mod progress;
pub mod ramdisk;
pub mod report;
pub mod small_files;
pub mod stored;
pub mod target;
pub mod threshold;
pub mod trace;
pub mod tree;
pub mod trees;
pub mod update_policy;
mod world;

pub use experiment::{Common, Experiment, LabError, Listed, Run, RunArgs, list, run};
