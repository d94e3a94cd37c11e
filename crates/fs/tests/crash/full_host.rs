//! A host without room (testing.md, T6), and the operations that must still work there.
//!
//! Rules: from some moment on, the host gives the log a few more segments, the last of them for
//! urgent appends only, and each image a few more pages. Whatever these numbers are, an operation
//! succeeds or reports lack of space, checkpoints go on, everything can be deleted, and the store
//! ends clean and opens again. The same holds after a crash while the store is full.

use shoal_fs::{Caller, Error, ROOT};
use shoal_sim::World;

use super::aftermath::delete_all;
use super::deep;
use super::operation::bytes;
use super::run::Ground;
use crate::store::{self, Store};

const SEGMENTS: [u64; 5] = [1, 2, 3, 4, 8];
const PAGES: [u64; 7] = [0, 2, 40, 2000, 1, 17, 300];

fn no_space_or<T>(outcome: Result<T, Error>, what: &str) -> Result<Option<T>, String> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Error::NoSpace(_)) => Ok(None),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Creates files until there is no space. Returns how many.
fn fill(store: &Store, prefix: &str) -> Result<u64, String> {
    let caller = Caller::default();
    let mut created = 0;
    for len in [20_000, 3_000, 700, 0] {
        for number in 0.. {
            store.clock.advance(1_000_000);
            let name = format!("{prefix}{len}-{number}");
            let outcome = store.fs.mknod(&caller, ROOT, name.as_bytes(), 0o644, 0);
            let Some(attr) = no_space_or(outcome, "creating")? else { break };
            created += 1;
            match no_space_or(store.fs.write(attr.ino, 0, &bytes(number, len)), "writing")? {
                Some(done) if done == len => {}
                _ => break,
            }
            if number > 20_000 {
                return Err("the store is never full".into());
            }
        }
    }
    Ok(created)
}

/// Deletes everything in a store whose host is full, and opens it again.
fn empty_and_reopen(store: Store) -> Result<(), String> {
    delete_all(&store.fs, ROOT)?;
    store.fs.shutdown().map_err(|e| format!("shutdown: {e}"))?;
    store::check(store.setup, &store.world, false)?;
    let Store { setup, world, boot, fs, .. } = store;
    drop(fs);
    let again = store::open(setup, world.snapshot().process_crash().open(), boot.after(false))?;
    if !again.recovery.clean {
        return Err("the shutdown was not clean".into());
    }
    // The deleted files make room for a new one.
    let attr =
        again.fs.mknod(&Caller::default(), ROOT, b"new", 0o644, 0).map_err(|e| format!("creating again: {e}"))?;
    again.fs.write(attr.ino, 0, &[1; 5000]).map_err(|e| format!("writing again: {e}"))?;
    again.fs.shutdown().map_err(|e| format!("second shutdown: {e}"))?;
    store::check(setup, &again.world, false).map(drop)
}

fn crashed(store: &Store, world: &World) -> Result<Store, String> {
    store::open(store.setup, world.snapshot().process_crash().open(), store.boot.after(false))
}

/// Fills the host at every pair of limits. Returns the number of pairs and of files.
pub fn fill_hosts(ground: &Ground) -> Result<(u64, u64), String> {
    let (mut pairs, mut files) = (0, 0);
    for segments in SEGMENTS {
        for &pages in &PAGES[..if deep() { PAGES.len() } else { 4 }] {
            let named = |e: String| format!("{segments} segments, {pages} pages left: {e}");
            let store = ground.open()?;
            store.world.fill_host(segments, pages);
            files += fill(&store, "before-").map_err(named)?;
            store.fs.checkpoint().map_err(|e| named(format!("checkpoint: {e}")))?;
            files += fill(&store, "behind-").map_err(named)?;
            empty_and_reopen(crashed(&store, &store.world).map_err(named)?)
                .map_err(|e| named(format!("after a crash: {e}")))?;
            empty_and_reopen(store).map_err(named)?;
            pairs += 1;
        }
    }
    Ok((pairs, files))
}
