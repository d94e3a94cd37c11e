//! `shoal netram`: work over a network RAM disk that is served or that holds a store's large files.
//!
//! The server is asked to start and then works by itself. The command shows the progress; if it is
//! interrupted, the work continues.
//! Left out: changes of donors (`status`).

use std::time::Duration;

use shoal_devices::{DonorChange, During, Failure, Outcome};
use shoal_store::control::Question;
use shoal_store::{Progress, Status};

use crate::args::{NetramCommand, NetramScrubArgs};
use crate::progress::Bars;
use crate::status::ask;

/// Interval between two questions about the server's progress.
const LOOK: Duration = Duration::from_millis(300);

pub fn run(command: &NetramCommand) -> Outcome<()> {
    match command {
        NetramCommand::Scrub(args) => scrub(args),
    }
}

/// Returns a number from the report on a disk.
fn number(server: &str, pointer: &str) -> Outcome<Option<u64>> {
    let status: Status = serde_json::from_value(ask(server, &Question::Status)?).during("answer of the server")?;
    let disks = status.device.iter().chain(&status.more_devices).filter_map(|device| device.own.get("disk"));
    let disk = disks.into_iter().find(|disk| disk.get("scrub").is_some());
    let disk = disk.ok_or_else(|| {
        Failure::new(server, "has no network RAM disk, or is too old to scrub it")
            .remedy("name one that has such a disk, or restart it")
    })?;
    Ok(disk.pointer(pointer).and_then(serde_json::Value::as_u64))
}

fn scrub(args: &NetramScrubArgs) -> Outcome<()> {
    let server = &args.server;
    let before = number(server, "/scrub/completed")?;
    let begun = ask(server, &Question::Donor { change: DonorChange::Scrub, donor: String::new() })?;
    if args.background {
        println!("{}", begun.as_str().unwrap_or_default());
        return Ok(());
    }
    let bars = Bars::new(false);
    let mut total = 0;
    while number(server, "/scrub/completed")? == before {
        let all = number(server, "/scrub/groups")?.unwrap_or(total);
        if all != total {
            bars.begin("reading groups", all);
            total = all;
        }
        bars.at(number(server, "/scrub/groups_done")?.unwrap_or(all));
        std::thread::sleep(LOOK);
    }
    bars.end();
    let found = number(server, "/scrub/last_found")?.unwrap_or(0);
    let left = number(server, "/damage/unrepaired")?.unwrap_or(0);
    println!("scrubbed: {found} damaged blocks were found, {left} are not rewritten yet");
    Ok(())
}
