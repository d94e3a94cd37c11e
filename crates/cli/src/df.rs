//! `shoal df`: what a store holds, tier by tier, and what a crash may cost.
//!
//! A mounted store's daemon is asked, so that the numbers agree with df(1). A store that is not
//! mounted is opened for reading.

use std::time::Duration;

use shoal_devices::size::human;
use shoal_devices::{During, Outcome};
use shoal_store::control::{self, Question};
use shoal_store::{CacheReport, FullIn, LEAVING_PATIENCE, Packed, ReadOnly, Store, StoreReport, UserMemory, place};

use crate::args::DfArgs;
use crate::json;

pub fn run(args: &DfArgs) -> Outcome<()> {
    let place = place::find(&args.path)?;
    let report: StoreReport = match control::ask(&place.store, &Question::Df)? {
        Some(value) => serde_json::from_value(value).during("answer of the daemon")?,
        None => Store::acquire(&place.store, LEAVING_PATIENCE)?.report()?,
    };
    if args.json {
        json::print_json(&report);
    } else {
        print!("{}", text(&report));
        if args.detail {
            print!("{}", detail(&report));
        }
    }
    Ok(())
}

/// Describes bytes per inode and entry, and the forms of small files.
fn detail(report: &StoreReport) -> String {
    let each = |bytes: u64, count: u64| bytes as f64 / count.max(1) as f64;
    let of = &report.metadata;
    let mut out = format!("\ninodes       {:.1} bytes each\n", each(of.inode_bytes, of.inodes));
    out += &format!("profiles     {}\n", report.inode_profiles.text());
    out += &format!("entries      {:.1} bytes each, of {}\n", each(of.entry_bytes, of.entries), of.entries);
    if of.dictionary_bytes > 0 {
        out += &format!("dictionaries {}, {} in two copies\n", of.dictionaries, human(of.dictionary_bytes));
    }
    out.push('\n');
    out += &packed(&report.packed);
    let of = &report.packing;
    let (bytes, plain, log) =
        (human(of.packed_bytes), human(of.unpacked_bytes), of.packing_log_bytes + of.unpacking_log_bytes);
    out += &format!("\npacked       {bytes} since the store was opened, {plain} of them unpacked again by changes\n");
    out + &format!(
        "             {} inodes, {} of them unpacked again; all this wrote {} to the log\n",
        of.packed_inodes,
        of.unpacked_inodes,
        human(log)
    )
}

/// Lists small files by form.
pub fn packed(packed: &Packed) -> String {
    let mut out = format!("{:<12} {:>10} {:>10} {:>10} {:>6}\n", "small files", "groups", "bytes", "stored", "ratio");
    let mut line = |name: &str, groups: u64, raw: u64, stored: u64| {
        let percent = stored as f64 * 100.0 / raw.max(1) as f64;
        out += &format!("{name:<12} {groups:>10} {:>10} {:>10} {percent:>5.1}%\n", human(raw), human(stored));
    };
    for form in &packed.forms {
        line(&form.form, form.groups, form.raw_bytes, form.stored_bytes);
    }
    line("all", packed.forms.iter().map(|form| form.groups).sum(), packed.raw_bytes, packed.stored_bytes);
    out
}

/// Describes, in one line, the memory of the process that serves the store.
fn process_memory(of: &UserMemory) -> String {
    let parts = [
        ("data", of.data_bytes),
        ("log", of.log_bytes),
        ("held writes", of.held_bytes),
        ("program", of.program_bytes),
        ("buffers and the rest", of.other_bytes),
    ];
    let parts: Vec<String> =
        parts.iter().filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| format!("{name} {}", human(*bytes))).collect();
    let (resident, needed) = (human(of.resident_bytes), human(of.needed_bytes));
    format!("process      {resident} in memory, of which it needs {needed}: {}\n", parts.join(", "))
}

/// Describes, in one line, the writes held back in front of a device.
pub fn held_writes(of: &CacheReport, all: &[CacheReport], head: &str) -> String {
    let device = if all.len() > 1 { format!("for bulk device {}: ", of.device) } else { String::new() };
    let age = of.oldest_ms.map_or(String::new(), |ms| format!(", the oldest for {:.1} s", ms as f64 / 1e3));
    let rate = of.rate_bytes.map_or(String::new(), |bytes| format!(", {} a second at most", human(bytes)));
    format!(
        "{head}{device}{} of {}{age}; {}{rate}; in {}\n",
        human(of.held_bytes),
        human(of.size_bytes),
        of.policy,
        of.place
    )
}

/// Describes the state of the checksums of bulk storage.
fn checksums(report: &StoreReport) -> String {
    let found = &report.checksums;
    let mut out = String::new();
    if found.damaged > 0 {
        let (places, store) = (found.damaged, &report.store);
        out += &format!("damaged      bulk storage, in {places} places; `shoal scrub {store}` names the files\n");
    }
    if found.memory_bytes > 0 {
        out += &format!("checksums    of bulk storage, in {} of memory; ", human(found.memory_bytes));
        out += &match &found.last_scrub {
            None => "never scrubbed\n".to_string(),
            Some(scrub) => format!("scrubbed {}, damaged blocks: {}\n", ago(scrub.age()), scrub.findings),
        };
    }
    out
}

fn ago(age: Duration) -> String {
    match age.as_secs() / 3600 {
        0 => "less than an hour ago".to_string(),
        hours @ 1..48 => format!("{hours} hours ago"),
        hours => format!("{} days ago", hours / 24),
    }
}

/// Forecasts in one line when a tier will be full.
fn forecast(tier: &str, full_in: FullIn) -> String {
    let FullIn { seconds, percent } = full_in;
    let about = match seconds / 60 {
        minutes @ 0..120 => format!("{minutes} minutes"),
        minutes @ 120..2880 => format!("{} hours", minutes / 60),
        minutes => format!("{} days", minutes / 1440),
    };
    match percent {
        100 => format!("{tier} full in about {about} at this rate\n"),
        percent => format!("{tier} {percent}% full in about {about} at this rate; then small files spill\n"),
    }
}

fn text(report: &StoreReport) -> String {
    let mounted = report.mountpoint.as_ref().map_or("not mounted".into(), |path| format!("on {path}"));
    let mut out = report.failure.as_ref().map_or(String::new(), ReadOnly::text);
    out += &format!("{}  {mounted}\n\n", report.store);
    out += &format!("{:<8} {:>10} {:>10} {:>10} {:>5}  {}\n", "tier", "size", "used", "free", "use%", "holds");
    for (name, tier) in [("memory", Some(&report.memory)), ("bulk", report.bulk.as_ref())] {
        let Some(tier) = tier else { continue };
        let percent = (tier.used_bytes * 100).div_ceil(tier.size_bytes.max(1));
        out += &format!(
            "{name:<8} {:>10} {:>10} {:>10} {percent:>4}%  {}, in {}\n",
            human(tier.size_bytes),
            human(tier.used_bytes),
            human(tier.free_bytes),
            tier.holds,
            tier.place
        );
    }
    if report.bulks.len() > 1 {
        out += "\n";
        out += &crate::bulk::text(&report.bulks);
    }
    out += &report.troubles.iter().map(|line| format!("TROUBLE      {line}\n")).collect::<String>();
    for (name, full_in) in [("memory", report.forecast.memory), ("bulk storage", report.forecast.bulk)] {
        out += &full_in.map_or(String::new(), |full_in| forecast(name, full_in));
    }
    let files = &report.files;
    out += &format!(
        "\ninodes       {} in use ({} directories, {} large files), {} free\n",
        files.inodes, files.directories, files.large_files, report.statfs.files_free
    );
    if files.damaged > 0 {
        out += &format!(
            "damaged      {} inodes cannot be read; unmount, then run `shoal check --repair {}`\n",
            files.damaged, report.store
        );
    }
    out += &checksums(report);
    out += &format!("small files  up to {} long; compression: {}\n", human(report.threshold_bytes), report.compression);
    if let Some(percent) = report.packed.percent() {
        let (raw, stored) = (human(report.packed.raw_bytes), human(report.packed.stored_bytes));
        out += &format!("packing      {raw} of small files take {stored} ({percent}%)\n");
    }
    let spilled = &report.spilled;
    if spilled.groups > 0 || spilled.counting {
        let so_far = if spilled.counting { ", as far as counted" } else { "" };
        let (raw, stored, blocks) = (human(spilled.raw_bytes), human(spilled.stored_bytes), human(spilled.block_bytes));
        out += &format!("spilled      {raw} of small files take {stored} in {blocks} of bulk storage{so_far}\n");
    }
    for cache in &report.caches {
        out += &held_writes(cache, &report.caches, "held writes  ");
    }
    if report.absorbed_bytes > 0 {
        out += &format!("absorbed     {} of large files, durable in memory and log\n", human(report.absorbed_bytes));
    }
    out += &report.process_memory.as_ref().map_or(String::new(), process_memory);
    out += &format!("memory kind  {}; log to replay after a crash: {}\n", report.memory_kind, human(report.log_bytes));
    out += &format!(
        "may be lost  process crash: {}; power loss: {}; after fsync: {}\n",
        report.loss.process_crash, report.loss.power_loss, report.loss.after_fsync
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_format::superblock::MemoryKind;
    use shoal_store::{Files, InodeProfiles, LossBounds, PackedForm, PackedMetadata, StatFs, Tier};

    fn sample() -> StoreReport {
        StoreReport {
            store: "/s".into(),
            uuid: "u".into(),
            mountpoint: Some("/m".into()),
            failure: None,
            memory: Tier {
                holds: "metadata and small files".into(),
                place: "/s".into(),
                size_bytes: 1 << 30,
                used_bytes: 1 << 29,
                free_bytes: 1 << 29,
                reserved_bytes: 1 << 25,
            },
            bulk: None,
            caches: Vec::new(),
            bulks: Vec::new(),
            troubles: Vec::new(),
            checksums: Default::default(),
            memory_kind: "logged".into(),
            files: Files { inodes: 3, directories: 1, large_files: 0, damaged: 0 },
            threshold_bytes: 1 << 20,
            forecast: Default::default(),
            log_bytes: 2048,
            absorbed_bytes: 8192,
            compression: "auto".into(),
            spilled: Default::default(),
            packing: Default::default(),
            packed: Packed {
                raw_bytes: 3000,
                stored_bytes: 1000,
                forms: vec![PackedForm { form: "zstd".into(), groups: 2, raw_bytes: 3000, stored_bytes: 1000 }],
            },
            metadata: PackedMetadata {
                inodes: 3,
                inode_bytes: 48,
                entries: 2,
                entry_bytes: 128,
                dictionaries: 1,
                dictionary_bytes: 66_048,
            },
            inode_profiles: InodeProfiles { built_in: false, profiles: 2, comment: "shoal profile /usr\n".into() },
            loss: LossBounds::of(MemoryKind::Logged, true),
            process_memory: None,
            statfs: StatFs { block_bytes: 4096, blocks: 10, free: 5, available: 4, files: 9, files_free: 6 },
        }
    }

    #[test]
    fn people_read_tiers_files_and_what_may_be_lost() {
        let text = text(&sample());
        assert!(text.starts_with("/s  on /m\n"), "{text}");
        assert!(
            text.contains("memory        1 GiB    512 MiB    512 MiB   50%  metadata and small files, in /s"),
            "{text}"
        );
        assert!(!text.contains("bulk"), "a store without bulk storage does not show any: {text}");
        assert!(text.contains("packing      2.9 KiB of small files take 1000 B (34%)"), "{text}");
        let detail = detail(&sample());
        assert!(detail.contains("16.0 bytes each\n") && detail.contains("64.0 bytes each, of 2\n"), "{detail}");
        assert!(detail.contains("\ndictionaries 1, 64.5 KiB in two copies\n"), "{detail}");
        assert!(detail.contains("profiles     2, of shoal profile /usr\n"), "{detail}");
        assert!(detail.contains("zstd                  2") && detail.contains("33.3%"), "{detail}");
        assert!(text.contains("3 in use (1 directories, 0 large files), 6 free"));
        assert!(text.contains("process crash: nothing; power loss: at most the last second; after fsync: nothing"));
    }

    #[test]
    fn the_memory_of_the_process_is_split_into_what_it_is_for() {
        let mut report = sample();
        assert!(!text(&report).contains("\nprocess "));
        let of =
            UserMemory { resident_bytes: 5 << 20, needed_bytes: 3 << 20, data_bytes: 4 << 20, ..Default::default() };
        report.process_memory = Some(UserMemory { other_bytes: 1 << 20, ..of });
        let expected =
            "process      5 MiB in memory, of which it needs 3 MiB: data 4 MiB, buffers and the rest 1 MiB\n";
        assert!(text(&report).contains(expected), "{}", text(&report));
    }

    #[test]
    fn spilled_files_are_shown_where_there_are_any() {
        let mut report = sample();
        assert!(!text(&report).contains("spilled"));
        report.spilled.groups = 2;
        (report.spilled.raw_bytes, report.spilled.stored_bytes, report.spilled.block_bytes) =
            (3 << 20, 1 << 20, 2 << 20);
        assert!(text(&report).contains("spilled      3 MiB of small files take 1 MiB in 2 MiB of bulk storage\n"));
        report.spilled.counting = true;
        assert!(text(&report).contains("of bulk storage, as far as counted\n"));
    }

    #[test]
    fn what_will_be_full_is_said_below_the_tiers_where_it_can_be_said() {
        let mut report = sample();
        assert!(!text(&report).contains("at this rate"));
        report.forecast.memory = Some(FullIn { seconds: 3 * 86_400 + 5, percent: 100 });
        assert!(text(&report).contains("\nmemory full in about 3 days at this rate\n\ninodes"));
        report.forecast.memory = Some(FullIn { seconds: 5 * 3600, percent: 85 });
        report.forecast.bulk = Some(FullIn { seconds: 119 * 60, percent: 100 });
        let text = text(&report);
        assert!(text.contains("memory 85% full in about 5 hours at this rate; then small files spill\nbulk storage full in about 119 minutes"), "{text}");
    }

    #[test]
    fn troubles_of_bulk_devices_are_shown_below_the_tiers() {
        let report = StoreReport { troubles: vec!["bulk device 0: a flush failed".into()], ..sample() };
        assert!(text(&report).contains("\nTROUBLE      bulk device 0: a flush failed\n\ninodes"), "{}", text(&report));
    }

    #[test]
    fn damaged_inodes_are_shown_with_the_remedy() {
        let mut report = sample();
        assert!(!text(&report).contains("damaged"));
        report.files.damaged = 2;
        assert!(text(&report).contains("2 inodes cannot be read; unmount, then run `shoal check --repair /s`"));
    }

    #[test]
    fn the_json_is_read_back_by_the_command() {
        let json = serde_json::to_value(sample()).unwrap();
        for key in ["store", "uuid", "mountpoint", "memory", "bulk", "files", "log_bytes", "loss", "statfs"] {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert_eq!(json["memory"]["used_bytes"], 1u64 << 29);
        let back: StoreReport = serde_json::from_value(json).unwrap();
        assert_eq!(back.memory, sample().memory);
    }

    #[test]
    fn a_store_that_failed_says_so_first_and_in_the_json() {
        let failed = ReadOnly {
            operation: "the sync of the log".into(),
            object: "log /s/log".into(),
            cause: "Input/output error (os error 5)".into(),
            time: "2000-02-29T00:00:00Z".into(),
            consequence: "mount it again".into(),
        };
        let report = StoreReport { failure: Some(failed), ..sample() };
        assert!(
            text(&report).starts_with("READ-ONLY since 2000-02-29T00:00:00Z: the sync of the log failed: log /s/log: ")
        );
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["failure"]["cause"], "Input/output error (os error 5)");
        assert!(serde_json::to_value(sample()).unwrap().get("failure").is_none());
    }
}
