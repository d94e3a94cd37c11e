//! A hook before each media call of a thread, for tests that schedule several threads.
//!
//! Owns: a hook of the calling thread. Every call that changes a log, an image or a disk runs it
//! first, before taking the world's lock. A hook may wait; other threads can use the world
//! meanwhile. A flush of a disk and a sync of a log also announce their end. They cover what was
//! written before they began; what another thread writes in between stays in flight. Left out:
//! memory, whose stores are too many for turns, reads, and the schedules themselves
//! (`crates/fs/tests/actors`).

use std::cell::RefCell;
use std::rc::Rc;

/// A hook that runs before each call and is told what the call will do.
pub type BeforeCall = Rc<dyn Fn(&'static str)>;

thread_local! {
    static HOOK: RefCell<Option<BeforeCall>> = const { RefCell::new(None) };
}

/// Sets the hook that runs before each media call of this thread, or removes it.
pub fn before_calls(hook: Option<BeforeCall>) {
    HOOK.set(hook);
}

pub(crate) fn announce(what: &'static str) {
    // The hook may make media calls itself, so it is not borrowed while it runs.
    if let Some(hook) = HOOK.with_borrow(Clone::clone) {
        hook(what);
    }
}

/// Returns whether a hook observes this thread. If not, nothing happens between two announcements.
pub(crate) fn is_watched() -> bool {
    HOOK.with_borrow(Option::is_some)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;
    use std::rc::Rc;

    use shoal_media::{BlockDevice, ImageFile, LogDevice};

    use super::before_calls;
    use crate::{Limits, World};

    #[test]
    fn every_call_that_changes_a_medium_is_announced_before_it_is_carried_out() {
        let world = World::new(1);
        let (log, image, disk) = (world.add_log(), world.add_image(), world.add_disk(1 << 16));
        let seen = Rc::new(RefCell::new(Vec::new()));
        let (noted, watched) = (seen.clone(), world.clone());
        before_calls(Some(Rc::new(move |what| noted.borrow_mut().push((what, watched.events())))));
        log.append(0, b"a").unwrap();
        log.sync().unwrap();
        log.release(0).unwrap();
        image.write(0, b"a").unwrap();
        image.sync().unwrap();
        disk.write_from(0, &[1; 512]).unwrap();
        shoal_media::trim(&*disk, 0, 512).unwrap();
        shoal_media::flush(&*disk).unwrap();
        disk.read_into(0, &mut [0; 512]).unwrap();
        before_calls(None);
        disk.write_from(0, &[2; 512]).unwrap();
        let seen = seen.borrow();
        let names: Vec<&str> = seen.iter().map(|&(what, _)| what).collect();
        let all = ["append", "sync", "sync ends", "release", "write", "sync", "write", "trim", "flush", "flush ends"];
        assert_eq!(names, all);
        let events: Vec<u64> = seen.iter().map(|&(_, events)| events).collect();
        assert_eq!(events, [0, 1, 1, 2, 3, 4, 5, 6, 7, 7]);
    }

    /// Returns the first bytes of log and disk in every state that a power loss may leave.
    fn first_bytes(world: &World) -> BTreeSet<[u8; 2]> {
        let states = world.snapshot();
        let found = states.power_losses(&Limits::default()).map(|state| {
            let (mut log, mut disk) = ([0], [0; 512]);
            state.open().log(0).read(0, &mut log).unwrap();
            state.open().disk(0).read_into(0, &mut disk).unwrap();
            [log[0], disk[0]]
        });
        found.collect()
    }

    #[test]
    fn what_is_written_while_a_flush_is_under_way_is_not_covered_by_it() {
        let world = World::new(1);
        let (log, disk) = (world.add_log(), world.add_disk(1 << 16));
        log.append(0, &[1]).unwrap();
        disk.write_from(0, &[1; 512]).unwrap();
        let (other, also) = (log.clone(), disk.clone());
        before_calls(Some(Rc::new(move |what| match what {
            "sync ends" => other.append(1, &[2; 600]).unwrap(),
            "flush ends" => also.write_from(0, &[2; 512]).unwrap(),
            _ => {}
        })));
        log.sync().unwrap();
        shoal_media::flush(&*disk).unwrap();
        before_calls(None);
        assert_eq!(first_bytes(&world), BTreeSet::from([[1, 1], [1, 2]]));
        assert_eq!(world.snapshot().in_flight(), 3, "two sectors of the log and one of the disk");
        log.sync().unwrap();
        shoal_media::flush(&*disk).unwrap();
        assert_eq!(world.snapshot().in_flight(), 0);
    }
}
