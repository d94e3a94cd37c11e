//! The work on source trees as a whole: properties of small runs on any machine.
//!
//! Owns: a run through the command line in two directories. Every operation appears for each place,
//! directories are empty at the end, and a user's tree is accepted; wrong options are refused. Left
//! out: speed, which tests do not assert, and dropping the kernel's caches, which would slow down
//! everything else on this machine.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{args, is_refused, report, rows};

fn entries(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count()
}

fn operations<'a>(found: &'a Value, table: &str) -> Vec<&'a str> {
    rows(found, table).iter().map(|row| row["operation"].as_str().unwrap()).collect()
}

#[test]
fn a_small_run_in_two_directories() {
    let [a, b, scratch] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [at, beside, other] = [&a, &b, &scratch].map(|directory| directory.path().to_str().unwrap());
    let words = format!(
        "trees --at shoal-x={at} --at y={beside} --scratch {other} --keep-caches --runs 2 --scale 0.002 --seed 3 --timeout 60"
    );
    let (found, files) = report(&words);
    for name in ["places.csv", "operations.csv", "threads.csv", "runs.csv", "threads.svg"] {
        assert!(files.contains(&format!("trees-{name}")), "{name}: {files:?}");
    }
    let expected = [
        "untar",
        "cp -r",
        "git clone",
        "git status, first",
        "git status, second",
        "rm -rf of three trees",
        "PostMark, 40 files, 200 transactions",
        "2 x create 1 KB + fsync",
        "40 appends of 40 bytes",
    ];
    assert_eq!(operations(&found, "operations"), expected);
    let expected = [1, 2, 4].map(|n| format!("create 1 KB, {n} thread{}", if n == 1 { "" } else { "s" }));
    assert_eq!(operations(&found, "threads"), expected);
    for row in rows(&found, "operations").iter().chain(rows(&found, "threads")) {
        let figure = |place: &str| row[place].as_str().unwrap().split(' ').next().unwrap().parse::<f64>().unwrap();
        assert!(figure("shoal-x") >= 0.0 && figure("y") >= 0.0, "{row}");
    }
    // Nine operations and three thread counts, at two places in two rounds.
    let runs = rows(&found, "runs");
    assert_eq!(runs.len(), (9 + 3) * 2 * 2);
    assert!(runs.iter().all(|row| row["value"].as_f64().unwrap() > 0.0));
    assert_eq!(found["skipped"], Value::Array(vec![]));
    assert!(found["notes"].to_string().contains("57 files in 3 directories, 0.8 MB"), "{}", found["notes"]);
    for directory in [&a, &b, &scratch] {
        assert_eq!(entries(directory.path()), 0, "{directory:?} is empty again");
    }
}

#[test]
fn a_tree_of_the_users_is_taken_from_a_directory_and_from_a_tar_file() {
    let [place, scratch, own] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let tree = own.path().join("sources");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/c"), "c").unwrap();
    let tar = own.path().join("sources.tar");
    let made = std::process::Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(own.path()).arg("sources").status();
    assert!(made.unwrap().success());
    for given in [tree, tar] {
        let [at, scratch, given] =
            [place.path(), scratch.path(), &given].map(|path| path.to_str().unwrap().to_string());
        let (found, _) = report(&format!(
            "trees --at x={at} --scratch {scratch} --tree {given} --only git,tree --keep-caches --runs 1"
        ));
        assert_eq!(rows(&found, "runs").len(), 6);
        assert!(found["notes"].to_string().contains(&given), "{}", found["notes"]);
    }
    assert_eq!((entries(place.path()), entries(scratch.path())), (0, 0));
}

#[test]
fn what_is_wrong_is_refused_with_its_name() {
    let refused = |words: &[&str]| is_refused(["run", "trees"].iter().chain(words).map(ToString::to_string));
    assert!(!refused(&["--at", "a=/mnt", "--only", "tree,threads", "--scale", "0.5"]));
    for words in
        [&[][..], &["--at", "/mnt"], &["--at", "a=/mnt", "--only", "rm"], &["--at", "a=/mnt", "--timeout", "0"]]
    {
        assert!(refused(words), "{words:?}");
    }
    let [place, scratch] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let error = |words: &str| {
        let at = place.path().display();
        let words = format!(
            "run trees --at x={at} --scale 0.001 --runs 1 --only tree {}",
            words.replace("PLACE", &at.to_string())
        );
        shoal_lab::run(&args(words.split_whitespace())).unwrap_err().to_string()
    };
    let scratch = format!("--scratch {}", scratch.path().display());
    for (words, what) in [
        (format!("{scratch} --at y=/nowhere"), "--at y=/nowhere"),
        (format!("{scratch} --at x=/tmp"), "--at: x names two columns"),
        (format!("{scratch} --at operation=/tmp"), "--at: operation names two columns"),
        (format!("{scratch} --tree /nowhere"), "--tree: /nowhere"),
        (format!("{scratch} --tree /dev/null"), "name a directory, or a tar file"),
        (format!("{scratch} --tree /etc/passwd"), "tar, in "),
        ("--scratch /nowhere".into(), "--scratch: /nowhere"),
        ("--scratch PLACE".into(), "is in the place x"),
    ] {
        let error = error(&words);
        assert!(error.contains(what), "{words}: {error}");
    }
    assert_eq!(entries(place.path()), 0);
}
