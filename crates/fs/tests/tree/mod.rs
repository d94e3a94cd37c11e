//! A plain in-memory file tree, and the comparison of a store with it.
//!
//! Rules: the model knows POSIX, not Shoal: vectors of bytes, maps of names, counts of links. The
//! expected answer of an operation is computed here from the model alone, in the order in which
//! Linux looks at the arguments.
//! Left out: access times (relatime), and the space files take, which the checker counts.

#![allow(dead_code, reason = "each test binary uses its part")]

mod data;
pub mod steps;

use std::collections::BTreeMap;

use shoal_fs::{Attr, Fs, Ino};

pub type NodeId = usize;

pub const S_IFMT: u32 = 0o170000;
pub const S_IFREG: u32 = 0o100000;
pub const S_IFDIR: u32 = 0o040000;
pub const S_IFLNK: u32 = 0o120000;

#[derive(Clone, Debug)]
pub enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, NodeId>),
    Link(Vec<u8>),
    /// A device, FIFO or socket.
    Special,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub ino: Ino,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    pub nlink: u32,
    pub mtime: i64,
    pub ctime: i64,
    pub body: Body,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// References held as a kernel would.
    pub held: u64,
    /// Only used for directories.
    pub parent: NodeId,
    /// Others change the node too, so neither its attributes nor its whole listing are known.
    pub shared: bool,
}

impl Node {
    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    pub fn entries(&self) -> &BTreeMap<Vec<u8>, NodeId> {
        match &self.body {
            Body::Dir(entries) => entries,
            _ => panic!("not a directory"),
        }
    }

    pub fn data(&self) -> &[u8] {
        match &self.body {
            Body::File(data) => data,
            _ => panic!("not a file"),
        }
    }

    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(data) => data.len() as u64,
            Body::Dir(entries) => entries.len() as u64,
            Body::Link(target) => target.len() as u64,
            Body::Special => 0,
        }
    }
}

pub struct Model {
    pub nodes: Vec<Option<Node>>,
    pub root: NodeId,
    /// Compare times of change. This works only where nobody else moves the clock.
    pub times: bool,
}

impl Model {
    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("a live node")
    }

    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id].as_mut().expect("a live node")
    }

    pub fn entries_mut(&mut self, id: NodeId) -> &mut BTreeMap<Vec<u8>, NodeId> {
        match &mut self.node_mut(id).body {
            Body::Dir(entries) => entries,
            _ => panic!("not a directory"),
        }
    }

    pub fn data_mut(&mut self, id: NodeId) -> &mut Vec<u8> {
        match &mut self.node_mut(id).body {
            Body::File(data) => data,
            _ => panic!("not a file"),
        }
    }

    /// Returns the nodes that exist and satisfy `wanted`.
    pub fn all(&self, wanted: impl Fn(&Node) -> bool) -> Vec<NodeId> {
        (0..self.nodes.len()).filter(|&id| self.nodes[id].as_ref().is_some_and(&wanted)).collect()
    }

    /// Returns whether `below` is the directory `above`, or under it.
    pub fn is_below(&self, mut below: NodeId, above: NodeId) -> bool {
        loop {
            if below == above {
                return true;
            }
            let parent = self.node(below).parent;
            if parent == below || self.nodes[parent].is_none() {
                return false;
            }
            below = parent;
        }
    }

    /// Forgets a node that neither a name nor a holder keeps alive.
    pub fn settle(&mut self, id: NodeId) {
        let node = self.node(id);
        if node.nlink == 0 && node.held == 0 {
            self.nodes[id] = None;
        }
    }

    /// Drops all references, as after a crash or a remount.
    pub fn drop_holds(&mut self) {
        for id in 0..self.nodes.len() {
            if let Some(node) = &mut self.nodes[id] {
                node.held = 0;
                self.settle(id);
            }
        }
    }

    /// Compares every node of the model with the store.
    pub fn compare(&self, fs: &Fs) -> Result<(), String> {
        for id in self.all(|_| true) {
            self.compare_node(fs, id).map_err(|e| format!("node {id} (inode {}): {e}", self.node(id).ino))?;
        }
        Ok(())
    }

    pub fn compare_node(&self, fs: &Fs, id: NodeId) -> Result<(), String> {
        let node = self.node(id);
        if !node.shared {
            let attr = fs.getattr(node.ino).map_err(|e| format!("getattr: {e}"))?;
            self.compare_attr(node, &attr)?;
        }
        match &node.body {
            Body::File(data) => {
                let mut found = vec![0; data.len() + 10];
                let len = fs.read(node.ino, 0, &mut found).map_err(|e| format!("read: {e}"))?;
                if len != data.len() {
                    return Err(format!("{len} bytes are read of {}", data.len()));
                }
                if let Some(at) = (0..len).find(|&i| found[i] != data[i]) {
                    return Err(format!("byte {at} of {len} is {:#x}, expected {:#x}", found[at], data[at]));
                }
            }
            Body::Link(target) => {
                let found = fs.readlink(node.ino).map_err(|e| format!("readlink: {e}"))?;
                if found != *target {
                    return Err("another target".into());
                }
            }
            Body::Dir(_) => self.compare_listing(fs, id)?,
            Body::Special => {}
        }
        if !node.shared {
            let list = fs.listxattr(node.ino).map_err(|e| format!("listxattr: {e}"))?;
            let mut names: Vec<&[u8]> = list.split(|&b| b == 0).filter(|name| !name.is_empty()).collect();
            names.sort();
            if names != node.xattrs.keys().map(|name| &name[..]).collect::<Vec<_>>() {
                return Err(format!("attributes {names:?}, expected {:?}", node.xattrs.keys()));
            }
            for (name, value) in &node.xattrs {
                if fs.getxattr(node.ino, name).as_ref() != Ok(value) {
                    return Err(format!("attribute {:?} has another value", String::from_utf8_lossy(name)));
                }
            }
        }
        Ok(())
    }

    fn compare_attr(&self, node: &Node, attr: &Attr) -> Result<(), String> {
        let found = (attr.mode, attr.uid, attr.gid, attr.rdev, attr.nlink, attr.size);
        let expected = (node.mode, node.uid, node.gid, node.rdev, node.nlink, node.size());
        if found != expected {
            return Err(format!("mode, uid, gid, rdev, nlink, size are {found:?}, expected {expected:?}"));
        }
        if self.times && (attr.mtime, attr.ctime) != (node.mtime, node.ctime) {
            let found = (attr.mtime, attr.ctime);
            return Err(format!("mtime and ctime are {found:?}, expected {:?}", (node.mtime, node.ctime)));
        }
        Ok(())
    }

    /// Compares the directory's listing: every name once, with its inode and type.
    fn compare_listing(&self, fs: &Fs, id: NodeId) -> Result<(), String> {
        let node = self.node(id);
        let mut listed: BTreeMap<Vec<u8>, (Ino, u8)> = BTreeMap::new();
        let mut twice = None;
        let outcome = fs.readdir(node.ino, 0, &mut |entry| {
            if listed.insert(entry.name.to_vec(), (entry.ino, entry.kind)).is_some() {
                twice = Some(String::from_utf8_lossy(entry.name).into_owned());
            }
            true
        });
        outcome.map_err(|e| format!("readdir: {e}"))?;
        if let Some(name) = twice {
            return Err(format!("{name} is listed twice"));
        }
        let dot = listed.remove(&b"."[..]).map(|(ino, _)| ino);
        let dots = listed.remove(&b".."[..]).map(|(ino, _)| ino);
        // The model does not know the parents of its own roots.
        let parent = self.nodes[node.parent].as_ref().filter(|_| node.parent != id).map(|parent| parent.ino);
        if dot != Some(node.ino) || (node.nlink > 0 && parent.is_some() && dots != parent) {
            return Err(format!("'.' and '..' are {dot:?} and {dots:?}, expected {} and {parent:?}", node.ino));
        }
        for (name, &child) in node.entries() {
            let child = self.node(child);
            let expected = Some((child.ino, ((child.mode & S_IFMT) >> 12) as u8));
            let found = listed.remove(name);
            if found != expected {
                return Err(format!(
                    "{:?} is listed as {found:?}, expected {expected:?}",
                    String::from_utf8_lossy(name)
                ));
            }
        }
        if !node.shared && !listed.is_empty() {
            return Err(format!("listed but unknown: {listed:?}"));
        }
        Ok(())
    }
}
