//! Limits how fast a host may guess names and secrets.
//!
//! After a wrong guess from a host, each client of that host waits before its own name and secret
//! are checked. The wait grows with further wrong guesses, up to `WAIT_MAX`. A right guess waits as
//! well: if it were answered sooner, silence would mean "wrong", and a guesser need not wait for
//! it. Each client waits by itself, and none is refused, since a queue would let a guesser lock out
//! the honest clients of its host. So a host guesses at most once per wait on each of its
//! connections, and the server allows few connections that are not admitted yet
//! (`shoal_nbd::Limits`). Other hosts do not wait, nor do clients of a UNIX socket, which is open
//! only to its owner. Hosts are forgotten a minute after their last wrong guess.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Wait after the first wrong guess. It doubles with each further one.
const DELAY: Duration = Duration::from_millis(100);
const DOUBLINGS_MAX: u32 = 4;
/// Longest wait.
#[cfg(test)]
const WAIT_MAX: Duration = Duration::from_millis(100 << DOUBLINGS_MAX);
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Maximum hosts remembered. If more hosts guess, the excess counts as one.
const HOSTS_MAX: usize = 4096;

/// A host whose guesses count together; `None` for all hosts beyond the table.
type Host = Option<IpAddr>;

struct Wrong {
    count: u32,
    last: Instant,
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
    /// Returns how long a client has to wait before its guess is checked.
    pub fn wait(&self, ip: IpAddr, now: Instant) -> Duration {
        let hosts = self.hosts.lock();
        let host = host(ip);
        let host = if hosts.contains_key(&host) || hosts.len() < HOSTS_MAX { host } else { None };
        let wrong = hosts.get(&host).filter(|wrong| now < wrong.last + FORGET_AFTER);
        wrong.map_or(Duration::ZERO, Wrong::delay)
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
        let wrong = hosts.entry(host).or_insert(Wrong { count: 0, last: now });
        if now >= wrong.last + FORGET_AFTER {
            wrong.count = 0;
        }
        wrong.count = wrong.count.saturating_add(1);
        wrong.last = now;
    }
}

/// Returns the host of an address. Hosts with IPv6 have at least 2^64 addresses each.
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
    fn a_connection_that_guesses_is_slowed_down_and_other_hosts_are_not() {
        let guesses = Guesses::default();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let begin = Instant::now();
        let (mut now, mut tried) = (begin, 0);
        while now < begin + Duration::from_secs(60) {
            now += guesses.wait(ip("10.0.0.1"), now);
            guesses.wrong(ip("10.0.0.1"), now);
            tried += 1;
        }
        assert!((30..=50).contains(&tried), "{tried} guesses in a minute");
        assert_eq!(guesses.wait(ip("10.0.0.2"), now), Duration::ZERO);
        // A client that is right waits once, however many guesses of its host were wrong.
        assert_eq!(guesses.wait(ip("10.0.0.1"), now), WAIT_MAX);
        assert_eq!(guesses.wait(ip("10.0.0.1"), now + FORGET_AFTER), Duration::ZERO, "forgotten");
    }

    #[test]
    fn guesses_at_the_same_time_do_not_send_an_honest_neighbour_away() {
        let guesses = Guesses::default();
        let (now, ip) = (Instant::now(), "2001:db8::1".parse().unwrap());
        (0..1000).for_each(|_| guesses.wrong(ip, now));
        let neighbour = "2001:db8::ffff:1".parse().unwrap();
        for _ in 0..100 {
            assert_eq!(guesses.wait(neighbour, now), WAIT_MAX);
        }
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
        assert!(guesses.wait(unknown, now) >= DELAY);
    }
}
