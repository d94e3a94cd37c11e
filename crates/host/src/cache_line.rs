//! Write-back of cache lines to persistent memory, by the processor's best instruction.
//!
//! `clwb` keeps the line cached, `clflushopt` drops it, `clflush` drops it and is ordered. All
//! three are complete only after `sfence`. Stores of whole lines can bypass the cache (`movntdq`)
//! and need only the fence. Processors other than x86-64 are not supported: `LineFlush::detect`
//! fails and no map is made.

use std::io;

/// Bytes of a cache line.
pub(crate) const LINE_BYTES: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFlush {
    WriteBack,
    FlushUnordered,
    Flush,
}

#[cfg(target_arch = "x86_64")]
impl LineFlush {
    /// Returns the best instruction of this processor.
    pub fn detect() -> io::Result<LineFlush> {
        use std::arch::x86_64::__cpuid_count;
        // SAFETY: every x86-64 processor has the instruction; leaf 0 tells the highest leaf.
        #[allow(unused_unsafe)]
        let highest = unsafe { __cpuid_count(0, 0) }.eax;
        if highest < 7 {
            return Ok(LineFlush::Flush);
        }
        // SAFETY: as above; leaf 7 exists.
        #[allow(unused_unsafe)]
        let features = unsafe { __cpuid_count(7, 0) }.ebx;
        Ok(match features {
            f if f & 1 << 24 != 0 => LineFlush::WriteBack,
            f if f & 1 << 23 != 0 => LineFlush::FlushUnordered,
            _ => LineFlush::Flush,
        })
    }

    /// Starts the write-back of the lines of [start, start + len).
    ///
    /// # Safety
    /// The range is mapped.
    pub unsafe fn write_back(self, start: *mut u8, len: usize) {
        use std::arch::asm;
        if len == 0 {
            return;
        }
        let before = start as usize % LINE_BYTES;
        let mut line = start.wrapping_sub(before);
        for _ in 0..(before + len).div_ceil(LINE_BYTES) {
            match self {
                // SAFETY: the line holds a byte of the mapped range, pages are whole lines, and
                // `detect` found the instruction, which changes no contents.
                LineFlush::WriteBack => unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) },
                // SAFETY: as above.
                LineFlush::FlushUnordered => unsafe {
                    asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags))
                },
                // SAFETY: as above; every x86-64 processor has this instruction.
                LineFlush::Flush => unsafe { asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags)) },
            }
            line = line.wrapping_add(LINE_BYTES);
        }
    }
}

/// Copies whole lines past the cache. The copy is complete after the next fence.
///
/// # Safety
/// `target` is aligned to a line and mapped for `bytes.len()` bytes. The length is a multiple of a
/// line.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn stream_lines(target: *mut u8, bytes: &[u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    const VECTOR_BYTES: usize = size_of::<__m128i>();
    for (i, vector) in bytes.chunks_exact(VECTOR_BYTES).enumerate() {
        // SAFETY: the chunk holds one vector; the load needs no alignment.
        let value = unsafe { _mm_loadu_si128(vector.as_ptr().cast()) };
        let place: *mut __m128i = target.wrapping_add(i * VECTOR_BYTES).cast();
        // SAFETY: the caller vouches that the target is mapped and aligned to 64 bytes, so each
        // vector is aligned to 16.
        unsafe { _mm_stream_si128(place, value) }
    }
}

/// Returns when every line written back or streamed before is in the persistence domain.
#[cfg(target_arch = "x86_64")]
pub(crate) fn fence() {
    // SAFETY: every x86-64 processor has SSE; the fence touches no memory.
    #[allow(unused_unsafe)]
    unsafe {
        std::arch::x86_64::_mm_sfence()
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl LineFlush {
    pub fn detect() -> io::Result<LineFlush> {
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "dax memory needs an x86-64 processor: format the store as `battery` or `logged`",
        ))
    }

    /// # Safety
    /// Never called: `detect` always fails, so no value exists.
    pub unsafe fn write_back(self, _start: *mut u8, _len: usize) {}
}

/// # Safety
/// The range is mapped.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn stream_lines(target: *mut u8, bytes: &[u8]) {
    // SAFETY: the caller vouches for the range; a slice never overlaps a map.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn fence() {}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_chosen_instruction_is_the_best_the_kernel_reports() {
        let kernel = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let has = |name: &str| kernel.split_whitespace().any(|flag| flag == name);
        let best = match () {
            () if has("clwb") => LineFlush::WriteBack,
            () if has("clflushopt") => LineFlush::FlushUnordered,
            () => LineFlush::Flush,
        };
        assert_eq!(LineFlush::detect().unwrap(), best);
    }
}
