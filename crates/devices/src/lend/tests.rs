//! Tests of the lender: whom it gives an area, for how long, and what a client learns from a refusal.
//!
//! Rules: a real catalog and real areas, time passed in by hand. Left out: the network (`tests/donate.rs`).

use std::fs;
use std::os::unix::fs::PermissionsExt;

use shoal_media::{BlockDevice, read, trim, write};

use super::*;

const MIB: u64 = 1 << 20;

fn lender(areas: u64, keep_s: u64) -> Lender {
    let terms = Terms { area_bytes: MIB, compression: Compression::Lz4, keep: Duration::from_secs(keep_s) };
    Lender::new(Names::load(&[]).unwrap(), Quota::new(areas * MIB), terms)
}

fn find(lender: &Lender, name: &str) -> Result<Arc<Export>, String> {
    lender.find(name, &Peer::default()).map_err(|refusal| refusal.to_string())
}

fn area(lender: &Lender, name: &str) -> Arc<Area> {
    lender.areas.lock()[name].area.clone()
}

#[test]
fn asking_reserves_nothing_for_good() {
    let lender = lender(1, 600);
    drop(find(&lender, "passer-by").unwrap());
    let held = find(&lender, "client").unwrap();
    let error = find(&lender, "passer-by").err().unwrap();
    assert_eq!(error, "no room for an area of 1 MiB: 0 B of 1 MiB are free; ask another donor");
    assert_eq!(lender.areas().len(), 1);
    // An area with contents is kept although no client holds it. Without contents it gives way.
    let device = area(&lender, "client");
    write(&*device, 0, &[1; 512]).unwrap();
    drop(held);
    assert!(find(&lender, "passer-by").is_err());
    trim(&*device, 0, MIB).unwrap();
    // `device` is still held, as during a pass of the compaction.
    assert!(find(&lender, "passer-by").is_ok());
}

#[test]
fn an_area_is_taken_back_when_nobody_held_it_for_long_enough() {
    let lender = lender(1, 10);
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let held = find(&lender, "a").unwrap();
    let device = area(&lender, "a");
    write(&*device, 512, &[7; 512]).unwrap();
    assert!(lender.revoke_unheld(at(100)).is_empty(), "held");
    drop(held);
    assert!(lender.revoke_unheld(at(200)).is_empty(), "the time begins when it is first seen unheld");
    assert!(lender.revoke_unheld(at(209)).is_empty());
    // The client comes back, finds its contents, and goes: the time begins again.
    drop(find(&lender, "a").unwrap());
    assert!(lender.revoke_unheld(at(211)).is_empty());
    let mut out = [0; 512];
    read(&*area(&lender, "a"), 512, &mut out).unwrap();
    assert_eq!(out, [7; 512]);
    assert_eq!(lender.revoke_unheld(at(221)), [("a".to_string(), 10)]);
    assert!(read(&*device, 512, &mut out).is_err());
    assert_eq!(lender.quota.granted(), 0);
    drop(find(&lender, "b").unwrap());
    read(&*area(&lender, "b"), 512, &mut out).unwrap();
    assert_eq!(out, [0; 512]);
}

#[test]
fn connections_of_one_name_share_an_area_and_names_do_not() {
    let lender = lender(2, 10);
    let (first, second) = (find(&lender, "").unwrap(), find(&lender, "default").unwrap());
    assert!(Arc::ptr_eq(&first, &second));
    let _other = find(&lender, "other").unwrap();
    write(&*area(&lender, "default"), 0, &[1; 512]).unwrap();
    let mut out = [9; 512];
    read(&*area(&lender, "other"), 0, &mut out).unwrap();
    assert_eq!(out, [0; 512]);
    assert_eq!(lender.usage().held_bytes, 64 << 10);
}

#[test]
fn under_pressure_nothing_new_is_granted_and_what_is_lent_stays() {
    let lender = lender(2, 10);
    let _held = find(&lender, "a").unwrap();
    let device = area(&lender, "a");
    write(&*device, 0, &[1; 512]).unwrap();
    let pressure = Pressure { pressed: lender.pressed.clone(), asked: Arc::default() };
    assert_eq!(pressure.status(0, 4096, 1).unwrap(), [Extent { len: 4096, flags: 0 }]);
    assert!(!lender.set_pressed(true));
    assert_eq!(pressure.status(0, 4096, 1).unwrap(), [Extent { len: 4096, flags: 1 }]);
    let error = find(&lender, "b").err().unwrap();
    assert!(error.contains("needs its memory itself"), "{error}");
    assert!(find(&lender, "a").is_ok());
    assert_eq!(lender.compact(1, 0).chunks, 1);
    // A chunk that is read under pressure stays packed.
    read(&*device, 0, &mut [0; 512]).unwrap();
    assert_eq!(lender.usage().packed_bytes, 64 << 10);
    assert!(lender.set_pressed(false));
    assert!(find(&lender, "b").is_ok());
}

#[test]
fn the_end_revokes_everything_and_grants_nothing_more() {
    let lender = lender(2, 10);
    let _held = find(&lender, "a").unwrap();
    let device = area(&lender, "a");
    assert_eq!(lender.revoke_all(), 1);
    assert!(write(&*device, 0, &[1; 512]).is_err());
    assert!(find(&lender, "b").err().unwrap().contains("about to end"));
    assert_eq!(lender.quota.granted(), 0);
}

#[test]
fn lists_show_names_without_secrets_and_nothing_where_there_are_secrets() {
    let shown = |lender: &Lender| {
        let entries = lender.list(&Peer::default());
        entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()
    };
    let open = lender(2, 10);
    assert_eq!(shown(&open), ["default"]);
    let _held = find(&open, "a").unwrap();
    assert_eq!(shown(&open), ["a"]);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("secret");
    fs::write(&file, "s3cret").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let with = |lines: &[String]| {
        let allowed: Vec<Allow> = lines.iter().map(|line| line.parse().unwrap()).collect();
        let terms = Terms { area_bytes: MIB, compression: Compression::None, keep: Duration::ZERO };
        Lender::new(Names::load(&allowed).unwrap(), Quota::new(MIB), terms)
    };
    assert_eq!(shown(&with(&["b".into(), "a".into()])), ["a", "b"]);
    let guarded = with(&["b".into(), format!("a:{}", file.display())]);
    assert!(shown(&guarded).is_empty());
    let refusals: Vec<String> =
        ["a", "a:wrong", "unknown", "unknown:s3cret"].iter().map(|name| find(&guarded, name).err().unwrap()).collect();
    assert!(refusals.iter().all(|refusal| *refusal == refusals[0]), "{refusals:?}");
    assert_eq!(guarded.refused().count, 4, "counted, not logged");
    assert_eq!(guarded.quota.granted(), 0, "a refused client reserves nothing");
    let export = find(&guarded, "a:s3cret").unwrap();
    assert!(!format!("{export:?}").contains("s3cret"));
    assert_eq!(area(&guarded, "a").geometry().bytes, MIB);
}
