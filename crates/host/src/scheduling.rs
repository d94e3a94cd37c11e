//! The scheduling class of a thread, its processors, and how long the kernel makes it wait for one.
//!
//! A thread of the class SCHED_IDLE runs when no other thread wants its processor. A processor that
//! runs only such threads counts as idle, so the kernel wakes other threads there. Any thread may
//! enter the class, but leaving it takes a privilege (`RLIMIT_NICE`, CAP_SYS_NICE), so callers
//! check [`may_return`] first. Rules: only threads of the default class, SCHED_OTHER, are moved.
//! Any other class was chosen on purpose. A thread is bound only while it may use the same processors as the calling
//! thread, which nobody binds. Unbinding gives it the calling thread's processors of that moment. So a change that
//! somebody else makes, to the whole process or to one thread, stays.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};

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
    bound: Option<Bound>,
}

struct Bound {
    cpu: usize,
    one: CpuSet,
}

impl Scheduled {
    /// Returns a handle to the calling thread. Fails where the kernel does not report how long it
    /// waits, or if its class is not the default one.
    pub fn this_thread() -> io::Result<Scheduled> {
        let id = gettid();
        let open = |name| File::open(format!("/proc/thread-self/{name}"));
        let this = Scheduled { id, state: open("stat")?, times: open("schedstat")?, bound: None };
        this.look()?;
        if class_number(id)? != number(Class::Normal) {
            return Err(chosen());
        }
        keep_io_priority(id);
        Ok(this)
    }

    /// Reads the thread's current figures. Fails when the thread has ended.
    pub fn look(&self) -> io::Result<Seen> {
        let mut room = [0; ROOM_BYTES];
        let is_runnable = state_of(&self.state, &mut room)?.first() == Some(&"R");
        // "ran waited turns".
        let len = self.times.read_at(&mut room, 0)?;
        let text = std::str::from_utf8(&room[..len]).map_err(|_| odd())?;
        let mut fields = text.split_ascii_whitespace().skip(1).map(|field| field.parse().ok());
        let mut next = || fields.next().flatten().ok_or_else(odd);
        Ok(Seen { is_runnable, ran_ns: ran_ns(self.id)?, waited_ns: next()?, turns: next()? })
    }

    /// Lets the thread run on this processor alone. Returns false if it may not run there, or if somebody else has
    /// chosen its processors; it is then not bound. Like [`Scheduled::set_class`], call it soon after a look.
    pub fn bind(&mut self, cpu: usize) -> io::Result<bool> {
        let (own, found) = (sched_getaffinity(None)?, sched_getaffinity(Some(self.id))?);
        let is_free = match &self.bound {
            Some(bound) => found == bound.one,
            None => found == own,
        };
        // The set cannot hold higher CPU numbers.
        if !is_free || cpu >= CpuSet::MAX_CPU || !own.is_set(cpu) {
            self.unbind()?;
            return Ok(false);
        }
        if self.bound_to() != Some(cpu) {
            let mut one = CpuSet::new();
            one.set(cpu);
            sched_setaffinity(Some(self.id), &one)?;
            self.bound = Some(Bound { cpu, one });
        }
        Ok(true)
    }

    /// Gives the thread the calling thread's processors again.
    pub fn unbind(&mut self) -> io::Result<()> {
        let Some(Bound { one, .. }) = self.bound.take() else { return Ok(()) };
        let (own, found) = (sched_getaffinity(None)?, sched_getaffinity(Some(self.id))?);
        if found != one && found != own {
            return Ok(());
        }
        // All that its control group allows, now and later; fewer only if somebody chose fewer for the process.
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        sched_setaffinity(Some(self.id), &all)?;
        if sched_getaffinity(Some(self.id))? != own {
            sched_setaffinity(Some(self.id), &own)?;
        }
        Ok(())
    }

    pub fn bound_to(&self) -> Option<usize> {
        self.bound.as_ref().map(|bound| bound.cpu)
    }

    pub fn class(&self) -> io::Result<Class> {
        Ok(if class_number(self.id)? == number(Class::Idle) { Class::Idle } else { Class::Normal })
    }

    /// Moves the thread to a class. Fails if somebody else has given it a third one. Call it soon after a
    /// [`Scheduled::look`]: the id of a thread that has ended may be given to another one.
    pub fn set_class(&self, class: Class) -> io::Result<()> {
        if ![Class::Normal, Class::Idle].map(number).contains(&class_number(self.id)?) {
            return Err(chosen());
        }
        set_class(self.id, class)
    }
}

fn chosen() -> io::Error {
    io::Error::other("the scheduling class was chosen by somebody else")
}

/// A thread of any process, which makes requests of this one.
pub struct Client {
    state: File,
    times: File,
}

impl Client {
    /// Returns a handle to the thread with this id, as this process sees ids. It stays the handle of that thread when
    /// the id is given to another one.
    pub fn new(id: u32) -> io::Result<Client> {
        let open = |name| File::open(format!("/proc/{id}/{name}"));
        Ok(Client { state: open("stat")?, times: open("schedstat")? })
    }

    /// Returns for how long the thread has run (ns).
    pub fn ran_ns(&self) -> io::Result<u64> {
        let ran = times_of(&self.times, &mut [0; ROOM_BYTES])?.split_ascii_whitespace().next().map(str::parse);
        ran.and_then(Result::ok).ok_or_else(odd)
    }

    /// Returns the processor that the thread ran on last. Fails when it has ended.
    pub fn processor(&self) -> io::Result<usize> {
        let mut room = [0; ROOM_BYTES];
        // The 39th field of the line; the state is the third.
        let fields = state_of(&self.state, &mut room)?;
        fields.get(36).and_then(|field| field.parse().ok()).ok_or_else(odd)
    }
}

/// Returns what a thread's `schedstat` says: "ran waited turns".
fn times_of<'a>(times: &File, room: &'a mut [u8; ROOM_BYTES]) -> io::Result<&'a str> {
    let len = times.read_at(room, 0)?;
    std::str::from_utf8(&room[..len]).map_err(|_| odd())
}

/// Longest line of `/proc/PID/stat` that is understood (bytes).
const ROOM_BYTES: usize = 1024;

fn odd() -> io::Error {
    io::ErrorKind::InvalidData.into()
}

/// Returns the fields of a thread's `stat` behind its name, from its state on.
fn state_of<'a>(stat: &File, room: &'a mut [u8; ROOM_BYTES]) -> io::Result<Vec<&'a str>> {
    // "42 (any name) S 1 ...": the name may contain anything.
    let len = stat.read_at(room, 0)?;
    let behind_name = room[..len].iter().rposition(|&byte| byte == b')').ok_or_else(odd)? + 1;
    let fields = std::str::from_utf8(&room[behind_name..len]).map_err(|_| odd())?;
    Ok(fields.split_ascii_whitespace().collect())
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

/// Gives the thread the priority of I/O that it has by its class now, to keep in any class. The I/O of a thread of the
/// idle class would otherwise wait until the disk has nothing else to do, up to 20 ms for a flush. A priority that
/// somebody chose stays.
fn keep_io_priority(thread: Pid) {
    // linux/ioprio.h: of one process; no class; best effort in the middle.
    const WHO_PROCESS: i32 = 1;
    const CLASS_SHIFT: i32 = 13;
    const BEST_EFFORT: i32 = 2 << CLASS_SHIFT | 4;
    let thread = thread.as_raw_nonzero().get();
    // SAFETY: a system call that takes numbers and returns one; no memory is passed.
    let found = unsafe { libc::syscall(libc::SYS_ioprio_get, WHO_PROCESS, thread) };
    if found >> CLASS_SHIFT == 0 {
        // SAFETY: as above. If it is refused, the thread works all the same.
        let _ = unsafe { libc::syscall(libc::SYS_ioprio_set, WHO_PROCESS, thread, BEST_EFFORT) };
    }
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

    /// A thread that waits, and a handle to it.
    fn waiting() -> (Scheduled, std::sync::mpsc::Sender<()>) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::spawn(move || {
            sender.send(Scheduled::this_thread().unwrap()).unwrap();
            let _ = ended.recv();
        });
        (receiver.recv().unwrap(), end)
    }

    #[test]
    fn a_bound_thread_gets_back_the_processors_that_the_others_have_by_then() {
        let own = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| own.is_set(cpu)).collect();
        let [first, .., last] = cpus[..] else { return };
        let only = |cpu| {
            let mut one = CpuSet::new();
            one.set(cpu);
            one
        };
        let (mut thread, _goes_on) = waiting();
        let (id, set) = (thread.id, |id, cpus: &CpuSet| sched_setaffinity(Some(id), cpus).unwrap());
        let found = || sched_getaffinity(Some(id)).unwrap();
        for cpu in [first, last, first] {
            assert!(thread.bind(cpu).unwrap() && found() == only(cpu));
        }
        assert!(!thread.bind(CpuSet::MAX_CPU).unwrap() && found() == own);
        // Somebody gives the thread another processor while it is bound, or before: it stays there.
        assert!(thread.bind(first).unwrap());
        set(id, &only(last));
        assert!(!thread.bind(first).unwrap() && found() == only(last));
        assert!(!thread.bind(last).unwrap() && thread.bound_to().is_none());
        thread.unbind().unwrap();
        assert!(found() == only(last));
        // All threads get one processor, which is the one that it was bound to.
        set(id, &own);
        assert!(thread.bind(first).unwrap());
        std::thread::spawn(move || {
            sched_setaffinity(None, &only(first)).unwrap();
            assert!(thread.bind(first).unwrap() && !thread.bind(last).unwrap());
            thread.unbind().unwrap();
        })
        .join()
        .unwrap();
        assert!(found() == only(first));
    }

    #[test]
    fn a_class_that_somebody_else_chose_stays() {
        let (thread, _goes_on) = waiting();
        let priority = 1i32;
        let parameters = std::ptr::from_ref(&priority);
        // SAFETY: as in `set_class`.
        let done = unsafe {
            libc::syscall(libc::SYS_sched_setscheduler, thread.id.as_raw_nonzero().get(), libc::SCHED_FIFO, parameters)
        };
        if done == 0 {
            assert!(thread.set_class(Class::Idle).is_err() && thread.set_class(Class::Normal).is_err());
            assert_eq!(class_number(thread.id).unwrap(), libc::SCHED_FIFO);
        }
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
