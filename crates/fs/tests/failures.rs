//! A flush that fails is explained: the first failure is kept, and every later refusal names it.
//!
//! Each media call whose failure makes a store read-only fails in turn, in the simulation. Left
//! out: what the command line shows of it (`tests/nbd/slow`).

use crate::data_store::Store;
use crate::store::Setup;
use shoal_format::superblock::MemoryKind;
use shoal_fs::Error;
use shoal_sim::{Call, Fault, FaultPlan};

#[test]
fn every_refusal_of_a_failed_store_names_the_first_failure() {
    // The call that fails, the operation under way, and a word of the medium's name.
    let cases = [
        (Call::LogAppend, "an append to the log", "log"),
        (Call::LogSync, "the sync of the log", "log"),
        (Call::ImageWrite, "a checkpoint", "image"),
        (Call::ImageSync, "a checkpoint", "image"),
        (Call::DiskFlush, "the flush of the bulk storage", "disk"),
    ];
    for (call, operation, object) in cases {
        let store = Store::new(Setup { kind: MemoryKind::Logged, threshold: 64 << 10, ..Setup::default() });
        let (small, large) = (store.create(b"small"), store.create(b"large"));
        store.fs.write(large, 0, &[1; 200_000]).unwrap();
        store.world.fail(FaultPlan { call, nth: 0, for_good: false, fault: Fault::Io });
        store.clock.advance(2_000_000_000);
        let first = store.fs.write(small, 0, b"a").map(drop);
        let outcomes = [first, store.fs.fsync(large), store.fs.checkpoint()];
        assert!(outcomes.iter().any(Result::is_err), "{call:?}");
        let failure = store.fs.region().failure().unwrap_or_else(|| panic!("{call:?}: {outcomes:?}"));
        assert_eq!(failure.operation, operation, "{failure}");
        assert!(failure.object.contains(object) && failure.cause.contains("os error 5"), "{failure}");
        assert!(failure.at_ns > 2_000_000_000, "{failure:?}");
        // The medium works again, and something else fails: the first failure still counts.
        store.world.fail(FaultPlan { call: Call::DiskWrite, nth: 0, for_good: true, fault: Fault::Io });
        let later = [
            store.fs.write(small, 0, b"b").map(drop),
            store.fs.checkpoint(),
            store.fs.upkeep().tick(),
            store.fs.upkeep().tick_log(),
            store.fs.upkeep().tick_bulk(),
            store.fs.shutdown(),
        ];
        for (number, outcome) in later.into_iter().enumerate() {
            assert_eq!(outcome, Err(Error::Failed(failure.clone())), "{call:?}: {number}");
        }
        // Also of a file that was durable before.
        assert_eq!(store.fs.fsync(large), Err(Error::Failed(failure.clone())), "{call:?}");
        let text = Error::Failed(failure.clone()).to_string();
        assert!(text.contains(operation) && text.contains("os error 5"), "{text}");
        assert_eq!(Error::Failed(failure).errno(), 30);
    }
}
