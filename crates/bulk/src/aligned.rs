//! Reads and writes of bytes that need not be aligned to the device's blocks.
//!
//! Owns: the two calls. Rule: the blocks at the ends of a write are read and written back, so the
//! caller keeps others away from them. Left out: what the bytes mean (`unit`).

use shoal_media::BlockDevice;

/// Reads bytes that need not be aligned.
pub(crate) fn read_aligned(device: &dyn BlockDevice, align: u64, at: u64, out: &mut [u8]) -> shoal_media::Result<()> {
    let len = out.len() as u64;
    let (from, to) = (at / align * align, (at + len).next_multiple_of(align));
    if from == at && to == at + len {
        return device.read_into(at, out);
    }
    // The unaligned ends go through a buffer, the rest directly.
    let body_from = at.next_multiple_of(align);
    let body_to = (at + len) / align * align;
    if body_from >= body_to {
        let mut buffer = vec![0; (to - from) as usize];
        device.read_into(from, &mut buffer)?;
        out.copy_from_slice(&buffer[(at - from) as usize..(at - from + len) as usize]);
        return Ok(());
    }
    let (head, rest) = out.split_at_mut((body_from - at) as usize);
    let (body, tail) = rest.split_at_mut((body_to - body_from) as usize);
    if !head.is_empty() {
        read_aligned(device, align, at, head)?;
    }
    device.read_into(body_from, body)?;
    if !tail.is_empty() {
        read_aligned(device, align, body_to, tail)?;
    }
    Ok(())
}

/// Writes bytes that need not be aligned. The file's data lock keeps others away from the device
/// blocks at the ends, which are read and written back.
pub(crate) fn write_aligned(device: &dyn BlockDevice, align: u64, at: u64, bytes: &[u8]) -> shoal_media::Result<()> {
    let len = bytes.len() as u64;
    let (from, to) = (at / align * align, (at + len).next_multiple_of(align));
    if from == at && to == at + len {
        return device.write_from(at, bytes);
    }
    let body_from = at.next_multiple_of(align);
    let body_to = (at + len) / align * align;
    if body_from >= body_to {
        let mut buffer = vec![0; (to - from) as usize];
        device.read_into(from, &mut buffer)?;
        buffer[(at - from) as usize..(at - from + len) as usize].copy_from_slice(bytes);
        return device.write_from(from, &buffer);
    }
    let (head, rest) = bytes.split_at((body_from - at) as usize);
    let (body, tail) = rest.split_at((body_to - body_from) as usize);
    if !head.is_empty() {
        write_aligned(device, align, at, head)?;
    }
    device.write_from(body_from, body)?;
    if !tail.is_empty() {
        write_aligned(device, align, body_to, tail)?;
    }
    Ok(())
}
