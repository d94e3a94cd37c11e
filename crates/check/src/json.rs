//! The report as JSON, for `shoal check --json`: one flat object, findings as arrays of objects.
//!
//! The fields have the same names as in the structures. Remedies are left out: they are for the
//! program that repairs.

use serde::{Serialize, Serializer};

use crate::report::{Counts, Finding, Report};

#[derive(Serialize)]
struct Written<'a> {
    sound: bool,
    clean: bool,
    replayed_records: u64,
    log_bytes: u64,
    omitted: u64,
    #[serde(flatten)]
    counts: Counts,
    errors: &'a [Finding],
    notes: &'a [Finding],
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let written = Written {
            sound: self.is_sound(),
            clean: self.clean,
            replayed_records: self.replayed_records,
            log_bytes: self.log_bytes,
            omitted: self.omitted,
            counts: self.counts,
            errors: &self.errors,
            notes: &self.notes,
        };
        written.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use shoal_format::inode::Ino;

    use crate::report::{FindingKind, Report};

    #[test]
    fn a_report_becomes_one_escaped_object() {
        let mut report = Report::default();
        report.error(FindingKind::EntryName, Some(Ino::new(7)), None, "a \"b\"\n\\".into());
        report.note(FindingKind::Orphan, None, Some(9), "x".into());
        report.errors[0].path = Some("/é".into());
        let json = serde_json::to_string(&report).unwrap();
        assert!(json.starts_with("{\"sound\":false,\"clean\":false,\"replayed_records\":0,"), "{json}");
        assert!(
            json.contains(
                "\"errors\":[{\"kind\":\"EntryName\",\"inode\":7,\"path\":\"/é\",\"offset\":null,\
                 \"sentence\":\"a \\\"b\\\"\\n\\\\\"}]"
            ),
            "{json}"
        );
        assert!(
            json.ends_with(
                "\"notes\":[{\"kind\":\"Orphan\",\"inode\":null,\"path\":null,\"offset\":9,\"sentence\":\"x\"}]}"
            ),
            "{json}"
        );
    }
}
