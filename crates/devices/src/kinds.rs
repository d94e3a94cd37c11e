//! The table of kinds of bulk storage, and the kind of a name or a report.
//!
//! A further kind is a module beside `file`, `nbd`, `netram` and `vlog`, and a row here. Rules: a
//! name belongs to the first kind that understands it. No two kinds share a scheme or a name in
//! reports.

use std::str::FromStr;

use crate::device::DeviceReport;
use crate::device_name::{DeviceName, Kind};
use crate::{file, nbd, netram, vlog};

/// All kinds.
pub static KINDS: [&Kind; 4] = [&file::KIND, &vlog::KIND, &netram::KIND, &nbd::KIND];

impl Kind {
    /// Returns the kind whose names begin with this word and a colon.
    pub fn of_scheme(scheme: &str) -> Option<&'static Kind> {
        KINDS.into_iter().find(|kind| kind.schemes.contains(&scheme))
    }

    /// Returns the kind with this name in reports.
    pub fn named(name: &str) -> Option<&'static Kind> {
        KINDS.into_iter().find(|kind| kind.name == name)
    }
}

/// Returns how the names of all kinds are written, for a hint.
pub fn forms() -> String {
    KINDS.map(|kind| kind.form).join(", ")
}

/// Returns a line about each kind, for help texts.
pub fn about_forms() -> String {
    KINDS.iter().map(|kind| format!("{}: {}.\n", kind.form, kind.about)).collect()
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<DeviceName, String> {
        KINDS
            .into_iter()
            .find_map(|kind| (kind.parse)(text))
            .unwrap_or_else(|| Err(format!("{text:?} is no device; write {}", forms())))
    }
}

impl DeviceReport {
    /// Returns the report for people: lines, each with its end. Fails on another program's report.
    pub fn text(&self) -> serde_json::Result<String> {
        match Kind::named(&self.kind) {
            Some(kind) => (kind.text)(self),
            None => Ok(self.head("")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_understood_is_an_error_that_names_it() {
        for (text, expected) in [
            ("disk", "no device"),
            ("file:", "no device"),
            ("vlog:", "no device"),
            ("nbd://h/?soket=1", "unknown parameter soket"),
            ("nbd://h/?lost-after=0", "lost-after=0"),
            ("netram:", "names no donor"),
            ("netram:?policy=none", "names no donor"),
            ("netram:a:1,,b:2", "write unix:PATH"),
            ("netram:a:1,b", "write unix:PATH"),
            ("netram:a:1,a:1", "named twice"),
            ("netram:a:1,b:2?polcy=none", "polcy: no option"),
            ("netram:a:1,b:2?policy=best", "choose one of none"),
            ("netram:a:1,b:2?streams=many", "streams=many"),
            ("netram:a:1,b:2?streams=9", "streams=9: 1 to 8"),
            ("netram:a:1,b:2?spare", "write KEY=VALUE"),
            ("netram:a:1,b:2?new=yes", "made with `shoal format netram:...`"),
            ("netram:a:1,b:2?secret=/s", "add name=NAME"),
            ("netram:a:1", "needs 2 donors at least, 1 given"),
            ("netram:a:1,b:2?policy=mirrored&parity=2", "needs 3 donors at least, 2 given"),
            ("netram:nbd+unix:///a?socket=/a&policy=none", "options of the disk come after"),
        ] {
            let error = text.parse::<DeviceName>().expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn each_kind_writes_its_names_as_it_reads_them() {
        for (text, kind, written) in [
            ("file:/a", "file", "file:/a"),
            ("device:/dev/x", "file", "file:/dev/x"),
            ("vlog:/b", "vlog", "vlog:/b"),
            ("nbd://h:1/x", "nbd", "nbd://h:1/x"),
            ("netram:a:1,b:2?policy=none", "netram", "netram:a:1,b:2?policy=none"),
        ] {
            let name: DeviceName = text.parse().unwrap();
            assert_eq!((name.kind().name, name.to_string().as_str()), (kind, written), "{text}");
            assert_eq!(name, written.parse().unwrap());
        }
    }

    #[test]
    fn no_two_kinds_share_a_name_or_a_scheme() {
        let schemes: Vec<&str> = KINDS.iter().flat_map(|kind| kind.schemes).copied().collect();
        for (at, scheme) in schemes.iter().enumerate() {
            assert!(!schemes[..at].contains(scheme), "{scheme}");
        }
        for kind in KINDS {
            assert!(std::ptr::eq(Kind::named(kind.name).unwrap(), kind));
            assert!(kind.schemes.iter().all(|scheme| std::ptr::eq(Kind::of_scheme(scheme).unwrap(), kind)));
        }
        assert!(Kind::named("").is_none() && Kind::of_scheme("http").is_none());
    }

    #[test]
    fn a_kind_adds_to_the_report_and_an_unknown_kind_has_a_line() {
        let own = [("connection".to_string(), "lost".into())].into_iter().collect();
        let report = DeviceReport { device: "nbd://h/x".into(), kind: "nbd".into(), size_bytes: 1 << 30, own };
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["connection"], "lost");
        assert_eq!(serde_json::from_value::<DeviceReport>(json).unwrap(), report);
        assert_eq!(report.text().unwrap(), "nbd://h/x  1 GiB, lost\n");
        let other = DeviceReport { kind: "tape".into(), ..report };
        assert_eq!(other.text().unwrap(), "nbd://h/x  1 GiB\n");
    }
}
