//! In-memory implementations of the media traits. They record every state that a crash may leave.
//!
//! A [`World`] owns the media of one store. A test runs an engine on them while the world records
//! crash points. It then opens the engine again on every state of every point. Recovery runs on its
//! own world ([`WorldState::open`]), which can record and crash again. Everything is a function of
//! the seed and the calls made.
//!
//! ```
//! use shoal_media::LogDevice;
//! use shoal_sim::{Limits, World};
//!
//! let world = World::new(42);
//! let log = world.add_log();
//! world.record(true);
//! for (i, byte) in [1u8, 2, 3].into_iter().enumerate() {
//!     log.append(i as u64, &[byte])?;
//!     log.sync()?;
//!     world.set_mark(i as u64 + 1); // from now on, `i + 1` operations are promised
//! }
//! let mut points = world.points();
//! points.push(world.snapshot()); // the moment after the last event
//! let mut states = 0;
//! for point in points {
//!     let crashes = std::iter::once(point.process_crash()).chain(point.power_losses(&Limits::default()));
//!     for state in crashes {
//!         let after = state.open();
//!         let mut found = [0; 3];
//!         after.log(0).read(0, &mut found)?; // here an engine would recover
//!         let promised = point.mark() as usize;
//!         assert_eq!(found[..promised], [1, 2, 3][..promised], "{}", state.name());
//!         states += 1;
//!     }
//! }
//! assert!(states > 10);
//! # Ok::<(), shoal_media::MediaError>(())
//! ```
//!
//! | module | owns |
//! |---|---|
//! | `world` | the set of media, events, recording |
//! | `crash` | crash points and the states of a process crash and of power losses |
//! | `memory`, `log`, `image`, `disk` | the traits of `media` |
//! | `fault` | calls that fail, once or for good, or lie |
//! | `mechanical` | disks with an arm and platters, in simulated time |
//! | `turn` | a hook before each call of a thread, to schedule several threads |
//! | `budget` | how long a search may take |
//! | `share` | which part of a search a commit visits |
//! | `host` | how much room the file system under the images has |
//! | `pending`, `pages` | writes in flight by unit; bytes that are shared between snapshots |
//!
//! The `logged` memory of a store is [`SimMemory::volatile`]: it belongs to no world and is gone after a crash.

#![forbid(unsafe_code)]

mod budget;
mod clock;
mod crash;
mod disk;
mod fault;
mod host;
mod image;
mod log;
pub mod mechanical;
mod memory;
mod pages;
mod pending;
mod random;
mod share;
mod turn;
mod world;

pub use budget::Budget;
pub use clock::SimClock;
pub use crash::{CrashPoint, Limits, WorldState};
pub use disk::SimDisk;
pub use fault::{Call, Fault, FaultPlan};
pub use image::SimImage;
pub use log::{SIM_SEGMENT_BYTES, SimLog};
pub use mechanical::MechanicalDisk;
pub use memory::{SimMemory, SimMemoryKind};
pub use random::Random;
pub use share::{due, is_due};
pub use turn::{BeforeCall, before_calls};
pub use world::World;
