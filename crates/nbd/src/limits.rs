//! What one peer may cost: sizes, counts and times.
//!
//! Every number a peer sends is held against one of these before memory is taken or time is spent for it. The
//! defaults serve every client tested; a server for strangers may lower them, none may be switched off.

use std::time::Duration;

/// Largest read or write (bytes): the protocol's bound below which no request counts as an attack.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// What one connection and one server may use.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Data of one option (bytes). Longer options are refused, much longer ones end the connection.
    pub option_bytes: u32,
    /// Options of one handshake. `nbdinfo --list` needs three for each export.
    pub options: u32,
    /// Buffers of requests in flight on one connection (bytes). At least `REQUEST_BYTES_MAX`; each request counts at
    /// least `REQUEST_COST_BYTES`, so this bounds their number too.
    pub in_flight_bytes: usize,
    /// Connections at the same time.
    pub connections: usize,
    /// From accept to the transmission phase, TLS included.
    pub handshake: Duration,
    /// How long a client may leave replies unread before it is disconnected.
    pub stalled: Duration,
    /// Extents in one block status reply.
    pub extents: usize,
}

/// What a request without data counts against `in_flight_bytes`.
pub const REQUEST_COST_BYTES: usize = 512;

/// Above this an option's data is not even skipped (bytes).
pub const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            option_bytes: 64 << 10,
            options: 4096,
            in_flight_bytes: 64 << 20,
            connections: 256,
            handshake: Duration::from_secs(10),
            stalled: Duration::from_secs(60),
            extents: 4096,
        }
    }
}

impl Limits {
    /// Limits no legal request can be stopped by for good.
    pub fn checked(mut self) -> Limits {
        self.in_flight_bytes = self.in_flight_bytes.max(REQUEST_BYTES_MAX as usize + REQUEST_COST_BYTES);
        self.connections = self.connections.max(1);
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
        assert_eq!((limits.connections, limits.extents), (1, 1));
    }
}
