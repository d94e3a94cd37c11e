//! Locks of inodes: a thread must not wait for a device, or for another kind of lock, while it
//! holds inode locks.
//!
//! Owns: the mark of such a thread, in builds with assertions. Left out: the locks, which the file
//! system has.

/// Marks that this thread holds a set of inode locks.
pub struct Held(());

#[cfg(debug_assertions)]
thread_local! {
    static HELD: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Held {
    /// Marks this thread. One set of locks at a time: waiting for a second one could deadlock.
    pub fn begin() -> Held {
        #[cfg(debug_assertions)]
        assert!(!HELD.replace(true), "inode locks taken while others are held");
        Held(())
    }
}

#[cfg(debug_assertions)]
impl Drop for Held {
    fn drop(&mut self) {
        HELD.set(false);
    }
}

/// Asserts that the caller holds no inode locks, because it is going to wait.
#[inline]
pub fn assert_none_held() {
    #[cfg(debug_assertions)]
    assert!(!HELD.get(), "a thread waits while it holds inode locks");
}
