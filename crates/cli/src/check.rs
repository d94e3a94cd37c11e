//! `shoal check`: verifies a store that nobody uses, with the exit codes of fsck(8).
//!
//! The checker itself is `shoal-check`, which shares no code with the engine; here its media are opened and its
//! report is printed. The store's lock is held meanwhile, so a mounted store is refused.

mod repair;

use std::process::ExitCode;
use std::sync::Arc;

use shoal_check::{Finding, FindingKind, ImageSource, Progress, Report, Source, Stage};
use shoal_devices::size::human;
use shoal_devices::{During, Failure, Outcome};
use shoal_host::{SEGMENT_BYTES, SegmentLog, SharedKind, SharedMap};
use shoal_media::LogDevice;

use crate::args::CheckArgs;
use crate::battery;
use crate::memory::MemoryChoice;
use crate::store::{self, Store};
use crate::{place, progress};

/// Findings printed for people; JSON has all of them.
const FINDINGS_PRINTED_MAX: usize = 100;

pub fn run(args: &CheckArgs) -> Outcome<ExitCode> {
    let store = acquire(args)?;
    if args.repair {
        return repair::run(&store, args);
    }
    let report = examine(&store, !args.no_sums, args.json)?;
    if args.json {
        println!("{}", report.to_json());
    } else {
        print(&report, args);
    }
    Ok(ExitCode::from(report.exit_code()))
}

fn acquire(args: &CheckArgs) -> Outcome<Store> {
    let place = place::find(&args.store)?;
    if let Some(mountpoint) = &place.mountpoint
        && store::is_in_use(&place.store).unwrap_or(true)
    {
        return Err(Failure::new(place.store.display(), format!("is mounted on {}", mountpoint.display()))
            .remedy(format!("run `shoal umount {}` first", mountpoint.display())));
    }
    Store::acquire(&place.store, store::LEAVING_PATIENCE)
}

/// Checks a store that this process holds.
pub fn examine(store: &Store, sums: bool, silent: bool) -> Outcome<Report> {
    // Of bulk storage elsewhere the size is not asked: a store can be checked while its server is away.
    let bulk_bytes = store.bulk_file_bytes()?;
    let bar = progress::steps(0, silent);
    let mut stage = None;
    let mut show = |progress: Progress| {
        if stage != Some(progress.stage) {
            stage = Some(progress.stage);
            bar.set_message(stage_name(progress.stage));
            bar.set_length(progress.total);
        }
        bar.set_position(progress.done);
    };
    let mut run = |image, log| {
        let power_lost = store.power_was_lost();
        shoal_check::check(Source { image, log, bulk_bytes, power_lost, sums }, &mut show)
            .during(store.directory.display())
    };
    let report = match &store.description.memory {
        MemoryChoice::Logged => {
            let images = store.open_images()?;
            let log: Arc<dyn LogDevice> = Arc::new(SegmentLog::open(&store.log_path(), SEGMENT_BYTES).during("log")?);
            run(ImageSource::Images([images[0].as_ref(), images[1].as_ref()]), Some(log.as_ref()))?
        }
        MemoryChoice::Battery(path) => {
            // What a mount would refuse is not the store, sound as it may be in itself.
            let wish = battery::Wish {
                read_only: true,
                restore: false,
                uuid: &store.description.uuid,
                unmounted: store.was_unmounted(),
            };
            let images = store.open_images()?;
            if path.exists() {
                let memory = battery::open(path, &images, &wish)?;
                run(ImageSource::Memory(memory.as_ref()), None)?
            } else {
                let mut report = run(ImageSource::Images([images[0].as_ref(), images[1].as_ref()]), None)?;
                if let Err(failure) = battery::image_in_place_of(path, &images, &wish) {
                    let sentence = failure.to_string();
                    let gone = FindingKind::RegionGone;
                    report.errors.push(Finding { kind: gone, inode: None, path: None, offset: None, sentence });
                }
                report
            }
        }
        MemoryChoice::Dax(path) => {
            let memory = SharedMap::open(path, SharedKind::Dax).during("memory")?;
            run(ImageSource::Memory(&memory), None)?
        }
    };
    bar.finish_and_clear();
    Ok(report)
}

/// For who writes a store's bytes anew: a reference that cannot be read cannot be moved, and new sums over bytes that do not fit
/// the old ones would hide the damage.
pub fn refuse_damaged(store: &Store, silent: bool) -> Outcome<()> {
    let report = examine(store, true, silent)?;
    let Some(error) = report.errors.first() else { return Ok(()) };
    let (name, count) = (store.directory.display(), report.errors.len());
    let cause = match count {
        1 => format!("is damaged: {error}"),
        _ => format!("is damaged: {error} (and {} more errors)", count - 1),
    };
    let remedy =
        format!("run `shoal check --repair {name}` first; what that leaves, `shoal salvage {name} DIR` copies out");
    Err(Failure::new(&name, cause).remedy(remedy))
}

fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Sums => "checksums",
        Stage::Replay => "log",
        Stage::Segments => "segments",
        Stage::Inodes => "inodes",
        Stage::Directories => "directories",
        Stage::Links => "links",
        Stage::Allocation => "allocation",
    }
}

fn print(report: &Report, args: &CheckArgs) {
    let list = |title: &str, findings: &[Finding]| {
        for finding in findings.iter().take(FINDINGS_PRINTED_MAX) {
            println!("{title}: {finding}");
        }
        if findings.len() > FINDINGS_PRINTED_MAX {
            println!("{title}: and {} more (--json lists them)", findings.len() - FINDINGS_PRINTED_MAX);
        }
    };
    list("error", &report.errors);
    list("note", &report.notes);
    let c = &report.counts;
    println!(
        "{}: {} inodes ({} directories, {} files, {} symbolic links, {} others), {} small and {} large data",
        args.store.display(),
        c.inodes,
        c.directories,
        c.files,
        c.symlinks,
        c.others,
        human(c.small_bytes),
        human(c.large_bytes)
    );
    let gone = report.errors.iter().any(|finding| finding.kind == FindingKind::RegionGone);
    let state = match (report.clean, gone) {
        (true, _) => "unmounted cleanly",
        (false, true) => "not unmounted cleanly",
        (false, false) => "not unmounted cleanly; the next mount recovers it",
    };
    match report.errors.len() {
        0 => println!("no errors; {state}"),
        1 => println!("1 error; {state}"),
        n => println!("{n} errors; {state}"),
    }
}
