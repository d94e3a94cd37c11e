//! `shoal inspect`: how one file is stored.
//!
//! Shows the inode's fields, where its record is, and every piece of its data: offset in the file, place in the region or
//! on the bulk storage. Of a mounted store the daemon is asked; otherwise the store is opened for reading.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_fs::{Fs, Options};

use crate::args::InspectArgs;
use crate::control::{self, Question};
use crate::place;
use crate::store::{self, Store};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub path: String,
    pub inode: u64,
    pub generation: u32,
    pub kind: String,
    /// Permission bits, in octal.
    pub permissions: String,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub device: u32,
    pub size_bytes: u64,
    pub allocated_bytes: u64,
    /// Nanoseconds since 1970.
    pub accessed_ns: i64,
    pub modified_ns: i64,
    pub changed_ns: i64,
    pub born_ns: i64,
    pub layout: String,
    pub flags: u8,
    /// Offset of the inode's record in the region.
    pub record_at: u64,
    pub has_xattrs: bool,
    pub pieces: Vec<Piece>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Piece {
    pub file_at: u64,
    pub bytes: u64,
    /// `memory` or `bulk`.
    pub tier: String,
    /// Offset on it.
    pub at: u64,
    /// Written, but perhaps not yet durable.
    pub new: bool,
    /// Allocated, never written.
    pub unwritten: bool,
}

pub fn run(args: &InspectArgs) -> Outcome<()> {
    let place = place::find(&args.store)?;
    let report: Report =
        match control::ask(&place.store, &Question::Inspect { path: args.path.as_os_str().as_bytes().to_vec() })? {
            Some(value) => serde_json::from_value(value).during("answer of the daemon")?,
            None => {
                let store = Store::acquire(&place.store, store::LEAVING_PATIENCE)?;
                let (fs, _, _) = store.open(Options { read_only: true, ..Options::default() })?;
                report(&fs, &args.path)?
            }
        };
    if args.json {
        crate::print_json(&report);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

pub fn report(fs: &Fs, path: &Path) -> Outcome<Report> {
    let resolved = fs.resolve(path.as_os_str().as_bytes()).during(path.display());
    let ino = resolved.map_err(|failure| failure.remedy("name a path within the store"))?;
    let placement = fs.placement(ino).during(path.display())?;
    let (attr, inode) = (placement.attr, placement.inode);
    let kind = match attr.mode >> 12 {
        1 => "fifo",
        2 => "character device",
        4 => "directory",
        6 => "block device",
        8 => "file",
        10 => "symbolic link",
        12 => "socket",
        other => return Err(Failure::new(path.display(), format!("mode {other:o} is of no known kind"))),
    };
    let pieces = placement.pieces.iter().map(|piece| Piece {
        file_at: piece.file_at,
        bytes: piece.len,
        tier: if piece.bulk { "bulk" } else { "memory" }.into(),
        at: piece.at,
        new: piece.new,
        unwritten: piece.unwritten,
    });
    Ok(Report {
        path: path.display().to_string(),
        inode: attr.ino,
        generation: attr.generation,
        kind: kind.into(),
        permissions: format!("{:04o}", attr.mode & 0o7777),
        links: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        device: attr.rdev,
        size_bytes: attr.size,
        allocated_bytes: inode.allocated,
        accessed_ns: attr.atime,
        modified_ns: attr.mtime,
        changed_ns: attr.ctime,
        born_ns: attr.btime,
        layout: format!("{:?}", inode.layout).to_lowercase(),
        flags: inode.flags,
        record_at: placement.record_at,
        has_xattrs: inode.xattr != shoal_format::SlotRef::NONE,
        pieces: pieces.collect(),
    })
}

fn text(report: &Report) -> String {
    let mut out = format!("{}: {}, inode {}", report.path, report.kind, report.inode);
    out += &format!(" (generation {}, record at {:#x})\n", report.generation, report.record_at);
    out += &format!(
        "mode {}, {} links, owner {}:{}, extended attributes: {}\n",
        report.permissions,
        report.links,
        report.uid,
        report.gid,
        if report.has_xattrs { "yes" } else { "no" }
    );
    out += &format!(
        "size {} ({} bytes), allocated {}, layout {}, flags {:#x}\n",
        human(report.size_bytes),
        report.size_bytes,
        human(report.allocated_bytes),
        report.layout,
        report.flags
    );
    let seconds = |ns: i64| format!("{}.{:09}", ns.div_euclid(1_000_000_000), ns.rem_euclid(1_000_000_000));
    out += &format!(
        "accessed {}  modified {}  changed {}  born {}\n",
        seconds(report.accessed_ns),
        seconds(report.modified_ns),
        seconds(report.changed_ns),
        seconds(report.born_ns)
    );
    if !report.pieces.is_empty() {
        out += &format!("{:>14} {:>12} {:<7} {:>16}\n", "file offset", "bytes", "tier", "at");
    }
    for piece in &report.pieces {
        let note = if piece.unwritten {
            "  unwritten"
        } else if piece.new {
            "  not yet durable"
        } else {
            ""
        };
        out += &format!("{:>14} {:>12} {:<7} {:>#16x}{note}\n", piece.file_at, piece.bytes, piece.tier, piece.at);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_the_same_after_its_way_through_json_and_names_every_piece() {
        let report = Report {
            path: "/a".into(),
            inode: 7,
            generation: 1,
            kind: "file".into(),
            permissions: "0644".into(),
            links: 1,
            uid: 0,
            gid: 0,
            device: 0,
            size_bytes: 70000,
            allocated_bytes: 131072,
            accessed_ns: -1,
            modified_ns: 1,
            changed_ns: 2,
            born_ns: 3,
            layout: "extents".into(),
            flags: 2,
            record_at: 0x1000,
            has_xattrs: false,
            pieces: vec![
                Piece { file_at: 0, bytes: 65536, tier: "bulk".into(), at: 0x20000, new: true, unwritten: false },
                Piece { file_at: 65536, bytes: 65536, tier: "bulk".into(), at: 0, new: false, unwritten: true },
            ],
        };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);
        let text = text(&report);
        assert!(text.contains("accessed -1.999999999"), "{text}");
        assert!(text.contains("0x20000  not yet durable") && text.contains("unwritten"), "{text}");
    }
}
