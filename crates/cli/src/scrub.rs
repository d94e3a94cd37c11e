//! `shoal scrub`: reads all of bulk storage and names what is damaged.
//!
//! A mounted store's daemon does a part of the work for each question. Other programs can proceed
//! in between.

use shoal_devices::size::human;
use shoal_devices::{Failure, Outcome};
use shoal_store::{ScrubReport, place, scrub};

use crate::args::ScrubArgs;
use crate::json;
use crate::progress::Bars;

pub fn run(args: &ScrubArgs) -> Outcome<()> {
    let place = place::find(&args.store)?;
    let (report, kept) = scrub::scrub(&place.store, &Bars::new(args.json))?;
    if let Err(failure) = kept {
        eprintln!("shoal: note: the time and result of this scrub could not be saved: {failure}");
    }
    if args.json {
        json::print_json(&report);
    } else {
        print!("{}", text(&report));
    }
    match report.findings.len() {
        0 => Ok(()),
        count => {
            Err(Failure::new(args.store.display(), format!("files are damaged or cannot be read (blocks: {count})"))
                .remedy("restore the named files from a copy, or remove them"))
        }
    }
}

fn text(report: &ScrubReport) -> String {
    let mut out = String::new();
    for finding in &report.findings {
        out += &format!("{}: the block from byte {} on: {}\n", finding.path, finding.byte, finding.cause);
    }
    out += &format!("{} read, damaged blocks: {}\n", human(report.read_bytes), report.findings.len());
    if report.covered_bytes > 0 {
        out += &format!("{} had no checksum and have one now\n", human(report.covered_bytes));
    }
    if report.without_bytes > 0 {
        out += &format!(
            "{} have no checksum, so damage there goes unnoticed; mount with `-o sums` to keep checksums\n",
            human(report.without_bytes)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use shoal_store::scrub::Finding;

    use super::*;

    #[test]
    fn damage_is_named_and_what_has_no_checksum_is_said() {
        let mut report = ScrubReport { read_bytes: 3 << 20, ..ScrubReport::default() };
        assert_eq!(text(&report), "3 MiB read, damaged blocks: 0\n");
        let cause = "why".to_string();
        report.findings.push(Finding { path: "/a".into(), inode: 7, byte: 65536, damaged: true, cause });
        (report.covered_bytes, report.without_bytes) = (1 << 20, 2 << 20);
        let text = text(&report);
        assert!(text.starts_with("/a: the block from byte 65536 on: why\n3 MiB read, damaged blocks: 1\n"), "{text}");
        assert!(text.contains("1 MiB had no checksum") && text.contains("2 MiB have no checksum"), "{text}");
    }
}
