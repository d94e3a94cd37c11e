//! The region as the checker sees it: the bytes of the medium with the replayed log on top, in the
//! checker's own memory.
//!
//! Owns: segments of 64 KiB, which are read when first needed and kept. Segments of zeros take no
//! memory, so a forged size costs nothing. Small-file data is not kept.
//! Rules: the medium is never written; reading outside the region's bytes is a bug of the checker.
//! Left out: the meaning of the bytes.

use std::borrow::Cow;
use std::cell::OnceCell;

use shoal_format::{Offset, SEGMENT};
use shoal_media::{ImageFile, PersistentMemory};

use crate::CheckError;

const SEGMENT_LEN: usize = SEGMENT as usize;
/// Segments in a group. Groups keep the table of an empty 1 TiB region small.
const GROUP: usize = 256;

static ZEROS: [u8; SEGMENT_LEN] = [0; SEGMENT_LEN];

/// The underlying medium.
#[derive(Clone, Copy)]
pub(crate) enum Base<'a> {
    Image(&'a dyn ImageFile),
    Memory(&'a dyn PersistentMemory),
}

impl Base<'_> {
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), CheckError> {
        match self {
            Base::Image(image) => image.read(at, out)?,
            Base::Memory(memory) => memory.read(at, out),
        }
        Ok(())
    }

    /// Returns the end of the last byte stored, as far as the medium knows it. Bytes after it read
    /// as zeros.
    pub(crate) fn stored_bytes(&self) -> Result<u64, CheckError> {
        Ok(match self {
            Base::Image(image) => image.stored_bytes()?.unwrap_or(u64::MAX),
            Base::Memory(memory) => memory.len(),
        })
    }
}

/// A kept segment. An empty box stands for zeros.
type Kept = OnceCell<Box<[u8]>>;

pub(crate) struct Region<'a> {
    base: Base<'a>,
    /// Size of the address space (bytes).
    region_bytes: u64,
    /// Bytes that the medium holds. Bytes after them are zero until the log writes there.
    stored_bytes: u64,
    groups: Vec<OnceCell<Box<[Kept]>>>,
}

impl<'a> Region<'a> {
    pub(crate) fn new(base: Base<'a>, region_bytes: u64, stored_bytes: u64) -> Region<'a> {
        let groups = region_bytes.div_ceil(SEGMENT * GROUP as u64) as usize;
        Region { base, region_bytes, stored_bytes, groups: (0..groups).map(|_| OnceCell::new()).collect() }
    }

    pub(crate) fn is_image(&self) -> bool {
        matches!(self.base, Base::Image(_))
    }

    fn kept(&self, segment: usize) -> &Kept {
        &self.groups[segment / GROUP].get_or_init(|| (0..GROUP).map(|_| OnceCell::new()).collect())[segment % GROUP]
    }

    fn load(&self, segment: usize) -> Result<Box<[u8]>, CheckError> {
        let at = segment as u64 * SEGMENT;
        if at >= self.stored_bytes {
            return Ok(Box::default());
        }
        let mut bytes = vec![0; SEGMENT_LEN].into_boxed_slice();
        let stored = (self.stored_bytes - at).min(SEGMENT) as usize;
        self.base.read(at, &mut bytes[..stored])?;
        Ok(if bytes[..] == ZEROS[..] { Box::default() } else { bytes })
    }

    /// Returns a whole segment, or `None` if it is all zeros.
    pub(crate) fn segment(&self, segment: u64) -> Result<Option<&[u8]>, CheckError> {
        let kept = self.kept(segment as usize);
        if kept.get().is_none() {
            // The cell is empty, and nothing else fills it in the meantime.
            let _ = kept.set(self.load(segment as usize)?);
        }
        Ok(kept.get().map(|bytes| &bytes[..]).filter(|bytes| !bytes.is_empty()))
    }

    /// Returns `len` bytes from `at`. Copies them only if they cross a segment.
    pub(crate) fn bytes(&self, at: Offset, len: u64) -> Result<Cow<'_, [u8]>, CheckError> {
        assert!(
            at.get().checked_add(len).is_some_and(|end| end <= self.region_bytes),
            "checker reads outside the region"
        );
        let within = at.in_segment() as usize;
        let len = len as usize;
        if within + len <= SEGMENT_LEN {
            let segment = self.segment(at.segment())?.unwrap_or(&ZEROS);
            return Ok(Cow::Borrowed(&segment[within..within + len]));
        }
        let mut out = Vec::with_capacity(len);
        let mut position = at;
        while out.len() < len {
            let within = position.in_segment() as usize;
            let take = (SEGMENT_LEN - within).min(len - out.len());
            let segment = self.segment(position.segment())?.unwrap_or(&ZEROS);
            out.extend_from_slice(&segment[within..within + take]);
            position += take as u64;
        }
        Ok(Cow::Owned(out))
    }

    /// Reads bytes of one segment without keeping the segment, for bitmaps in front of data slots
    /// and for checksummed data.
    pub(crate) fn peek(&self, at: Offset, out: &mut [u8]) -> Result<(), CheckError> {
        let within = at.in_segment() as usize;
        assert!(within + out.len() <= SEGMENT_LEN && at.get() < self.region_bytes, "checker reads outside the region");
        if let Some(bytes) = self.kept(at.segment() as usize).get() {
            if bytes.is_empty() {
                out.fill(0);
            } else {
                out.copy_from_slice(&bytes[within..within + out.len()]);
            }
            return Ok(());
        }
        self.medium(at.get(), out)
    }

    /// Reads the medium as it was before replay.
    pub(crate) fn medium(&self, at: u64, out: &mut [u8]) -> Result<(), CheckError> {
        let stored = self.stored_bytes.saturating_sub(at).min(out.len() as u64) as usize;
        let (there, behind) = out.split_at_mut(stored);
        behind.fill(0);
        if there.is_empty() { Ok(()) } else { self.base.read(at, there) }
    }

    /// Returns the bytes of a segment for changes.
    fn segment_mut(&mut self, segment: u64) -> Result<&mut Box<[u8]>, CheckError> {
        self.segment(segment)?;
        let group = self.groups[segment as usize / GROUP].get_mut().expect("the segment was loaded");
        Ok(group[segment as usize % GROUP].get_mut().expect("the segment was loaded"))
    }

    fn change(&mut self, at: Offset, len: u64, mut step: impl FnMut(&mut [u8], usize)) -> Result<(), CheckError> {
        let mut done = 0;
        while done < len {
            let within = (at + done).in_segment() as usize;
            let take = (SEGMENT - within as u64).min(len - done) as usize;
            let bytes = self.segment_mut((at + done).segment())?;
            if bytes.is_empty() {
                *bytes = ZEROS[..].into();
            }
            step(&mut bytes[within..within + take], done as usize);
            done += take as u64;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, at: Offset, bytes: &[u8]) -> Result<(), CheckError> {
        self.change(at, bytes.len() as u64, |part, from| part.copy_from_slice(&bytes[from..from + part.len()]))
    }

    /// Changes the little-endian word at `at`, a multiple of 8.
    pub(crate) fn change_word(&mut self, at: Offset, change: impl Fn(u64) -> u64) -> Result<(), CheckError> {
        self.change(at, 8, |part, _| {
            let word = u64::from_le_bytes((&*part).try_into().expect("an aligned word lies in one segment"));
            part.copy_from_slice(&change(word).to_le_bytes());
        })
    }

    pub(crate) fn zero(&mut self, at: Offset, len: u64) -> Result<(), CheckError> {
        let mut done = 0;
        while done < len {
            let (segment, within) = ((at + done).segment(), u64::from((at + done).in_segment()));
            let take = (SEGMENT - within).min(len - done);
            if take == SEGMENT {
                // The whole segment becomes zero, so its old bytes need not be read.
                self.kept(segment as usize);
                let group = self.groups[segment as usize / GROUP].get_mut().expect("made in the line above");
                group[segment as usize % GROUP] = OnceCell::from(Box::default());
            } else {
                let bytes = self.segment_mut(segment)?;
                if !bytes.is_empty() {
                    bytes[within as usize..(within + take) as usize].fill(0);
                }
            }
            done += take;
        }
        Ok(())
    }
}
