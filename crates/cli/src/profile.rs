//! `shoal profile`: makes the tables for packing inodes like those of a tree.
//!
//! Trees are only read. The file holds the tables of mramfs' compressors and of Shoal's own, for
//! times in seconds and in nanoseconds, and begins with the command that made it. Its format is in
//! `docs/spec/pack.md`. `--json` shows the same tables and the counts they come from.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use shoal_devices::{Failure, Outcome};
use shoal_lab::profile;
use shoal_lab::stored::as_stored;
use shoal_lab::tree::{self, Tree};
use shoal_pack::{Census, ProfileFile, Record};

use crate::json::print_json;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal profile /usr\n  \
    shoal profile --out mail.profile /srv/mail\n  \
    shoal profile --json old-disk.img\n\n\
    Several trees make one profile. For a mounted file system, name its directory rather than its device: the device lacks what the \
    kernel has not written yet.")]
pub struct ProfileArgs {
    /// Directories, or images of ext2, ext3 or ext4
    #[arg(value_name = "DIR|IMAGE", required = true)]
    pub trees: Vec<PathBuf>,
    /// Write the profile to FILE
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Replace FILE if it exists
    #[arg(long, requires = "out")]
    pub force: bool,
    /// Report as JSON, with all tables and the counts they come from
    #[arg(long)]
    pub json: bool,
}

pub fn run(args: &ProfileArgs) -> Outcome<()> {
    let trees: Vec<Tree> = args
        .trees
        .iter()
        .map(|path| tree::scan(path).map_err(|error| Failure::told(format!("profile: {error}"))))
        .collect::<Outcome<_>>()?;
    for tree in trees.iter().filter(|tree| tree.unread > 0) {
        eprintln!(
            "shoal: profile: {}: {} directories, files or inode groups could not be read and are left out",
            tree.name, tree.unread
        );
    }
    let records: Vec<&[Record]> = trees.iter().map(|tree| &tree.records[..]).collect();
    let stored: Vec<Vec<Record>> = records.iter().map(|records| as_stored(records)).collect();
    let census = Census::with_stored(&records, &stored.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let names: Vec<&str> = trees.iter().map(|tree| tree.name.as_str()).collect();
    let file = ProfileFile { comment: format!("shoal profile {}\n", names.join(" ")), profiles: census.profiles() };
    let bytes = file.to_bytes();
    if let Some(path) = &args.out {
        write(path, &bytes, args.force)?;
    }
    let inodes: usize = trees.iter().map(|tree| tree.records.len()).sum();
    if args.json {
        print_json(&profile::report(inodes, &census, &file));
        return Ok(());
    }
    println!("inodes    {inodes}");
    println!("triplets  {}", census.triplets().count());
    for (triplet, users) in census.triplets().take(5) {
        println!("          {}:{} {:o}  {users}", triplet.uid, triplet.gid, triplet.mode);
    }
    match &args.out {
        Some(path) => println!("profile   {}, {} bytes", path.display(), bytes.len()),
        None => println!("profile   {} bytes, not saved; add --out FILE to save it", bytes.len()),
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8], force: bool) -> Outcome<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        options.create_new(true);
    }
    let written = options.open(path).and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|error| {
        let exists = error.kind() == ErrorKind::AlreadyExists;
        let failure = Failure::new(path.display(), error);
        if exists { failure.remedy("name another file, or add --force") } else { failure }
    })
}
