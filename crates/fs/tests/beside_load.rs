//! Packing while others commit all the time: it gets its share, stays within its part of the log,
//! and notices idle time.
//!
//! The clock stands still within a tick, so these tests bound work and log bytes. The share of time
//! is tested beside its policy.

use std::time::Duration;

use shoal_fs::{Form, Fs, Options};

use crate::cold::{Store, create, options, setup};

const TICK_NS: u64 = 100_000_000;

fn opened(store: &mut Store, age_s: u64, pack_load: u32) -> Fs {
    store.open_with(Options { pack_load, ..options(Some(Duration::from_secs(age_s))) })
}

fn text(len: usize) -> Vec<u8> {
    b"words that come again ".iter().copied().cycle().take(len).collect()
}

#[test]
fn a_store_that_is_never_idle_is_packed_unless_only_idle_time_is_to_be_used() {
    for pack_load in [0, 1, 10, 100] {
        let mut store = Store::new(setup());
        let fs = opened(&mut store, 1, pack_load);
        for number in 0..200 {
            let ino = create(&fs, &format!("f{number}"));
            fs.write(ino, 0, &text(3000)).unwrap();
            store.clock.advance(TICK_NS);
            fs.cooling().pack_tick().unwrap();
        }
        let counts = fs.cooling().packing_counts();
        if pack_load == 0 {
            assert_eq!((counts.packed_bytes, counts.packed_inodes, counts.packing_log_bytes), (0, 0, 0));
        } else {
            // Data younger than the packing age, plus a round between two looks, stays unpacked.
            assert!(counts.packed_bytes >= 150 * 3000 && counts.unpacked_bytes == 0, "{pack_load}: {counts:?}");
            assert!(counts.packed_inodes >= 100, "{pack_load}: {counts:?}");
        }
        store.close(fs);
    }
}

#[test]
fn what_is_changed_again_and_again_does_not_double_the_log_and_is_packed_when_the_store_is_idle() {
    let mut store = Store::new(setup());
    let fs = opened(&mut store, 0, 100);
    let inos: Vec<_> = (0..20).map(|number| create(&fs, &format!("f{number}"))).collect();
    for &ino in &inos {
        fs.write(ino, 0, &text(60_000)).unwrap();
    }
    let begun = fs.region().last_lsn();
    for round in 0..3000 {
        fs.write(inos[round % inos.len()], 5, &text(4000)).unwrap();
        store.clock.advance(TICK_NS);
        fs.cooling().pack_tick().unwrap();
    }
    let counts = fs.cooling().packing_counts();
    let own = counts.packing_log_bytes + counts.unpacking_log_bytes;
    let others = fs.region().last_lsn() - begun - own.min(fs.region().last_lsn() - begun);
    assert!(own > 16 << 20, "packed without end, this would be much: {counts:?}");
    assert!(own <= others / 2 + (18 << 20), "{own} beside {others}: {counts:?}");
    for _ in 0..40 {
        store.clock.advance(TICK_NS);
        fs.cooling().pack_tick().unwrap();
    }
    for &ino in &inos {
        let forms = fs.cooling().packing_of(ino).unwrap().forms;
        assert!(forms[Form::Zstd as usize].groups == 1, "{forms:?}");
    }
    store.close(fs);
}
