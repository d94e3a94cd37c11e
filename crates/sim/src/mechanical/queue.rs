//! Requests that wait for a mechanical disk.
//!
//! Owns: [`DiskQueue`], which carries out one request at a time, and the [`Order`] in which it
//! takes them. Rules: serving a request advances the disk's clock to the end of the request.
//! Requests that arrive meanwhile are pushed afterwards and take part in the next choice. Requests
//! only take time: no bytes move, because callers use the queue for timing. Left out: merging of
//! adjacent requests, and priorities (a caller that wants them keeps requests out of the queue).

use std::collections::{BTreeMap, VecDeque};

use shoal_media::Result;

use super::MechanicalDisk;

/// Selects which waiting request is served next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// The oldest request.
    #[default]
    Fifo,
    /// The next request in the direction of rising addresses; after the last, the lowest.
    Elevator,
}

/// A waiting request. The caller recognizes it by `tag`.
#[derive(Clone, Copy, Debug)]
struct Waiting<T> {
    at: u64,
    bytes: u64,
    is_read: bool,
    tag: T,
}

/// A request that was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served<T> {
    pub tag: T,
    pub is_read: bool,
    /// Time the disk was busy with it (ns).
    pub service_ns: u64,
}

/// A queue of requests in front of a disk, of equal length unless a caller says otherwise.
pub struct DiskQueue<T> {
    disk: MechanicalDisk,
    order: Order,
    request_bytes: u64,
    fifo: VecDeque<Waiting<T>>,
    /// Waiting requests by address and number.
    sorted: BTreeMap<(u64, u64), Waiting<T>>,
    number: u64,
    /// Address after the last request served.
    at: u64,
}

impl<T: Copy> DiskQueue<T> {
    /// Creates a queue of requests of `request_bytes` bytes each, a multiple of the sector.
    pub fn new(disk: MechanicalDisk, order: Order, request_bytes: u64) -> DiskQueue<T> {
        DiskQueue { disk, order, request_bytes, fifo: VecDeque::new(), sorted: BTreeMap::new(), number: 0, at: 0 }
    }

    /// Returns the number of waiting requests.
    pub fn len(&self) -> usize {
        self.fifo.len() + self.sorted.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds a request for the bytes from `at` on.
    pub fn push(&mut self, at: u64, is_read: bool, tag: T) {
        self.push_bytes(at, self.request_bytes, is_read, tag);
    }

    /// Adds a request of another length: one that a caller merged.
    pub fn push_bytes(&mut self, at: u64, bytes: u64, is_read: bool, tag: T) {
        let waiting = Waiting { at, bytes, is_read, tag };
        self.number += 1;
        match self.order {
            Order::Fifo => self.fifo.push_back(waiting),
            Order::Elevator => drop(self.sorted.insert((at, self.number), waiting)),
        }
    }

    /// Serves the next request to its end. Returns None if none is waiting.
    pub fn serve(&mut self) -> Option<Result<Served<T>>> {
        let next = match self.order {
            Order::Fifo => self.fifo.pop_front(),
            Order::Elevator => {
                let key = self.sorted.range((self.at, 0)..).next().or(self.sorted.first_key_value())?.0;
                self.sorted.remove(&key.clone())
            }
        }?;
        Some(self.carry_out(next))
    }

    fn carry_out(&mut self, next: Waiting<T>) -> Result<Served<T>> {
        let began_ns = self.disk.now_ns();
        self.disk.carry_out(next.at, next.bytes, next.is_read, |_| Ok(vec![]))?;
        self.at = next.at + next.bytes;
        Ok(Served { tag: next.tag, is_read: next.is_read, service_ns: self.disk.now_ns() - began_ns })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::SimClock;
    use crate::mechanical::Drive;

    const BYTES: u64 = 8192;

    fn served(order: Order, blocks: &[u64]) -> (Vec<u64>, u64) {
        let clock = Arc::new(SimClock::new(0));
        let mut queue = DiskQueue::new(MechanicalDisk::new(Drive::rz58(), clock), order, BYTES);
        blocks.iter().for_each(|&block| queue.push(block * BYTES, false, block));
        let served: Vec<Served<u64>> = std::iter::from_fn(|| queue.serve()).map(Result::unwrap).collect();
        (served.iter().map(|served| served.tag).collect(), served.iter().map(|served| served.service_ns).sum())
    }

    #[test]
    fn a_fifo_keeps_the_order_and_an_elevator_sweeps_upwards() {
        let blocks = [70_000, 20, 150_000, 21, 90_000];
        assert_eq!(served(Order::Fifo, &blocks).0, blocks);
        assert_eq!(served(Order::Elevator, &blocks).0, [20, 21, 70_000, 90_000, 150_000]);
        let mut random = crate::Random::new(1);
        let scattered: Vec<u64> = (0..400).map(|_| random.below(160_000)).collect();
        let (fifo_ns, elevator_ns) = (served(Order::Fifo, &scattered).1, served(Order::Elevator, &scattered).1);
        assert!(elevator_ns * 10 < fifo_ns * 7, "{elevator_ns} against {fifo_ns}");
    }

    #[test]
    fn an_elevator_goes_on_from_where_it_is() {
        let disk = MechanicalDisk::new(Drive::rz57(), Arc::new(SimClock::new(0)));
        let mut queue = DiskQueue::new(disk, Order::Elevator, BYTES);
        let next = |queue: &mut DiskQueue<u64>| queue.serve().map(|served| served.unwrap().tag);
        queue.push(500 * BYTES, true, 500);
        assert_eq!(next(&mut queue), Some(500));
        [100, 501, 900].iter().for_each(|&block| queue.push(block * BYTES, true, block));
        assert_eq!([(); 4].map(|()| next(&mut queue)), [Some(501), Some(900), Some(100), None]);
    }
}
