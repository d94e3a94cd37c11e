//! Error numbers of refused requests.
//!
//! Numbers are Linux' generic ones, as everywhere in the protocol. ENOSYS is special: the kernel takes it as "never ask again".

/// An error number, greater than zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub i32);

impl Errno {
    pub const IO: Errno = Errno(5);
    pub const NXIO: Errno = Errno(6);
    pub const ACCES: Errno = Errno(13);
    pub const INVAL: Errno = Errno(22);
    pub const NOTTY: Errno = Errno(25);
    pub const RANGE: Errno = Errno(34);
    pub const NOSYS: Errno = Errno(38);
    pub const PROTO: Errno = Errno(71);
    pub const OPNOTSUPP: Errno = Errno(95);
}

impl From<shoal_fs::Error> for Errno {
    fn from(error: shoal_fs::Error) -> Errno {
        Errno(error.errno())
    }
}
