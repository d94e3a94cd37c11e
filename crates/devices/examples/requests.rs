//! Measures requests to a device that is open in this process, one at a time.
//!
//! `cargo run --release -p shoal-devices --example requests -- DEVICE write|read BYTES SECONDS` writes or reads blocks of
//! 4 KiB at random places of the first BYTES bytes and prints how many a second were answered. The device must exist;
//! what lies there is overwritten. `scripts/bench-ramdisk` runs it beside fio.

use std::error::Error;
use std::time::{Duration, Instant};

use shoal_devices::DeviceName;
use shoal_sim::Random;

const BLOCK: usize = 4096;
/// Requests between two looks at the clock.
const BATCH: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [device, what, bytes, seconds] = words.as_slice() else {
        return Err("usage: requests DEVICE write|read BYTES SECONDS".into());
    };
    let (blocks, limit) = (bytes.parse::<u64>()? / BLOCK as u64, Duration::from_secs(seconds.parse()?));
    let device = device.parse::<DeviceName>()?.open()?;
    let disk = device.block_device();
    let mut random = Random::new(1);
    let mut block = random.bytes(BLOCK);
    let (clock, mut count) = (Instant::now(), 0);
    while clock.elapsed() < limit {
        for _ in 0..BATCH {
            let at = random.below(blocks) * BLOCK as u64;
            let done = match what.as_str() {
                "write" => disk.write_from(at, &block),
                "read" => disk.read_into(at, &mut block),
                other => return Err(format!("{other}: give write or read").into()),
            };
            done.map_err(|error| format!("{error} after {count} requests: {:?}", device.report()))?;
        }
        count += BATCH;
    }
    let rate = f64::from(count) / clock.elapsed().as_secs_f64();
    shoal_media::flush(&*disk)?;
    drop(disk);
    device.close()?;
    println!("{rate:.0}");
    Ok(())
}
