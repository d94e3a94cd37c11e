//! The model of a network: the client's cost of a message to or from a donor.
//!
//! Owns: [`Link`], the client's one link to all donors. A transfer of n bytes takes the latency
//! plus the time of n bytes at the bandwidth, and nothing else uses the link meanwhile; the paper
//! adds up transfer times in the same way. Its network is ATM at 155 Mbit/s; a message through
//! TCP/IP on the workstations of its time took about a millisecond. All time here is simulated.
//! Left out: contention at the donors and between clients, losses, cells and headers.

/// Properties of a network.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Network {
    /// Latency of one message (µs).
    pub latency_us: f64,
    /// Bandwidth of the client's link (Mbit/s, decimal).
    pub mbit: f64,
}

impl Network {
    /// The paper's network.
    pub const ATM: Network = Network { latency_us: 1000.0, mbit: 155.0 };

    /// Returns the simulated time of one message of `bytes` (ns).
    pub fn transfer_ns(&self, bytes: u64) -> u64 {
        (self.latency_us * 1000.0 + bytes as f64 * 8000.0 / self.mbit).round() as u64
    }
}

/// The client's link, in simulated time.
#[derive(Clone, Debug)]
pub struct Link {
    network: Network,
    free_at_ns: u64,
    busy_ns: u64,
    messages: u64,
}

impl Link {
    pub fn new(network: Network) -> Link {
        Link { network, free_at_ns: 0, busy_ns: 0, messages: 0 }
    }

    /// Queues a message of `bytes` at `now_ns`. Returns the end of its transfer and its cost (ns).
    pub fn send(&mut self, bytes: u64, now_ns: u64) -> (u64, u64) {
        let cost_ns = self.network.transfer_ns(bytes);
        self.free_at_ns = self.free_at_ns.max(now_ns) + cost_ns;
        self.busy_ns += cost_ns;
        self.messages += 1;
        (self.free_at_ns, cost_ns)
    }

    /// Returns the time at which everything queued has been transferred.
    pub fn idle_at(&self, now_ns: u64) -> u64 {
        self.free_at_ns.max(now_ns)
    }

    /// Returns the time during which the link was transferring (ns).
    pub fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    pub fn messages(&self) -> u64 {
        self.messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_costs_latency_and_its_bytes() {
        assert_eq!(Network::ATM.transfer_ns(0), 1_000_000);
        assert_eq!(Network::ATM.transfer_ns(8192), 1_000_000 + 422_813);
        assert_eq!(Network { latency_us: 0.0, mbit: 8.0 }.transfer_ns(1_000_000), 1_000_000_000);
    }

    #[test]
    fn messages_wait_for_each_other_and_idle_time_is_not_busy() {
        let mut link = Link::new(Network { latency_us: 10.0, mbit: 8.0 });
        assert_eq!(link.send(100, 0), (110_000, 110_000));
        assert_eq!(link.send(0, 50_000).0, 120_000);
        assert_eq!(link.send(0, 1_000_000).0, 1_010_000);
        assert_eq!((link.busy_ns(), link.messages()), (130_000, 3));
    }
}
