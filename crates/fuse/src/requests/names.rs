//! Names: looking up, making, renaming and removing them; listings; the references that the kernel
//! holds.
//!
//! Every [`Entry`] carries one reference, which the kernel gives back with FORGET. If the kernel
//! never receives the entry, the sender gives the reference back ([`Requests::not_delivered`]).

use shoal_fs::{Attr, Caller, DirEntry, Ino};

use super::attributes::told;
use super::{Asker, Outcome, Requests};
use crate::convert;
use crate::errno::Errno;
use crate::protocol::{FOR_EVER_S, Listing, entry};

/// Directory entries collected before their attributes are looked up.
const ENTRIES_AT_ONCE: usize = 64;

/// Outcome of a look-up.
pub(crate) enum Entry {
    /// An inode that the kernel may trust for `lifetime_s` seconds.
    Found { attr: Attr, lifetime_s: u64 },
    /// The name does not exist, which the kernel may remember.
    Absent,
}

/// Kind of file to make.
pub(crate) enum Created<'a> {
    Node { mode: u32, rdev: u32, umask: u32 },
    Directory { mode: u32, umask: u32 },
    Symlink { target: &'a [u8] },
}

impl Requests {
    /// Makes an entry without a time limit. The store has one mount, so the kernel's attributes
    /// stay true until the kernel changes them.
    fn found(&self, attr: Attr) -> Entry {
        Entry::Found { attr: told(attr, self.gathers()), lifetime_s: FOR_EVER_S }
    }

    /// Returns the attributes of `ino`, with a kernel reference taken.
    fn hold(&self, ino: Ino) -> shoal_fs::Result<Attr> {
        self.fs.hold(ino)?;
        self.fs.getattr(ino).inspect_err(|_| self.fs.forget(ino, 1))
    }

    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Outcome<Entry> {
        if name == b"." {
            // This look-up comes from a file handle (NFS, open_by_handle_at): `parent` may be any
            // kind of inode.
            return Ok(self.found(self.hold(parent)?));
        }
        match self.fs.lookup_held(parent, name) {
            Err(shoal_fs::Error::NotFound) => Ok(Entry::Absent),
            Err(damage @ shoal_fs::Error::Corrupt(_)) => match self.fs.repair().lookup_unreadable(parent, name) {
                // The name counts as found, so that it can be removed. Nothing is cached, and every
                // access to the inode itself fails.
                Ok(attr) => Ok(Entry::Found { attr, lifetime_s: 0 }),
                Err(_) => Err(damage.into()),
            },
            result => Ok(self.found(result?)),
        }
    }

    pub fn forget(&self, ino: Ino, count: u64) {
        self.fs.forget(ino, count);
        if self.gathers() && !self.fs.is_held(ino) {
            self.gathered.forgotten(ino);
            self.refused.forgotten(ino);
        }
        if let Some(zeros) = &self.zeros {
            zeros.forget(ino, || self.fs.is_held(ino));
        }
    }

    /// Gives back the reference of an entry of `ino` that the kernel did not take.
    pub fn not_delivered(&self, ino: Ino) {
        self.forget(ino, 1);
    }

    pub fn create(&self, asker: Asker, parent: Ino, name: &[u8], what: Created<'_>) -> Outcome<Entry> {
        let made = match what {
            Created::Node { mode, rdev, umask } => self.fs.mknod(&asker.caller(umask), parent, name, mode, rdev),
            Created::Directory { mode, umask } => self.fs.mkdir(&asker.caller(umask), parent, name, mode),
            Created::Symlink { target } => self.fs.symlink(&asker.caller(0), parent, name, target),
        };
        Ok(self.found(made?))
    }

    /// Makes an unnamed file (O_TMPFILE).
    pub fn tmpfile(&self, asker: Asker, parent: Ino, mode: u32, umask: u32) -> Outcome<Attr> {
        Ok(told(self.fs.tmpfile(&asker.caller(umask), parent, mode)?, self.gathers()))
    }

    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Outcome<Entry> {
        Ok(self.found(self.fs.link_held(ino, parent, name)?))
    }

    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Outcome<()> {
        Ok(self.fs.unlink(parent, name)?)
    }

    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Outcome<()> {
        Ok(self.fs.rmdir(parent, name)?)
    }

    pub fn rename(
        &self,
        asker: Asker,
        (parent, name): (Ino, &[u8]),
        (new_parent, new_name): (Ino, &[u8]),
        flags: u32,
        answer: impl FnOnce(Outcome<()>) + Send + 'static,
    ) {
        let Some((mode, whiteout)) = convert::rename_mode(flags) else { return answer(Err(Errno::INVAL)) };
        let caller = Caller { hold: false, ..asker.caller(0) };
        let (name, new_name) = (name.to_vec(), new_name.to_vec());
        // A large file that replaces another one is flushed first.
        self.waiting(
            move |fs, patience| {
                let whiteout = whiteout.then_some(&caller);
                fs.rename_with(patience, (parent, &name), (new_parent, &new_name), mode, whiteout)
            },
            answer,
        );
    }

    pub fn readlink(&self, ino: Ino) -> Outcome<Vec<u8>> {
        Ok(self.fs.readlink(ino)?)
    }

    pub fn readdir(&self, ino: Ino, offset: u64, bytes_max: usize) -> Outcome<Listing> {
        let mut listing = Listing::new(bytes_max);
        let mut add = |found: DirEntry<'_>| listing.add(found.ino.into(), found.next, found.kind, found.name);
        match self.fs.readdir(ino, offset, &mut add) {
            // If entries precede the damage, the next call reports it, because it begins there.
            Err(error) if listing.bytes().is_empty() => Err(error.into()),
            _ => Ok(listing),
        }
    }

    /// Returns a listing with attributes, and the inodes to which it carries a reference.
    pub fn readdirplus(&self, ino: Ino, offset: u64, bytes_max: usize) -> Outcome<(Listing, Vec<Ino>)> {
        let mut listing = Listing::new(bytes_max);
        let mut held = Vec::new();
        let mut cookie = offset;
        let mut entries: Vec<(Ino, u8, u64, Vec<u8>)> = Vec::with_capacity(ENTRIES_AT_ONCE);
        loop {
            entries.clear();
            // Look up attributes afterwards: the engine holds the directory's lock while it calls
            // back. The kernel keeps names from changing meanwhile (it holds the directory's own
            // lock).
            let outcome = self.fs.readdir(ino, cookie, &mut |found| {
                if entries.len() == ENTRIES_AT_ONCE {
                    return false;
                }
                entries.push((found.ino, found.kind, found.next, found.name.to_vec()));
                true
            });
            let is_end = outcome.is_ok() && entries.len() < ENTRIES_AT_ONCE;
            match outcome {
                // If entries precede the damage, the next call reports it, because it begins there.
                Err(_) if !entries.is_empty() => {}
                Err(error) if cookie == offset => return Err(error.into()),
                // Entries already in the listing carry references that the kernel must learn of.
                Err(_) => return Ok((listing, held)),
                Ok(()) => {}
            }
            for (ino, kind, next, name) in &entries {
                cookie = *next;
                // The kernel takes no reference for `.` and `..`.
                let counted = name != b"." && name != b"..";
                let attr = if counted { self.hold(*ino) } else { self.fs.getattr(*ino) };
                let (attr, lifetime_s) = match attr {
                    Ok(attr) => (told(attr, self.gathers()), FOR_EVER_S),
                    Err(shoal_fs::Error::Corrupt(_)) if counted => (self.fs.repair().hold_unreadable(*ino, *kind), 0),
                    Err(_) => continue,
                };
                let kind = (attr.mode >> 12) as u8;
                if !listing.add_with(&entry(&attr, lifetime_s), *next, kind, name) {
                    if counted {
                        self.fs.forget(*ino, 1);
                    }
                    return Ok((listing, held));
                }
                if counted {
                    held.push(*ino);
                }
            }
            if is_end {
                return Ok((listing, held));
            }
        }
    }
}
