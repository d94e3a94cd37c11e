//! `shoal netram`: work over a network RAM disk that is served or that holds a store's large files.
//!
//! The server is asked to start a scrub or a rebalance and then works by itself. The command shows the progress; if it is
//! interrupted, the work continues.
//! Left out: changes of donors (`status`).

use std::time::Duration;

use shoal_devices::{DonorChange, During, Failure, Outcome};
use shoal_store::control::Question;
use shoal_store::{Progress, Status};

use crate::json;
use crate::netram_args::{NetramCommand, NetramRebalanceArgs, NetramResizeArgs, NetramScrubArgs};
use crate::progress::Bars;
use crate::status::ask;

/// Interval between two questions about the server's progress.
const LOOK: Duration = Duration::from_millis(300);

pub fn run(command: &NetramCommand) -> Outcome<()> {
    match command {
        NetramCommand::Scrub(args) => scrub(args),
        NetramCommand::Rebalance(args) => rebalance(args),
        NetramCommand::Resize(args) => resize(args),
    }
}

/// Returns the report on a disk.
fn disk(server: &str) -> Outcome<serde_json::Value> {
    let status: Status = serde_json::from_value(ask(server, &Question::Status)?).during("answer of the server")?;
    let disks = status.device.iter().chain(&status.more_devices).filter_map(|device| device.own.get("disk"));
    let disk = disks.into_iter().find(|disk| disk.get("scrub").is_some());
    let disk = disk.ok_or_else(|| {
        Failure::new(server, "has no network RAM disk, or is too old to scrub it")
            .remedy("name one that has such a disk, or restart it")
    })?;
    Ok(disk.clone())
}

/// Returns a number from the report on a disk.
fn number(server: &str, pointer: &str) -> Outcome<Option<u64>> {
    Ok(disk(server)?.pointer(pointer).and_then(serde_json::Value::as_u64))
}

fn change(server: &str, change: DonorChange, donor: String) -> Outcome<String> {
    let done = ask(server, &Question::Donor { change, donor })?;
    Ok(done.as_str().unwrap_or_default().into())
}

fn resize(args: &NetramResizeArgs) -> Outcome<()> {
    let done = change(&args.server, DonorChange::Grow, args.size.0.to_string())?;
    match args.json {
        true => json::print_json(&serde_json::json!({ "size_bytes": args.size.0 })),
        false => println!("{done}"),
    }
    Ok(())
}

fn rebalance(args: &NetramRebalanceArgs) -> Outcome<()> {
    let server = &args.server;
    let before = number(server, "/balance/completed")?;
    let asked = if args.stop { DonorChange::StopRebalance } else { DonorChange::Rebalance };
    let begun = change(server, asked, String::new())?;
    if args.background || args.stop {
        println!("{begun}");
        return Ok(());
    }
    let bars = Bars::new(args.json);
    let mut total = 0;
    while number(server, "/balance/completed")? == before {
        let moved = number(server, "/balance/units_moved")?.unwrap_or(0);
        let all = moved + number(server, "/balance/units_left")?.unwrap_or(0);
        if total == 0 && all > 0 {
            bars.begin("moving units", all);
            total = all;
        }
        bars.at(moved.min(total));
        std::thread::sleep(LOOK);
    }
    bars.end();
    let moved = number(server, "/balance/units_moved_last")?.unwrap_or(0);
    let balance = disk(server)?;
    let percent = |which: &str| balance.pointer(which).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let (emptiest, fullest) = (percent("/balance/emptiest_percent"), percent("/balance/fullest_percent"));
    match args.json {
        true => json::print_json(&serde_json::json!({
            "units_moved": moved, "emptiest_percent": emptiest, "fullest_percent": fullest,
        })),
        false => println!("moved {moved} units; the donors are {emptiest:.0} to {fullest:.0}% full"),
    }
    Ok(())
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
