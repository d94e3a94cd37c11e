//! `shoal df`: what a store holds, tier by tier, and what a crash may cost.
//!
//! For a mounted store the daemon is asked, so that the numbers agree with df(1); a store that is not mounted is opened
//! for reading.

use shoal_devices::size::human;
use shoal_devices::{During, Outcome};
use shoal_store::control::{self, Question};
use shoal_store::{LEAVING_PATIENCE, ReadOnly, Store, StoreReport, place};

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
    }
    Ok(())
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
    out += &format!("small files  up to {} long; compression: {}\n", human(report.threshold_bytes), report.compression);
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
    use shoal_store::{Files, LossBounds, StatFs, Tier};

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
            memory_kind: "logged".into(),
            files: Files { inodes: 3, directories: 1, large_files: 0, damaged: 0 },
            threshold_bytes: 1 << 20,
            log_bytes: 2048,
            compression: "none".into(),
            loss: LossBounds::of(MemoryKind::Logged, true),
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
        assert!(text.contains("3 in use (1 directories, 0 large files), 6 free"));
        assert!(text.contains("process crash: nothing; power loss: at most the last second; after fsync: nothing"));
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
