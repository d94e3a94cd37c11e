//! Tests of file locks: what a caller learns of a file that went away while the device worked.
//!
//! The device's work removes the file itself, in place of another thread. Which lock waits for
//! which is tested in `tests/slow_device.rs`.

use super::*;
use crate::test_store::TestStore;
use crate::{Caller, ROOT};

#[test]
fn a_file_that_went_away_is_stale_also_where_the_device_failed() {
    for (outcome, again) in
        [(Ok(()), false), (Ok(()), true), (Err(Error::NO_SPACE), false), (Err(Error::NO_SPACE), true)]
    {
        let fs = TestStore::new(16).open(2);
        let create = || fs.mknod(&Caller::default(), ROOT, b"file", 0o644, 0).unwrap().ino;
        let ino = create();
        let (mut file, mut inode) = fs.data().lock_data(ino, |_| true).unwrap();
        let seen = file.device(&mut inode, |_| {
            fs.unlink(ROOT, b"file").unwrap();
            assert!(!again || create() == ino, "the number is another file's");
            outcome.clone()
        });
        // A caller could cope with any other error, and store the record it knows.
        assert_eq!(seen, Err(Error::Stale), "{outcome:?}, the number taken again: {again}");
    }
}
