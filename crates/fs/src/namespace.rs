//! Names: look-up, creation, links, removal, listing.
//!
//! Every operation locks the directories and inodes it changes, looks again under the locks, and
//! commits one transaction. An inode that loses its last name while held stays, without links,
//! until [`Fs::forget`].
//!
//! One file of over 500 lines: the operations are short, and share their steps with locks, links and reclaiming.

use std::sync::atomic::Ordering::Relaxed;

use shoal_format::SlotRef;
use shoal_format::dir::{Dirent, NAME_MAX, name_hash, name_is_valid};
use shoal_format::inode::{Inode, Layout, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG, Threshold};
use shoal_region::{Tx, View};

use crate::data_lock::FileLock;
use crate::dir::{self, Found};
use crate::inode::removal::{Follows, Removal};
use crate::locks::WriteGuard;
use crate::planted::{Bug, is_planted};
use crate::rooms::Tree;
use crate::{Attr, Caller, Error, Fs, Ino, Result, SYMLINK_MAX, acl, flags};

/// An entry handed out by [`Fs::readdir`].
#[derive(Clone, Copy, Debug)]
pub struct DirEntry<'a> {
    pub ino: Ino,
    /// File type as in `d_type`.
    pub kind: u8,
    pub name: &'a [u8],
    /// Cookie to continue behind this entry. Valid for the directory's lifetime, whatever is added
    /// or removed.
    pub next: u64,
}

/// Fills a new inode with more than its record, within the transaction that creates it.
type Fill<'a> = &'a dyn Fn(&mut Tx<'_>, &mut Inode) -> Result<()>;

/// Entries that are handed out before a directory's own: "." and "..".
const DOTS: u64 = 2;

/// Most links an inode may have.
const LINKS_MAX: u32 = u32::MAX - 1;

/// An inode that lost its last link and is still to be reclaimed.
pub(crate) struct Gone {
    pub ino: Ino,
    pub generation: u32,
}

pub(crate) fn kind_of(mode: u16) -> u8 {
    (mode >> 12) as u8
}

/// What happens to the data of an inode that loses its last name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Orphan {
    Freed,
    /// It stays for now: damage keeps it from being freed.
    Left,
}

/// Whether an operation takes a reference to the inode it returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    None,
    One,
}

impl Fs {
    /// Finds `name` in `parent`; "." and ".." too.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.lookup_as(parent, name, Hold::None)
    }

    /// Does the same, and gives the inode one reference.
    pub fn lookup_held(&self, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.lookup_as(parent, name, Hold::One)
    }

    fn lookup_as(&self, parent: Ino, name: &[u8], hold: Hold) -> Result<Attr> {
        if name.len() > NAME_MAX {
            return Err(Error::NameTooLong);
        }
        let lock = self.locks.read(parent);
        let dir = self.tree().load_dir(parent)?;
        let ino = match name {
            b"." => parent,
            b".." => dir.parent as Ino,
            _ => self.met(parent, self.tree().find(&self.region, &dir, name))?.ok_or(Error::NotFound)?.ino,
        };
        // Hold before the parent's lock is dropped, so that the inode cannot be reclaimed in
        // between.
        if hold == Hold::One {
            self.refs.hold(ino);
        }
        // The child's record may be changing: `getattr` waits for the thread that changes it. Its
        // name cannot vanish unnoticed, because a reclaimed record no longer decodes as in use.
        drop(lock);
        let attr = self.getattr(ino);
        if attr.is_err() && hold == Hold::One {
            self.forget(ino, 1);
        }
        attr.map_err(|error| if error == Error::Stale { Error::NotFound } else { error })
    }

    /// Takes one more reference on an inode.
    pub fn hold(&self, ino: Ino) -> Result<()> {
        let _lock = self.locks.read(ino);
        self.load(ino)?;
        self.refs.hold(ino);
        Ok(())
    }

    /// Returns whether there are references from outside.
    pub fn is_held(&self, ino: Ino) -> bool {
        self.refs.is_held(ino)
    }

    /// Drops references; the last one reclaims an inode without links.
    pub fn forget(&self, ino: Ino, count: u64) {
        let released = self.refs.release(ino, count);
        if released {
            self.gaps.forget(ino);
        }
        if !released || self.writable().is_err() {
            return;
        }
        if let Ok((file, inode)) = self.data().lock_data(ino, |_| false)
            && inode.nlink == 0
            && !self.refs.is_held(ino)
        {
            // If this fails, the inode stays an orphan. Shutdown tries again, or else the next
            // recovery.
            self.tree().note(ino, self.tree().reclaim(file, inode));
        }
    }

    /// Creates a regular file, FIFO, socket or device.
    pub fn mknod(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        let mode = if mode as u16 & S_IFMT == 0 { mode as u16 | S_IFREG } else { mode as u16 };
        if matches!(mode & S_IFMT, S_IFDIR | S_IFLNK) {
            return Err(Error::Invalid);
        }
        self.tree().create(caller, parent, name, mode, &|_, inode| {
            inode.rdev = rdev;
            Ok(())
        })
    }

    pub fn mkdir(&self, caller: &Caller, parent: Ino, name: &[u8], mode: u32) -> Result<Attr> {
        self.tree().create(caller, parent, name, S_IFDIR | (mode & 0o7777) as u16, &|_, _| Ok(()))
    }

    pub fn symlink(&self, caller: &Caller, parent: Ino, name: &[u8], target: &[u8]) -> Result<Attr> {
        if target.is_empty() {
            return Err(Error::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(Error::NameTooLong);
        }
        self.tree().create(caller, parent, name, S_IFLNK | 0o777, &|tx, inode| {
            let slot = tx.alloc(target.len() as u64)?;
            tx.write(slot.offset(), target)?;
            (inode.layout, inode.root, inode.size) = (Layout::Direct, slot, target.len() as u64);
            inode.allocated += slot.capacity();
            Ok(())
        })
    }

    pub fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let _lock = self.locks.read(ino);
        let inode = self.load(ino)?;
        if inode.kind() != S_IFLNK || inode.size > inode.root.capacity() {
            return Err(Error::Invalid);
        }
        Ok(self.region.read_vec(inode.root.offset(), inode.size as usize)?)
    }

    /// Creates an unnamed regular file, as `O_TMPFILE` does; [`Fs::link`] can name it. It is always held.
    pub fn tmpfile(&self, caller: &Caller, parent: Ino, mode: u32) -> Result<Attr> {
        self.writable()?;
        self.with_room(|| self.tree().try_tmpfile(caller, parent, mode))
    }

    /// Gives an inode one more name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.link_as(ino, parent, name, Hold::None)
    }

    /// Does the same, and gives the inode one reference.
    pub fn link_held(&self, ino: Ino, parent: Ino, name: &[u8]) -> Result<Attr> {
        self.link_as(ino, parent, name, Hold::One)
    }

    fn link_as(&self, ino: Ino, parent: Ino, name: &[u8], hold: Hold) -> Result<Attr> {
        self.writable()?;
        check_name(name)?;
        self.with_room(|| self.tree().try_link(ino, parent, name, hold))
    }

    pub fn unlink(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        if name == b"." || name == b".." {
            return Err(Error::IsDirectory);
        }
        check_name(name)?;
        let gone = self.with_room(|| self.tree().unlink_once(parent, name))?;
        self.tree().reclaim_gone(gone);
        Ok(())
    }

    pub fn rmdir(&self, parent: Ino, name: &[u8]) -> Result<()> {
        self.writable()?;
        match name {
            b"." => return Err(Error::Invalid),
            b".." => return Err(Error::NotEmpty),
            _ => check_name(name)?,
        }
        let gone = self.with_room(|| self.tree().rmdir_once(parent, name))?;
        self.tree().reclaim_gone(gone);
        Ok(())
    }

    /// Hands out entries from `cookie` (0: the beginning) until `emit` returns `false` or none is
    /// left.
    pub fn readdir(&self, ino: Ino, cookie: u64, emit: &mut dyn FnMut(DirEntry<'_>) -> bool) -> Result<()> {
        let _lock = self.locks.read(ino);
        let dir = self.tree().load_dir(ino)?;
        let kind = kind_of(S_IFDIR);
        if cookie == 0 && !emit(DirEntry { ino, kind, name: b".", next: 1 }) {
            return Ok(());
        }
        if cookie < DOTS && !emit(DirEntry { ino: dir.parent as Ino, kind, name: b"..", next: DOTS }) {
            return Ok(());
        }
        let mut from = Some(cookie.max(DOTS));
        while let Some(cookie) = from {
            let (entries, next) = self.met(ino, dir::list(&self.region, &dir, cookie))?;
            for entry in entries {
                let listed = DirEntry {
                    ino: entry.ino,
                    kind: entry.kind,
                    name: &entry.name,
                    next: (entry.cookie + 1).min(i64::MAX as u64),
                };
                if !emit(listed) {
                    return Ok(());
                }
            }
            from = next;
        }
        Ok(())
    }

    /// Walks a path from the root without following symbolic links.
    pub fn resolve(&self, path: &[u8]) -> Result<Ino> {
        let mut ino = crate::ROOT;
        for name in path.split(|&b| b == b'/').filter(|name| !name.is_empty()) {
            ino = self.lookup(ino, name)?.ino;
        }
        Ok(ino)
    }
}

impl<'a> Tree<'a> {
    /// Loads a directory; fails if `ino` is not one.
    pub(crate) fn load_dir(self, ino: Ino) -> Result<Inode> {
        let inode = self.fs.load(ino)?;
        if !inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        Ok(inode)
    }

    pub(crate) fn find(self, view: &impl View, dir: &Inode, name: &[u8]) -> Result<Option<Found>> {
        dir::lookup(view, dir, name_hash(self.fs.seed(), name), name)
    }

    /// Keeps the first error that has no caller to be returned to; the next tick reports it. Damage
    /// is reported at once.
    fn note(self, ino: Ino, outcome: Result<()>) {
        if let Err(error) = self.fs.past_damage(ino, outcome) {
            self.fs.noted.lock().get_or_insert(error);
        }
    }

    /// Frees an inode without links and all it owns, in steps if need be.
    pub(crate) fn reclaim(self, mut file: FileLock<'_>, mut inode: Inode) -> Result<()> {
        let ino = file.ino;
        let mut tx = self.fs.region.begin_reclaim();
        if !self.fs.data().free_data_in(&mut tx, &mut inode)? {
            drop(tx);
            self.fs.data().free_data(&mut file, &mut inode)?;
            tx = self.fs.region.begin_reclaim();
        }
        tx.free(inode.xattr)?;
        let mut removal = self.removal();
        removal.free(&mut tx, ino, inode.generation)?;
        tx.commit()?;
        self.count(&inode, -1);
        self.fs.orphans.lock().remove(&ino);
        removal.committed();
        Ok(())
    }

    pub(crate) fn count(self, inode: &Inode, change: i64) {
        self.fs.counts.inodes.fetch_add(change as u64, Relaxed);
        if inode.is_dir() {
            self.fs.counts.directories.fetch_add(change as u64, Relaxed);
        }
    }

    fn try_tmpfile(self, caller: &Caller, parent: Ino, mode: u32) -> Result<Attr> {
        // Held to the end: the default ACL is read through the parent's record.
        let _lock = self.fs.locks.read(parent);
        let dir = self.load_dir(parent)?;
        flags::check_entry_added(&dir)?;
        let mut tx = self.fs.region.begin();
        let new = self.fs.table.take(&self.fs.region)?;
        let mut inode = self.new_inode(caller, &mut tx, &dir, S_IFREG | (mode & 0o7777) as u16, new.generation())?;
        inode.nlink = 0;
        self.fs.store(&mut tx, new.ino, &inode)?;
        let ino = new.ino;
        tx.commit()?;
        new.keep();
        // No other thread can know the number before this returns.
        self.fs.refs.hold(ino);
        self.fs.orphans.lock().insert(ino);
        self.count(&inode, 1);
        Ok(Attr::new(ino, &inode))
    }

    pub(crate) fn new_inode(
        self,
        caller: &Caller,
        tx: &mut Tx<'_>,
        dir: &Inode,
        mode: u16,
        generation: u32,
    ) -> Result<Inode> {
        let now = self.fs.now();
        let inherits = matches!(mode & S_IFMT, S_IFREG | S_IFDIR);
        let mut inode = Inode {
            mode,
            layout: Layout::Empty,
            method: if inherits { dir.method } else { 0 },
            threshold: if inherits { dir.threshold.handed_down() } else { Threshold::NONE },
            flags: if inherits { flags::handed_down(dir) } else { 0 },
            nlink: if mode & S_IFMT == S_IFDIR { 2 } else { 1 },
            uid: caller.uid,
            gid: caller.gid,
            size: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            generation,
            rdev: 0,
            root: SlotRef::NONE,
            xattr: SlotRef::NONE,
            allocated: 0,
            parent: Ino::ZERO,
        };
        // A set-group-id directory hands down its group, and to directories the bit itself.
        if dir.mode & 0o2000 != 0 {
            inode.gid = dir.gid;
            if inode.is_dir() {
                inode.mode |= 0o2000;
            }
        }
        acl::inherit(self.fs, tx, dir, &mut inode, caller.umask)?;
        Ok(inode)
    }

    fn create(self, caller: &Caller, parent: Ino, name: &[u8], mode: u16, fill: Fill<'_>) -> Result<Attr> {
        self.fs.writable()?;
        check_name(name)?;
        self.fs.with_room(|| self.try_create(caller, parent, name, mode, fill))
    }

    fn try_create(self, caller: &Caller, parent: Ino, name: &[u8], mode: u16, fill: Fill<'_>) -> Result<Attr> {
        let _lock = self.fs.locks.write(parent);
        let mut dir = self.load_dir(parent)?;
        if dir.nlink == 0 {
            return Err(Error::NotFound);
        }
        let hash = name_hash(self.fs.seed(), name);
        if dir::lookup(&self.fs.region, &dir, hash, name)?.is_some() {
            return Err(Error::Exists);
        }
        flags::check_entry_added(&dir)?;
        let is_dir = mode & S_IFMT == S_IFDIR;
        if is_dir && dir.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let new = self.fs.table.take(&self.fs.region)?;
        let mut tx = self.fs.region.begin();
        let mut inode = self.new_inode(caller, &mut tx, &dir, mode, new.generation())?;
        fill(&mut tx, &mut inode)?;
        if is_dir {
            inode.parent = parent;
            dir.nlink += 1;
        }
        let entry = Dirent { hash, ino: new.ino, kind: kind_of(mode), name };
        dir::insert(&mut tx, &mut dir, &entry)?;
        (dir.mtime, dir.ctime) = (inode.ctime, inode.ctime);
        self.fs.store(&mut tx, parent, &dir)?;
        self.fs.store(&mut tx, new.ino, &inode)?;
        tx.commit()?;
        let ino = new.ino;
        new.keep();
        self.count(&inode, 1);
        if caller.hold {
            self.fs.refs.hold(ino);
        }
        Ok(Attr::new(ino, &inode))
    }

    fn try_link(self, ino: Ino, parent: Ino, name: &[u8], hold: Hold) -> Result<Attr> {
        let _lock = self.fs.locks.write_many(&[parent, ino]);
        let mut inode = self.fs.load(ino)?;
        if inode.is_dir() {
            return Err(Error::NotPermitted);
        }
        let mut dir = self.load_dir(parent)?;
        if dir.nlink == 0 {
            return Err(Error::NotFound);
        }
        let hash = name_hash(self.fs.seed(), name);
        if dir::lookup(&self.fs.region, &dir, hash, name)?.is_some() {
            return Err(Error::Exists);
        }
        flags::check_entry_added(&dir)?;
        flags::check_change(&inode)?;
        if inode.nlink >= LINKS_MAX {
            return Err(Error::TooManyLinks);
        }
        let now = self.fs.now();
        let mut tx = self.fs.region.begin();
        let entry = Dirent { hash, ino, kind: kind_of(inode.mode), name };
        dir::insert(&mut tx, &mut dir, &entry)?;
        (dir.mtime, dir.ctime) = (now, now);
        inode.nlink += !is_planted(Bug::LinkCount) as u32;
        inode.ctime = now;
        self.fs.store(&mut tx, parent, &dir)?;
        self.fs.store(&mut tx, ino, &inode)?;
        tx.commit()?;
        if inode.nlink == 1 {
            self.fs.orphans.lock().remove(&ino);
        }
        if hold == Hold::One {
            self.fs.refs.hold(ino);
        }
        Ok(Attr::new(ino, &inode))
    }

    /// Locks `parent` and the inode `name` refers to, and returns both as they are under the locks.
    fn lock_entry(self, parent: Ino, name: &[u8]) -> Result<(WriteGuard<'a>, Inode, Found)> {
        let mut lock = self.fs.locks.write(parent);
        loop {
            let dir = self.load_dir(parent)?;
            let found = self.find(&self.fs.region, &dir, name)?.ok_or(Error::NotFound)?;
            if self.fs.locks.try_extend(&mut lock, found.ino) {
                return Ok((lock, dir, found));
            }
            // Another thread has the child: wait for both in order, then look again.
            drop(lock);
            lock = self.fs.locks.write_many(&[parent, found.ino]);
        }
    }

    /// Removes a name. The room it needs is there, or in the reserve, or can be made by compaction.
    fn unlink_once(self, parent: Ino, name: &[u8]) -> Result<Option<Gone>> {
        let (_lock, dir, found) = self.lock_entry(parent, name)?;
        let inode = match self.fs.load(found.ino) {
            Err(Error::Corrupt(_)) => {
                return self.fs.repair().unlink_unreadable(parent, dir, name, &found).map(|()| None);
            }
            other => other?,
        };
        // Flags come first, as in Linux.
        flags::check_entry_removed(&dir, &inode)?;
        if inode.is_dir() {
            return Err(Error::IsDirectory);
        }
        let now = self.fs.now();
        self.past_data(found.ino, &mut |data| {
            let (mut dir, mut inode) = (dir, inode);
            let (mut tx, mut removal) = (self.fs.region.begin_reclaim(), self.removal());
            dir::remove(&mut tx, &mut dir, name_hash(self.fs.seed(), name), &found)?;
            (dir.mtime, dir.ctime) = (now, now);
            removal.store(&mut tx, parent, &dir, Follows::Another)?;
            self.drop_link_of(tx, removal, found.ino, &mut inode, now, data)
        })
    }

    /// Removes a name. If damage keeps the data from being freed, removes the name alone, and the
    /// inode stays an orphan.
    fn past_data(self, ino: Ino, remove: &mut dyn FnMut(Orphan) -> Result<Option<Gone>>) -> Result<Option<Gone>> {
        match self.fs.met(ino, remove(Orphan::Freed)) {
            Err(Error::Corrupt(_)) => remove(Orphan::Left),
            outcome => outcome,
        }
    }

    /// Takes one link from an inode within `tx` and commits. Returns an inode that nothing refers
    /// to any more if it owns too much to be freed in the same transaction, for
    /// [`Tree::reclaim_gone`].
    pub(crate) fn drop_link(self, tx: Tx<'_>, ino: Ino, inode: &mut Inode, now: i64) -> Result<Option<Gone>> {
        self.drop_link_of(tx, self.removal(), ino, inode, now, Orphan::Freed)
    }

    /// Does the same. `data` is what happens to the data of an inode without links.
    fn drop_link_of(
        self,
        mut tx: Tx<'_>,
        mut removal: Removal<'_>,
        ino: Ino,
        inode: &mut Inode,
        now: i64,
        data: Orphan,
    ) -> Result<Option<Gone>> {
        inode.nlink = inode.nlink.saturating_sub(if inode.is_dir() { inode.nlink } else { 1 });
        inode.ctime = now;
        let is_held = self.fs.refs.is_held(ino) && !is_planted(Bug::HeldReclaimed);
        let gone = inode.nlink == 0 && !is_held && data == Orphan::Freed;
        // An inode with few pieces goes in the same transaction.
        if gone && self.fs.data().free_data_in(&mut tx, inode)? {
            tx.free(inode.xattr)?;
            removal.free(&mut tx, ino, inode.generation)?;
            tx.commit()?;
            self.count(inode, -1);
            removal.committed();
            return Ok(None);
        }
        removal.store(&mut tx, ino, inode, Follows::Nothing)?;
        tx.commit()?;
        removal.committed();
        if inode.nlink == 0 {
            self.fs.orphans.lock().insert(ino);
        }
        Ok(gone.then_some(Gone { ino, generation: inode.generation }))
    }

    /// Reclaims what [`Tree::drop_link`] returned. The caller holds no locks: freeing a long file
    /// takes many steps, and the directory it was in must not wait for them. Until then the inode
    /// is an orphan like any other.
    pub(crate) fn reclaim_gone(self, gone: Option<Gone>) {
        let Some(Gone { ino, generation }) = gone else { return };
        match self.fs.data().lock_data(ino, |_| false) {
            // The inode cannot have been found by a name, but its number may have been freed and
            // taken again.
            Ok((file, inode)) if inode.nlink == 0 && inode.generation == generation && !self.fs.refs.is_held(ino) => {
                // The name is gone whatever happens now. Shutdown or recovery reclaims the inode if
                // this cannot.
                self.note(ino, self.reclaim(file, inode));
            }
            _ => {}
        }
    }

    fn rmdir_once(self, parent: Ino, name: &[u8]) -> Result<Option<Gone>> {
        let (_lock, mut dir, found) = self.lock_entry(parent, name)?;
        let mut inode = self.fs.load(found.ino)?;
        flags::check_entry_removed(&dir, &inode)?;
        if !inode.is_dir() {
            return Err(Error::NotDirectory);
        }
        if inode.size != 0 {
            return Err(Error::NotEmpty);
        }
        let now = self.fs.now();
        let (mut tx, mut removal) = (self.fs.region.begin_reclaim(), self.removal());
        dir::remove(&mut tx, &mut dir, name_hash(self.fs.seed(), name), &found)?;
        dir.nlink -= 1;
        (dir.mtime, dir.ctime) = (now, now);
        removal.store(&mut tx, parent, &dir, Follows::Another)?;
        self.drop_link_of(tx, removal, found.ino, &mut inode, now, Orphan::Freed)
    }
}

pub(crate) fn check_name(name: &[u8]) -> Result<()> {
    if name.len() > NAME_MAX {
        return Err(Error::NameTooLong);
    }
    match name {
        b"" => Err(Error::NotFound),
        b"." | b".." => Err(Error::Exists),
        _ if !name_is_valid(name) => Err(Error::Invalid),
        _ => Ok(()),
    }
}

/// Creates the root directory's record. The table must give out inode 1 first.
pub(crate) fn make_root(fs: &Fs, mode: u32, uid: u32, gid: u32) -> Result<()> {
    let new = fs.table.take(&fs.region)?;
    assert_eq!(new.ino, crate::ROOT, "the first inode of a new store is the root");
    let mut tx = fs.region.begin();
    let caller = Caller { uid, gid, ..Caller::default() };
    let mode = S_IFDIR | (mode & 0o7777) as u16;
    let mut root = fs.tree().new_inode(&caller, &mut tx, &blank_dir(), mode, new.generation())?;
    root.parent = crate::ROOT;
    fs.store(&mut tx, crate::ROOT, &root)?;
    tx.commit()?;
    new.keep();
    fs.tree().count(&root, 1);
    Ok(())
}

pub(crate) fn blank_dir() -> Inode {
    Inode {
        mode: S_IFDIR,
        layout: Layout::Empty,
        method: 0,
        threshold: Threshold::NONE,
        flags: 0,
        nlink: 2,
        uid: 0,
        gid: 0,
        size: 0,
        atime: 0,
        mtime: 0,
        ctime: 0,
        btime: 0,
        generation: 0,
        rdev: 0,
        root: SlotRef::NONE,
        xattr: SlotRef::NONE,
        allocated: 0,
        parent: Ino::ZERO,
    }
}
