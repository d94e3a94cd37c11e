//! The report as JSON, for `shoal check --json`.
//!
//! What it owns: the names of the fields and their order; one object, findings as arrays of objects.
//! Rules: absent values are `null`, kinds are the enum's names, strings are escaped as RFC 8259 demands.
//! Left out: reading JSON. The code is written by hand, because one flat structure does not justify a serialisation
//! dependency.

use std::fmt::Write;

use crate::report::{Finding, Report};

impl Report {
    /// One JSON object, without a line break at the end.
    pub fn to_json(&self) -> String {
        let c = &self.counts;
        let mut out = format!("{{\"sound\":{},\"clean\":{}", self.is_sound(), self.clean);
        for (name, value) in [
            ("replayed_records", self.replayed_records),
            ("log_bytes", self.log_bytes),
            ("omitted", self.omitted),
            ("inodes", c.inodes),
            ("directories", c.directories),
            ("files", c.files),
            ("large_files", c.large_files),
            ("symlinks", c.symlinks),
            ("others", c.others),
            ("orphans", c.orphans),
            ("preallocated", c.preallocated),
            ("small_bytes", c.small_bytes),
            ("large_bytes", c.large_bytes),
            ("slots", c.slots),
            ("segments_used", c.segments_used),
            ("region_bytes_used", c.region_bytes_used),
            ("bulk_blocks_used", c.bulk_blocks_used),
        ] {
            // Writing to a string cannot fail.
            let _ = write!(out, ",\"{name}\":{value}");
        }
        list(&mut out, "errors", &self.errors);
        list(&mut out, "notes", &self.notes);
        out.push('}');
        out
    }
}

fn list(out: &mut String, name: &str, findings: &[Finding]) {
    let _ = write!(out, ",\"{name}\":[");
    for (i, finding) in findings.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        let _ = write!(out, "{{\"kind\":\"{:?}\",\"inode\":", finding.kind);
        match finding.inode {
            Some(inode) => drop(write!(out, "{inode}")),
            None => out.push_str("null"),
        }
        out.push_str(",\"path\":");
        match &finding.path {
            Some(path) => string(out, path),
            None => out.push_str("null"),
        }
        out.push_str(",\"offset\":");
        match finding.offset {
            Some(offset) => drop(write!(out, "{offset}")),
            None => out.push_str("null"),
        }
        out.push_str(",\"sentence\":");
        string(out, &finding.sentence);
        out.push('}');
    }
    out.push(']');
}

fn string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => drop(write!(out, "\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use crate::report::{FindingKind, Report};

    #[test]
    fn a_report_becomes_one_escaped_object() {
        let mut report = Report::default();
        report.error(FindingKind::EntryName, Some(7), None, "a \"b\"\n\\".into());
        report.note(FindingKind::Orphan, None, Some(9), "x".into());
        report.errors[0].path = Some("/é".into());
        let json = report.to_json();
        assert!(json.starts_with("{\"sound\":false,\"clean\":false,\"replayed_records\":0,"), "{json}");
        assert!(json.contains(
            "\"errors\":[{\"kind\":\"EntryName\",\"inode\":7,\"path\":\"/é\",\"offset\":null,\
             \"sentence\":\"a \\\"b\\\"\\u000a\\\\\"}]"
        ));
        assert!(
            json.ends_with(
                "\"notes\":[{\"kind\":\"Orphan\",\"inode\":null,\"path\":null,\"offset\":9,\"sentence\":\"x\"}]}"
            ),
            "{json}"
        );
    }
}
