//! Limits on one peer: sizes, counts and times.
//!
//! Every number that a peer sends is checked against one of these before memory is taken or time is
//! spent for it. The defaults serve every client tested. A server for strangers may lower them; no
//! limit can be switched off.

use std::time::Duration;

/// Largest read or write (bytes): the protocol's bound below which no request counts as an attack.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Limits of one connection and of one server.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Data of one option (bytes). Longer options are refused, much longer ones end the connection.
    pub option_bytes: u32,
    /// Options of one handshake. `nbdinfo --list` needs three for each export.
    pub options: u32,
    /// Buffers of requests in flight on one connection (bytes). At least `REQUEST_BYTES_MAX`; each request counts at
    /// least `REQUEST_COST_BYTES`, so this bounds their number too.
    pub in_flight_bytes: usize,
    /// Buffers of requests in flight on all connections (bytes), so that many clients cost no more
    /// than a few.
    pub server_bytes: usize,
    /// Connections at the same time.
    pub connections: usize,
    /// Connections before the transmission phase. The oldest gives way to the next.
    pub handshakes: usize,
    /// Connections from one address; UNIX sockets have none.
    pub address_connections: usize,
    /// A connection without requests for this long gives way to a new one when there are too many.
    pub quiet: Duration,
    /// Maximum time from accept to the transmission phase, including TLS.
    pub handshake: Duration,
    /// How long a client may leave replies unread, or a request half sent, before it is
    /// disconnected.
    pub stalled: Duration,
    /// Extents in one block status reply.
    pub extents: usize,
}

/// Bytes that a request without data counts against `in_flight_bytes`.
pub const REQUEST_COST_BYTES: usize = 512;

/// Longest option data that is skipped (bytes). Longer data ends the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            option_bytes: 64 << 10,
            options: 4096,
            in_flight_bytes: 64 << 20,
            server_bytes: 256 << 20,
            connections: 256,
            handshakes: 64,
            address_connections: 192,
            quiet: Duration::from_secs(10),
            handshake: Duration::from_secs(10),
            stalled: Duration::from_secs(60),
            extents: 4096,
        }
    }
}

impl Limits {
    /// Raises limits that would block legal requests forever.
    pub fn checked(mut self) -> Limits {
        self.in_flight_bytes = self.in_flight_bytes.max(REQUEST_BYTES_MAX as usize + REQUEST_COST_BYTES);
        self.server_bytes = self.server_bytes.max(self.in_flight_bytes);
        self.connections = self.connections.max(1);
        self.handshakes = self.handshakes.max(1);
        self.address_connections = self.address_connections.max(1);
        self.extents = self.extents.max(1);
        self.options = self.options.max(8);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_too_small_for_one_request_is_raised_to_fit_it() {
        let limits = Limits { in_flight_bytes: 1, connections: 0, extents: 0, ..Limits::default() }.checked();
        assert!(limits.in_flight_bytes >= REQUEST_BYTES_MAX as usize + REQUEST_COST_BYTES);
        assert!(limits.server_bytes >= limits.in_flight_bytes);
        assert_eq!((limits.connections, limits.extents), (1, 1));
    }
}
