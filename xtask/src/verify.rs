//! `cargo xtask verify`: checks that the mount has exactly what the workers of the kill -9 test
//! were told.
//!
//! The journal names N finished operations. The tree must equal the model after N of them, or after
//! N + 1 (the one in flight). A write or a punch in flight may also be there in part, since the
//! kernel cuts long writes into requests and the store punches in steps; each byte must then be the
//! old or the new one. Prints a digest of the tree, by which later rounds see whether it changed
//! (`--digest-only` prints only that).

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::load::Options;
use crate::model::{Kind, Model, Op};

/// An entry as found on the mount.
#[derive(PartialEq, Eq, Hash)]
struct Found {
    kind: FoundKind,
    mode: u32,
    nlink: u64,
    ino: u64,
    mtime_ns: i64,
    xattrs: BTreeMap<String, Vec<u8>>,
}

#[derive(PartialEq, Eq, Hash)]
enum FoundKind {
    File(Vec<u8>),
    Dir,
    Symlink(Vec<u8>),
    Other,
}

type Tree = BTreeMap<String, Found>;

pub fn main(arguments: &[String]) -> Result<(), String> {
    let options = Options(arguments);
    let dir = Path::new(options.need("--dir")?);
    let digest_only = arguments.iter().any(|argument| argument == "--digest-only");
    let tree = if dir.exists() || digest_only { Some(read(dir)?) } else { None };
    if let Some(tree) = tree.as_ref().filter(|_| digest_only) {
        println!("{:016x}", digest(tree));
        return Ok(());
    }
    let journal = options.need("--journal")?;
    let journal = fs::read_to_string(journal).map_err(|error| format!("{journal}: cannot be read ({error})"))?;
    let Some(last) = journal.lines().last() else {
        // Not even the directory's own mkdir has returned.
        println!("0 operations");
        return Ok(());
    };
    let done: u64 = last.parse().map_err(|_| format!("journal: odd line `{last}`"))?;
    let tree = tree.ok_or_else(|| format!("{}: is not there, but its mkdir had returned", dir.display()))?;
    let mut model = Model::new(options.number("--seed")?);
    for _ in 0..done {
        let op = model.draw();
        model.apply(&op);
    }
    let Err(without) = compare(&model, &tree, None) else { return report(done, "absent or without a trace", &tree) };
    let op = model.draw();
    if let Op::Write { path, .. } | Op::Punch { path, .. } = &op {
        let before = model.entries().into_iter().find(|(known, _)| known == path).map(|(_, id)| id);
        let id = before.expect("the model draws valid paths");
        let old = model.nodes[&id].clone();
        model.apply(&op);
        return match compare(&model, &tree, Some((id, &old.kind))) {
            Ok(()) => report(done, "data, there in part or whole", &tree),
            Err(with) => Err(finding(dir, done, &op, &without, &with)),
        };
    }
    model.apply(&op);
    match compare(&model, &tree, None) {
        Ok(()) => report(done, "there", &tree),
        Err(with) => Err(finding(dir, done, &op, &without, &with)),
    }
}

fn report(done: u64, in_flight: &str, tree: &Tree) -> Result<(), String> {
    println!("{done} operations, in flight: {in_flight}, digest {:016x}", digest(tree));
    Ok(())
}

fn finding(dir: &Path, done: u64, op: &Op, without: &str, with: &str) -> String {
    format!(
        "{}: neither the state after {done} operations ({without}) nor after one more ({with}); in flight: {op:?}",
        dir.display()
    )
}

fn digest(tree: &Tree) -> u64 {
    let mut hasher = DefaultHasher::new();
    tree.hash(&mut hasher);
    hasher.finish()
}

/// Reads the whole tree; `""` is the directory itself.
fn read(dir: &Path) -> Result<Tree, String> {
    let mut tree = Tree::new();
    let mut left = vec![String::new()];
    while let Some(name) = left.pop() {
        let path = if name.is_empty() { dir.to_path_buf() } else { dir.join(&name) };
        let failed = |error: std::io::Error| format!("{}: {error}", path.display());
        let meta = fs::symlink_metadata(&path).map_err(failed)?;
        let kind = if meta.is_dir() {
            for entry in fs::read_dir(&path).map_err(failed)? {
                let entry = entry.map_err(failed)?.file_name();
                let entry = entry.to_string_lossy();
                left.push(if name.is_empty() { entry.into_owned() } else { format!("{name}/{entry}") });
            }
            FoundKind::Dir
        } else if meta.is_symlink() {
            FoundKind::Symlink(fs::read_link(&path).map_err(failed)?.as_os_str().as_bytes().to_vec())
        } else if meta.is_file() {
            FoundKind::File(fs::read(&path).map_err(failed)?)
        } else {
            FoundKind::Other
        };
        let xattrs = if meta.is_symlink() { BTreeMap::new() } else { xattrs(&path).map_err(failed)? };
        let mtime_ns = meta.mtime().wrapping_mul(1_000_000_000).wrapping_add(meta.mtime_nsec());
        let found = Found { kind, mode: meta.mode() & 0o7777, nlink: meta.nlink(), ino: meta.ino(), mtime_ns, xattrs };
        if tree.insert(name.clone(), found).is_some() {
            return Err(format!("{}: listed twice", path.display()));
        }
    }
    Ok(tree)
}

fn xattrs(path: &Path) -> std::io::Result<BTreeMap<String, Vec<u8>>> {
    let mut names = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut names[..])?;
    let mut found = BTreeMap::new();
    for name in names[..len].split(|&b| b == 0).filter(|name| name.starts_with(b"user.")) {
        let mut value = vec![0; 64 << 10];
        let len = rustix::fs::lgetxattr(path, name, &mut value[..])?;
        value.truncate(len);
        found.insert(String::from_utf8_lossy(name).into_owned(), value);
    }
    Ok(found)
}

/// Finds the first difference between model and tree. Each byte of the node in `partial` may also
/// be that of its old contents, which `partial` has, too.
fn compare(model: &Model, tree: &Tree, partial: Option<(usize, &Kind)>) -> Result<(), String> {
    let mut entries = model.entries();
    entries.push((String::new(), 0));
    let mut inodes: BTreeMap<usize, u64> = BTreeMap::new();
    for (path, id) in &entries {
        let node = &model.nodes[id];
        let found = tree.get(path).ok_or_else(|| format!("{path:?} is missing"))?;
        let old = partial.filter(|(partial, _)| partial == id).map(|(_, old)| old);
        match (&node.kind, &found.kind) {
            (Kind::Dir(_), FoundKind::Dir) => {}
            (Kind::Symlink(target), FoundKind::Symlink(there)) if target.as_bytes() == there => {}
            (Kind::File(content), FoundKind::File(there)) => same_bytes(content, there, old)
                .map_err(|what| format!("{path:?}: {what} (inode {}, size {})", found.ino, there.len()))?,
            _ => return Err(format!("{path:?} is of another kind, or leads elsewhere")),
        }
        if !matches!(node.kind, Kind::Symlink(_)) && node.mode != found.mode {
            return Err(format!("{path:?}: mode {:o}, expected {:o}", found.mode, node.mode));
        }
        if node.nlink != found.nlink {
            return Err(format!("{path:?}: {} links, expected {}", found.nlink, node.nlink));
        }
        if node.xattrs != found.xattrs {
            return Err(format!("{path:?}: attributes {:?}, expected {:?}", found.xattrs.keys(), node.xattrs.keys()));
        }
        if let Some(mtime_ns) = node.mtime_ns.filter(|_| old.is_none())
            && mtime_ns != found.mtime_ns
        {
            return Err(format!("{path:?}: mtime {} ns, expected {mtime_ns}", found.mtime_ns));
        }
        if *inodes.entry(*id).or_insert(found.ino) != found.ino {
            return Err(format!("{path:?}: no longer the same file as its other name"));
        }
    }
    let mut users: BTreeMap<u64, usize> = BTreeMap::new();
    for (&id, &ino) in &inodes {
        if let Some(other) = users.insert(ino, id) {
            let name = |wanted: usize| entries.iter().find(|(_, id)| *id == wanted).map(|(path, _)| path.as_str());
            return Err(format!("{:?} and {:?} share inode {ino}", name(other), name(id)));
        }
    }
    match tree.keys().find(|path| !entries.iter().any(|(known, _)| known == *path)) {
        Some(path) => Err(format!("{path:?} is there, but must not be")),
        None => Ok(()),
    }
}

fn same_bytes(expected: &[u8], there: &[u8], old: Option<&Kind>) -> Result<(), String> {
    let old = match old {
        Some(Kind::File(old)) => old.as_slice(),
        _ => expected,
    };
    let least = old.len().min(expected.len());
    if there.len() < least || there.len() > expected.len().max(old.len()) {
        return Err(format!("{} bytes, expected {}", there.len(), expected.len()));
    }
    let before = |at: usize| old.get(at).copied().unwrap_or(0);
    let after = |at: usize| expected.get(at).copied().unwrap_or(0);
    match there.iter().enumerate().position(|(at, &byte)| byte != after(at) && byte != before(at)) {
        Some(at) => Err(format!("byte {at} is {:#x}, expected {:#x}", there[at], after(at))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_may_be_there_in_part_but_never_with_foreign_bytes() {
        let old = Kind::File(vec![1; 10]);
        let new = [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2];
        assert!(same_bytes(&new, &[1; 10], Some(&old)).is_ok(), "not at all");
        assert!(same_bytes(&new, &new, Some(&old)).is_ok(), "whole");
        assert!(same_bytes(&new, &new[..11], Some(&old)).is_ok(), "grown in part");
        assert!(same_bytes(&new, &[1, 1, 1, 1, 1, 1, 1, 1, 2, 3], Some(&old)).is_err(), "foreign byte");
        assert!(same_bytes(&new, &[1; 9], Some(&old)).is_err(), "shorter than before");
        assert!(same_bytes(&new, &[1; 10], None).is_err(), "a write that returned");
        let punched = [1, 1, 0, 0, 0, 0, 0, 0, 1, 1];
        assert!(same_bytes(&punched, &[1, 1, 0, 0, 1, 1, 0, 0, 1, 1], Some(&old)).is_ok(), "a hole in steps");
        assert!(same_bytes(&punched, &[1, 0, 0, 0, 1, 1, 0, 0, 1, 1], Some(&old)).is_err(), "zero beside the hole");
    }
}
