//! Each call of the bulk device fails once, in every operation that uses it, while another one changes the file.
//!
//! The inode lock is released around these calls (`data_lock.rs`), so an error may meet another
//! record than the one the operation began with. No byte may be foreign or lost, and no block may
//! stay in use without an owner.

use shoal_format::superblock::MemoryKind;
use shoal_fs::{Error, Ino, Patience, ROOT, RenameMode, SetAttr, Writer, XattrMode};
use shoal_sim::{Call, Fault, FaultPlan, is_due};

use crate::data_store::Store;
use crate::data_store::gate::gated;
use crate::data_store::prepared::{LARGE, PUNCH, SMALL, prepared_behind, setup};
use crate::store::{Moment, Setup};

type Work = fn(&Store, Ino) -> Result<(), Error>;

fn resize(store: &Store, ino: Ino, size: u64) -> Result<(), Error> {
    store.fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }).map(drop)
}

/// Writes without waiting for a flush.
fn write_now(store: &Store, ino: Ino, at: u64, bytes: &[u8]) -> Result<(), Error> {
    store.fs.write_of(Patience::Refuses.into(), Writer::Program, ino, at, bytes).map(drop)
}

/// Returns operations on a file of bytes 1 (`large`) or 2 (`small`), which put only such bytes or
/// zeros there.
fn operations() -> Vec<(&'static str, &'static str, Work)> {
    vec![
        ("read", "large", |store, ino| store.fs.read(ino, 70_000, &mut [0; 9000]).map(drop)),
        ("in place", "large", |store, ino| store.fs.write(ino, 5, &[1; 200_000]).map(drop)),
        ("append", "large", |store, ino| store.fs.write(ino, LARGE as u64, &[1; 200_000]).map(drop)),
        ("append without a flush", "large", |store, ino| write_now(store, ino, LARGE as u64, &[1; 200_000])),
        ("write behind a gap", "large", |store, ino| store.fs.write(ino, 900_000, &[1; 100_000]).map(drop)),
        ("grow", "large", |store, ino| resize(store, ino, 900_000)),
        ("cut and grow", "large", |store, ino| resize(store, ino, 399_000).and_then(|()| resize(store, ino, 900_000))),
        ("cut to nothing", "large", |store, ino| resize(store, ino, 0)),
        ("punch", "large", |store, ino| store.fs.fallocate(ino, PUNCH, 1000, 200_000)),
        ("zero", "large", |store, ino| store.fs.fallocate(ino, 16, 1000, 600_000)),
        ("come back", "large", |store, ino| resize(store, ino, 20_000)),
        ("move", "small", |store, ino| store.fs.write(ino, 0, &[2; 200_000]).map(drop)),
        ("move and append", "small", |store, ino| store.fs.write(ino, 100_000, &[2; 100_000]).map(drop)),
        ("move without a flush", "small", |store, ino| write_now(store, ino, 100_000, &[2; 100_000])),
        ("move for room", "small", |store, ino| store.fs.fallocate(ino, 1, 0, 1 << 20)),
        ("gather", "large", |store, _| store.fs.data().gather_bulk(4, &mut |_| {}).map(drop)),
        ("fsync", "large", |store, ino| {
            store.fs.write(ino, 0, &[1; 10])?;
            store.fs.fsync(ino)
        }),
    ]
}

/// Returns changes made meanwhile, none of which needs the file's data lock.
fn besides() -> Vec<(&'static str, Work)> {
    vec![
        ("attributes and names", |store, ino| {
            store.fs.setattr(ino, &SetAttr { mode: Some(0o751), ..SetAttr::default() })?;
            store.fs.setxattr(ino, b"user.beside", &[5; 300], XattrMode::Any)?;
            store.fs.link(ino, ROOT, b"second")?;
            store.fs.rename(ROOT, b"second", ROOT, b"third", RenameMode::Replace).map(drop)
        }),
        ("the last name goes", |store, ino| {
            let name = if store.fs.getattr(ino)?.size == SMALL as u64 { "small" } else { "large" };
            store.fs.unlink(ROOT, name.as_bytes())
        }),
        ("compaction and a checkpoint", |store, _| {
            store.fs.compacting().compact()?;
            store.fs.checkpoint()
        }),
    ]
}

/// Fails the `nth` such call of the operation while `beside` changes the file. Returns false if the
/// operation makes fewer such calls.
fn one(
    kind: MemoryKind,
    nth: u32,
    call: (Call, Moment),
    operation: &(&str, &str, Work),
    beside: &(&str, Work),
) -> bool {
    let context = format!("{kind:?}: {}, call {nth} of {:?} fails beside {}", operation.0, call.0, beside.0);
    let (store, gate) = gated(Setup { kind, ..setup() }, |store| prepared_behind(store, 4));
    let (fs, byte) = (&store.fs, if operation.1 == "large" { 1 } else { 2 });
    let ino = fs.lookup_held(ROOT, operation.1.as_bytes()).unwrap().ino;
    gate.arm(call.1, nth);
    let (came, outcome) = std::thread::scope(|scope| {
        let slow = scope.spawn(|| (operation.2)(&store, ino));
        let came = gate.comes(|| slow.is_finished());
        if came {
            (beside.1)(&store, ino).unwrap_or_else(|error| panic!("{context}: {error:?}"));
            store.world.fail(FaultPlan { call: call.0, nth: 0, for_good: false, fault: Fault::Io });
            gate.open();
        }
        (came, slow.join().unwrap())
    });
    store.world.clear_faults();
    let is_fine = match outcome {
        Ok(()) | Err(Error::WouldFlush) => true,
        Err(Error::Io(_)) => came,
        Err(_) => false,
    };
    assert!(is_fine, "{context}: {outcome:?}");
    if call.0 == Call::DiskFlush {
        // Nothing more can be promised, but what was promised before is there.
        store.after_process_crash();
        return came;
    }
    store.check_allocated(ino, &context);
    let mut bytes = vec![0; fs.getattr(ino).unwrap().size as usize];
    assert_eq!(fs.read(ino, 0, &mut bytes), Ok(bytes.len()), "{context}");
    assert_eq!(bytes.iter().find(|&&b| b != byte && b != 0), None, "{context}: a foreign byte");
    let is_cutting = ["cut", "punch", "zero", "come back"].iter().any(|cutting| operation.0.starts_with(cutting));
    let kept = if byte == 1 { LARGE } else { SMALL };
    assert!(is_cutting || bytes[..kept].iter().all(|&b| b == byte), "{context}: a byte is lost");
    fs.sync().unwrap_or_else(|error| panic!("{context}: {error:?}"));
    store.after_process_crash();
    fs.forget(ino, 1);
    for name in ["large", "small", "third"] {
        assert!(matches!(fs.unlink(ROOT, name.as_bytes()), Ok(()) | Err(Error::NotFound)), "{context}");
    }
    fs.sync().unwrap();
    fs.checkpoint().unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.usage().bulk_used, 0, "{context}: blocks that nobody has are in use");
    came
}

#[test]
fn every_call_of_the_device_may_fail_while_the_file_changes() {
    let calls = [(Call::DiskRead, Moment::Read), (Call::DiskWrite, Moment::Write), (Call::DiskFlush, Moment::Flush)];
    let (mut failed, mut number) = (0, 0);
    for kind in [MemoryKind::Logged, MemoryKind::Battery] {
        for (call, operation) in calls.iter().flat_map(|call| operations().into_iter().map(move |one| (*call, one))) {
            // Every second operation meets one of the three changes. `number` rotates them.
            for (beside, _) in besides().iter().zip(number..).filter(|(_, turn)| is_due(*turn, 6)) {
                failed += (0..).take_while(|&nth| one(kind, nth, call, &operation, beside)).count();
            }
            number += 1;
        }
    }
    assert!(failed > 30, "{failed} calls failed");
}
