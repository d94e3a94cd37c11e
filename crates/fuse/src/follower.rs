//! The program that threads of `/dev/fuse` follow from processor to processor.
//!
//! Rule: a program is followed while it makes nearly all requests, and most are answered at once. Programs that come
//! one after the other, such as those of a script, count as one. If programs run at the same time, none is followed. Nor
//! is a program in another process namespace, which this process cannot see. Left out: what threads do about it
//! (`guard`).

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use shoal_host::Client;

/// Time over which programs are counted.
const WINDOW: Duration = Duration::from_millis(20);
/// The client changes at most once in so many requests. If it changes more often, several programs are at work.
const SAME_MIN: u64 = 8;
/// At most one in so many requests is slow. To one that waits for a disk, waking another processor matters little, and
/// the disk may wake one itself.
const QUICK_MIN: u64 = 4;

/// Counts of requests by client, kept by the threads that take them.
#[derive(Default)]
pub(crate) struct Clients {
    requests: AtomicU64,
    /// Requests of nobody: of a program that this process cannot see, or of the kernel itself.
    nobodys: AtomicU64,
    /// The thread that made the last other request, and how often that was another one than before.
    last: AtomicU32,
    changes: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    requests: u64,
    nobodys: u64,
    changes: u64,
    slow: u64,
}

impl Clients {
    /// Records a request of this thread; 0: nobody's.
    pub fn took_from(&self, client: u32) {
        // Like the count of a queue: the guard announces its sleep before it reads it.
        self.requests.fetch_add(1, Ordering::SeqCst);
        if client == 0 {
            self.nobodys.fetch_add(1, Ordering::Relaxed);
        } else if self.last.load(Ordering::Relaxed) != client {
            self.last.store(client, Ordering::Relaxed);
            self.changes.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    fn counts(&self, slow: u64) -> Counts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts { requests: self.requests(), nobodys: of(&self.nobodys), changes: of(&self.changes), slow }
    }
}

#[derive(Default)]
pub(crate) struct Follower {
    /// The beginning of the window, and the counts then.
    window: (Duration, Counts),
    /// In the last window, nearly all requests came from one program at a time, and most were quick.
    is_worth_it: bool,
    client: Option<Followed>,
    /// Time that clients ran between two looks at the same client (ns).
    ran_ns: u64,
}

struct Followed {
    id: u32,
    client: Client,
    ran_ns: u64,
}

impl Follower {
    /// Returns the processor to be on, if there is a program to follow. `slow`: requests so far that took long.
    pub fn look(&mut self, clients: &Clients, slow: u64, at: Duration) -> Option<usize> {
        let (began, before) = self.window;
        if at - began >= WINDOW {
            let now = clients.counts(slow);
            let requests = now.requests - before.requests;
            let are_somebodys = (now.nobodys - before.nobodys) * 4 <= requests * 3;
            let are_quick = (now.slow - before.slow) * QUICK_MIN <= requests;
            self.is_worth_it = (now.changes - before.changes) * SAME_MIN <= requests && are_somebodys && are_quick;
            self.window = (at, now);
        }
        let id = Some(clients.last.load(Ordering::Relaxed)).filter(|&id| self.is_worth_it && id != 0);
        if id != self.client.as_ref().map(|followed| followed.id) {
            self.client = id.and_then(|id| Followed::new(id).ok());
        }
        let seen = self.client.as_mut().and_then(|followed| followed.look().ok());
        let Some((processor, ran_ns)) = seen else {
            // It has ended, and its id may be given to another one.
            self.client = None;
            return None;
        };
        self.ran_ns += ran_ns;
        Some(processor)
    }

    pub fn client_ran_ns(&self) -> u64 {
        self.ran_ns
    }
}

impl Followed {
    fn new(id: u32) -> io::Result<Followed> {
        let client = Client::new(id)?;
        Ok(Followed { id, ran_ns: client.ran_ns()?, client })
    }

    /// Returns its processor, and for how long it has run since the last look (ns).
    fn look(&mut self) -> io::Result<(usize, u64)> {
        let before = std::mem::replace(&mut self.ran_ns, self.client.ran_ns()?);
        Ok((self.client.processor()?, self.ran_ns.saturating_sub(before)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;

    use shoal_host::Scheduled;

    use super::*;

    /// The calling thread's id, as requests would name it.
    pub fn own_id() -> u32 {
        let link = std::fs::read_link("/proc/thread-self").unwrap();
        link.file_name().unwrap().to_str().unwrap().parse().unwrap()
    }

    /// A thread that waits, with its id.
    fn client() -> (u32, mpsc::Sender<()>, std::thread::JoinHandle<()>) {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            sender.send(own_id()).unwrap();
            let _ = ended.recv();
        });
        (receiver.recv().unwrap(), end, thread)
    }

    #[test]
    fn one_program_at_a_time_is_followed_and_two_at_the_same_time_are_not() {
        let (clients, mut follower) = (Clients::default(), Follower::default());
        let ((first, end, thread), (second, _goes_on, _)) = (client(), client());
        let (mut at, slow) = (Duration::ZERO, Cell::new(0));
        let mut after = |requests: &[(u32, u64)]| {
            requests.iter().for_each(|&(client, count)| (0..count).for_each(|_| clients.took_from(client)));
            at += WINDOW;
            follower.look(&clients, slow.get(), at).is_some()
        };
        assert!(after(&[(first, 100)]));
        assert!(after(&[(first, 50), (second, 50)]), "one after the other");
        assert!(!after(&[[(first, 1), (second, 1)]; 50].concat()), "both at the same time");
        assert!(after(&[[(first, 20), (second, 1)]; 5].concat()), "one makes nearly all");
        assert!(after(&[[(first, 2), (0, 2)]; 30].concat()), "the kernel writes back what it wrote");
        slow.set(slow.get() + 40);
        assert!(!after(&[(first, 100)]), "it waits for a disk");
        slow.set(slow.get() + 20);
        assert!(after(&[(first, 100)]), "it waits now and then");
        assert!(!after(&[(0, 100)]), "it cannot be seen");
        assert!(after(&[(first, 100)]));
        drop(end);
        thread.join().unwrap();
        assert!(!after(&[(first, 10)]), "it has ended");
        assert!(after(&[(second, 100)]));
    }

    #[test]
    fn a_program_is_found_where_it_runs() {
        let (sender, receiver) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let mut own = Scheduled::this_thread().unwrap();
            let allowed = (0..1024).filter(|&cpu| own.bind(cpu).unwrap_or(false)).collect::<Vec<usize>>();
            for &cpu in &[&allowed[allowed.len() - 1..], &allowed[..1]].concat() {
                assert!(own.bind(cpu).unwrap());
                sender.send((own_id(), cpu)).unwrap();
                ended.recv().unwrap();
            }
        });
        let (clients, mut follower) = (Clients::default(), Follower::default());
        for round in 1..=2 {
            let (id, cpu) = receiver.recv().unwrap();
            (0..100).for_each(|_| clients.took_from(id));
            assert_eq!(follower.look(&clients, 0, round * WINDOW), Some(cpu));
            end.send(()).unwrap();
        }
        thread.join().unwrap();
    }
}
