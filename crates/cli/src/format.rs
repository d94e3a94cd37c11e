//! `shoal format`: makes a new, empty store, or a network RAM disk or virtual-log disk.
//!
//! A name that begins with the scheme of a disk makes that disk; any other name is the directory of
//! a store. Options that apply only to the other kind are refused.

use shoal_devices::size::human;
use shoal_devices::{During, Failure, Kind, Made, MakeOptions, Outcome};
use shoal_store::{FormatOptions, Formatted, Store};

use crate::args::FormatArgs;
use crate::json;

pub fn run(args: &FormatArgs) -> Outcome<()> {
    let scheme = args.store.to_str().and_then(|text| Some((text, text.split_once(':')?.0)));
    if let Some((text, make)) = scheme.and_then(|(text, scheme)| Some((text, Kind::of_scheme(scheme)?.make?))) {
        if !args.profile.is_empty() {
            let cause = "is only for a store, since a disk has no inodes";
            return Err(Failure::new("--profile", cause).remedy("leave it out").misuse());
        }
        return tell_made(args, make(text, &make_options(args))?.as_ref());
    }
    if args.over.is_some() || args.size.is_some() {
        let cause = "are only for a virtual-log disk";
        return Err(Failure::new("--over, --size", cause).remedy("name the disk vlog:PATH").misuse());
    }
    let formatted = Store::format(
        &args.store,
        &FormatOptions {
            memory: args.memory.clone(),
            memory_bytes: args.memory_size.map(|size| size.0),
            bulk: args.bulk.clone(),
            bulk_bytes: args.bulk_size.map(|size| size.0),
            threshold_bytes: args.threshold.0,
            compress: args.compress,
            profiles: args.profile.clone(),
            sums: !args.no_sums,
            force: args.force,
        },
    )?;
    if args.json {
        json::print_json(&formatted);
    } else {
        print(&formatted);
    }
    Ok(())
}

fn make_options(args: &FormatArgs) -> MakeOptions {
    MakeOptions {
        over: args.over.clone(),
        size: args.size,
        spare_percent: args.spare,
        segment_bytes: args.segment.0,
        force: args.force,
        tell: |text| eprintln!("{text}"),
    }
}

/// Reports a disk that is not a store.
fn tell_made(args: &FormatArgs, made: &dyn Made) -> Outcome<()> {
    let text = if args.json { made.to_json().during("report")? } else { made.to_string() };
    println!("{text}");
    Ok(())
}

fn print(report: &Formatted) {
    let bulk = match &report.bulk {
        Some(path) => format!("up to {} of large files in {}", human(report.bulk_bytes), path),
        None => "no bulk storage".into(),
    };
    println!(
        "{}: up to {} of metadata and small files in {} memory, {bulk}",
        report.store,
        human(report.memory_bytes),
        report.memory
    );
    if !report.inode_profiles.built_in {
        println!("inodes are packed with profiles: {}", report.inode_profiles.text());
    }
    if let Some(warning) = &report.warning {
        println!("warning: {warning}");
    }
    println!("mount it with `shoal mount {} MOUNTPOINT`", report.store);
}
