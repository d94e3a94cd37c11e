//! Error numbers of refused requests.
//!
//! The numbers are Linux's generic ones, as everywhere in the protocol. ENOSYS is special: the
//! kernel takes it as "never ask again".

use rustix::io::Errno as Os;

/// An error number, greater than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl Errno {
    pub const PERM: Errno = Errno::of(Os::PERM);
    pub const IO: Errno = Errno::of(Os::IO);
    pub const NXIO: Errno = Errno::of(Os::NXIO);
    pub const ACCES: Errno = Errno::of(Os::ACCESS);
    pub const INVAL: Errno = Errno::of(Os::INVAL);
    pub const NOTTY: Errno = Errno::of(Os::NOTTY);
    pub const RANGE: Errno = Errno::of(Os::RANGE);
    pub const NOSYS: Errno = Errno::of(Os::NOSYS);
    pub const PROTO: Errno = Errno::of(Os::PROTO);
    pub const OPNOTSUPP: Errno = Errno::of(Os::OPNOTSUPP);

    const fn of(errno: Os) -> Errno {
        Errno(errno.raw_os_error())
    }
}

impl From<shoal_fs::Error> for Errno {
    fn from(error: shoal_fs::Error) -> Errno {
        Errno(error.errno())
    }
}
