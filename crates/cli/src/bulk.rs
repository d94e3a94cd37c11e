//! `shoal bulk`: the bulk devices of a store, mounted or not. Devices are added, emptied and
//! removed; lost devices are used again.
//!
//! A mounted store is asked through its control socket and empties a device in the background. The
//! command shows the progress; if it is interrupted, the work continues. A store that is not
//! mounted is opened here.

use std::path::Path;
use std::time::Duration;

use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_store::control::{self, Question};
use shoal_store::{BulkChange, BulkFile, BulkReport, LEAVING_PATIENCE, Progress, ReportedState, Store, place};

use crate::args::{BulkCommand, BulkListArgs};
use crate::json;
use crate::progress::Bars;

/// Interval between two questions to a daemon that empties a device.
const LOOK: Duration = Duration::from_millis(300);

pub fn run(command: &BulkCommand) -> Outcome<()> {
    match command {
        BulkCommand::List(args) => list(args),
        BulkCommand::Files(args) => files(&args.store, &args.device, args.json),
        BulkCommand::Add(args) => {
            let size_bytes = args.size.map(|size| size.0);
            change(&args.store, BulkChange::Add { device: named(&args.device)?, size_bytes, force: args.force })
        }
        BulkCommand::Remove(args) => remove(&args.store, &named(&args.device)?, args.background, args.json),
        BulkCommand::Keep(args) => change(&args.store, BulkChange::Keep { device: named(&args.device)? }),
        BulkCommand::Retry(args) => change(&args.store, BulkChange::Retry { device: named(&args.device)? }),
    }
}

/// Returns the name of a device with an absolute path, because the daemon's working directory
/// differs. A path without a scheme names a file or a block device.
fn named(device: &str) -> Outcome<String> {
    let path = match device.split_once(':') {
        _ if device.parse::<u32>().is_ok() => return Ok(device.into()),
        None => device,
        Some(("file" | "device", path)) => path,
        Some(_) => return Ok(device.into()),
    };
    Ok(format!("file:{}", std::path::absolute(path).during(path)?.display()))
}

fn reports(store: &Path) -> Outcome<Option<Vec<BulkReport>>> {
    let value = control::ask(store, &Question::Bulks)?;
    value.map(|value| serde_json::from_value(value).during("answer of the daemon")).transpose()
}

/// Warns, after a mount without some bulk devices, which ones are missing and what that costs.
pub fn warn_of_lost(store: &Path) {
    // A store that cannot be asked has logged the reason.
    let found = reports(store).ok().flatten().unwrap_or_default();
    for report in found.iter().filter(|report| report.state == ReportedState::Lost) {
        eprintln!(
            "shoal: bulk device {} ({}) is lost: {} of files cannot be read; `shoal bulk files` lists the files, and `shoal bulk \
             retry` uses the device again when it is back",
            report.number,
            report.device,
            human(report.used_bytes)
        );
    }
}

fn list(args: &BulkListArgs) -> Outcome<()> {
    let place = place::find(&args.store)?;
    let found = match reports(&place.store)? {
        Some(found) => found,
        None => Store::acquire(&place.store, LEAVING_PATIENCE)?.bulk_reports()?,
    };
    if args.json {
        json::print_json(&found);
    } else {
        print!("{}", text(&found));
    }
    Ok(())
}

/// Lists the devices, one per line.
pub fn text(found: &[BulkReport]) -> String {
    let mut out = format!("{:<7} {:<15} {:>9} {:>9} {:>9}  device\n", "number", "state", "size", "used", "free");
    for report in found {
        let (size, used, free) = (human(report.size_bytes), human(report.used_bytes), human(report.free_bytes));
        out += &format!("{:<7} {:<15} {size:>9} {used:>9} {free:>9}  {}\n", report.number, report.state, report.device);
        if let Some(cause) = &report.cause {
            out += &format!("        {cause}\n");
        }
        if report.suspect_bytes > 0 {
            out += &format!("        {} are in doubt because a flush failed\n", human(report.suspect_bytes));
        }
        if report.damaged > 0 {
            out += &format!("        damaged in {} places; `shoal scrub` names the files\n", report.damaged);
        }
        if let Some(held) = report.held_bytes.filter(|held| *held > 0) {
            out += &format!("        {} of writes are held back in front of it\n", human(held));
        }
        if let Some(moved) = report.moved_bytes {
            out += &format!("        {} moved off it\n", human(moved));
        }
    }
    out
}

fn files(store: &Path, device: &str, as_json: bool) -> Outcome<()> {
    let place = place::find(store)?;
    let device = named(device)?;
    let found: Vec<BulkFile> = match control::ask(&place.store, &Question::BulkFiles { device: device.clone() })? {
        Some(value) => serde_json::from_value(value).during("answer of the daemon")?,
        None => Store::acquire(&place.store, LEAVING_PATIENCE)?.bulk_files(&device)?,
    };
    if as_json {
        json::print_json(&found);
    } else {
        found.iter().for_each(|file| println!("{:>9}  {}", human(file.bytes), file.path));
    }
    Ok(())
}

fn change(store: &Path, change: BulkChange) -> Outcome<()> {
    let place = place::find(store)?;
    let done = match control::ask(&place.store, &Question::Bulk { change: change.clone() })? {
        Some(value) => value.as_str().unwrap_or_default().to_string(),
        None => Store::acquire(&place.store, LEAVING_PATIENCE)?.change_bulks(&change, &())?,
    };
    println!("{done}");
    Ok(())
}

fn remove(store: &Path, device: &str, background: bool, as_json: bool) -> Outcome<()> {
    let place = place::find(store)?;
    let change = BulkChange::Remove { device: device.into() };
    let before = reports(&place.store)?;
    if before.is_none() {
        let done = Store::acquire(&place.store, LEAVING_PATIENCE)?.change_bulks(&change, &Bars::new(as_json))?;
        say(&done.to_string(), true, as_json);
        return Ok(());
    }
    let answer = control::ask(&place.store, &Question::Bulk { change })?.unwrap_or_default();
    let told = answer.as_str().unwrap_or_default();
    let number = told.split(' ').nth(2).and_then(|word| word.parse().ok());
    let Some(number) = number.filter(|_: &u32| !background) else {
        say(told, false, as_json);
        return Ok(());
    };
    let bars = Bars::new(as_json);
    let mut total = 0;
    loop {
        let now = reports(&place.store)?;
        let now =
            now.ok_or_else(|| Failure::new(store.display(), "was unmounted; the removal continues at the next mount"))?;
        let Some(report) = now.iter().find(|report| report.number == number) else { break };
        if report.state == ReportedState::InUse {
            bars.end();
            return Err(Failure::new(format!("bulk device {number}"), "its removal was cancelled"));
        }
        // If the device holds no data, the removal ends even while the device is away.
        if let Some(cause) = report.cause.as_ref().filter(|_| report.used_bytes > 0) {
            bars.end();
            let remedy = "the removal continues once this is resolved; `shoal bulk keep` cancels it";
            return Err(Failure::new(format!("bulk device {number}"), cause.clone()).remedy(remedy));
        }
        let moved = report.moved_bytes.unwrap_or(0);
        if total != moved + report.used_bytes {
            total = moved + report.used_bytes;
            bars.begin("moving large files (bytes)", total);
        }
        bars.at(moved);
        std::thread::sleep(LOOK);
    }
    bars.end();
    say(&format!("bulk device {number} is empty and removed"), true, as_json);
    Ok(())
}

/// Reports the result of a removal, or that it continues in the background.
fn say(said: &str, is_removed: bool, as_json: bool) {
    match as_json {
        true => json::print_json(&serde_json::json!({ "removed": is_removed, "message": said })),
        false => println!("{said}"),
    }
}
