//! What a store shows, and whether that is allowed after a crash (docs/design/testing.md, T3).
//!
//! Rules of the comparison, strictest first:
//! - everything but the bytes of large files is exactly one state of the run, between what was promised and what was
//!   begun; a call of several transactions may leave its one file half-way (each byte old, new or zero, size between);
//! - a large file's bytes that were durable and did not change since are exactly those;
//! - its other bytes, after a power loss, are some value the run gave them, or zero. Never anything else.

use std::collections::BTreeMap;

use shoal_fs::{Error, FileFlags, Fs, Ino, ROOT};

/// One inode under one name.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub ino: Ino,
    pub generation: u32,
    pub mode: u32,
    pub nlink: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub times: (i64, i64),
    pub flags: FileFlags,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Bytes of a file, target of a link.
    pub content: Vec<u8>,
    /// The data are on the bulk device.
    pub bulk: bool,
}

/// Bytes compared at once.
const PAGE: usize = 4096;

pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// Reads everything.
pub fn read(fs: &Fs) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut dirs = vec![(Vec::new(), ROOT)];
    while let Some((path, ino)) = dirs.pop() {
        let mut names: Vec<(Vec<u8>, Ino, u8)> = Vec::new();
        let listing = fs.readdir(ino, 0, &mut |entry| {
            names.push((entry.name.to_vec(), entry.ino, entry.kind));
            true
        });
        let text = String::from_utf8_lossy(&path).into_owned();
        listing.map_err(|e| format!("listing /{text}: {e}"))?;
        tree.insert(path.clone(), entry(fs, ino).map_err(|e| format!("reading /{text}: {e}"))?);
        for (name, child, kind) in names {
            if name == b"." || name == b".." {
                continue;
            }
            let mut below = path.clone();
            below.push(b'/');
            below.extend_from_slice(&name);
            let found = fs.lookup(ino, &name, false).map_err(|e| format!("looking up {name:?} in /{text}: {e}"))?;
            if found.ino != child {
                return Err(format!("/{text}: {name:?} is listed as inode {child} and found as {}", found.ino));
            }
            if kind == 4 {
                dirs.push((below, child));
            } else {
                let child =
                    entry(fs, child).map_err(|e| format!("reading {}: {e}", String::from_utf8_lossy(&below)))?;
                tree.insert(below, child);
            }
        }
    }
    Ok(tree)
}

fn entry(fs: &Fs, ino: Ino) -> Result<Entry, Error> {
    let attr = fs.getattr(ino)?;
    let mut xattrs = Vec::new();
    for name in fs.listxattr(ino)?.split(|&b| b == 0).filter(|name| !name.is_empty()) {
        xattrs.push((name.to_vec(), fs.getxattr(ino, name)?));
    }
    let (mut content, mut bulk) = (Vec::new(), false);
    match attr.mode & 0o170000 {
        0o100000 => {
            content = vec![0; attr.size as usize];
            let got = fs.read(ino, 0, &mut content)?;
            content.truncate(got);
            bulk = attr.blocks >= 128 && fs.placement(ino)?.pieces.iter().any(|piece| piece.bulk);
        }
        0o120000 => content = fs.readlink(ino)?,
        _ => {}
    }
    Ok(Entry {
        ino,
        generation: attr.generation,
        mode: attr.mode,
        nlink: attr.nlink,
        owner: (attr.uid, attr.gid),
        size: attr.size,
        times: (attr.mtime, attr.ctime),
        flags: fs.file_flags(ino)?,
        xattrs,
        content,
        bulk,
    })
}

/// The states of a run: after each call, and whether that call may be seen half-way.
pub struct History<'a> {
    pub states: &'a [Tree],
    /// `steps[k]`: the call from state `k` to `k + 1` takes several transactions.
    pub steps: &'a [bool],
}

/// What a crash promises.
#[derive(Clone, Copy, Debug)]
pub struct Allowed {
    /// First and last state the tree may be.
    pub low: usize,
    pub high: usize,
    /// From this state on bulk data were not made durable; before it they were.
    pub durable: usize,
    /// The file a single fsync made durable, with the state.
    pub synced: Option<(Ino, usize)>,
    pub power: bool,
}

impl History<'_> {
    /// Is `found` allowed? The number of the state it is, or the reason why it is none.
    pub fn judge(&self, found: &Tree, allowed: &Allowed) -> Result<usize, String> {
        let mut reason = String::new();
        for k in (allowed.low..=allowed.high).rev() {
            match self.is_state(found, k, allowed) {
                Ok(()) => return Ok(k),
                Err(why) => reason = format!("{reason}\n  not state {k}: {why}"),
            }
        }
        for k in allowed.low..allowed.high {
            if self.steps[k] {
                match self.is_between(found, k, allowed) {
                    Ok(()) => return Ok(k),
                    Err(why) => reason = format!("{reason}\n  not between {k} and {}: {why}", k + 1),
                }
            }
        }
        Err(format!("the tree is none of the states {} to {}{reason}", allowed.low, allowed.high))
    }

    fn is_state(&self, found: &Tree, k: usize, allowed: &Allowed) -> Result<(), String> {
        let expected = &self.states[k];
        if !found.keys().eq(expected.keys()) {
            let names = |tree: &Tree, other: &Tree| -> Vec<String> {
                tree.keys()
                    .filter(|p| !other.contains_key(*p))
                    .map(|p| String::from_utf8_lossy(p).into_owned())
                    .collect()
            };
            return Err(format!("too much: {:?}, missing: {:?}", names(found, expected), names(expected, found)));
        }
        for (path, entry) in found {
            let other = &expected[path];
            let text = || String::from_utf8_lossy(path).into_owned();
            if !same_but_content(entry, other) {
                let short = |e: &Entry| (e.ino, e.mode, e.nlink, e.owner, e.size, e.times, e.xattrs.len());
                return Err(format!("{} is {:?}, expected {:?}", text(), short(entry), short(other)));
            }
            if entry.content == other.content {
                continue;
            }
            if !(allowed.power && entry.bulk) {
                let at = first_difference(&entry.content, &other.content);
                return Err(format!(
                    "{}: byte {at} is {:#x}, expected {:#x}",
                    text(),
                    entry.content[at],
                    other.content[at]
                ));
            }
            self.bulk_content(entry, None, allowed).map_err(|e| format!("{}: {e}", text()))?;
        }
        Ok(())
    }

    /// Every byte of a large file is one the run wrote there, or zero where it was not durable.
    fn bulk_content(&self, entry: &Entry, old: Option<&Entry>, allowed: &Allowed) -> Result<(), String> {
        let durable = match allowed.synced {
            Some((ino, state)) if ino == entry.ino => state.max(allowed.durable),
            _ => allowed.durable,
        };
        let last = self.states.len().min(allowed.high + 1);
        let versions: Vec<&[u8]> = (durable.min(last - 1)..last)
            .filter_map(|k| self.states[k].values().find(|e| e.ino == entry.ino && e.generation == entry.generation))
            .map(|e| &e.content[..])
            .chain(old.map(|e| &e.content[..]))
            .collect();
        for (number, page) in entry.content.chunks(PAGE).enumerate() {
            let from = number * PAGE;
            // A page of one version is allowed, and nearly all are.
            if versions.iter().any(|v| v.get(from..from + page.len()) == Some(page)) {
                continue;
            }
            bulk_page(page, from, &versions)?;
        }
        Ok(())
    }

    /// One call's file is half-way between two states; everything else is the same in both.
    fn is_between(&self, found: &Tree, k: usize, allowed: &Allowed) -> Result<(), String> {
        let (old, new) = (&self.states[k], &self.states[k + 1]);
        if !found.keys().eq(old.keys()) || !found.keys().eq(new.keys()) {
            return Err("other names".into());
        }
        for (path, entry) in found {
            let (before, after) = (&old[path], &new[path]);
            let text = || String::from_utf8_lossy(path).into_owned();
            if entry == before || entry == after {
                continue;
            }
            let frame = |e: &Entry| (e.ino, e.generation, e.mode, e.nlink, e.owner, e.xattrs.clone());
            if frame(entry) != frame(before) && frame(entry) != frame(after) {
                return Err(format!("{} has other attributes", text()));
            }
            let (least, most) = (before.size.min(after.size), before.size.max(after.size));
            if entry.size < least || entry.size > most {
                return Err(format!("{} has {} bytes, not {least} to {most}", text(), entry.size));
            }
            if entry.bulk && allowed.power {
                self.bulk_content(entry, Some(before), allowed).map_err(|e| format!("{}: {e}", text()))?;
                continue;
            }
            for (at, &byte) in entry.content.iter().enumerate() {
                let (a, b) = (before.content.get(at).copied(), after.content.get(at).copied());
                let unchanged = a.is_some() && a == b;
                if Some(byte) != a && Some(byte) != b && (byte != 0 || unchanged) {
                    return Err(format!("{}: byte {at} is {byte:#x}, was {a:?}, becomes {b:?}", text()));
                }
            }
        }
        Ok(())
    }
}

fn bulk_page(page: &[u8], from: usize, versions: &[&[u8]]) -> Result<(), String> {
    for (at, &byte) in (from..).zip(page) {
        let mut values = versions.iter().map(|v| v.get(at).copied());
        let first = values.next().flatten();
        let constant = first.is_some() && values.all(|value| value == first);
        let known = versions.iter().any(|v| v.get(at) == Some(&byte));
        if constant && Some(byte) != first {
            return Err(format!("byte {at} is {byte:#x}, was durable as {:#x}", first.unwrap_or(0)));
        }
        if !known && byte != 0 {
            return Err(format!("byte {at} is {byte:#x}, which nobody wrote there"));
        }
    }
    Ok(())
}

fn first_difference(a: &[u8], b: &[u8]) -> usize {
    (0..a.len().min(b.len())).find(|&i| a[i] != b[i]).unwrap_or(0)
}

fn same_but_content(a: &Entry, b: &Entry) -> bool {
    let frame = |e: &Entry| (e.ino, e.generation, e.mode, e.nlink, e.owner, e.size, e.times);
    frame(a) == frame(b) && a.xattrs == b.xattrs && a.content.len() == b.content.len()
}
