//! `/dev/fuse`: further descriptors of a connection.
//!
//! Each has its own list of requests that were read and not yet answered, so threads with a descriptor each do not
//! contend for it; an answer must go to the descriptor its request came from. The connection ends when the last is
//! closed.
//! Left out: mounting, reading and writing, which need nothing of this crate.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::ioctl::{self, Setter, opcode};

/// `FUSE_DEV_IOC_CLONE`: makes a fresh descriptor of the device one of the connection whose descriptor is given.
const CLONE: ioctl::Opcode = opcode::read::<u32>(229, 0);

/// One more descriptor of the connection behind `connection`.
pub fn clone_connection(connection: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let number = connection.as_raw_fd() as u32;
    // SAFETY: the argument of this operation is a pointer to a `u32`, which the kernel reads during the call and does not keep
    // or change; `Setter` passes a pointer to the value it owns. On a descriptor of another kind the call fails, or does
    // what that device calls by this number: `device` has just been opened as the FUSE device.
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
