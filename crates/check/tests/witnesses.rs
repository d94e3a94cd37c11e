//! Logs that lost records in their middle. They count as damaged only if a record after the gap
//! vouches for more.
//!
//! Owns: these logs, made by hand with the format crate, and the checker's findings after a power
//! loss and without one.
//! Left out: that an engine writes such records and refuses the same logs
//! (`crates/region/tests/witnesses.rs`).

use crate::store::media::Image;
use crate::store::{BULK_BLOCKS, FIRST_LSN, Store};
use shoal_check::{FindingKind, ImageSource, Report, Source, check};
use shoal_format::record::{Entry, RecordKind};
use shoal_format::superblock::{MemoryKind, ROOTS_AT};
use shoal_format::vouch::vouch;
use shoal_format::{Lsn, PAGE};

/// Position of the records after the epoch record.
const BEHIND: u64 = FIRST_LSN + 64;

/// Creates a log of an epoch record, two missing records, and one that vouches for `durable`.
fn with_missing_records(durable: u64) -> Store {
    let mut s = Store::sample(MemoryKind::Logged);
    s.append(RecordKind::Epoch, &[1; 32]);
    assert_eq!(s.log.len() as u64, BEHIND - FIRST_LSN);
    let nothing = Entry::ClearBits { at: ROOTS_AT + (PAGE - 16), mask: 0 };
    s.append_entries(&[nothing]);
    s.append_entries(&[nothing]);
    let last = s.log.len();
    s.append_entries(&[nothing, vouch(Lsn::new(durable), s.superblock.hash_seed)]);
    s.log[(BEHIND - FIRST_LSN) as usize..last].fill(0);
    s
}

fn checked(s: &Store, power_lost: bool) -> Report {
    let (image, nothing, log) = (Image(s.image()), Image(Vec::new()), s.log_device());
    let image = ImageSource::Images([&image, &nothing]);
    let (bulk_bytes, log) = (Some(BULK_BLOCKS * 65536), Some(&log as &dyn shoal_media::LogDevice));
    check(Source { bulk_bytes, power_lost, ..Source::of(image, log) }, &mut |_| {}).unwrap()
}

#[test]
fn records_that_a_flush_had_covered_are_missed() {
    let flushed = with_missing_records(BEHIND + 8);
    for power_lost in [false, true] {
        let errors = checked(&flushed, power_lost).errors;
        assert!(errors.len() == 1 && errors[0].kind == FindingKind::LogCut, "{errors:?}");
        assert_eq!(errors[0].offset, Some(BEHIND));
    }
}

#[test]
fn a_power_loss_takes_records_that_no_flush_had_covered_and_the_death_of_a_process_none() {
    let unflushed = with_missing_records(BEHIND);
    assert_eq!(checked(&unflushed, true).errors, []);
    let errors = checked(&unflushed, false).errors;
    assert!(errors.len() == 1 && errors[0].kind == FindingKind::LogCut, "{errors:?}");
}

#[test]
fn what_was_given_up_before_the_last_mount_is_not_missed() {
    for power_lost in [false, true] {
        assert_eq!(checked(&with_missing_records(FIRST_LSN), power_lost).errors, []);
    }
}
