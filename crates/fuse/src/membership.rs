//! Whether the process behind a request may keep a file set-group-id.
//!
//! A request carries user, group and process id, not the supplementary groups or capabilities; `/proc` has them.
//! Without `/proc` (or for a process of another pid namespace) only what the request says counts, so that the bit
//! goes rather than stays.

/// CAP_FSETID, as a bit of a capability set.
const CAP_FSETID: u64 = 1 << 4;

/// Is the caller in `group`, or allowed to set the bit for any?
pub(crate) fn may_keep_set_gid(caller_gid: u32, process: u32, group: u32) -> bool {
    if caller_gid == group {
        return true;
    }
    std::fs::read_to_string(format!("/proc/{process}/status")).is_ok_and(|status| status_allows(&status, group))
}

fn status_allows(status: &str, group: u32) -> bool {
    status.lines().filter_map(|line| line.split_once(':')).any(|(name, value)| match name {
        "Groups" => value.split_whitespace().any(|id| id.parse() == Ok(group)),
        "CapEff" => u64::from_str_radix(value.trim(), 16).is_ok_and(|set| set & CAP_FSETID != 0),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_and_whoever_has_the_capability_may() {
        let status = |capabilities: &str| {
            format!("Name:\tsetfacl\nGid:\t100\t100\t100\t100\nGroups:\t4 1000 \nCapEff:\t{capabilities}\n")
        };
        assert!(status_allows(&status("0000000000000000"), 1000));
        assert!(!status_allows(&status("0000000000000000"), 100_0000));
        assert!(!status_allows(&status("ffffffffffffffef"), 7));
        assert!(status_allows(&status("0000000000000010"), 7));
        assert!(may_keep_set_gid(7, 0, 7), "the caller's own group needs no process");
        assert!(!may_keep_set_gid(8, 0, 7), "a process nobody can see has no groups");
    }
}
