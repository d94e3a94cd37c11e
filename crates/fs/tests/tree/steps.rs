//! Random operations on a store and on the model beside it.
//!
//! Each step chooses an operation and its arguments from the seed, works out the expected answer,
//! makes the call and compares. Only then does the model follow. A store without room may refuse
//! any operation that takes room, and must then be unchanged. It must never refuse to remove.
//!
//! One file of over 500 lines, because the steps of all operations share the rules of the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use shoal_fs::{Attr, COMPRESS_ATTRIBUTE, Caller, Error, Fs, RenameMode, SetAttr, TimeChange, XattrMode};
use shoal_sim::{Random, SimClock};

use super::{Body, Model, Node, NodeId, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};

/// A directory read in pieces while it changes.
struct Stream {
    dir: NodeId,
    cookie: u64,
    seen: BTreeMap<Vec<u8>, u32>,
    /// Names that have been there, untouched, since the beginning.
    stable: BTreeSet<Vec<u8>>,
}

pub struct Walker {
    pub fs: Arc<Fs>,
    pub model: Model,
    pub random: Random,
    pub clock: Arc<SimClock>,
    /// Prefix of every name, so that several walkers can share a directory.
    pub prefix: Vec<u8>,
    /// The store may run out of room.
    pub tight: bool,
    /// Steps refused for lack of room.
    pub refused: u64,
    streams: Vec<Stream>,
    /// What the last step did, for messages.
    pub last: String,
}

pub(super) type Outcome = Result<(), String>;

/// Returns the extended attributes that a new inode inherits from its directory.
fn inherited(parent: &Node, mode: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let takes = matches!(mode & S_IFMT, S_IFREG | S_IFDIR);
    let method = parent.xattrs.get_key_value(COMPRESS_ATTRIBUTE).filter(|_| takes);
    method.map(|(name, value)| (name.clone(), value.clone())).into_iter().collect()
}

impl Walker {
    /// Makes a walker whose directory is `root`.
    pub fn new(fs: Arc<Fs>, clock: Arc<SimClock>, seed: u64, root: &Attr, times: bool) -> Walker {
        let node = Node {
            ino: root.ino,
            mode: root.mode,
            uid: root.uid,
            gid: root.gid,
            rdev: 0,
            nlink: root.nlink,
            mtime: root.mtime,
            ctime: root.ctime,
            body: Body::Dir(BTreeMap::new()),
            xattrs: BTreeMap::new(),
            held: 0,
            parent: 0,
            shared: false,
        };
        Walker {
            fs,
            model: Model { nodes: vec![Some(node)], root: 0, times },
            random: Random::new(seed),
            clock,
            prefix: Vec::new(),
            tight: false,
            refused: 0,
            streams: Vec::new(),
            last: String::new(),
        }
    }

    /// Adds a directory that others use as well.
    pub fn share(&mut self, dir: &Attr, parent: NodeId) {
        let root = self.model.node(parent);
        let node = Node { ino: dir.ino, mode: dir.mode, shared: true, parent: 1, ..root.clone() };
        self.model.nodes.push(Some(node));
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.random.below(bound)
    }

    fn pick(&mut self, from: &[NodeId]) -> Option<NodeId> {
        (!from.is_empty()).then(|| from[self.random.below(from.len() as u64) as usize])
    }

    fn dir(&mut self) -> NodeId {
        // Now and then choose a directory that is removed but held.
        let dead = self.below(20) == 0;
        let dirs = self.model.all(|n| n.is_dir() && (dead || n.nlink > 0));
        self.pick(&dirs).expect("the root is there")
    }

    pub(super) fn file(&mut self) -> Option<NodeId> {
        let files = self.model.all(|n| matches!(n.body, Body::File(_)));
        self.pick(&files)
    }

    fn any(&mut self) -> NodeId {
        let all = self.model.all(|_| true);
        self.pick(&all).expect("the root is there")
    }

    fn new_name(&mut self) -> Vec<u8> {
        let mut name = self.prefix.clone();
        name.extend_from_slice(format!("n{}", self.below(12)).as_bytes());
        match self.below(40) {
            0 => name.resize(255, b'x'),
            1 => name.resize(100 + self.below(100) as usize, b'y'),
            _ => {}
        }
        name
    }

    /// Returns a name that mostly exists in the directory.
    fn name(&mut self, dir: NodeId) -> Vec<u8> {
        let count = self.model.node(dir).entries().len() as u64;
        if count == 0 || self.below(5) == 0 {
            return self.new_name();
        }
        let number = self.below(count) as usize;
        self.model.node(dir).entries().keys().nth(number).expect("counted above").clone()
    }

    fn child(&self, dir: NodeId, name: &[u8]) -> Option<NodeId> {
        self.model.node(dir).entries().get(name).copied()
    }

    pub(super) fn now(&self) -> i64 {
        shoal_media::Clock::now_ns(&*self.clock)
    }

    /// Compares an answer with the expected one; true when the step took place.
    pub(super) fn settle<T>(
        &mut self,
        found: Result<T, Error>,
        expected: Result<(), Error>,
    ) -> Result<Option<T>, String> {
        match (found, expected) {
            (Ok(value), Ok(())) => Ok(Some(value)),
            (Err(found), Err(expected)) if found == expected => Ok(None),
            (Err(Error::NoSpace(_)), _) if self.tight => {
                self.refused += 1;
                Ok(None)
            }
            (Ok(_), Err(expected)) => Err(format!("succeeded, expected '{expected}'")),
            (Err(found), expected) => Err(format!("answered '{found}', expected {expected:?}")),
        }
    }

    /// Like [`Walker::settle`], for operations that must never be refused.
    pub(super) fn settle_removal<T>(
        &mut self,
        found: Result<T, Error>,
        expected: Result<(), Error>,
    ) -> Result<Option<T>, String> {
        if let Err(Error::NoSpace(_)) = &found {
            return Err("a removal was refused for lack of room".into());
        }
        self.settle(found, expected)
    }

    /// Makes one random operation.
    pub fn step(&mut self) -> Outcome {
        self.clock.advance(1_000_000_000);
        let choice = self.below(100);
        let (name, outcome) = match choice {
            0..10 => ("mknod", self.mknod()),
            10..15 => ("mkdir", self.mkdir()),
            15..17 => ("symlink", self.symlink()),
            17..21 => ("link", self.link()),
            21..27 => ("unlink", self.unlink()),
            27..30 => ("rmdir", self.rmdir()),
            30..39 => ("rename", self.rename()),
            39..57 => ("write", self.write()),
            57..61 => ("read", self.read()),
            61..67 => ("truncate", self.truncate()),
            67..73 => ("fallocate", self.fallocate()),
            73..76 => ("setattr", self.setattr()),
            76..81 => ("xattr", self.xattr()),
            81..86 => ("readdir", self.readdir()),
            86..90 => ("lookup", self.lookup()),
            90..92 => ("forget", self.forget()),
            92..93 => ("tmpfile", self.tmpfile()),
            93..96 => ("copy", self.copy()),
            96..98 => ("seek", self.seek()),
            98..99 => ("burst", self.burst()),
            _ => ("sync", self.sync()),
        };
        outcome.map_err(|e| format!("{name} {}: {e}", self.last))
    }

    fn caller(&mut self) -> Caller {
        let hold = self.below(8) == 0;
        Caller { uid: self.below(3) as u32, gid: self.below(3) as u32, umask: 0o027, hold }
    }

    fn expect_new(&self, dir: NodeId, name: &[u8]) -> Result<(), Error> {
        if self.model.node(dir).nlink == 0 {
            return Err(Error::NotFound);
        }
        if self.child(dir, name).is_some() { Err(Error::Exists) } else { Ok(()) }
    }

    pub(super) fn touch(&mut self, id: NodeId) {
        let now = self.now();
        let node = self.model.node_mut(id);
        (node.mtime, node.ctime) = (now, now);
    }

    fn change(&mut self, id: NodeId) {
        let now = self.now();
        self.model.node_mut(id).ctime = now;
    }

    /// Notes that a name in a directory has come, gone or changed its meaning.
    fn disturb(&mut self, dir: NodeId, name: &[u8]) {
        for stream in self.streams.iter_mut().filter(|stream| stream.dir == dir) {
            stream.stable.remove(name);
        }
    }

    #[allow(clippy::too_many_arguments)] // The arguments of a creation, as the engine takes them.
    #[allow(clippy::too_many_arguments, reason = "what a creation is made of")]
    fn add(
        &mut self,
        dir: NodeId,
        name: &[u8],
        caller: &Caller,
        mode: u32,
        rdev: u32,
        body: Body,
        attr: &Attr,
    ) -> Outcome {
        let now = self.now();
        let parent = self.model.node(dir);
        let inherits = parent.mode & 0o2000 != 0;
        let is_dir = mode & S_IFMT == S_IFDIR;
        let umask = if mode & S_IFMT == S_IFLNK { 0 } else { caller.umask };
        let node = Node {
            ino: attr.ino,
            mode: mode & !umask | if inherits && is_dir { 0o2000 } else { 0 },
            uid: caller.uid,
            gid: if inherits { parent.gid } else { caller.gid },
            rdev,
            nlink: if is_dir { 2 } else { 1 },
            mtime: now,
            ctime: now,
            body,
            xattrs: inherited(parent, mode),
            held: caller.hold as u64,
            parent: dir,
            shared: false,
        };
        if self.model.all(|n| n.ino == attr.ino && !n.ino.is_none()).into_iter().next().is_some() {
            return Err(format!("inode {} is in use already", attr.ino));
        }
        self.model.nodes.push(Some(node));
        let id = self.model.nodes.len() - 1;
        self.model.entries_mut(dir).insert(name.to_vec(), id);
        self.model.node_mut(dir).nlink += is_dir as u32;
        self.touch(dir);
        self.disturb(dir, name);
        self.model.compare_node(&self.fs, id)
    }

    fn mknod(&mut self) -> Outcome {
        let (dir, name, caller) = (self.dir(), self.new_name(), self.caller());
        let kind = [0o010000, 0o140000, 0o020000, 0o060000, 0, S_IFREG][self.below(20).min(5) as usize];
        let (mode, rdev) = (kind | self.below(0o1000) as u32, if matches!(kind, 0o020000 | 0o060000) { 77 } else { 0 });
        self.last = format!("{dir}/{:?}", String::from_utf8_lossy(&name));
        let expected = self.expect_new(dir, &name);
        let found = self.fs.mknod(&caller, self.model.node(dir).ino, &name, mode, rdev);
        let Some(attr) = self.settle(found, expected)? else { return Ok(()) };
        let kind = if kind == 0 { S_IFREG } else { kind };
        let body = if kind == S_IFREG { Body::File(Vec::new()) } else { Body::Special };
        self.add(dir, &name, &caller, kind | mode & 0o7777, rdev, body, &attr)
    }

    fn mkdir(&mut self) -> Outcome {
        let (dir, name, caller) = (self.dir(), self.new_name(), self.caller());
        let mode = [0o755, 0o2755, 0o1777, 0o700][self.below(4) as usize];
        self.last = format!("{dir}/{:?}", String::from_utf8_lossy(&name));
        let expected = self.expect_new(dir, &name);
        let found = self.fs.mkdir(&caller, self.model.node(dir).ino, &name, mode);
        let Some(attr) = self.settle(found, expected)? else { return Ok(()) };
        self.add(dir, &name, &caller, S_IFDIR | mode, 0, Body::Dir(BTreeMap::new()), &attr)
    }

    fn symlink(&mut self) -> Outcome {
        let (dir, name, caller) = (self.dir(), self.new_name(), self.caller());
        let target = vec![b't'; [0, 1, 20, 300, 4095, 4096][self.below(6) as usize]];
        self.last = format!("{dir}/{:?}, {} bytes", String::from_utf8_lossy(&name), target.len());
        let expected = match target.len() {
            0 => Err(Error::NotFound),
            4096 => Err(Error::NameTooLong),
            _ => self.expect_new(dir, &name),
        };
        let found = self.fs.symlink(&caller, self.model.node(dir).ino, &name, &target);
        let Some(attr) = self.settle(found, expected)? else { return Ok(()) };
        self.add(dir, &name, &caller, S_IFLNK | 0o777, 0, Body::Link(target), &attr)
    }

    fn link(&mut self) -> Outcome {
        let (id, dir, name, hold) = (self.any(), self.dir(), self.new_name(), self.below(8) == 0);
        if self.model.node(id).shared {
            return Ok(());
        }
        self.last = format!("{id} as {dir}/{:?}", String::from_utf8_lossy(&name));
        let expected =
            if self.model.node(id).is_dir() { Err(Error::NotPermitted) } else { self.expect_new(dir, &name) };
        let (ino, parent) = (self.model.node(id).ino, self.model.node(dir).ino);
        let found = if hold { self.fs.link_held(ino, parent, &name) } else { self.fs.link(ino, parent, &name) };
        if self.settle(found, expected)?.is_some() {
            self.model.entries_mut(dir).insert(name.clone(), id);
            self.model.node_mut(id).nlink += 1;
            self.model.node_mut(id).held += hold as u64;
            self.change(id);
            self.touch(dir);
            self.disturb(dir, &name);
        }
        Ok(())
    }

    /// Takes a name from an inode.
    fn lose(&mut self, id: NodeId) {
        self.change(id);
        let node = self.model.node_mut(id);
        node.nlink = if node.is_dir() { 0 } else { node.nlink - 1 };
        self.model.settle(id);
    }

    pub fn unlink(&mut self) -> Outcome {
        let dir = self.dir();
        let name = self.name(dir);
        self.unlink_this(dir, &name)
    }

    pub fn unlink_this(&mut self, dir: NodeId, name: &[u8]) -> Outcome {
        self.last = format!("{dir}/{:?}", String::from_utf8_lossy(name));
        let child = self.child(dir, name);
        let expected = match child {
            None => Err(Error::NotFound),
            Some(id) if self.model.node(id).is_dir() => Err(Error::IsDirectory),
            Some(_) => Ok(()),
        };
        let found = self.fs.unlink(self.model.node(dir).ino, name);
        if let (Some(()), Some(id)) = (self.settle_removal(found, expected)?, child) {
            self.model.entries_mut(dir).remove(name);
            self.touch(dir);
            self.disturb(dir, name);
            self.lose(id);
        }
        Ok(())
    }

    fn rmdir(&mut self) -> Outcome {
        let dir = self.dir();
        let name = self.name(dir);
        self.rmdir_this(dir, &name)
    }

    pub fn rmdir_this(&mut self, dir: NodeId, name: &[u8]) -> Outcome {
        self.last = format!("{dir}/{:?}", String::from_utf8_lossy(name));
        let child = self.child(dir, name);
        let expected = match child.map(|id| self.model.node(id)) {
            None => Err(Error::NotFound),
            Some(node) if !node.is_dir() => Err(Error::NotDirectory),
            Some(node) if !node.entries().is_empty() => Err(Error::NotEmpty),
            Some(_) => Ok(()),
        };
        let found = self.fs.rmdir(self.model.node(dir).ino, name);
        if let (Some(()), Some(id)) = (self.settle_removal(found, expected)?, child) {
            self.model.entries_mut(dir).remove(name);
            self.model.node_mut(dir).nlink -= 1;
            self.touch(dir);
            self.disturb(dir, name);
            self.lose(id);
        }
        Ok(())
    }

    fn expect_rename(
        &self,
        from: NodeId,
        name: &[u8],
        to: NodeId,
        new_name: &[u8],
        mode: RenameMode,
    ) -> Result<(), Error> {
        let model = &self.model;
        if model.node(to).nlink == 0 {
            return Err(Error::NotFound);
        }
        let source = self.child(from, name).ok_or(Error::NotFound)?;
        let target = self.child(to, new_name);
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            _ => {}
        }
        if from != to && model.node(source).is_dir() && model.is_below(to, source) {
            return Err(Error::Invalid);
        }
        let Some(target) = target else { return Ok(()) };
        if mode == RenameMode::Exchange {
            let below = from != to && model.node(target).is_dir() && model.is_below(from, target);
            return if below { Err(Error::Invalid) } else { Ok(()) };
        }
        match (model.node(source).is_dir(), model.node(target)) {
            _ if source == target => Ok(()),
            (true, other) if !other.is_dir() => Err(Error::NotDirectory),
            (false, other) if other.is_dir() => Err(Error::IsDirectory),
            (_, other) if other.is_dir() && !other.entries().is_empty() => Err(Error::NotEmpty),
            _ => Ok(()),
        }
    }

    fn rename(&mut self) -> Outcome {
        let from = self.dir();
        let to = if self.below(3) == 0 { from } else { self.dir() };
        let (name, new_name) = (self.name(from), self.name(to));
        let mode = match self.below(6) {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let text = String::from_utf8_lossy;
        self.last = format!("{from}/{:?} to {to}/{:?}, {mode:?}", text(&name), text(&new_name));
        let expected = self.expect_rename(from, &name, to, &new_name, mode);
        let (from_ino, to_ino) = (self.model.node(from).ino, self.model.node(to).ino);
        let found = self.fs.rename(from_ino, &name, to_ino, &new_name, mode);
        if self.settle(found, expected)?.is_none() {
            return Ok(());
        }
        let source = self.child(from, &name).expect("expected above");
        let target = self.child(to, &new_name);
        if target == Some(source) {
            return Ok(());
        }
        self.disturb(from, &name);
        self.disturb(to, &new_name);
        self.move_entry(source, from, to);
        self.model.entries_mut(from).remove(&name);
        if let (RenameMode::Exchange, Some(target)) = (mode, target) {
            self.move_entry(target, to, from);
            self.model.entries_mut(from).insert(name, target);
            self.change(target);
        } else if let Some(target) = target {
            self.model.node_mut(to).nlink -= self.model.node(target).is_dir() as u32;
            self.lose(target);
        }
        self.model.entries_mut(to).insert(new_name, source);
        self.change(source);
        self.touch(from);
        self.touch(to);
        Ok(())
    }

    fn move_entry(&mut self, id: NodeId, from: NodeId, to: NodeId) {
        if self.model.node(id).is_dir() {
            self.model.node_mut(id).parent = to;
            self.model.node_mut(from).nlink -= 1;
            self.model.node_mut(to).nlink += 1;
        }
    }

    fn setattr(&mut self) -> Outcome {
        let id = self.any();
        if self.model.node(id).shared {
            return Ok(());
        }
        let mut change = SetAttr::default();
        if self.below(2) == 0 {
            change.mode = Some(self.below(0o10000) as u32);
        }
        if self.below(3) == 0 {
            (change.uid, change.gid) = (Some(self.below(9) as u32), Some(self.below(9) as u32));
        }
        if self.below(3) == 0 {
            change.mtime = Some(if self.below(2) == 0 { TimeChange::Now } else { TimeChange::At(-12345) });
            change.atime = Some(TimeChange::At(99));
        }
        let is_file = matches!(self.model.node(id).body, Body::File(_));
        if !is_file && self.below(3) == 0 {
            change.size = Some(5);
        }
        self.last = format!("{id} {change:?}");
        let expected = match (change.size, self.model.node(id).is_dir()) {
            (Some(_), true) => Err(Error::IsDirectory),
            (Some(_), false) => Err(Error::Invalid),
            _ => Ok(()),
        };
        let found = self.fs.setattr(self.model.node(id).ino, &change);
        let Some(attr) = self.settle(found, expected)? else { return Ok(()) };
        let now = self.now();
        let node = self.model.node_mut(id);
        node.mode = change.mode.map_or(node.mode, |mode| node.mode & S_IFMT | mode);
        node.uid = change.uid.unwrap_or(node.uid);
        node.gid = change.gid.unwrap_or(node.gid);
        node.mtime = match change.mtime {
            Some(TimeChange::Now) => now,
            Some(TimeChange::At(ns)) => ns,
            None => node.mtime,
        };
        node.ctime = now;
        if change.atime.is_some() && attr.atime != 99 {
            return Err(format!("atime is {}", attr.atime));
        }
        self.model.compare_node(&self.fs, id)
    }

    fn xattr(&mut self) -> Outcome {
        let id = self.any();
        if self.model.node(id).shared {
            return Ok(());
        }
        let name = [&b"user.a"[..], b"user.bb", b"trusted.c", b"security.d", b"system.e", b"user.", COMPRESS_ATTRIBUTE]
            [self.below(7) as usize];
        let remove = self.below(3) == 0;
        let node = self.model.node(id);
        let special = matches!(node.body, Body::Link(_) | Body::Special);
        let named = match name {
            b"system.e" | b"user." => Err(Error::NotSupported),
            _ if name.starts_with(b"user.") && special => Err(Error::NotPermitted),
            _ => Ok(()),
        };
        let has = node.xattrs.contains_key(name);
        if remove {
            self.last = format!("remove {:?} of {id}", String::from_utf8_lossy(name));
            let expected = named.and(if has { Ok(()) } else { Err(Error::NoAttribute) });
            let found = self.fs.removexattr(self.model.node(id).ino, name);
            if self.settle(found, expected)?.is_some() {
                self.model.node_mut(id).xattrs.remove(name);
                self.change(id);
            }
            return Ok(());
        }
        let len = [0, 5, 100, 3000, 65537][self.below(5) as usize];
        let mut value = vec![0; len];
        self.random.fill(&mut value);
        if name == COMPRESS_ATTRIBUTE {
            let words = [&b"off"[..], b"auto", b"lz4", b"zstd:1", b"zstd:19", b"zstd:20", b"", b"\xff"];
            value = words[self.below(8) as usize].to_vec();
        }
        let misspelt = name == COMPRESS_ATTRIBUTE && (value.len() < 3 || value == b"zstd:20");
        let mode = [XattrMode::Any, XattrMode::Create, XattrMode::Replace][self.below(3) as usize];
        self.last = format!("set {:?} of {id}, {len} bytes, {mode:?}", String::from_utf8_lossy(name));
        let expected = match (mode, has) {
            _ if value.len() > 65536 => Err(Error::TooBig),
            _ if misspelt => Err(Error::Invalid),
            _ if named.is_err() => named,
            (XattrMode::Create, true) => Err(Error::Exists),
            (XattrMode::Replace, false) => Err(Error::NoAttribute),
            _ => Ok(()),
        };
        let found = self.fs.setxattr(self.model.node(id).ino, name, &value, mode);
        if self.settle(found, expected)?.is_some() {
            self.model.node_mut(id).xattrs.insert(name.to_vec(), value);
            self.change(id);
        }
        Ok(())
    }

    /// Begins to read a directory, or continues.
    fn readdir(&mut self) -> Outcome {
        if self.streams.len() < 3 && self.below(2) == 0 {
            let dir = self.dir();
            let stable = self.model.node(dir).entries().keys().cloned().collect();
            self.streams.push(Stream { dir, cookie: 0, seen: BTreeMap::new(), stable });
        }
        if self.streams.is_empty() {
            return Ok(());
        }
        let number = self.below(self.streams.len() as u64) as usize;
        let mut budget = 1 + self.below(10);
        if self.model.nodes[self.streams[number].dir].is_none() {
            self.streams.remove(number);
            return Ok(());
        }
        let stream = &mut self.streams[number];
        self.last = format!("{} from cookie {}", stream.dir, stream.cookie);
        let ino = self.model.node(stream.dir).ino;
        let mut cut = false;
        let outcome = self.fs.readdir(ino, stream.cookie, &mut |entry| {
            if budget == 0 {
                cut = true;
                return false;
            }
            budget -= 1;
            stream.cookie = entry.next;
            *stream.seen.entry(entry.name.to_vec()).or_default() += 1;
            true
        });
        outcome.map_err(|e| format!("answered '{e}'"))?;
        if cut {
            return Ok(());
        }
        let stream = self.streams.remove(number);
        for name in &stream.stable {
            let times = stream.seen.get(name).copied().unwrap_or(0);
            if times != 1 {
                let name = String::from_utf8_lossy(name);
                return Err(format!("{name:?} was there all the time and was listed {times} times"));
            }
        }
        Ok(())
    }

    fn lookup(&mut self) -> Outcome {
        let (dir, hold) = (self.dir(), self.below(2) == 0);
        let name = self.name(dir);
        self.last = format!("{dir}/{:?}", String::from_utf8_lossy(&name));
        let child = self.child(dir, &name);
        let parent = self.model.node(dir).ino;
        let found = if hold { self.fs.lookup_held(parent, &name) } else { self.fs.lookup(parent, &name) };
        let expected = child.map(drop).ok_or(Error::NotFound);
        if let (Some(attr), Some(id)) = (self.settle(found, expected)?, child) {
            self.model.node_mut(id).held += hold as u64;
            if attr.ino != self.model.node(id).ino {
                return Err(format!("found inode {}, expected {}", attr.ino, self.model.node(id).ino));
            }
        }
        if self.model.node(dir).shared {
            return Ok(());
        }
        let up = self.fs.lookup(self.model.node(dir).ino, b"..").map(|attr| attr.ino);
        let parent = self.model.nodes[self.model.node(dir).parent].as_ref().map(|parent| parent.ino);
        if self.model.node(dir).nlink > 0 && dir != self.model.root && up.as_ref().ok() != parent.as_ref() {
            return Err(format!("'..' is {up:?}, expected {parent:?}"));
        }
        Ok(())
    }

    fn forget(&mut self) -> Outcome {
        let held = self.model.all(|n| n.held > 0);
        let Some(id) = self.pick(&held) else { return Ok(()) };
        let count = 1 + self.random.below(self.model.node(id).held);
        self.last = format!("{id} {count} times");
        let ino = self.model.node(id).ino;
        self.fs.forget(ino, count);
        self.model.node_mut(id).held -= count;
        self.model.settle(id);
        let gone = self.model.nodes[id].is_none();
        if gone && self.model.times && self.fs.getattr(ino) != Err(Error::Stale) {
            return Err("an inode without name and holder is still there".into());
        }
        Ok(())
    }

    fn tmpfile(&mut self) -> Outcome {
        let (dir, caller) = (self.dir(), self.caller());
        self.last = format!("in {dir}");
        let found = self.fs.tmpfile(&caller, self.model.node(dir).ino, 0o640);
        let Some(attr) = self.settle(found, Ok(()))? else { return Ok(()) };
        let now = self.now();
        let parent = self.model.node(dir);
        let node = Node {
            ino: attr.ino,
            mode: S_IFREG | 0o640 & !caller.umask,
            uid: caller.uid,
            gid: if parent.mode & 0o2000 != 0 { parent.gid } else { caller.gid },
            rdev: 0,
            nlink: 0,
            mtime: now,
            ctime: now,
            body: Body::File(Vec::new()),
            xattrs: inherited(parent, S_IFREG),
            held: 1,
            parent: dir,
            shared: false,
        };
        self.model.nodes.push(Some(node));
        self.model.compare_node(&self.fs, self.model.nodes.len() - 1)
    }

    /// Makes many names in one directory, so that it is hashed, or removes many.
    fn burst(&mut self) -> Outcome {
        let dir = self.dir();
        if self.model.node(dir).nlink == 0 {
            return Ok(());
        }
        if self.model.node(dir).entries().len() > 30 {
            let names: Vec<Vec<u8>> = self.model.node(dir).entries().keys().cloned().collect();
            for name in names {
                let id = self.child(dir, &name).expect("listed");
                if self.below(3) > 0 && !self.model.node(id).is_dir() {
                    self.unlink_this(dir, &name)?;
                }
            }
            return Ok(());
        }
        let caller = Caller { hold: false, ..self.caller() };
        let filler = self.below(60) as usize;
        for number in 0..30 + self.below(60) {
            let mut name = self.prefix.clone();
            name.extend_from_slice(format!("burst{number}").as_bytes());
            name.resize(name.len() + filler, b'z');
            let expected = self.expect_new(dir, &name);
            self.last = format!("{dir}/{:?}", String::from_utf8_lossy(&name));
            let found = self.fs.mknod(&caller, self.model.node(dir).ino, &name, 0o600, 0);
            let Some(attr) = self.settle(found, expected)? else { continue };
            self.add(dir, &name, &caller, S_IFREG | 0o600, 0, Body::File(Vec::new()), &attr)?;
        }
        Ok(())
    }

    fn sync(&mut self) -> Outcome {
        let choice = self.below(4);
        self.last = format!("{choice}");
        let id = self.any();
        let outcome = match choice {
            0 => self.fs.sync(),
            1 => self.fs.fsync(self.model.node(id).ino),
            2 => self.fs.upkeep().tick(),
            _ => self.fs.checkpoint(),
        };
        outcome.map_err(|e| format!("answered '{e}'"))
    }

    /// Continues with a store that was opened again. Nothing is held, unnamed inodes are gone, and
    /// cookies stay valid.
    pub fn reopened(&mut self, fs: Arc<Fs>) {
        self.fs = fs;
        self.model.drop_holds();
        self.streams.retain(|stream| self.model.nodes[stream.dir].is_some());
    }

    /// Removes everything below the roots of the model.
    pub fn remove_all(&mut self) -> Outcome {
        loop {
            let dirs = self.model.all(|n| n.is_dir() && !n.entries().is_empty());
            if dirs.is_empty() {
                return Ok(());
            }
            for dir in dirs {
                let entries: Vec<_> = self.model.node(dir).entries().clone().into_iter().collect();
                for (name, id) in entries {
                    self.clock.advance(1_000_000_000);
                    if !self.model.node(id).is_dir() {
                        self.unlink_this(dir, &name).map_err(|e| format!("unlink {}: {e}", self.last))?;
                    } else if self.model.node(id).entries().is_empty() {
                        self.rmdir_this(dir, &name).map_err(|e| format!("rmdir {}: {e}", self.last))?;
                    }
                }
            }
        }
    }
}
