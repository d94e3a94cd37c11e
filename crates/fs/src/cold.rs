//! Cold data: packed into objects in the region, and moved to bulk storage when the region is full.
//!
//! | module | owns |
//! |---|---|
//! | `cooled` | what may be packed, and when |
//! | `packer` | packing of files, unpacking of what is about to change |
//! | `share` | how much packing may do while others work |
//! | `objects` | packed objects: read, made, given back |
//! | `owner` | what refers to an object and counts its pieces |
//! | `dictionaries`, `training` | dictionaries of short files, and when one is made |
//! | `spill` | objects on bulk storage |
//! | `counts`, `report` | what packing has done, and what all that takes |
//!
//! Left out: packed inodes (`inode::packer`) and packed buckets of directories (`dir::pack`).

pub(crate) mod cooled;
pub(crate) mod counts;
pub(crate) mod dictionaries;
pub(crate) mod objects;
pub(crate) mod owner;
pub(crate) mod packer;
pub(crate) mod report;
mod share;
pub(crate) mod spill;
mod training;
