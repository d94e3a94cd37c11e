//! `shoal format`: makes a new, empty store.
//!
//! Sizes are limits, not allocations: memory is taken as files arrive, the bulk file is sparse. The description is
//! written when everything else is in place.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use shoal_devices::size::{Size, human};
use shoal_devices::{Device, During, Failure, Kind, Made, MakeOptions, Outcome};
use shoal_format::superblock::{Geometry, Superblock};
use shoal_format::{BULK_BLOCK, PAGE, REGION_BYTES_MAX, SEGMENT};
use shoal_fs::{FormatOptions, Fs};
use shoal_host::FileDevice;
use shoal_media::BlockDevice;

use crate::args::{BulkChoice, FormatArgs};
use crate::memory::kind_name;
use crate::store::{self, BulkPlace, Description};

pub const MEMORY_BYTES_MIN: u64 = 8 << 20;
const THRESHOLD_BYTES_MAX: u64 = 64 << 20;
/// A log ring holds at least a few of the largest records.
const RING_BYTES: std::ops::RangeInclusive<u64> = 4 << 20..=64 << 20;

#[derive(Debug, Serialize)]
struct Report {
    store: String,
    uuid: String,
    memory: &'static str,
    memory_bytes: u64,
    bulk: Option<String>,
    bulk_bytes: u64,
    threshold_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<String>,
}

pub fn run(args: &FormatArgs) -> Outcome<()> {
    let scheme = args.store.to_str().and_then(|text| Some((text, text.split_once(':')?.0)));
    if let Some((text, make)) = scheme.and_then(|(text, scheme)| Some((text, Kind::of_scheme(scheme)?.make?))) {
        return tell_made(args, make(text, &make_options(args))?.as_ref());
    }
    if args.over.is_some() || args.size.is_some() {
        let cause = "makes a virtual-log disk, not a store";
        return Err(Failure::new("--over, --size", cause).remedy("name the disk vlog:PATH").misuse());
    }
    let memory_bytes = memory_bytes(args.memory_size)?;
    let threshold = args.threshold.0;
    if threshold > THRESHOLD_BYTES_MAX {
        return Err(Failure::new("--threshold", format!("{} is more than 64 MiB", human(threshold))).misuse());
    }
    if args.bulk == Some(BulkChoice::None) && args.bulk_size.is_some() {
        return Err(Failure::new("--bulk-size", "there is no bulk storage with --bulk none").misuse());
    }
    let mut memory = args.memory.clone();
    if let crate::memory::MemoryChoice::Battery(path) | crate::memory::MemoryChoice::Dax(path) = &mut memory {
        *path = std::path::absolute(&path).during(path.display())?;
        if let Some(parent) = path.parent() {
            fs::metadata(parent).during(format_args!("memory {}", path.display()))?;
        }
    }
    if let Some(BulkChoice::File(path)) = &args.bulk {
        // Before the store's directory is made: a format refused leaves nothing behind.
        let path = std::path::absolute(path).during(path.display())?;
        let store = std::path::absolute(&args.store).during(args.store.display())?;
        let parent = path.parent().filter(|parent| !parent.starts_with(&store));
        if let Some(parent) = parent {
            fs::metadata(parent).during(format_args!("bulk storage {}", path.display()))?;
        }
    }
    let device = match &args.bulk {
        Some(BulkChoice::Device(description)) => Some(open_empty(description, args)?),
        _ => None,
    };
    let (directory, lock) = store::prepare_directory(&args.store, args.force)?;
    let (bulk, bulk_bytes) = match &device {
        Some(device) => elsewhere(&**device, args)?,
        None => prepare_bulk(&directory, args)?,
    };
    let bulk_text = match &bulk {
        None => None,
        Some(BulkPlace::File(file)) => Some(directory.join(file).display().to_string()),
        Some(BulkPlace::Device(text)) => Some(text.clone()),
    };
    let device = match (device, &bulk) {
        (None, Some(BulkPlace::File(file))) => {
            let opened = shoal_devices::file(directory.join(file)).open();
            Some(Arc::from(opened.map_err(|failure| failure.within("bulk storage"))?))
        }
        (device, _) => device,
    };
    let uuid = shoal_devices::new_uuid()?;
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64);
    let geometry = Geometry {
        memory_kind: memory.kind(),
        uuid,
        region_bytes: memory_bytes,
        bulk_blocks: bulk_bytes / BULK_BLOCK,
        ring_bytes: (memory_bytes / 8).clamp(*RING_BYTES.start(), *RING_BYTES.end()) / PAGE * PAGE,
        threshold,
        hash_seed: u64::from_le_bytes(shoal_host::random_bytes().during("random numbers")?),
        created_ns: created,
    };
    let superblock = Superblock::layout(geometry)
        .map_err(|error| Failure::new("layout", error).remedy("raise --memory-size or lower --bulk-size"))?;
    let description = Description { version: 1, uuid: shoal_devices::uuid_text(&uuid), memory, bulk };
    let media = store::create_media(&directory, &description, &superblock, device)?;
    let options = FormatOptions {
        geometry,
        root_mode: 0o755,
        root_uid: nix::unistd::geteuid().as_raw(),
        root_gid: nix::unistd::getegid().as_raw(),
    };
    Fs::format(media.parts, &options).during(format_args!("store {}", directory.display()))?;
    store::write_description(&directory, &description)?;
    let warning = (!media.survives_power_loss).then(|| {
        "the file system of the memory refuses MAP_SYNC: operations survive a process crash, not a power loss".into()
    });
    let store = store::Store::assemble(directory, description, lock);
    let report = Report {
        bulk: bulk_text,
        store: store.directory.display().to_string(),
        uuid: store.description.uuid,
        memory: kind_name(store.description.memory.kind()),
        memory_bytes: superblock.region_bytes,
        bulk_bytes,
        threshold_bytes: threshold,
        warning,
    };
    if args.json {
        crate::print_json(&report);
    } else {
        print(&report);
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
    }
}

/// Tells of a disk that is no store.
fn tell_made(args: &FormatArgs, made: &dyn Made) -> Outcome<()> {
    let text = if args.json { made.to_json().during("report")? } else { made.to_string() };
    println!("{text}");
    Ok(())
}

fn print(report: &Report) {
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
    if let Some(warning) = &report.warning {
        println!("warning: {warning}");
    }
    println!("mount it with `shoal mount {} MOUNTPOINT`", report.store);
}

pub fn memory_bytes(wanted: Option<Size>) -> Outcome<u64> {
    let bytes = wanted.map_or_else(|| (shoal_host::memory_total_bytes() / 2).max(MEMORY_BYTES_MIN), |size| size.0);
    if !(MEMORY_BYTES_MIN..=REGION_BYTES_MAX).contains(&bytes) {
        let cause = format!("{} is outside the range allowed", human(bytes));
        return Err(Failure::new("--memory-size", cause).remedy("give 8M to 1T").misuse());
    }
    Ok(bytes / SEGMENT * SEGMENT)
}

/// Makes or opens what will hold large files; its place as the description names it, and its usable size.
fn prepare_bulk(directory: &Path, args: &FormatArgs) -> Outcome<(Option<BulkPlace>, u64)> {
    let file = match &args.bulk {
        Some(BulkChoice::None | BulkChoice::Device(_)) => return Ok((None, 0)),
        None => PathBuf::from(store::BULK),
        Some(BulkChoice::File(path)) => {
            let path = std::path::absolute(path).during(path.display())?;
            path.strip_prefix(directory).map(Path::to_path_buf).unwrap_or(path)
        }
    };
    let path = directory.join(&file);
    let bytes = if shoal_devices::is_block_device(&path) {
        shoal_devices::refuse_if_in_use(&path)?;
        let device = FileDevice::open(&path).during("bulk storage")?;
        shoal_devices::refuse_if_not_empty(&device, path.display(), args.force)?;
        let found = device.geometry().bytes;
        let wanted = args.bulk_size.map_or(found, |size| size.0);
        if wanted > found {
            let cause = format!("{} is more than {} has ({})", human(wanted), path.display(), human(found));
            return Err(Failure::new("--bulk-size", cause).misuse());
        }
        wanted
    } else {
        let parent = path.parent().unwrap_or(directory);
        let bytes = match args.bulk_size {
            Some(size) => size.0,
            None => {
                shoal_host::host_free_bytes(parent).during(format_args!("bulk storage {}", path.display()))?.total_bytes
            }
        } / BULK_BLOCK
            * BULK_BLOCK;
        FileDevice::create(&path, bytes).during("bulk storage")?;
        bytes
    };
    let bytes = bytes / BULK_BLOCK * BULK_BLOCK;
    if bytes == 0 {
        return Err(Failure::new("--bulk-size", "smaller than one block of 64 KiB").remedy("use --bulk none").misuse());
    }
    Ok((Some(BulkPlace::File(file)), bytes))
}

/// Opens a device elsewhere; one that holds something is not overwritten by mistake.
fn open_empty(description: &shoal_devices::Description, args: &FormatArgs) -> Outcome<Arc<dyn Device>> {
    let description = description.absolute().during("--bulk")?;
    let opened = description.open();
    let device: Arc<dyn Device> = opened.map(Arc::from).map_err(|failure| failure.within("bulk storage"))?;
    let block_device = device.block_device();
    shoal_devices::refuse_if_not_empty(&*block_device, description, args.force)?;
    // A hint: what an earlier user left there takes no room any more.
    let _ = shoal_media::trim(&*block_device, 0, block_device.geometry().bytes);
    Ok(device)
}

/// Place and usable size of a device elsewhere.
fn elsewhere(device: &dyn Device, args: &FormatArgs) -> Outcome<(Option<BulkPlace>, u64)> {
    let found = device.block_device().geometry().bytes;
    let wanted = args.bulk_size.map_or(found, |size| size.0);
    if wanted > found {
        let cause =
            format!("{} is more than {} has ({})", human(wanted), device.description().without_secrets(), human(found));
        return Err(Failure::new("--bulk-size", cause).misuse());
    }
    let bytes = wanted / BULK_BLOCK * BULK_BLOCK;
    if bytes == 0 {
        return Err(Failure::new("bulk storage", "smaller than one block of 64 KiB")
            .remedy("use --bulk none")
            .misuse());
    }
    Ok((Some(BulkPlace::Device(device.description().to_string())), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn format(line: &[&str], store: &Path) -> Outcome<()> {
        let words = ["shoal", "format", "--json"].into_iter().chain(line.iter().copied());
        let Command::Format(args) = Cli::parse_from(words.chain([store.to_str().unwrap()])).command else { panic!() };
        run(&args)
    }

    #[test]
    fn a_formatted_store_opens_clean_and_empty_with_each_kind_of_memory() {
        let dir = tempfile::tempdir().unwrap();
        for kind in ["logged", "battery", "dax"] {
            let path = dir.path().join(kind);
            let memory = match kind {
                "logged" => kind.into(),
                _ => format!("{kind}={}", dir.path().join(format!("{kind}.region")).display()),
            };
            let line = ["--memory", &memory, "--memory-size", "64M", "--bulk-size", "16M", "--threshold", "64K"];
            format(&line, &path).unwrap();
            assert!(format(&line, &path).unwrap_err().to_string().contains("--force"));
            format(&[&line[..], &["--force"]].concat(), &path).unwrap();
            let store = store::Store::acquire(&path, std::time::Duration::ZERO).unwrap();
            assert_eq!(store::writer(&path), None, "{kind}");
            let (fs, recovery, _) = store.open(shoal_fs::Options::default()).unwrap();
            assert!(recovery.clean, "{kind}");
            assert_eq!(fs.usage().inodes, 1, "{kind}");
            assert_eq!(fs.usage().bulk_bytes, 16 << 20, "{kind}");
            assert_eq!(fs.region().superblock().threshold, 64 << 10);
            store.write_pid().unwrap();
            assert_eq!(store::writer(&path), Some(std::process::id()));
            assert!(!store.power_was_lost());
            std::fs::write(path.join("pid"), "7\nanother boot\n").unwrap();
            assert!(store.power_was_lost());
            store.remove_pid();
            fs.shutdown().unwrap();
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        for line in [
            &["--memory-size", "7M"][..],
            &["--memory-size", "2T"],
            &["--threshold", "65M"],
            &["--bulk", "none", "--bulk-size", "1G"],
        ] {
            assert!(format(line, &path).unwrap_err().is_misuse(), "{line:?}");
            assert!(!path.exists());
        }
        format(&["--bulk-size", "1K"], &path).unwrap_err();
        assert!(store::Store::describe(&path).is_err(), "a format that failed leaves no store");
        format(&["--bulk", "none", "--memory-size", "8M", "--force"], &path).unwrap();
    }
}
