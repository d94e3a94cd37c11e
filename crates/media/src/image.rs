//! Image files: a region at rest, for `logged` memory and for saved `battery` memory.
//!
//! Owns: the trait [`ImageFile`] with its contract. The contents of an image are the region's business
//! (`docs/spec/region.md`).

use crate::{MediaError, Result};

/// One of the two images of a store: a sparse array of bytes that reads as zeros where nothing was written.
///
/// Contract:
/// - Writes complete at return and survive a process crash from then on.
/// - `sync` returns when every write completed before it is durable. After a power loss, later
///   writes may be there in any subset, torn at 512 bytes.
/// - After a failed `sync` further writes and syncs fail with `Poisoned`.
pub trait ImageFile: Send + Sync {
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()>;

    fn write(&self, at: u64, bytes: &[u8]) -> Result<()>;

    /// Takes room for a range, so that writing it later cannot run out of space. Contents do not
    /// change. Returns false where the host cannot promise that. On a lack of room a part of the
    /// range may stay reserved.
    fn reserve(&self, at: u64, len: u64) -> Result<bool> {
        let _ = (at, len);
        Ok(false)
    }

    /// Makes the first `bytes` readable through a map without further room. On a file system in
    /// memory, reading a hole that way takes a page, and without room kills the reader.
    fn reserve_holes(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Ok(())
    }

    /// Cuts the image off behind `bytes` and gives the room back. The part cut off reads as zeros;
    /// until the next sync a power loss may leave any part of it. For images that are no longer in
    /// use. A read-only image refuses.
    fn truncate(&self, bytes: u64) -> Result<()> {
        let _ = bytes;
        Err(MediaError::io("image", std::io::ErrorKind::Unsupported.into()))
    }

    fn sync(&self) -> Result<()>;

    /// End of the last byte ever written (bytes), where the medium knows it.
    fn stored_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// An image that was never written, for a reader that asks for both. It refuses writes.
pub struct BlankImage;

fn refuse_blank() -> Result<()> {
    Err(MediaError::io("blank image", std::io::ErrorKind::PermissionDenied.into()))
}

impl ImageFile for BlankImage {
    fn read(&self, _: u64, out: &mut [u8]) -> Result<()> {
        out.fill(0);
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        refuse_blank()
    }

    fn sync(&self) -> Result<()> {
        refuse_blank()
    }
}
