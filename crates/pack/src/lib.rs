//! Codes for what has cooled. Inodes: small, each decodable by itself, never longer than the plain form and one byte. Data
//! of files: up to 128 KiB at a time.
//!
//! | module | owns |
//! |---|---|
//! | `record` | what is known about an inode; its stripped and its verbatim form |
//! | `triplet` | owner, group and mode of many inodes, each combination once |
//! | `bits`, `huffman`, `gamma`, `field` | bits, and the codes of one field |
//! | `codec` | the trait of all compressors |
//! | `paper` | the compressors of mramfs, for the study |
//! | `times`, `hybrid` | Shoal's own compressor |
//! | `block` | sixteen inodes together |
//! | `profile`, `bytes` | the tables of compressors for a kind of tree, in a file or a store |
//! | `data` | what compresses files' data, and what leaves alone what will not shrink |
//!
//! Rules: pure functions of bytes and tables; no I/O, no clock, no threads. Tables have a fixed size, encoding and decoding
//! of inodes allocate nothing. Decoding depends on nothing but what is in the store, never panics, and accepts only codes that
//! encoding could have made. The bytes are in `docs/spec/pack.md`, the reasons in `docs/design/pack.md`.

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
