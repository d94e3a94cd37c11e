//! The scheduling class of a thread, and how long the kernel makes it wait for a processor.
//!
//! A thread of the class SCHED_IDLE runs when no other thread wants its processor. A processor that
//! runs only such threads counts as idle, so the kernel wakes other threads there. Any thread may
//! enter the class, but leaving it takes a privilege (`RLIMIT_NICE`, CAP_SYS_NICE), so callers
//! check [`may_return`] first. Rules: only threads of the default class, SCHED_OTHER, are moved.
//! Any other class was chosen on purpose.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;
use rustix::thread::{gettid, sched_getaffinity, sched_setaffinity};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// SCHED_OTHER.
    Normal,
    /// SCHED_IDLE.
    Idle,
}

/// What the kernel reports about a thread at one moment. Times and counts are since the thread
/// began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The thread runs or waits for a processor.
    pub is_runnable: bool,
    /// Time the thread has run until now (ns).
    pub ran_ns: u64,
    /// Sum of all completed waits for a processor (ns). A wait still going on is not included.
    pub waited_ns: u64,
    /// How often the thread was given a processor.
    pub turns: u64,
}

/// A thread of this process.
pub struct Scheduled {
    id: Pid,
    state: File,
    times: File,
}

impl Scheduled {
    /// Returns a handle to the calling thread. Fails where the kernel does not report how long it
    /// waits, or if its class is not the default one.
    pub fn this_thread() -> io::Result<Scheduled> {
        let id = gettid();
        let open = |name| File::open(format!("/proc/thread-self/{name}"));
        let this = Scheduled { id, state: open("stat")?, times: open("schedstat")? };
        this.look()?;
        if class_number(id)? != number(Class::Normal) {
            return Err(io::Error::other("the scheduling class was chosen by somebody else"));
        }
        Ok(this)
    }

    /// Reads the thread's current figures. Fails when the thread has ended.
    pub fn look(&self) -> io::Result<Seen> {
        let odd = || io::Error::from(io::ErrorKind::InvalidData);
        let mut room = [0; 512];
        // "42 (any name) S 1 ...": the name may contain anything.
        let len = self.state.read_at(&mut room, 0)?;
        let behind_name = room[..len].iter().rposition(|&byte| byte == b')').ok_or_else(odd)?;
        let is_runnable = room.get(behind_name + 2) == Some(&b'R');
        // "ran waited turns".
        let len = self.times.read_at(&mut room, 0)?;
        let text = std::str::from_utf8(&room[..len]).map_err(|_| odd())?;
        let mut fields = text.split_ascii_whitespace().skip(1).map(|field| field.parse().ok());
        let mut next = || fields.next().flatten().ok_or_else(odd);
        Ok(Seen { is_runnable, ran_ns: ran_ns(self.id)?, waited_ns: next()?, turns: next()? })
    }

    pub fn class(&self) -> io::Result<Class> {
        Ok(if class_number(self.id)? == number(Class::Idle) { Class::Idle } else { Class::Normal })
    }

    /// Moves the thread to a class. Call it soon after a [`Scheduled::look`]: the id of a thread
    /// that has ended may be given to another one.
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        set_class(self.id, class)
    }
}

/// Tests whether the calling thread may leave the idle class again. Afterwards the thread is in its
/// former class.
pub fn may_return() -> bool {
    let this = gettid();
    class_number(this).is_ok_and(|class| class == number(Class::Normal))
        && set_class(this, Class::Idle).is_ok()
        && set_class(this, Class::Normal).is_ok()
}

/// Gives the calling thread the class and processors of the process's ordinary threads, whichever
/// thread started it.
pub fn like_the_process() {
    let (this, process) = (gettid(), rustix::process::getpid());
    if class_number(this).is_ok_and(|class| class == number(Class::Idle)) {
        let _ = set_class(this, Class::Normal);
    }
    // If this is refused, the thread works all the same.
    if let Ok(cpus) = sched_getaffinity(Some(process)) {
        let _ = sched_setaffinity(None, &cpus);
    }
}

fn number(class: Class) -> i32 {
    match class {
        Class::Normal => libc::SCHED_OTHER,
        Class::Idle => libc::SCHED_IDLE,
    }
}

/// Returns the time that a thread of this process has run, including its current turn. `schedstat`
/// counts the current turn only at the kernel's ticks.
fn ran_ns(thread: Pid) -> io::Result<u64> {
    // The kernel's id for a thread's clock: the complement of the thread id, and the bits for "per
    // thread" and "scheduler time".
    let clock = !thread.as_raw_nonzero().get() << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the second argument points to a `timespec` that the kernel writes during the call and does not keep.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

fn class_number(thread: Pid) -> io::Result<i32> {
    // SAFETY: a system call that takes a number and returns one; no memory is passed.
    let found = unsafe { libc::syscall(libc::SYS_sched_getscheduler, thread.as_raw_nonzero().get()) };
    if found < 0 { Err(io::Error::last_os_error()) } else { Ok(found as i32) }
}

fn set_class(thread: Pid, class: Class) -> io::Result<()> {
    // Both classes have only priority 0.
    let priority = 0i32;
    // SAFETY: the last argument points to a `struct sched_param`, one `int`, which the kernel reads
    // during the call and does not keep. The raw system call is used because some C libraries'
    // function of this name does not act on threads.
    let done = unsafe {
        let parameters = std::ptr::from_ref(&priority);
        libc::syscall(libc::SYS_sched_setscheduler, thread.as_raw_nonzero().get(), number(class), parameters)
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_goes_to_the_idle_class_and_back_and_one_started_there_is_like_the_process() {
        if !may_return() {
            // Without the privilege no thread is moved, so there is nothing to test.
            return;
        }
        let this = Scheduled::this_thread().unwrap();
        let before = this.look().unwrap();
        assert!(before.is_runnable && before.turns > 0, "{before:?}");
        let begun = std::time::Instant::now();
        while begun.elapsed().as_millis() < 2 {}
        let ran_ns = this.look().unwrap().ran_ns - before.ran_ns;
        assert!(ran_ns > 100_000, "{ran_ns}");
        this.set_class(Class::Idle).unwrap();
        assert!(Scheduled::this_thread().is_err());
        let all = sched_getaffinity(Some(rustix::process::getpid())).unwrap();
        let first = (0..).find(|&cpu| all.is_set(cpu)).unwrap();
        let mut one = rustix::thread::CpuSet::new();
        one.set(first);
        sched_setaffinity(None, &one).unwrap();
        let found = |is_like: bool| {
            let seen = move || {
                if is_like {
                    like_the_process();
                }
                (class_number(gettid()).unwrap(), sched_getaffinity(None).unwrap())
            };
            std::thread::spawn(seen).join().unwrap()
        };
        assert_eq!(found(false), (libc::SCHED_IDLE, one));
        assert_eq!(found(true), (libc::SCHED_OTHER, all));
        this.set_class(Class::Normal).unwrap();
        assert_eq!(class_number(gettid()).unwrap(), libc::SCHED_OTHER);
    }

    #[test]
    fn a_thread_that_sleeps_is_not_runnable_and_one_that_ended_is_an_error() {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let other = std::thread::spawn(move || {
            sender.send(Scheduled::this_thread().unwrap()).unwrap();
            let _ = ended.recv();
        });
        let scheduled = receiver.recv().unwrap();
        while scheduled.look().unwrap().is_runnable {
            std::thread::yield_now();
        }
        drop(end);
        other.join().unwrap();
        // The kernel removes the thread from its table a moment later.
        while scheduled.look().is_ok() {
            std::thread::yield_now();
        }
    }
}
