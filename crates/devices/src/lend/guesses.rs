//! Limits how fast a host may guess names and secrets.
//!
//! After a wrong answer the next guess of that host waits before it is checked, longer each time. A right guess waits
//! as well: if it were answered sooner, silence would mean "wrong", and a guesser need not wait for it. Other hosts do
//! not wait, nor do clients of a UNIX socket, which is open to its owner alone. A host that has several guesses waiting
//! is told to come back later. Hosts are forgotten a minute after their last wrong answer.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Wait after the first wrong answer; it doubles with each.
const DELAY: Duration = Duration::from_millis(100);
const DOUBLINGS_MAX: u32 = 4;
/// Longest wait.
const WAIT_MAX: Duration = Duration::from_secs(5);
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Hosts remembered. If more of them guess, those beyond count as one.
const HOSTS_MAX: usize = 4096;

/// A host whose guesses count together; `None` for all hosts beyond the table.
type Host = Option<IpAddr>;

struct Wrong {
    count: u32,
    last: Instant,
    /// When its next guess may be checked.
    next: Instant,
}

impl Wrong {
    fn delay(&self) -> Duration {
        DELAY * (1 << self.count.saturating_sub(1).min(DOUBLINGS_MAX))
    }
}

#[derive(Default)]
pub struct Guesses {
    hosts: Mutex<HashMap<Host, Wrong>>,
}

impl Guesses {
    /// How long a client has to wait before its guess is checked; `None` if that is too long.
    pub fn wait(&self, ip: IpAddr, now: Instant) -> Option<Duration> {
        let mut hosts = self.hosts.lock();
        let host = host(ip);
        let host = if hosts.contains_key(&host) || hosts.len() < HOSTS_MAX { host } else { None };
        let Some(wrong) = hosts.get_mut(&host).filter(|wrong| now < wrong.last + FORGET_AFTER) else {
            return Some(Duration::ZERO);
        };
        let wait = wrong.next.saturating_duration_since(now);
        if wait > WAIT_MAX {
            return None;
        }
        // The next one comes after this one.
        wrong.next = now + wait + wrong.delay();
        Some(wait)
    }

    /// Notes a right guess: the client has waited, and its next guess is checked at once. Between two wrong answers
    /// there is a wait nevertheless.
    pub fn right(&self, ip: IpAddr, now: Instant) {
        if let Some(wrong) = self.hosts.lock().get_mut(&host(ip)) {
            wrong.next = now;
        }
    }

    /// Notes a wrong guess.
    pub fn wrong(&self, ip: IpAddr, now: Instant) {
        let mut hosts = self.hosts.lock();
        let mut host = host(ip);
        if !hosts.contains_key(&host) && hosts.len() >= HOSTS_MAX {
            hosts.retain(|_, wrong| now < wrong.last + FORGET_AFTER);
            if hosts.len() >= HOSTS_MAX {
                host = None;
            }
        }
        let wrong = hosts.entry(host).or_insert(Wrong { count: 0, last: now, next: now });
        if now >= wrong.last + FORGET_AFTER {
            wrong.count = 0;
        }
        wrong.count = wrong.count.saturating_add(1);
        wrong.last = now;
        wrong.next = wrong.next.max(now + wrong.delay());
    }
}

/// Hosts with IPv6 have at least 2^64 addresses each.
fn host(ip: IpAddr) -> Host {
    Some(match ip {
        IpAddr::V4(_) => ip,
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_guesses_is_slowed_down_and_others_are_not() {
        let guesses = Guesses::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let begin = Instant::now();
        let (mut now, mut tried) = (begin, 0);
        while now < begin + Duration::from_secs(60) {
            match guesses.wait(ip("10.0.0.1"), now) {
                Some(wait) => {
                    now += wait;
                    guesses.wrong(ip("10.0.0.1"), now);
                    tried += 1;
                }
                None => now += Duration::from_millis(1),
            }
        }
        assert!((30..=50).contains(&tried), "{tried} guesses in a minute");
        assert_eq!(guesses.wait(ip("10.0.0.2"), now), Some(Duration::ZERO));
        // A host that is right after it was wrong has waited once.
        assert!(guesses.wait(ip("10.0.0.1"), now).unwrap() > Duration::ZERO);
        let now = now + WAIT_MAX;
        guesses.right(ip("10.0.0.1"), now);
        assert_eq!(guesses.wait(ip("10.0.0.1"), now), Some(Duration::ZERO));
        let later = now + FORGET_AFTER;
        assert_eq!(guesses.wait(ip("10.0.0.1"), later), Some(Duration::ZERO), "forgotten");
    }

    #[test]
    fn guesses_at_the_same_time_are_looked_at_one_after_the_other() {
        let guesses = Guesses::default();
        let (now, ip) = (Instant::now(), "2001:db8::1".parse().unwrap());
        guesses.wrong(ip, now);
        let neighbour = "2001:db8::ffff:1".parse().unwrap();
        let waits: Vec<Option<Duration>> = (0..100).map(|_| guesses.wait(neighbour, now)).collect();
        assert_eq!(waits[0], Some(DELAY));
        assert_eq!(waits[1], Some(DELAY * 2));
        assert!(waits.iter().flatten().count() <= 50 && waits[99].is_none());
    }

    #[test]
    fn a_crowd_of_hosts_costs_no_more_memory_and_guesses_as_one() {
        let guesses = Guesses::default();
        let now = Instant::now();
        for number in 0..2 * HOSTS_MAX as u32 {
            guesses.wrong(IpAddr::V4(number.into()), now);
        }
        assert!(guesses.hosts.lock().len() <= HOSTS_MAX + 1);
        let unknown = "192.0.2.1".parse().unwrap();
        assert!(guesses.wait(unknown, now).is_none_or(|wait| wait >= DELAY));
    }
}
