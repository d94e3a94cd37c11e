//! Many reads in flight, with no more than a few in memory.
//!
//! Owns: the number of reads in flight while a disk is opened. One read may ask for another, as
//! when a record names the next one. Left out: what is read, and why.

use std::sync::mpsc;

use shoal_format::vlog::BLOCK;
use shoal_media::{BlockDevice, Request, Result};

/// Reads in flight.
pub(crate) const READS: usize = 32;

/// Blocks to read, and their purpose.
pub(crate) struct Read<T> {
    pub at: u32,
    pub blocks: u32,
    pub what: T,
}

/// Performs all `waiting` reads, and those that `take` requests in answer, in any order.
pub(crate) fn read_each<T>(
    device: &dyn BlockDevice,
    mut waiting: impl Iterator<Item = Read<T>>,
    mut take: impl FnMut(&Read<T>, Result<Vec<u8>>) -> Result<Option<Read<T>>>,
) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    let mut slots: Vec<Option<Read<T>>> = (0..READS).map(|_| None).collect();
    let mut free: Vec<usize> = (0..READS).collect();
    let mut follows = None;
    loop {
        while let Some(&slot) = free.last()
            && let Some(read) = follows.take().or_else(|| waiting.next())
        {
            free.pop();
            let buffer = vec![0; read.blocks as usize * BLOCK];
            let request = Request::Read { at: read.at as u64 * BLOCK as u64, buffer };
            slots[slot] = Some(read);
            let sender = sender.clone();
            // After an error the remaining results have no receiver.
            device.submit(request, Box::new(move |result| drop(sender.send((slot, result)))));
        }
        if free.len() == READS {
            return Ok(());
        }
        let Ok((slot, result)) = receiver.recv() else { return Ok(()) };
        free.push(slot);
        if let Some(read) = slots[slot].take() {
            follows = take(&read, result)?;
        }
    }
}
