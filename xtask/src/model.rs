//! The load of the kill -9 test as a pure function of its seed: a stream of operations and the
//! resulting tree.
//!
//! The worker takes operations from the model, runs them on a mount and records each return. The
//! verifier takes the same operations from the same seed and knows what must exist after N of them.
//! Every operation is valid in the state in which it is drawn, so a failed one is always a finding.
//! An operation is one system call that changes something (with the open and close around it). Left
//! out: two workers in one directory; each has its own tree.

use std::collections::BTreeMap;

use shoal_sim::Random;

/// Returns bytes that depend only on the seed. Every second block repeats a word, so that some of
/// it compresses.
pub fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        let word = random.next_u64().to_le_bytes();
        let times = if out.len() / 4096 % 2 == 0 { 1 } else { 64 };
        (0..times).for_each(|_| out.extend_from_slice(&word));
    }
    out.truncate(len);
    out
}

/// One operation; paths are relative to the worker's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create { path: String, mode: u32 },
    Mkdir { path: String, mode: u32 },
    Symlink { path: String, target: String },
    Write { path: String, at: usize, len: usize, seed: u64 },
    Truncate { path: String, len: usize },
    Punch { path: String, at: usize, len: usize },
    Rename { from: String, to: String },
    Exchange { a: String, b: String },
    Link { from: String, to: String },
    Unlink { path: String },
    Rmdir { path: String },
    SetXattr { path: String, name: String, len: usize, seed: u64 },
    RemoveXattr { path: String, name: String },
    Chmod { path: String, mode: u32 },
    Utime { path: String, mtime_ns: i64 },
    Fsync { path: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<String, usize>),
    Symlink(String),
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    pub nlink: u64,
    pub xattrs: BTreeMap<String, Vec<u8>>,
    /// Known only from the time it is set until something changes it.
    pub mtime_ns: Option<i64>,
}

/// The tree after some operations. Node 0 is the worker's directory.
pub struct Model {
    pub nodes: BTreeMap<usize, Node>,
    random: Random,
    made: usize,
}

const ENTRIES_MAX: usize = 150;
const FILE_BYTES_MAX: usize = 4 << 20;
const ALL_BYTES_MAX: usize = 24 << 20;

/// A path and the node it leads to.
type Entry = (String, usize);

fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

impl Model {
    pub fn new(seed: u64) -> Model {
        let root = Model::node(Kind::Dir(BTreeMap::new()), 0o755);
        Model { nodes: BTreeMap::from([(0, root)]), random: Random::new(seed), made: 0 }
    }

    fn node(kind: Kind, mode: u32) -> Node {
        let nlink = if matches!(kind, Kind::Dir(_)) { 2 } else { 1 };
        Node { kind, mode, nlink, xattrs: BTreeMap::new(), mtime_ns: None }
    }

    /// Returns all entries, parents first.
    pub fn entries(&self) -> Vec<Entry> {
        let mut found = vec![];
        let mut folders = vec![(String::new(), 0)];
        while let Some((path, id)) = folders.pop() {
            let Kind::Dir(entries) = &self.nodes[&id].kind else { unreachable!("only folders are pushed") };
            for (name, &child) in entries {
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                if matches!(self.nodes[&child].kind, Kind::Dir(_)) {
                    folders.push((path.clone(), child));
                }
                found.push((path, child));
            }
        }
        found
    }

    fn find(&self, path: &str) -> usize {
        path.split('/').filter(|part| !part.is_empty()).fold(0, |id, part| match &self.nodes[&id].kind {
            Kind::Dir(entries) => entries[part],
            _ => unreachable!("the model draws valid paths"),
        })
    }

    /// Draws an operation that is valid now. [`Model::apply`] must follow before the next draw.
    pub fn draw(&mut self) -> Op {
        let all = self.entries();
        loop {
            if let Some(op) = self.try_draw(&all) {
                return op;
            }
        }
    }

    fn try_draw(&mut self, all: &[Entry]) -> Option<Op> {
        let is = |id: &usize, what: fn(&Kind) -> bool| what(&self.nodes[id].kind);
        let files: Vec<&Entry> = all.iter().filter(|(_, id)| is(id, |k| matches!(k, Kind::File(_)))).collect();
        let folders: Vec<&Entry> = all.iter().filter(|(_, id)| is(id, |k| matches!(k, Kind::Dir(_)))).collect();
        let plain: Vec<&Entry> = all.iter().filter(|(_, id)| !is(id, |k| matches!(k, Kind::Dir(_)))).collect();
        let real: Vec<&Entry> = all.iter().filter(|(_, id)| !is(id, |k| matches!(k, Kind::Symlink(_)))).collect();
        let random = &mut self.random;
        let room = all.len() < ENTRIES_MAX;
        // Use a new name in a random directory, occasionally a long one.
        self.made += 1;
        let padding = if random.index(10) == 0 { "n".repeat(random.index(200)) } else { String::new() };
        let name = format!("{}{padding}", self.made);
        let fresh = match random.pick(&folders) {
            Some((folder, _)) if random.index(4) != 0 && folder.len() < 800 => format!("{folder}/{name}"),
            _ => name,
        };
        match random.index(100) {
            0..=13 if room => Some(Op::Create { path: fresh, mode: *random.pick(&[0o644, 0o600, 0o640])? }),
            14..=18 if room => Some(Op::Mkdir { path: fresh, mode: *random.pick(&[0o755, 0o700])? }),
            19..=21 if room => Some(Op::Symlink { path: fresh, target: "t".repeat(1 + random.index(300)) }),
            number @ 22..=53 => self.draw_data(number, &files),
            number @ 54..=69 => self.draw_rename(number, all, &plain, fresh),
            70..=75 if room => {
                let (from, _) = random.pick(&files)?;
                Some(Op::Link { from: from.clone(), to: fresh })
            }
            76..=83 => Some(Op::Unlink { path: random.pick(&plain)?.0.clone() }),
            84..=85 => {
                let (path, id) = random.pick(&folders)?;
                let empty = matches!(&self.nodes[id].kind, Kind::Dir(entries) if entries.is_empty());
                empty.then(|| Op::Rmdir { path: path.clone() })
            }
            number @ 86..=97 => self.draw_attribute(number, &real),
            98 => Some(Op::Fsync { path: random.pick(&real)?.0.clone() }),
            _ => None,
        }
    }

    /// Draws a change of a file's data.
    fn draw_data(&mut self, number: usize, files: &[&Entry]) -> Option<Op> {
        let all_bytes: usize = files.iter().map(|(_, id)| self.len_of(*id)).sum();
        let random = &mut self.random;
        match number {
            22..=44 => {
                let (path, id) = random.pick(files)?;
                let scale = *random.pick(&[100, 4096, 4096, 4096, 20_000, 65_536, 300_000, 2_500_000])?;
                // Keep the largest sizes rare: they would take most of the time.
                let scale = if scale > 1 << 20 && random.index(4) != 0 { 4096 } else { scale };
                let len = 1 + random.index(scale);
                let old = match &self.nodes[id].kind {
                    Kind::File(content) => content.len(),
                    _ => 0,
                };
                let at = if random.index(2) == 0 { old } else { random.index(old + 10_000) };
                let fits = at + len <= FILE_BYTES_MAX && all_bytes + len <= ALL_BYTES_MAX;
                fits.then(|| Op::Write { path: path.clone(), at, len, seed: random.next_u64() })
            }
            45..=51 => {
                let (path, id) = random.pick(files)?;
                let old = match &self.nodes[id].kind {
                    Kind::File(content) => content.len(),
                    _ => 0,
                };
                let len = match random.index(4) {
                    0 => 0,
                    1 => (old + random.index(20_000)).min(FILE_BYTES_MAX),
                    _ => random.index(old + 1),
                };
                Some(Op::Truncate { path: path.clone(), len })
            }
            _ => {
                let (path, _) = random.pick(files)?;
                Some(Op::Punch { path: path.clone(), at: random.index(100_000), len: 1 + random.index(200_000) })
            }
        }
    }

    fn draw_rename(&mut self, number: usize, all: &[Entry], plain: &[&Entry], fresh: String) -> Option<Op> {
        let random = &mut self.random;
        match number {
            54..=63 => {
                let (from, _) = random.pick(all)?;
                let inside = fresh.starts_with(&format!("{from}/"));
                (!inside).then(|| Op::Rename { from: from.clone(), to: fresh })
            }
            64..=67 => {
                // Rename onto an existing name, which is replaced.
                let (from, a) = random.pick(plain)?;
                let (to, b) = random.pick(plain)?;
                (a != b).then(|| Op::Rename { from: from.clone(), to: to.clone() })
            }
            _ => {
                let (a, one) = random.pick(all)?;
                let (b, two) = random.pick(all)?;
                let nested = a.starts_with(&format!("{b}/")) || b.starts_with(&format!("{a}/"));
                (one != two && !nested).then(|| Op::Exchange { a: a.clone(), b: b.clone() })
            }
        }
    }

    fn draw_attribute(&mut self, number: usize, real: &[&Entry]) -> Option<Op> {
        let random = &mut self.random;
        match number {
            86..=89 => {
                let (path, id) = random.pick(real)?;
                let name = format!("user.k{}", random.index(6));
                let len = random.index(300);
                // ext4 keeps all attributes of a file within a block, and the load must run there,
                // too.
                let held: usize = self.nodes[id].xattrs.values().map(Vec::len).sum();
                (held < 2000).then(|| Op::SetXattr { path: path.clone(), name, len, seed: random.next_u64() })
            }
            90..=91 => {
                let (path, id) = random.pick(real)?;
                let names: Vec<&String> = self.nodes[id].xattrs.keys().collect();
                let name = random.pick(&names)?.to_string();
                Some(Op::RemoveXattr { path: path.clone(), name })
            }
            92..=94 => {
                let (path, _) = random.pick(real)?;
                Some(Op::Chmod { path: path.clone(), mode: 0o700 | random.index(0o100) as u32 })
            }
            _ => {
                let (path, _) = random.pick(real)?;
                Some(Op::Utime { path: path.clone(), mtime_ns: (random.next_u64() % (2 << 60)) as i64 })
            }
        }
    }

    fn len_of(&self, id: usize) -> usize {
        match &self.nodes[&id].kind {
            Kind::File(content) => content.len(),
            _ => 0,
        }
    }

    fn at(&mut self, path: &str) -> &mut Node {
        let id = self.find(path);
        self.nodes.get_mut(&id).expect("found")
    }

    /// Changes the content of the file at `path`. Its modification time is then unknown.
    fn edit(&mut self, path: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let node = self.at(path);
        node.mtime_ns = None;
        match &mut node.kind {
            Kind::File(content) => change(content),
            _ => unreachable!("the model draws files"),
        }
    }

    fn folder(&mut self, path: &str) -> &mut Node {
        let node = self.at(split(path).0);
        node.mtime_ns = None;
        node
    }

    fn insert(&mut self, path: &str, id: usize) {
        let is_dir = matches!(self.nodes[&id].kind, Kind::Dir(_));
        let folder = self.folder(path);
        folder.nlink += u64::from(is_dir);
        if let Kind::Dir(entries) = &mut folder.kind {
            entries.insert(split(path).1.to_string(), id);
        }
    }

    /// Removes the name, but not the node.
    fn remove(&mut self, path: &str) -> usize {
        let id = self.find(path);
        let is_dir = matches!(self.nodes[&id].kind, Kind::Dir(_));
        let folder = self.folder(path);
        folder.nlink -= u64::from(is_dir);
        if let Kind::Dir(entries) = &mut folder.kind {
            entries.remove(split(path).1);
        }
        id
    }

    fn drop_link(&mut self, id: usize) {
        let node = self.nodes.get_mut(&id).expect("it had a name");
        node.nlink -= 1;
        if node.nlink == 0 || matches!(node.kind, Kind::Dir(_)) {
            self.nodes.remove(&id);
        }
    }

    fn add(&mut self, path: &str, node: Node) {
        let id = self.nodes.keys().next_back().map_or(0, |last| last + 1);
        self.nodes.insert(id, node);
        self.insert(path, id);
    }

    /// Applies `op` to the model as the file system would.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Create { path, mode } => self.add(path, Model::node(Kind::File(vec![]), *mode)),
            Op::Mkdir { path, mode } => self.add(path, Model::node(Kind::Dir(BTreeMap::new()), *mode)),
            Op::Symlink { path, target } => self.add(path, Model::node(Kind::Symlink(target.clone()), 0o777)),
            Op::Write { path, at, len, seed } => self.edit(path, |content| {
                content.resize(content.len().max(at + len), 0);
                content[*at..at + len].copy_from_slice(&bytes(*seed, *len));
            }),
            Op::Truncate { path, len } => self.edit(path, |content| content.resize(*len, 0)),
            Op::Punch { path, at, len } => self.edit(path, |content| {
                let end = (at + len).min(content.len());
                if *at < end {
                    content[*at..end].fill(0);
                }
            }),
            Op::Rename { from, to } => {
                let replaced = self.entry(to);
                let id = self.remove(from);
                if let Some(old) = replaced {
                    self.remove(to);
                    self.drop_link(old);
                }
                self.insert(to, id);
                self.forget_folder_time(id);
            }
            Op::Exchange { a, b } => {
                let (one, two) = (self.remove(a), self.remove(b));
                self.insert(a, two);
                self.insert(b, one);
                self.forget_folder_time(one);
                self.forget_folder_time(two);
            }
            Op::Link { from, to } => {
                let id = self.find(from);
                self.nodes.get_mut(&id).expect("found").nlink += 1;
                self.insert(to, id);
            }
            Op::Unlink { path } | Op::Rmdir { path } => {
                let id = self.remove(path);
                self.drop_link(id);
            }
            Op::SetXattr { path, name, len, seed } => {
                self.at(path).xattrs.insert(name.clone(), bytes(*seed, *len));
            }
            Op::RemoveXattr { path, name } => {
                self.at(path).xattrs.remove(name);
            }
            Op::Chmod { path, mode } => self.at(path).mode = *mode,
            Op::Utime { path, mtime_ns } => self.at(path).mtime_ns = Some(*mtime_ns),
            Op::Fsync { .. } => {}
        }
    }

    fn entry(&self, path: &str) -> Option<usize> {
        match &self.nodes[&self.find(split(path).0)].kind {
            Kind::Dir(entries) => entries.get(split(path).1).copied(),
            _ => None,
        }
    }

    /// Forgets the time of a directory that moved, which may or may not count as changed (its `..`
    /// did).
    fn forget_folder_time(&mut self, id: usize) {
        let node = self.nodes.get_mut(&id).expect("it moved");
        if matches!(node.kind, Kind::Dir(_)) {
            node.mtime_ns = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_operations_and_link_counts_hold() {
        let (mut one, mut two) = (Model::new(7), Model::new(7));
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..3000 {
            let op = one.draw();
            assert_eq!(op, two.draw());
            seen.insert(format!("{op:?}").split(' ').next().unwrap_or_default().to_string());
            one.apply(&op);
            two.apply(&op);
        }
        assert_eq!(seen.len(), 16, "every kind of operation is drawn: {seen:?}");
        let mut names = BTreeMap::new();
        one.entries().iter().for_each(|(_, id)| *names.entry(*id).or_insert(0) += 1);
        for (id, node) in &one.nodes {
            match &node.kind {
                Kind::Dir(entries) => {
                    let below = entries.values().filter(|id| matches!(one.nodes[id].kind, Kind::Dir(_))).count();
                    assert_eq!(node.nlink, 2 + below as u64);
                }
                _ => assert_eq!(node.nlink, names[id]),
            }
        }
        assert_ne!(Model::new(8).draw(), Model::new(9).draw());
    }
}
