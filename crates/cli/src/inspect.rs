//! `shoal inspect`: how one file is stored.
//!
//! Shows the inode's fields, the place of its record, and every piece of its data: offset in the
//! file, place in the region or on the bulk storage. A mounted store's daemon is asked; otherwise
//! the store is opened for reading.

use std::os::unix::ffi::OsStrExt;

use shoal_devices::size::human;
use shoal_devices::{During, Outcome};
use shoal_store::control::{self, Question};
use shoal_store::{FileReport, LEAVING_PATIENCE, PieceReport, Store, place};

use crate::args::InspectArgs;
use crate::json;

pub fn run(args: &InspectArgs) -> Outcome<()> {
    let place = place::find(&args.store)?;
    let question = Question::Inspect { path: args.path.as_os_str().as_bytes().to_vec() };
    let report: FileReport = match control::ask(&place.store, &question)? {
        Some(value) => serde_json::from_value(value).during("answer of the daemon")?,
        None => Store::acquire(&place.store, LEAVING_PATIENCE)?.inspect(&args.path)?,
    };
    if args.json {
        json::print_json(&report);
    } else {
        print!("{}", text(&report));
    }
    Ok(())
}

fn text(report: &FileReport) -> String {
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
    if let Some(method) = &report.compression {
        out += &format!("compression {method}, its own\n");
    }
    if let Some(bytes) = report.threshold_bytes {
        let whose = if report.threshold_inherited { "from its directory" } else { "its own" };
        out += &format!("threshold {}, {whose}\n", human(bytes));
    }
    if report.kind == "directory" {
        out += &format!("{} files below\n", report.files_below);
    }
    if !report.packed.forms.is_empty() {
        out += &crate::df::packed(&report.packed);
    }
    if report.extents > 0 {
        out += &format!("extents     {} in {} fragments\n", report.extents, report.fragments);
    }
    if !report.pieces.is_empty() {
        out += &format!("{:>14} {:>12} {:>12} {:<7} {:>16}\n", "file offset", "bytes", "stored", "tier", "at");
    }
    for piece in &report.pieces {
        let note = if piece.unwritten {
            "  unwritten"
        } else if piece.spilled {
            "  spilled (only its head is there)"
        } else if piece.new {
            "  not yet durable"
        } else {
            ""
        };
        let PieceReport { file_at, bytes, stored_bytes, tier, at, bulk_device, .. } = piece;
        let tier = if *bulk_device > 0 { format!("{tier} {bulk_device}") } else { tier.clone() };
        out += &format!("{file_at:>14} {bytes:>12} {stored_bytes:>12} {tier:<7} {at:>#16x}{note}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_the_same_after_its_way_through_json_and_names_every_piece() {
        let report = FileReport {
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
            compression: Some("zstd:9".into()),
            threshold_bytes: Some(65536),
            threshold_inherited: true,
            pieces: vec![
                PieceReport {
                    file_at: 0,
                    bytes: 65536,
                    stored_bytes: 65536,
                    tier: "bulk".into(),
                    bulk_device: 3,
                    at: 0x20000,
                    new: true,
                    unwritten: false,
                    spilled: false,
                },
                PieceReport {
                    file_at: 65536,
                    bytes: 65536,
                    stored_bytes: 65536,
                    tier: "bulk".into(),
                    bulk_device: 3,
                    at: 0,
                    new: false,
                    unwritten: true,
                    spilled: false,
                },
            ],
            extents: 2,
            fragments: 1,
            packed: Default::default(),
            files_below: 0,
        };
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<FileReport>(&json).unwrap(), report);
        let text = text(&report);
        assert!(text.contains("\ncompression zstd:9, its own\n"), "{text}");
        assert!(text.contains("\nthreshold 64 KiB, from its directory\n"), "{text}");
        assert!(text.contains("accessed -1.999999999"), "{text}");
        assert!(text.contains("extents     2 in 1 fragments") && text.contains(" bulk 3 "), "{text}");
        assert!(text.contains("0x20000  not yet durable") && text.contains("unwritten"), "{text}");
    }
}
