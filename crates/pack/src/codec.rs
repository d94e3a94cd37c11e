//! The parts common to all compressors of inodes.
//!
//! Owns: the trait [`Codec`], so that one study compares all compressors; [`Code`], a buffer for
//! the code of one inode; [`Field`], the parts whose widths are reported. Rules: a code of more
//! than [`STRIPPED`] bytes is the verbatim form, a shorter one is the codec's. The form therefore
//! needs no mark, and no code is longer than the verbatim form. Decoding depends on the codec's
//! tables, the store's triplets and the bases of the block, all of which are in the store.

use shoal_format::FormatError;

use crate::bits::BitWriter;
use crate::record::{Record, STRIPPED, VERBATIM_MAX};
use crate::times::Bases;
use crate::triplet::Triplets;

/// Times that a block offers as a reference.
pub const BASES_MAX: usize = 3;

/// The triplets and times that a code refers to.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    pub triplets: &'a Triplets,
    /// Times of the block.
    pub bases: Bases,
}

/// The code of one inode.
#[derive(Clone, Debug)]
pub struct Code {
    bytes: [u8; VERBATIM_MAX],
    len: usize,
}

impl Default for Code {
    fn default() -> Code {
        Code { bytes: [0; VERBATIM_MAX], len: 0 }
    }
}

impl Code {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// Sets the code that was written, or the verbatim form if there is no code or it is too long.
    #[inline]
    pub(crate) fn set(&mut self, record: &Record, written: Option<&BitWriter>) {
        match written.and_then(|writer| writer.code(STRIPPED)) {
            Some(code) => {
                self.len = code.len();
                self.bytes[..code.len()].copy_from_slice(code);
            }
            None => self.len = record.write_verbatim(&mut self.bytes),
        }
    }
}

/// Parts of a code whose widths are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    Mode,
    Uid,
    Gid,
    /// Mode, uid and gid as one.
    Triplet,
    /// Which fields follow, and what the times refer to.
    Head,
    Links,
    Size,
    Ctime,
    Mtime,
    Atime,
    Btime,
    /// Flags, generation, device number, attributes, allocation, parent, layout.
    Optional,
    /// Location of the data.
    Data,
}

impl Field {
    pub const ALL: [Field; 13] = [
        Field::Mode,
        Field::Uid,
        Field::Gid,
        Field::Triplet,
        Field::Head,
        Field::Links,
        Field::Size,
        Field::Ctime,
        Field::Mtime,
        Field::Atime,
        Field::Btime,
        Field::Optional,
        Field::Data,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Field::Mode => "mode",
            Field::Uid => "uid",
            Field::Gid => "gid",
            Field::Triplet => "triplet",
            Field::Head => "head",
            Field::Links => "links",
            Field::Size => "size",
            Field::Ctime => "ctime",
            Field::Mtime => "mtime",
            Field::Atime => "atime",
            Field::Btime => "btime",
            Field::Optional => "optional",
            Field::Data => "pointer",
        }
    }
}

/// Bits of each field, indexed by its place in [`Field::ALL`].
pub type Widths = [u32; Field::ALL.len()];

/// A compressor of inodes, made for a kind of tree.
pub trait Codec {
    /// Encodes a record. Never fails: a record that the codec cannot hold is written verbatim.
    fn encode(&self, record: &Record, context: &Context, out: &mut Code);

    /// Decodes a code that `encode` made under the same context. A damaged code gives an error or
    /// another record, never a panic.
    fn decode(&self, code: &[u8], context: &Context) -> Result<Record, FormatError>;

    /// Returns the number of bits that `encode` takes for each field, or `None` if it writes the
    /// record verbatim.
    fn widths(&self, record: &Record, context: &Context) -> Option<Widths>;
}
