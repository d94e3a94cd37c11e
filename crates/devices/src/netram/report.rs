//! The state of a network RAM disk: its donors, its redundancy, a running rebuild, and its traffic.
//!
//! Owns the report, which travels as JSON over a control socket, and its text. Counters start when
//! the disk is opened.

use serde::{Deserialize, Serialize};
use shoal_netram::{Aside, BalanceStatus, DonorState, Status};

use super::Inner;
use crate::device::DeviceReport;
use crate::size::human;
use crate::uuid::uuid_text;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DiskReport {
    pub uuid: String,
    pub policy: String,
    /// False while a found disk is still being read.
    pub ready: bool,
    pub block_bytes: u32,
    /// Donors that a group spreads over, for data and for parity.
    pub data_units: usize,
    pub parity_units: usize,
    pub donors: Vec<DonorReport>,
    pub domains: Option<Domains>,
    pub groups: Groups,
    pub redundancy: Redundancy,
    #[serde(default)]
    pub damage: Damage,
    #[serde(default)]
    pub scrub: Scrub,
    #[serde(default)]
    pub balance: Balance,
    /// A flush failed, and no later one has covered its blocks yet.
    #[serde(default)]
    pub unflushed: Option<Unflushed>,
    /// Too few donors are there to store anything.
    #[serde(default)]
    pub too_few: Option<TooFew>,
    /// Every request fails, for this reason.
    #[serde(default)]
    pub failure: Option<String>,
    pub rebuild: Option<Rebuild>,
    #[serde(default)]
    pub checkpoints: Checkpoints,
    pub counts: Counts,
}

/// Failure domains of donors.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Domains {
    /// Domains with active donors.
    pub there: usize,
    /// The loss of as many domains as there is parity loses nothing.
    pub in_force: bool,
    /// Groups with two units in one domain.
    pub groups_shared: u64,
}

/// Donors that are there, and how many are needed to store anything.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct TooFew {
    pub there: usize,
    pub needed: usize,
}

/// Checkpoints of the map.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// Completed since the disk was opened.
    pub completed: u64,
    /// The disk was opened from a checkpoint, without looking at all units.
    pub opened: bool,
    /// Why no checkpoint was used.
    #[serde(default)]
    pub unused: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct DonorReport {
    pub name: String,
    pub state: String,
    pub connection: String,
    /// The failure domain it is named in.
    #[serde(default)]
    pub domain: Option<String>,
    pub size_bytes: u64,
    pub used_bytes: u64,
    /// Blocks that the donor returned altered, since the disk was opened.
    #[serde(default)]
    pub damaged: u64,
    /// Average time of its last answers (milliseconds).
    #[serde(default)]
    pub latency_ms: f64,
    /// Writes that it refused, and writes that it did not answer in time, since the disk was
    /// opened.
    #[serde(default)]
    pub refused: u64,
    #[serde(default)]
    pub unanswered: u64,
    /// The donor asked for its memory back.
    pub under_pressure: bool,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Groups {
    pub all: u64,
    pub open: u64,
    pub degraded: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Redundancy {
    /// `full`, `degraded` (a loss would lose data), `none` (by policy), `lost` (data is lost).
    pub state: String,
    pub blocks_unprotected: u64,
    pub blocks_lost: u64,
}

/// Blocks that donors returned altered.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Damage {
    /// Damaged blocks found since the disk was opened.
    pub found: u64,
    /// Damaged blocks not rewritten yet.
    pub unrepaired: u64,
    /// How long ago the last damage was found (seconds).
    pub seconds: Option<f64>,
}

/// Scrubs since the disk was opened.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scrub {
    pub completed: u64,
    /// Progress of a running scrub: groups examined, and all groups.
    pub groups_done: Option<u64>,
    pub groups: Option<u64>,
    /// How long ago the last scrub ended (seconds), and the damaged blocks it found.
    pub last_seconds: Option<f64>,
    pub last_found: Option<u64>,
}

/// How evenly the donors are filled, and rebalances since the disk was opened.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Balance {
    /// Shares in use of the fullest and of the emptiest donor (percent).
    pub fullest_percent: f64,
    pub emptiest_percent: f64,
    pub completed: u64,
    /// Progress of a running rebalance: units moved, and an estimate of those left.
    pub units_moved: Option<u64>,
    pub units_left: Option<u64>,
    /// Units that the last one moved.
    pub units_moved_last: u64,
}

/// A failed flush. The blocks that it should have covered are kept, and the next flush that
/// completes covers them.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Unflushed {
    /// How long ago the flush failed (seconds).
    pub seconds: f64,
    pub why: String,
    /// Blocks that are in the client's memory and not safe on donors.
    pub blocks: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Rebuild {
    pub groups: u64,
    pub groups_done: u64,
    pub seconds: f64,
    pub seconds_left: Option<f64>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    pub blocks_mapped: u64,
    pub blocks_read: u64,
    pub blocks_written: u64,
    pub blocks_absorbed: u64,
    pub sent_data: u64,
    pub sent_parity: u64,
    pub cleaned: u64,
    pub reconstructed: u64,
}

/// States of redundancy.
pub const FULL: &str = "full";
pub const DEGRADED: &str = "degraded";
pub const NONE: &str = "none";
pub const LOST: &str = "lost";

impl DiskReport {
    pub fn survives_a_loss(&self) -> bool {
        self.redundancy.state == FULL
    }
}

impl Inner {
    pub(super) fn report(&self) -> DiskReport {
        let status = self.disk.status();
        let members = self.members.lock();
        let leaving = self.leaving.lock();
        let named = self.name.lock().donors.clone();
        let domain = |name: &str| named.iter().find(|donor| donor.to_string() == name)?.domain.clone();
        let donors = status.donors.iter().map(|donor| {
            let member = members.get(&donor.name);
            // Between two attempts to drain it, the donor is used like the others.
            let rests = donor.state == DonorState::Active && leaving.contains_key(&donor.name);
            let state = if rests { DonorState::Draining } else { donor.state };
            DonorReport {
                name: donor.name.clone(),
                state: match donor.aside.filter(|_| state == DonorState::Active) {
                    Some(Aside::Slow) => "slow",
                    Some(Aside::Silent) => "silent",
                    None => state_name(state),
                }
                .into(),
                connection: member.map_or("missing", |member| member.link.state()).into(),
                domain: domain(&donor.name),
                size_bytes: donor.bytes,
                used_bytes: donor.used_bytes,
                damaged: donor.damaged,
                latency_ms: donor.latency_ns as f64 / 1e6,
                refused: donor.refused,
                unanswered: donor.unanswered,
                under_pressure: member.is_some_and(|member| member.under_pressure),
            }
        });
        report(&status, self.uuid, donors.collect())
    }
}

fn report(status: &Status, uuid: [u8; 16], donors: Vec<DonorReport>) -> DiskReport {
    // Without parity, the blocks that a group misses are gone.
    let blocks_lost = status.blocks_lost + if status.parity_units == 0 { status.blocks_unprotected } else { 0 };
    let state = if blocks_lost > 0 {
        LOST
    } else if !status.policy.is_redundant() {
        NONE
    } else if status.groups_degraded > 0 || !status.ready {
        DEGRADED
    } else {
        FULL
    };
    let counts = &status.counts;
    let seconds = |ns: u64| ns as f64 / 1e9;
    DiskReport {
        uuid: uuid_text(&uuid),
        policy: status.policy.name().into(),
        ready: status.ready,
        block_bytes: status.block_bytes,
        data_units: status.data_units,
        parity_units: status.parity_units,
        donors,
        domains: status.domains.map(|domains| Domains {
            there: domains.there,
            in_force: domains.in_force,
            groups_shared: domains.groups_shared,
        }),
        groups: Groups { all: status.groups, open: status.groups_open, degraded: status.groups_degraded },
        redundancy: Redundancy { state: state.into(), blocks_unprotected: status.blocks_unprotected, blocks_lost },
        damage: Damage {
            found: status.damage.found,
            unrepaired: status.damage.unrepaired,
            seconds: status.damage.last_ns_ago.map(seconds),
        },
        scrub: Scrub {
            completed: status.scrub.completed,
            groups_done: status.scrub.progress.map(|progress| progress.groups_done),
            groups: status.scrub.progress.map(|progress| progress.groups),
            last_seconds: status.scrub.last.map(|last| seconds(last.ns_ago)),
            last_found: status.scrub.last.map(|last| last.found),
        },
        balance: balance_of(&status.balance),
        unflushed: status.unflushed.as_ref().map(|failed| Unflushed {
            seconds: seconds(failed.ns),
            why: failed.why.to_string(),
            blocks: failed.blocks,
        }),
        too_few: too_few(status),
        failure: status.failure.as_ref().map(ToString::to_string),
        rebuild: status.repair.map(|repair| Rebuild {
            groups: repair.groups,
            groups_done: repair.groups_done,
            seconds: seconds(repair.running_ns),
            seconds_left: repair.left_ns.map(seconds),
        }),
        checkpoints: Checkpoints {
            completed: counts.checkpoints,
            opened: counts.opened_by_checkpoint,
            unused: status.checkpoint_unused.map(Into::into),
        },
        counts: Counts {
            blocks_mapped: counts.mapped,
            blocks_read: counts.blocks_read,
            blocks_written: counts.blocks_written,
            blocks_absorbed: counts.absorbed,
            sent_data: counts.sent_data,
            sent_parity: counts.sent_parity,
            cleaned: counts.cleaned_data + counts.cleaned_parity,
            reconstructed: counts.reconstructed,
        },
    }
}

fn balance_of(balance: &BalanceStatus) -> Balance {
    Balance {
        fullest_percent: balance.fullest_percent,
        emptiest_percent: balance.emptiest_percent,
        completed: balance.completed,
        units_moved: balance.progress.map(|progress| progress.units_moved),
        units_left: balance.progress.map(|progress| progress.units_left),
        units_moved_last: balance.units_moved_last,
    }
}

pub(super) fn too_few(status: &Status) -> Option<TooFew> {
    let active = status.donors.iter().filter(|donor| donor.state == DonorState::Active).count();
    let there = status.domains.map_or(active, |domains| domains.there);
    let needed = status.parity_units + 1;
    (status.ready && there < needed).then_some(TooFew { there, needed })
}

fn state_name(state: DonorState) -> &'static str {
    match state {
        DonorState::Joining => "joining",
        DonorState::Active => "active",
        DonorState::Draining => "draining",
        DonorState::Returning => "returning",
        DonorState::Missing => "missing",
        DonorState::Forgotten => "forgotten",
        DonorState::Drained => "drained",
        DonorState::Lost => "lost",
    }
}

/// A device's report for people.
pub(super) fn text(report: &DeviceReport) -> serde_json::Result<String> {
    let mut out = report.head("");
    if let Some(disk) = report.own.get("disk") {
        out += &disk_text(&serde_json::from_value(disk.clone())?);
    }
    Ok(out)
}

/// Notes after a donor's name in the status.
fn remarks(donor: &DonorReport) -> String {
    let count = |many: u64, what: &str| (many > 0).then(|| format!("{what} {many} writes"));
    let remarks = [
        donor.under_pressure.then(|| "wants its memory back".to_string()),
        (donor.state == "slow").then(|| "set aside until it is fast again".into()),
        (donor.state == "silent").then(|| "set aside for a while".into()),
        count(donor.unanswered, "did not answer"),
        count(donor.refused, "refused"),
    ];
    let remarks: Vec<String> = remarks.into_iter().flatten().collect();
    if remarks.is_empty() { String::new() } else { format!(" ({})", remarks.join(", ")) }
}

fn domains_text(domains: &Domains) -> String {
    let Domains { there, in_force, groups_shared } = domains;
    let state = match (in_force, groups_shared) {
        (true, _) => "a lost domain counts as one loss".into(),
        (false, 0) => {
            "not recorded on the donors yet; until then each donor of a lost domain counts as one loss".into()
        }
        (false, groups) => {
            format!("{groups} groups have two units in one domain and are moved apart; its loss may lose their blocks")
        }
    };
    format!("domains      {there} failure domains with active donors; {state}\n")
}

/// Damage found, by donor.
fn damage_text(disk: &DiskReport) -> String {
    let Damage { found, unrepaired, seconds } = &disk.damage;
    let Some(seconds) = seconds else { return "damage       none found\n".into() };
    let left = match unrepaired {
        0 => "all written anew".into(),
        left => format!("{left} of them not written anew yet"),
    };
    let donors = disk.donors.iter().filter(|donor| donor.damaged > 0);
    let donors: Vec<String> = donors.map(|donor| format!("{} on {}", donor.damaged, donor.name)).collect();
    format!("damage       {found} blocks found ({}), the last {seconds:.0} s ago; {left}\n", donors.join(", "))
}

fn scrub_text(scrub: &Scrub) -> String {
    let last = match (scrub.last_seconds, scrub.last_found) {
        (Some(seconds), Some(found)) => format!("the last ended {seconds:.0} s ago and found {found} damaged blocks"),
        _ => "none completed since the disk was opened".into(),
    };
    match (scrub.groups_done, scrub.groups) {
        (Some(done), Some(all)) => {
            format!("scrub        {done} of {all} groups ({}%); {last}\n", done * 100 / all.max(1))
        }
        _ => format!("scrub        {last}\n"),
    }
}

fn balance_text(balance: &Balance) -> String {
    let Balance { fullest_percent, emptiest_percent, .. } = balance;
    let shares = format!("donors are {emptiest_percent:.0} to {fullest_percent:.0}% full");
    match (balance.units_moved, balance.units_left) {
        (Some(moved), Some(left)) => format!("balance      {shares}; {moved} units moved, about {left} left\n"),
        _ => format!("balance      {shares}\n"),
    }
}

/// Returns the problems of a disk, a sentence each: since when they exist, and what the user has to
/// do.
pub(super) fn troubles(disk: &DiskReport) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(why) = &disk.failure {
        out.push(format!("every request fails: {why}"));
    }
    if let Some(Unflushed { seconds, why, blocks }) = &disk.unflushed {
        out.push(format!(
            "a flush failed {seconds:.0} s ago ({why}): {blocks} blocks are in this client's memory alone; bring \
             donors back, and they are flushed without a hand"
        ));
    }
    if let Some(TooFew { there, needed }) = disk.too_few {
        let whose = if disk.domains.is_some() { "failure domains" } else { "donors" };
        out.push(format!(
            "nothing can be stored: {there} {whose} are active and {needed} are needed; bring back donors that are \
             missing, or add others and give up the missing ones (`shoal donor forget`)"
        ));
    }
    if disk.damage.unrepaired > 0 {
        let blocks = disk.damage.unrepaired;
        out.push(format!("{blocks} blocks are damaged on their donors and not written anew yet"));
    }
    match disk.redundancy.state.as_str() {
        LOST => out.push(format!("{} blocks are lost: write them anew, or trim them", disk.redundancy.blocks_lost)),
        DEGRADED => out.push(format!(
            "{} blocks would not survive the loss of another donor; bring back donors that are missing, or add one",
            disk.redundancy.blocks_unprotected
        )),
        _ => {}
    }
    out
}

fn disk_text(disk: &DiskReport) -> String {
    let ready = if disk.ready { "" } else { "; still being read from its donors" };
    // These come first.
    let urgent = [disk.failure.is_some(), disk.unflushed.is_some(), disk.too_few.is_some()];
    let urgent = urgent.into_iter().filter(|&is| is).count();
    let mut out: String = troubles(disk).iter().take(urgent).map(|line| format!("TROUBLE      {line}\n")).collect();
    out += &format!(
        "policy       {}, groups of {} data and {} parity, blocks of {}{ready}\n\n",
        disk.policy,
        disk.data_units,
        disk.parity_units,
        human(disk.block_bytes.into())
    );
    out += &format!("{:>10} {:>10} {:<10} {:<13} {:>9} donor\n", "size", "used", "state", "connection", "answers");
    for donor in &disk.donors {
        out += &format!(
            "{:>10} {:>10} {:<10} {:<13} {:>6.1} ms {}{}{}\n",
            human(donor.size_bytes),
            human(donor.used_bytes),
            donor.state,
            donor.connection,
            donor.latency_ms,
            donor.name,
            donor.domain.as_ref().map_or(String::new(), |domain| format!("@{domain}")),
            remarks(donor)
        );
    }
    let Groups { all, open, degraded } = disk.groups;
    out += &format!("\ngroups       {all}, {open} of them open, {degraded} degraded\n");
    let redundancy = &disk.redundancy;
    out += &format!(
        "redundancy   {}\n",
        match redundancy.state.as_str() {
            FULL => "full: every block survives the loss of a donor".to_string(),
            NONE => "none: the policy keeps no second copy".to_string(),
            LOST => format!("lost: {} blocks were on donors that are gone", redundancy.blocks_lost),
            _ => format!("degraded: {} blocks would not survive another loss", redundancy.blocks_unprotected),
        }
    );
    out += &disk.domains.as_ref().map_or(String::new(), domains_text);
    out += &damage_text(disk);
    out += &scrub_text(&disk.scrub);
    out += &balance_text(&disk.balance);
    out += &match &disk.rebuild {
        None => "rebuild      none running\n".to_string(),
        Some(rebuild) => {
            let left = rebuild.seconds_left.map_or("time left unknown yet".into(), |s| format!("about {s:.0} s left"));
            let percent = rebuild.groups_done * 100 / rebuild.groups.max(1);
            format!("rebuild      {} of {} groups ({percent}%), {left}\n", rebuild.groups_done, rebuild.groups)
        }
    };
    let Checkpoints { completed, opened, unused } = &disk.checkpoints;
    let found = match unused {
        _ if *opened => "; opened from one".into(),
        Some(why) => format!("; opened without one: {why}"),
        None => String::new(),
    };
    out += &format!("checkpoints  {completed} completed{found}\n");
    let c = &disk.counts;
    out += &format!(
        "blocks       {} in use; {} read, {} written ({} absorbed by the cache)\n\
         sent         {} data, {} parity, {} by cleaning; {} computed from parity\n",
        c.blocks_mapped,
        c.blocks_read,
        c.blocks_written,
        c.blocks_absorbed,
        c.sent_data,
        c.sent_parity,
        c.cleaned,
        c.reconstructed
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DeviceReport {
        let donor = |name: &str, state: &str| DonorReport {
            name: name.into(),
            state: state.into(),
            connection: "connected".into(),
            domain: Some("rack1".into()),
            size_bytes: 1 << 30,
            used_bytes: 1 << 20,
            damaged: if state == "lost" { 3 } else { 0 },
            latency_ms: 1.25,
            refused: 0,
            unanswered: if state == "slow" { 2 } else { 0 },
            under_pressure: false,
        };
        let disk = DiskReport {
            uuid: "u".into(),
            policy: "adaptive".into(),
            ready: true,
            block_bytes: 4096,
            data_units: 3,
            parity_units: 1,
            donors: vec![donor("unix:/a", "slow"), donor("unix:/b", "lost")],
            domains: Some(Domains { there: 1, in_force: false, groups_shared: 7 }),
            groups: Groups { all: 10, open: 2, degraded: 4 },
            redundancy: Redundancy { state: "degraded".into(), blocks_unprotected: 96, blocks_lost: 0 },
            damage: Damage { found: 3, unrepaired: 1, seconds: Some(7.0) },
            scrub: Scrub { last_seconds: Some(60.0), last_found: Some(3), ..Scrub::default() },
            balance: Balance {
                fullest_percent: 70.0,
                emptiest_percent: 12.0,
                units_moved: Some(5),
                units_left: Some(9),
                ..Balance::default()
            },
            unflushed: None,
            too_few: None,
            failure: None,
            rebuild: Some(Rebuild { groups: 8, groups_done: 2, seconds: 1.0, seconds_left: Some(3.2) }),
            checkpoints: Checkpoints { completed: 9, opened: true, unused: None },
            counts: Counts {
                blocks_mapped: 1,
                blocks_read: 2,
                blocks_written: 3,
                blocks_absorbed: 4,
                sent_data: 5,
                sent_parity: 6,
                cleaned: 7,
                reconstructed: 8,
            },
        };
        DeviceReport {
            device: "netram:unix:/a,unix:/b".into(),
            kind: "netram".into(),
            size_bytes: 1 << 31,
            own: [("disk".into(), serde_json::json!(disk))].into_iter().collect(),
        }
    }

    #[test]
    fn people_read_donors_redundancy_and_the_time_left() {
        let text = sample().text().unwrap();
        assert!(text.starts_with("netram:unix:/a,unix:/b  2 GiB\npolicy "), "{text}");
        assert!(text.contains("     1 GiB      1 MiB lost       connected        1.2 ms unix:/b@rack1\n"), "{text}");
        assert!(text.contains("domains      1 failure domains with active donors; 7 groups have two"), "{text}");
        assert!(text.contains("groups       10, 2 of them open, 4 degraded"), "{text}");
        assert!(text.contains("degraded: 96 blocks would not survive another loss"), "{text}");
        assert!(
            text.contains("damage       3 blocks found (3 on unix:/b), the last 7 s ago; 1 of them not written"),
            "{text}"
        );
        assert!(text.contains("unix:/a@rack1 (set aside until it is fast again, did not answer 2 writes)\n"), "{text}");
        assert!(text.contains("balance      donors are 12 to 70% full; 5 units moved, about 9 left\n"), "{text}");
        assert!(text.contains("scrub        the last ended 60 s ago and found 3 damaged blocks\n"), "{text}");
        assert!(text.contains("2 of 8 groups (25%), about 3 s left"), "{text}");
        assert!(text.contains("checkpoints  9 completed; opened from one\n"), "{text}");
    }

    #[test]
    fn a_flush_that_failed_comes_first_with_its_cause_and_the_remedy() {
        let mut report = sample();
        let why = "too few donors are left to store data: 1 of 2";
        report.own["disk"]["unflushed"] = serde_json::json!({ "seconds": 12.3, "why": why, "blocks": 5 });
        let text = report.text().unwrap();
        let line = format!(
            "\nTROUBLE      a flush failed 12 s ago ({why}): 5 blocks are in this client's memory alone; bring"
        );
        assert!(text.contains(&line), "{text}");
    }

    #[test]
    fn too_few_donors_are_told_before_a_flush_fails() {
        let mut report = sample();
        report.own["disk"]["too_few"] = serde_json::json!({ "there": 0, "needed": 2 });
        let text = report.text().unwrap();
        let line = "\nTROUBLE      nothing can be stored: 0 failure domains are active and 2 are needed; bring back";
        assert!(text.contains(line), "{text}");
        report.own["disk"]["domains"] = serde_json::Value::Null;
        let text = report.text().unwrap();
        let line = "\nTROUBLE      nothing can be stored: 0 donors are active and 2 are needed; bring back";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn the_report_is_read_back_by_the_command() {
        let json = serde_json::to_value(sample()).unwrap();
        assert_eq!(json["disk"]["donors"][1]["state"], "lost");
        assert_eq!(serde_json::from_value::<DeviceReport>(json).unwrap(), sample());
    }
}
