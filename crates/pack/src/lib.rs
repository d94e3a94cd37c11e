//! Codes for data that has cooled. Inodes: small codes, each decodable by itself, at most one byte
//! longer than the plain form. File data: up to 128 KiB at a time.
//!
//! | module | owns |
//! |---|---|
//! | `record` | all fields of an inode; its stripped and its verbatim form |
//! | `triplet` | the table of owner, group and mode, with each combination once |
//! | `bits`, `huffman`, `gamma`, `field` | bits, and the codes of one field |
//! | `codec` | the trait of all compressors |
//! | `paper` | the compressors of mramfs, for the study |
//! | `times`, `hybrid` | Shoal's own compressor |
//! | `block` | sixteen inodes together |
//! | `profile`, `bytes` | the tables of compressors for a kind of tree, in a file or a store |
//! | `data` | compression of file data, and detection of data that does not shrink |
//!
//! Rules: pure functions of bytes and tables; no I/O, no clock, no threads. Tables have a fixed
//! size; encoding and decoding of inodes allocate nothing. Decoding depends only on what is in the
//! store, never panics, and accepts only codes that encoding could have made. The bytes are in
//! `docs/spec/pack.md`, the reasons in `docs/design/pack.md`.

#![forbid(unsafe_code)]

mod bits;
mod block;
mod bytes;
mod codec;
mod data;
mod field;
mod gamma;
mod huffman;
mod hybrid;
mod paper;
mod profile;
mod record;
#[cfg(test)]
mod samples;
mod times;
mod triplet;

pub use block::{BLOCK_INODES, BLOCK_MAX, Block, BlockBytes, Item, pack};
pub use bytes::Described;
pub use codec::{BASES_MAX, Code, Codec, Context, Field, Widths};
pub use data::{Compressor, Decompressor, Dictionary, Method, MethodError, takes_dictionary, train};
pub use field::Counts;
pub use hybrid::{Hybrid, HybridCounts};
pub use paper::{FieldCodec, FieldCounts, Kind, Precision};
pub use profile::{Census, PROFILES_MAX, Profile, ProfileFile, Tables, by_frequency};
pub use record::{OPTIONAL, Record, STRIPPED, TIMES, VERBATIM_MAX};
pub use times::Bases;
pub use triplet::{TRIPLETS_MAX, Triplet, Triplets};
