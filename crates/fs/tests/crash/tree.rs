//! A file system as its users see it, and the comparison of what a crash left with what may be left.
//!
//! A [`Tree`] is read through the engine's public interface: names, attributes, times, extended attributes, targets,
//! data. Left out: the space a file takes, and `.`/`..` beyond a directory's own consistency.
//! Rules of the comparison with the states a run went through:
//! - Everything but the data of large files equals one of the allowed states exactly.
//! - Large files are those that were on the bulk device in any state since the last promise about
//!   their data. Each sector of such a file equals that sector in one of the states since then.
//!   Where the file had no such sector, it is zeros. So NEW data may be lost as zeros, promised
//!   data may not, and bytes that the file never held are an error.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use shoal_format::inode::{Layout, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use shoal_fs::{Attr, FileFlags, Fs, Ino, ROOT};

/// A file longer than this is read by pieces, not whole (bytes).
const WHOLE_BYTES: u64 = 4 << 20;
const SECTOR: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub attr: Attr,
    pub flags: FileFlags,
    pub target: Vec<u8>,
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
    /// The data are on the bulk device.
    pub large: bool,
    pub data: Data,
}

/// Data as pieces in ascending order, with zeros between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Data {
    pub pieces: Arc<Vec<(u64, Vec<u8>)>>,
}

impl Data {
    pub fn whole(bytes: Vec<u8>) -> Data {
        Data { pieces: Arc::new(vec![(0, bytes)]) }
    }

    /// Fills `out` with the bytes of `[at, at + out.len())`.
    pub fn fill(&self, at: u64, out: &mut [u8]) {
        out.fill(0);
        let end = at + out.len() as u64;
        for (start, bytes) in self.pieces.iter() {
            let stop = start + bytes.len() as u64;
            let (from, to) = (at.max(*start), end.min(stop));
            if from < to {
                let part = &bytes[(from - start) as usize..(to - start) as usize];
                out[(from - at) as usize..(to - at) as usize].copy_from_slice(part);
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub names: BTreeMap<Vec<u8>, Ino>,
    pub nodes: BTreeMap<Ino, Node>,
}

/// A state the run went through.
pub type State = Arc<Tree>;

fn show(path: &[u8]) -> String {
    String::from_utf8_lossy(path).into_owned()
}

impl Tree {
    pub fn read(fs: &Fs) -> Result<Tree, String> {
        let mut tree = Tree::default();
        let root = fs.getattr(ROOT).map_err(|e| format!("root: {e}"))?;
        tree.visit(fs, Vec::new(), root, ROOT)?;
        Ok(tree)
    }

    fn visit(&mut self, fs: &Fs, path: Vec<u8>, attr: Attr, parent: Ino) -> Result<(), String> {
        let is_dir = attr.mode & S_IFMT as u32 == S_IFDIR as u32;
        let fail = |what: &str, error: shoal_fs::Error| format!("{what} of /{}: {error}", show(&path));
        match self.nodes.entry(attr.ino) {
            Entry::Vacant(vacant) => {
                vacant.insert(read_node(fs, attr).map_err(|e| fail("reading", e))?);
            }
            Entry::Occupied(_) if is_dir => return Err(format!("directory /{} has two names", show(&path))),
            Entry::Occupied(_) => {}
        }
        if is_dir {
            let mut entries = Vec::new();
            let mut dots = Vec::new();
            fs.readdir(attr.ino, 0, &mut |entry| {
                match entry.name {
                    b"." | b".." => dots.push(entry.ino),
                    name => entries.push((name.to_vec(), entry.ino, entry.kind)),
                }
                true
            })
            .map_err(|e| fail("listing", e))?;
            if dots != [attr.ino, parent] || entries.len() as u64 != attr.size {
                return Err(format!("directory /{}: {} entries, {attr:?}, dots {dots:?}", show(&path), entries.len()));
            }
            for (name, ino, kind) in entries {
                let mut below = path.clone();
                below.extend_from_slice(b"/");
                below.extend_from_slice(&name);
                let found = fs.lookup(attr.ino, &name).map_err(|e| format!("/{}: {e}", show(&below)))?;
                if found.ino != ino || found.mode >> 12 != kind as u32 {
                    return Err(format!("/{} is listed as {ino} of type {kind}, and is {found:?}", show(&below)));
                }
                self.visit(fs, below, found, attr.ino)?;
            }
        }
        if self.names.insert(path.clone(), attr.ino).is_some() {
            return Err(format!("/{} is listed twice", show(&path)));
        }
        Ok(())
    }

    pub fn ino(&self, path: &str) -> Option<Ino> {
        let path: Vec<u8> = if path.is_empty() { Vec::new() } else { format!("/{path}").into_bytes() };
        self.names.get(&path).copied()
    }
}

fn read_node(fs: &Fs, attr: Attr) -> shoal_fs::Result<Node> {
    let ino = attr.ino;
    let mut node = Node {
        // Space is the checker's business.
        attr: Attr { blocks: 0, ..attr },
        flags: fs.file_flags(ino)?,
        target: Vec::new(),
        attributes: Vec::new(),
        large: false,
        data: Data::default(),
    };
    for name in fs.listxattr(ino)?.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        node.attributes.push((name.to_vec(), fs.getxattr(ino, name)?));
    }
    node.attributes.sort();
    match (attr.mode & S_IFMT as u32) as u16 {
        S_IFLNK => node.target = fs.readlink(ino)?,
        S_IFREG if attr.size > 0 => {
            let read = |at: u64, len: u64| -> shoal_fs::Result<(u64, Vec<u8>)> {
                let mut bytes = vec![0; len as usize];
                let got = fs.read(ino, at, &mut bytes)?;
                bytes.truncate(got);
                Ok((at, bytes))
            };
            let placement = fs.placement(ino)?;
            node.large = placement.inode.layout == Layout::Extents;
            let pieces = if attr.size <= WHOLE_BYTES {
                vec![read(0, attr.size)?]
            } else {
                let pieces = placement.pieces.iter().filter(|piece| !piece.unwritten && piece.file_at < attr.size);
                pieces.map(|piece| read(piece.file_at, piece.len)).collect::<shoal_fs::Result<_>>()?
            };
            node.data = Data { pieces: Arc::new(pieces) };
        }
        _ => {}
    }
    Ok(node)
}

/// Returns the first state that the data of a file may come from, which is the last promise about
/// it.
pub type DataLow<'a> = &'a dyn Fn(Ino) -> usize;

/// Returns the last of `states[low..=high]` that fits `found`. The error says how it differs from
/// the nearest.
pub fn identify(
    found: &Tree,
    states: &[State],
    low: usize,
    high: usize,
    data_low: DataLow<'_>,
) -> Result<usize, String> {
    let mut nearest: Option<String> = None;
    for k in (low..=high).rev() {
        match compare(found, states, k, high, data_low) {
            Ok(()) => return Ok(k),
            Err(Difference { text, data }) => {
                // A difference in the data alone says more than one in the names.
                if data || nearest.is_none() {
                    nearest = Some(format!("state {k} of {low} to {high}: {text}"));
                }
            }
        }
    }
    Err(format!("the tree is none of the states allowed; {}", nearest.unwrap_or_default()))
}

struct Difference {
    text: String,
    data: bool,
}

fn compare(found: &Tree, states: &[State], k: usize, high: usize, data_low: DataLow<'_>) -> Result<(), Difference> {
    let want = &states[k];
    let differ = |text: String| Difference { text, data: false };
    if found.names != want.names {
        let extra = found.names.iter().find(|(path, ino)| want.names.get(*path) != Some(ino));
        let missing = want.names.iter().find(|(path, ino)| found.names.get(*path) != Some(ino));
        let name = |entry: Option<(&Vec<u8>, &Ino)>| entry.map(|(path, ino)| format!("{} ({ino})", show(path)));
        return Err(differ(format!("names: {:?} is too much, {:?} is missing", name(extra), name(missing))));
    }
    for (ino, node) in &found.nodes {
        let Some(wanted) = want.nodes.get(ino) else { return Err(differ(format!("inode {ino} is too much"))) };
        if node.attr != wanted.attr {
            return Err(differ(format!("inode {ino}: {:?} instead of {:?}", node.attr, wanted.attr)));
        }
        if node.target != wanted.target || node.attributes != wanted.attributes || node.flags != wanted.flags {
            return Err(differ(format!("inode {ino}: its target, its attributes or its flags differ")));
        }
    }
    for (&ino, node) in &found.nodes {
        compare_data(node, states, k, high, data_low(ino)).map_err(|text| Difference { text, data: true })?;
    }
    Ok(())
}

fn compare_data(node: &Node, states: &[State], k: usize, high: usize, low: usize) -> Result<(), String> {
    let ino = node.attr.ino;
    let same =
        |state: &State| state.nodes.get(&ino).filter(|other| other.attr.generation == node.attr.generation).cloned();
    let wanted = same(&states[k]).expect("attributes were compared");
    if node.data == wanted.data {
        return Ok(());
    }
    let may_be: Vec<Option<Node>> = states[low.min(k)..=high].iter().map(same).collect();
    let loose = may_be.iter().flatten().any(|other| other.large);
    let (mut have, mut other) = ([0; SECTOR], [0; SECTOR]);
    let pieces = node.data.pieces.iter().chain(wanted.data.pieces.iter());
    for (at, bytes) in pieces {
        let mut sector = *at / SECTOR as u64;
        let end = at + bytes.len() as u64;
        while sector * (SECTOR as u64) < end {
            let at = sector * SECTOR as u64;
            let len = (node.attr.size.saturating_sub(at)).min(SECTOR as u64) as usize;
            sector += 1;
            node.data.fill(at, &mut have[..len]);
            wanted.data.fill(at, &mut other[..len]);
            if have[..len] == other[..len] {
                continue;
            }
            let fits = loose
                && may_be.iter().any(|state| {
                    let filled = state.as_ref().map_or_else(Data::default, |state| state.data.clone());
                    filled.fill(at, &mut other[..len]);
                    have[..len] == other[..len]
                });
            if !fits {
                wanted.data.fill(at, &mut other[..len]);
                let first = (0..len).find(|&i| have[i] != other[i]).unwrap_or(0);
                return Err(format!(
                    "inode {ino}, byte {}: {:#04x}.. instead of {:#04x}.. ({}, large {loose})",
                    at + first as u64,
                    have[first],
                    other[first],
                    if have[..len].iter().all(|&b| b == 0) { "zeros" } else { "bytes it did not hold" },
                ));
            }
        }
    }
    Ok(())
}
