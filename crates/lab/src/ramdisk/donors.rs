//! The donors of all network RAM disks, and the network between them and the client.
//!
//! Owns: [`Donors`]: `shoal donate` processes, on loopback or each in a network namespace of its own
//! behind a pair of veth devices. Rules: each end of a link sends at most the given rate (a token
//! bucket), so both directions are limited. All disks borrow from the same donors, each under a name
//! of its own. Left out: latency and loss, which need netem, and the paper's one Ethernet for all
//! machines: each donor has a link to itself.

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use rustix::process::Signal;

use super::Plan;
use crate::experiment::LabError;
use crate::world::{World, broken};

/// As many as the paper had, and one for parity.
pub const DATA: usize = 2;
pub const ALL: usize = DATA + 1;
/// Memory of a donor, and of each disk at a donor.
const MEMORY: &str = "2G";
const AREA: &str = "480M";
/// Burst and queue of the token bucket.
const BURST: &str = "2kb";
const QUEUE: &str = "50ms";

#[derive(Debug)]
pub struct Donors {
    addresses: Vec<String>,
    /// A description of the network.
    pub network: String,
    /// Why the links are not shaped though they should be.
    pub unshaped: Option<String>,
}

fn answers(address: &str) -> bool {
    address.parse().is_ok_and(|at| TcpStream::connect_timeout(&at, Duration::from_secs(1)).is_ok())
}

/// Returns the addresses of both ends of a link: a network of four addresses that depends on the
/// tag, so that runs at the same time hardly meet.
fn addresses(tag: u32, number: usize) -> [String; 2] {
    let (high, low) = (216 + (tag >> 8) % 32, tag % 256);
    [1, 2].map(|end| format!("10.{high}.{low}.{}", 4 * number + end))
}

impl Donors {
    pub fn start(world: &mut World, plan: &Plan) -> Result<Donors, LabError> {
        let mut donors = Donors { addresses: vec![], network: "loopback".into(), unshaped: None };
        for number in 0..ALL {
            match plan.link {
                None => donors.start_here(world, plan, number)?,
                Some(rate) => donors.start_apart(world, plan, number, rate)?,
            }
        }
        if let Some(rate) = plan.link {
            let limit = match &donors.unshaped {
                None => format!("{rate} Mbit/s in each direction (tc tbf)"),
                Some(_) => "no limit of its rate".into(),
            };
            donors.network = format!("a network namespace for each donor, behind a veth pair with {limit}");
        }
        Ok(donors)
    }

    fn start_here(&mut self, world: &mut World, plan: &Plan, number: usize) -> Result<(), LabError> {
        // The listener ends here, and the donor takes its port.
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(|error| broken("loopback", error))?.to_string();
        let words: [&dyn AsRef<std::ffi::OsStr>; 8] =
            [&plan.shoal, &"donate", &"--memory", &MEMORY, &"--area-size", &AREA, &"--listen", &address];
        world.start(&format!("donor{number}"), Signal::KILL, &words, || answers(&address))?;
        self.addresses.push(address);
        Ok(())
    }

    fn start_apart(&mut self, world: &mut World, plan: &Plan, number: usize, rate: u32) -> Result<(), LabError> {
        let (name, here) = (format!("shoal-{:08x}-{number}", world.tag), format!("sh{:08x}n{number}", world.tag));
        let [near, far] = addresses(world.tag, number);
        let (near, far_net) = (format!("{near}/30"), format!("{far}/30"));
        world.add_namespace(&name)?;
        world.add_link(&here, &name)?;
        world.run("ip", &[&"addr", &"add", &near, &"dev", &here])?;
        world.run("ip", &[&"link", &"set", &here, &"up"])?;
        world.run("ip", &[&"-n", &name, &"addr", &"add", &far_net, &"dev", &"eth0"])?;
        world.run("ip", &[&"-n", &name, &"link", &"set", &"eth0", &"up"])?;
        let rate = format!("{rate}mbit");
        let bucket: [&dyn AsRef<std::ffi::OsStr>; 7] = [&"tbf", &"rate", &rate, &"burst", &BURST, &"latency", &QUEUE];
        let mut near_words: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"qdisc", &"add", &"dev", &here, &"root"];
        let mut far_words: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"-n", &name, &"qdisc", &"add", &"dev", &"eth0", &"root"];
        near_words.extend(bucket);
        far_words.extend(bucket);
        let shaped = world.run("tc", &near_words).and_then(|_| world.run("tc", &far_words));
        self.unshaped = self.unshaped.take().or(shaped.err().map(|error| error.to_string()));
        let address = format!("{far}:7000");
        let words: [&dyn AsRef<std::ffi::OsStr>; 13] = [
            &"ip",
            &"netns",
            &"exec",
            &name,
            &plan.shoal,
            &"donate",
            &"--memory",
            &MEMORY,
            &"--area-size",
            &AREA,
            &"--listen",
            &address,
            &"--insecure",
        ];
        world.start(&format!("donor{number}"), Signal::KILL, &words, || answers(&address))?;
        self.addresses.push(address);
        Ok(())
    }

    /// Describes the network RAM disk called `name` over the first `count` donors.
    pub fn disk(&self, count: usize, policy: &str, name: &str) -> String {
        format!("netram:{}?policy={policy}&name={name}", self.addresses[..count].join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_networks_of_their_own() {
        let all: std::collections::HashSet<String> =
            (0..ALL).flat_map(|number| addresses(0x1234_5678, number)).collect();
        assert_eq!(all.len(), 2 * ALL);
        // Both ends of a link are in its network of four addresses, and are neither the first nor the last of it.
        for number in 0..ALL {
            let last = addresses(7, number).map(|text| text.rsplit_once('.').unwrap().1.parse::<usize>().unwrap());
            assert_eq!(last.map(|last| last / 4), [number; 2]);
            assert_eq!(last.map(|last| last % 4), [1, 2]);
        }
    }
}
