//! The environment that a process is started in: it inherits descriptors, limits, signals and the
//! file mode mask, which were made for other programs.
//!
//! | function | for |
//! |---|---|
//! | [`as_usual`] | every command, first: unblocks signals, lets children be waited for, makes file limits errors |
//! | [`keep_descriptors`] | a starter, before it starts a daemon: the daemon gets only the descriptors it is given |
//! | [`lift_limits`] | a process that serves for long |
//! | [`leave_starter`] | a daemon of its own session |
//!
//! Rules: limits that do not end a process are the user's (core files, locked memory, processes),
//! and so are its priority, its processors and its control group. A limit is never lowered.

use std::io;
use std::os::fd::RawFd;

use rustix::fs::Mode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits that end a long-running process or its requests although the machine has what it asks
/// for.
const LIFTED: [Resource; 5] = [Resource::Fsize, Resource::Cpu, Resource::As, Resource::Data, Resource::Nofile];
/// The highest signal number.
const SIGNALS_END: i32 = 64;

/// Undoes inherited settings that would make any command fail in odd ways: blocked signals, ignored
/// ends of children, a mode mask that removes the owner's own rights. A file that grows past its
/// limit gets an error, and the process is not killed.
pub fn as_usual() {
    set_disposition(libc::SIGCHLD, libc::SIG_DFL);
    set_disposition(libc::SIGXFSZ, libc::SIG_IGN);
    block_nothing();
    let mask = rustix::process::umask(Mode::RWXU | Mode::RWXG | Mode::RWXO);
    rustix::process::umask(mask & (Mode::RWXG | Mode::RWXO));
}

/// Gives a daemon its own environment: signals have their default effect, except that writes to a
/// closed pipe and past a limit are errors. Its files are accessible to its owner only.
pub fn leave_starter() {
    let own = [libc::SIGPIPE, libc::SIGXFSZ];
    for signal in (1..=SIGNALS_END).filter(|signal| !own.contains(signal) && is_ignored(*signal)) {
        set_disposition(signal, libc::SIG_DFL);
    }
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    for resource in LIFTED {
        // The number of descriptors is limited by the machine, and is enough as it is.
        if resource != Resource::Nofile {
            // Only a privileged process may do this.
            let _ = setrlimit(resource, Rlimit { current: None, maximum: None });
        }
    }
}

/// Raises limits as far as this process is allowed to.
pub fn lift_limits() {
    for resource in LIFTED {
        let limit = getrlimit(resource);
        let _ = setrlimit(resource, Rlimit { current: limit.maximum, ..limit });
    }
}

/// Returns the maximum length of a file of this process (bytes), if it is limited.
pub fn file_bytes_max() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Refuses a file that will have `bytes` if a limit forbids that. A write in its middle would
/// otherwise fail, long after the beginning was written.
pub fn refuse_beyond_limit(bytes: u64) -> io::Result<()> {
    match file_bytes_max().filter(|most| bytes > *most) {
        None => Ok(()),
        Some(most) => {
            let (most, needed) = (most >> 10, bytes.div_ceil(1024));
            let message = format!(
                "a limit forbids files larger than {most} KiB, and this one may need {needed} KiB: raise it (`ulimit -f unlimited`)"
            );
            Err(io::Error::new(io::ErrorKind::FileTooLarge, message))
        }
    }
}

/// Returns true if the signal is ignored.
pub fn is_ignored(signal: i32) -> bool {
    // SAFETY: all bytes zero are a valid value of this plain structure.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed. The last argument is a structure that the kernel fills during the
    // call and does not keep.
    let done = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut found) };
    done == 0 && found.sa_sigaction == libc::SIG_IGN
}

fn set_disposition(signal: i32, handler: libc::sighandler_t) {
    // SAFETY: the handler is one of the two constants, so no code is called through it. An invalid
    // signal number is refused.
    let _ = unsafe { libc::signal(signal, handler) };
}

/// Unblocks every signal for this thread and the threads it starts.
fn block_nothing() {
    // SAFETY: all bytes zero are a valid value of this plain structure.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is a local variable that the call fills.
    unsafe { libc::sigemptyset(&raw mut none) };
    // SAFETY: the set is only read during the call, and no old set is requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) };
}

/// Makes programs that this process starts inherit only the first three descriptors. Then locks,
/// pipes and sockets of this process's starter end with their owners.
pub fn keep_descriptors() {
    // SAFETY: a system call that takes three numbers. It closes nothing in this process.
    let done = unsafe {
        libc::syscall(libc::SYS_close_range, 3 as libc::c_uint, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
    if done == 0 {
        return;
    }
    // Before Linux 5.11, mark them one by one.
    for entry in std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten() {
        let number = entry.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        if let Some(number) = number.filter(|number| *number > 2) {
            // SAFETY: sets a flag of a descriptor, by number. A descriptor that is closed by now is
            // refused.
            let _ = unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_program_gets_no_descriptor_beyond_the_first_three() {
        let file = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: sets a flag of a descriptor that is open.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFD, 0) };
        let inherited = || {
            let script = format!("readlink /proc/self/fd/{}", file.as_raw_fd());
            let output = std::process::Command::new("sh").args(["-c", &script]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().contains("/dev/null")
        };
        assert!(inherited());
        keep_descriptors();
        assert!(!inherited());
    }

    #[test]
    fn ignored_signals_are_found_and_changed() {
        assert!(!is_ignored(libc::SIGUSR2));
        set_disposition(libc::SIGUSR2, libc::SIG_IGN);
        assert!(is_ignored(libc::SIGUSR2));
        set_disposition(libc::SIGUSR2, libc::SIG_DFL);
        assert!(!is_ignored(libc::SIGUSR2));
        assert!(!is_ignored(SIGNALS_END + 1));
    }

    #[test]
    fn a_limit_of_lengths_is_told_in_a_sentence() {
        // The test process has no limit. Tests of the command show the case with one.
        let limited = file_bytes_max();
        assert_eq!(refuse_beyond_limit(1 << 30).is_err(), limited.is_some_and(|most| most < 1 << 30));
    }
}
