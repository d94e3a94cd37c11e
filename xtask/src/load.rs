//! `cargo xtask load`: one worker of the kill -9 test. It runs the operations of a seed in a
//! directory.
//!
//! After each return it appends the count of finished operations to a journal outside of the store.
//! A journal that says N proves that N operations have returned. The worker succeeds when the mount
//! dies underneath it, after `--ops`, or with `--may-be-full yes` at the first ENOSPC. Any other
//! error is a finding, since the model draws only operations that must succeed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, XattrFlags};

use crate::model::{Model, Op, bytes};

/// `--name value` pairs of a command.
pub struct Options<'a>(pub &'a [String]);

impl Options<'_> {
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.iter().position(|argument| argument == name)?;
        self.0.get(at + 1).map(String::as_str)
    }

    pub fn need(&self, name: &str) -> Result<&str, String> {
        self.get(name).ok_or_else(|| format!("{name} is missing; give `{name} VALUE`"))
    }

    pub fn number(&self, name: &str) -> Result<u64, String> {
        self.need(name)?.parse().map_err(|_| format!("{name}: not a number"))
    }
}

pub fn main(arguments: &[String]) -> Result<(), String> {
    let options = Options(arguments);
    let dir = PathBuf::from(options.need("--dir")?);
    let mut model = Model::new(options.number("--seed")?);
    let ops_max = if options.get("--ops").is_some() { options.number("--ops")? } else { u64::MAX };
    let may_be_full = options.get("--may-be-full").is_some();
    let journal = options.need("--journal")?;
    let mut journal = File::create(journal).map_err(|error| format!("{journal}: cannot be created ({error})"))?;
    // Creating the directory is operation 0: the directory need not exist if the mount dies at
    // once.
    let mut outcome = fs::create_dir(&dir);
    let mut what = "mkdir of the directory".to_string();
    for done in 0.. {
        match outcome {
            Ok(()) => {
                let line = format!("{done}\n");
                journal.write_all(line.as_bytes()).map_err(|error| format!("journal: cannot be written ({error})"))?;
            }
            Err(error) if lost(&error) => return Ok(()),
            // The operation that found no room counts as in flight: parts of it may be there.
            Err(error) if may_be_full && error.kind() == io::ErrorKind::StorageFull => return Ok(()),
            Err(error) => return Err(format!("{}: operation {done} failed ({error}): {what}", dir.display())),
        }
        if done == ops_max {
            break;
        }
        let op = model.draw();
        outcome = run(&dir, &op);
        what = format!("{op:?}");
        model.apply(&op);
    }
    Ok(())
}

/// Returns whether an error is the answer of a FUSE mount whose daemon is gone: ECONNABORTED to a
/// request in flight (over io_uring also ECANCELED), then ENOTCONN.
fn lost(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOTCONN, Errno::CONNABORTED, Errno::CANCELED]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

fn run(dir: &Path, op: &Op) -> io::Result<()> {
    let open = |path: &str| OpenOptions::new().write(true).open(dir.join(path));
    match op {
        Op::Create { path, mode } => {
            OpenOptions::new().write(true).create_new(true).mode(*mode).open(dir.join(path)).map(drop)
        }
        Op::Mkdir { path, mode } => fs::DirBuilder::new().mode(*mode).create(dir.join(path)),
        Op::Symlink { path, target } => std::os::unix::fs::symlink(target, dir.join(path)),
        Op::Write { path, at, len, seed } => {
            open(path)?.write_all_at(&bytes(*seed, *len), *at as u64)?;
            // With the kernel's write-back cache, a failure may occur in the close, which does not
            // report it. A dead daemon is reported here.
            rustix::fs::statfs(dir).map(drop)?;
            Ok(())
        }
        Op::Truncate { path, len } => open(path)?.set_len(*len as u64),
        Op::Punch { path, at, len } => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            Ok(rustix::fs::fallocate(open(path)?, flags, *at as u64, *len as u64)?)
        }
        Op::Rename { from, to } => fs::rename(dir.join(from), dir.join(to)),
        Op::Exchange { a, b } => {
            Ok(rustix::fs::renameat_with(CWD, dir.join(a), CWD, dir.join(b), RenameFlags::EXCHANGE)?)
        }
        Op::Link { from, to } => fs::hard_link(dir.join(from), dir.join(to)),
        Op::Unlink { path } => fs::remove_file(dir.join(path)),
        Op::Rmdir { path } => fs::remove_dir(dir.join(path)),
        Op::SetXattr { path, name, len, seed } => {
            Ok(rustix::fs::lsetxattr(dir.join(path), name, &bytes(*seed, *len), XattrFlags::empty())?)
        }
        Op::RemoveXattr { path, name } => Ok(rustix::fs::lremovexattr(dir.join(path), name)?),
        Op::Chmod { path, mode } => fs::set_permissions(dir.join(path), Permissions::from_mode(*mode)),
        Op::Utime { path, mtime_ns } => {
            // Set the time through the path: a directory cannot be opened for writing.
            let file = File::open(dir.join(path))?;
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_nanos(*mtime_ns as u64))
        }
        Op::Fsync { path } => File::open(dir.join(path))?.sync_all(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verify;

    fn place(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("shoal-load-{name}-{}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        place
    }

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_string).collect()
    }

    #[test]
    fn a_finished_load_is_verified_and_one_changed_byte_or_lost_operation_is_found() {
        let place = place("run");
        let (dir, journal) = (place.join("dir"), place.join("journal"));
        let (dir_text, journal_text) = (dir.display(), journal.display());
        main(&words(&format!("--dir {dir_text} --journal {journal_text} --seed 5 --ops 2000"))).unwrap();
        let arguments = words(&format!("--dir {dir_text} --journal {journal_text} --seed 5"));
        verify::main(&arguments).unwrap();

        let mut model = Model::new(5);
        for _ in 0..2000 {
            let op = model.draw();
            model.apply(&op);
        }
        let (path, id) = model
            .entries()
            .into_iter()
            .find(|(_, id)| matches!(&model.nodes[id].kind, crate::model::Kind::File(content) if content.len() > 10))
            .expect("some file has content");
        let file = OpenOptions::new().write(true).open(dir.join(&path)).unwrap();
        let crate::model::Kind::File(content) = &model.nodes[&id].kind else { unreachable!() };
        file.write_all_at(&[!content[5]], 5).unwrap();
        let found = verify::main(&arguments).unwrap_err();
        assert!(found.contains(&path), "{found}");
        file.write_all_at(&[content[5]], 5).unwrap();

        // The journal promises more than there is.
        let mut longer = fs::read_to_string(&journal).unwrap();
        (2001..2030).for_each(|n| longer += &format!("{n}\n"));
        fs::write(&journal, longer).unwrap();
        assert!(verify::main(&arguments).is_err());
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn the_operation_in_flight_may_be_there_or_not_but_not_the_one_after_it() {
        let place = place("flight");
        let (dir, journal) = (place.join("dir"), place.join("journal"));
        let (dir_text, journal_text) = (dir.display(), journal.display());
        main(&words(&format!("--dir {dir_text} --journal {journal_text} --seed 6 --ops 500"))).unwrap();
        let arguments = words(&format!("--dir {dir_text} --journal {journal_text} --seed 6"));
        let lines = |n: u64| (0..=n).map(|k| format!("{k}\n")).collect::<String>();
        let mut model = Model::new(6);
        let ops: Vec<Op> = (0..500)
            .map(|_| {
                let op = model.draw();
                model.apply(&op);
                op
            })
            .collect();
        fs::write(&journal, lines(499)).unwrap();
        verify::main(&arguments).unwrap();
        // Two visible operations must not pass as one in flight.
        let shows = |op: &Op| !matches!(op, Op::Fsync { .. });
        assert!(ops[496..].iter().filter(|op| shows(op)).count() >= 2);
        fs::write(&journal, lines(496)).unwrap();
        assert!(verify::main(&arguments).is_err());
        fs::remove_dir_all(place).unwrap();
    }
}
