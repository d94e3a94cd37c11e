//! `/dev/fuse`: further descriptors of a connection.
//!
//! Each descriptor has its own list of requests that were read and not yet answered, so threads
//! with one descriptor each do not contend for it. An answer must go to the descriptor its request
//! came from. The connection ends when the last descriptor is closed. Left out: mounting, reading
//! and writing, which need nothing from this crate.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::{self, Setter, opcode};

/// `FUSE_DEV_IOC_CLONE`: attaches a fresh descriptor of the device to the connection of the given
/// descriptor.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// Opens one more descriptor of the connection behind `connection`.
pub fn clone_connection(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let number = connection.as_raw_fd() as u32;
    // SAFETY: the argument of this operation is a pointer to a `u32`, which the kernel reads during
    // the call and does not keep or change; `Setter` passes a pointer to the value it owns. A
    // descriptor of another kind could give this number another meaning, but `device` was just
    // opened as the FUSE device.
    unsafe { ioctl::ioctl(device.as_fd(), Setter::<CLONE, u32>::new(number))? };
    Ok(device.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_the_kernels_and_what_is_no_connection_is_refused() {
        assert_eq!(CLONE, 0x8004_e500);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(clone_connection(file.as_fd()).is_err());
    }
}
