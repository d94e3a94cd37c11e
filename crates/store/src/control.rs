//! A server's control socket (`STORE/control` of a mount's daemon): one JSON line asks, one JSON line answers.
//!
//! Some questions only the process that has the store or device open can answer: `df` and `inspect` of a mounted store,
//! the `status` of its bulk devices or of a served one, and changes of
//! bulk devices and of a network RAM disk's donors. Only the owner may
//! use the socket. Its path is taken relative to the open directory, because the address of a UNIX socket holds 108
//! bytes and a store may lie deeper. Nothing here changes the contents of a store.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use shoal_devices::{DonorChange, During, Failure, Outcome};
use shoal_host::Directory;

use crate::bulks::BulkChange;
use crate::names::CONTROL;

/// Longest question (bytes). A path in it has at most 4096 bytes, each up to 6 in JSON.
const QUESTION_BYTES_MAX: u64 = 64 << 10;
/// Time-out of a question and of most answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time-out of an answer that waits for the bulk device, or until everything in the store is durable.
const SYNC_PATIENCE: Duration = Duration::from_secs(600);

/// A question or change for the process that has a store or device open.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    Df,
    /// The path's bytes, which need not be text.
    Inspect {
        path: Vec<u8>,
    },
    /// The inode numbers of the regular files and directories at and below a path.
    Files {
        path: Vec<u8>,
    },
    /// Packs these files and directories now; none: compacts the memory.
    Pack {
        files: Vec<u64>,
    },
    /// What at and below a path is not where its threshold puts it.
    Misplaced {
        path: Vec<u8>,
    },
    /// Moves the first of these there.
    Rebalance {
        items: Vec<crate::rebalance::Item>,
    },
    /// Reads some of bulk storage, from a byte of a file on, and compares it with its checksums.
    Scrub {
        inode: u64,
        byte: u64,
    },
    /// The state of the device, and a mount's requests by kind.
    Status,
    /// A change of the mount. A change to read-only is answered when everything is durable.
    Remount {
        read_only: bool,
        access_times: String,
        /// From how much of the memory on small files spill; as it is if absent.
        #[serde(default)]
        spill_percent: Option<u8>,
        /// From which size on files are large; as it is if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threshold_bytes: Option<u64>,
        /// Another update policy, and another bound on what leaves in a second (0: none).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update_policy: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update_rate: Option<u64>,
    },
    /// New limits within the layout; `None` leaves a limit as it is.
    Resize {
        memory_bytes: Option<u64>,
        bulk_bytes: Option<u64>,
    },
    /// A change of a network RAM disk.
    Donor {
        change: DonorChange,
        donor: String,
    },
    /// A change of the bulk devices. A removal goes on after the answer.
    Bulk {
        change: BulkChange,
    },
    /// The bulk devices.
    Bulks,
    /// The files on one of them.
    BulkFiles {
        device: String,
    },
}

/// A report, or the sentence that says why there is none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

/// Opens the socket of a store and answers in a thread of its own until the process ends.
pub(crate) fn serve(directory: &Directory, answer: impl Fn(Question) -> Answer + Send + 'static) -> io::Result<()> {
    serve_at(&directory.through_descriptor(OsStr::new(CONTROL)), answer)
}

/// The same with a name of its own.
pub fn serve_at(path: &Path, answer: impl Fn(Question) -> Answer + Send + 'static) -> io::Result<()> {
    let listener = listen(path)?;
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            if let Err(error) = converse(stream, &answer) {
                tracing::debug!("control socket: {error}");
            }
        }
    })?;
    Ok(())
}

/// A listener with this name. The socket gets its name after it listens and only its owner may use it, so a connection by
/// that name is answered. A socket that a dead process left behind is replaced.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let (directory, name) = parts(path)?;
    let mut fresh = name.to_owned();
    fresh.push(".new");
    let fresh_path = directory.join(&fresh);
    match fs::remove_file(&fresh_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let opened = File::open(directory)?;
    let listener = UnixListener::bind(short_path(&opened, &fresh))?;
    let named = fs::set_permissions(&fresh_path, Permissions::from_mode(0o600))
        .and_then(|()| fs::rename(&fresh_path, path))
        .inspect_err(|_| drop(fs::remove_file(&fresh_path)));
    named.map(|()| listener)
}

/// Makes the directory of a socket, for its owner alone. A socket that answers already is refused with `AddrInUse`.
pub fn prepare_at(path: &Path) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    if UnixStream::connect(path).is_ok() {
        // A server listens on the same port of another address.
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another server is asked there"));
    }
    Ok(())
}

/// Removes the socket of a store.
pub(crate) fn remove(directory: &Directory) {
    // A socket that could not be removed refuses connections, which clients understand as well.
    let _ = directory.remove(CONTROL);
}

/// The same with a name of its own.
pub fn remove_at(path: &Path) {
    let _ = fs::remove_file(path);
}

fn converse(stream: UnixStream, answer: &impl Fn(Question) -> Answer) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new((&stream).take(QUESTION_BYTES_MAX)).read_line(&mut line)?;
    let answer = match serde_json::from_str(&line) {
        Ok(question) => answer(question),
        Err(error) => Answer::Error(format!("question not understood: {error}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    (&stream).write_all(text.as_bytes())
}

/// Asks the daemon of a store; `None` when there is none.
pub fn ask(directory: &Path, question: &Question) -> Outcome<Option<serde_json::Value>> {
    ask_at(&directory.join(CONTROL), &format!("daemon of {}", directory.display()), question)
}

/// Asks the process that listens at `path`; `what` names it in errors.
pub fn ask_at(path: &Path, what: &str, question: &Question) -> Outcome<Option<serde_json::Value>> {
    let connect = || {
        let (directory, name) = parts(path)?;
        let opened = File::open(directory)?;
        UnixStream::connect(short_path(&opened, name))
    };
    let connected = connect();
    let stream = match connected {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(error) => return Err(Failure::new(what, error).remedy("ask as the user who started it, or as root")),
    };
    let mut line = String::new();
    let mut exchange = || -> io::Result<()> {
        let syncs = matches!(
            question,
            Question::Remount { .. }
                | Question::Resize { .. }
                | Question::Misplaced { .. }
                | Question::Rebalance { .. }
                | Question::Bulk { .. }
                | Question::BulkFiles { .. }
        );
        stream.set_read_timeout(Some(if syncs { SYNC_PATIENCE } else { PATIENCE }))?;
        let mut text = serde_json::to_string(question)?;
        text.push('\n');
        (&stream).write_all(text.as_bytes())?;
        BufReader::new(&stream).read_line(&mut line).map(drop)
    };
    exchange().during(what)?;
    match serde_json::from_str(&line).during(what)? {
        Answer::Ok(value) => Ok(Some(value)),
        Answer::Error(error) => Err(Failure::told(error)),
    }
}

fn parts(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let directory = path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent });
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "names no file");
    directory.zip(path.file_name()).ok_or_else(wrong)
}

fn short_path(directory: &File, name: &OsStr) -> PathBuf {
    Path::new(&format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_answered_also_where_the_path_is_long() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("d".repeat(200));
        fs::create_dir(&deep).unwrap();
        assert!(ask(&deep, &Question::Df).unwrap().is_none(), "nobody there");
        let answer = |question| match question {
            Question::Df => Answer::Ok(serde_json::json!({"x": 1})),
            Question::Inspect { path } => Answer::Error(format!("no {path:?}")),
            other => Answer::Error(format!("no {other:?}")),
        };
        let held = Directory::open(&deep).unwrap();
        serve(&held, answer).unwrap();
        assert_eq!(fs::metadata(deep.join(CONTROL)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ask(&deep, &Question::Df).unwrap().unwrap()["x"], 1);
        let error = ask(&deep, &Question::Inspect { path: vec![47, 255] }).unwrap_err().to_string();
        assert!(error.ends_with("no [47, 255]"), "{error}");
        // A second daemon (after a crash of the first) takes the name over.
        serve(&held, |_| Answer::Ok(serde_json::json!(2))).unwrap();
        assert_eq!(ask(&deep, &Question::Df).unwrap().unwrap(), 2);
        remove(&held);
        assert!(ask(&deep, &Question::Df).unwrap().is_none());
    }

    #[test]
    fn a_socket_that_can_be_seen_answers() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..500 {
            let path = dir.path().join(format!("control{round}"));
            let seen = path.clone();
            let client = std::thread::spawn(move || {
                loop {
                    match UnixStream::connect(&seen) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                        outcome => return outcome.map(drop),
                    }
                }
            });
            serve_at(&path, |_| Answer::Ok(serde_json::json!(1))).unwrap();
            client.join().unwrap().unwrap_or_else(|error| panic!("round {round}: {error}"));
            assert!(!dir.path().join(format!("control{round}.new")).exists());
        }
    }

    #[test]
    fn nonsense_gets_an_answer_and_does_not_end_the_service() {
        let dir = tempfile::tempdir().unwrap();
        serve(&Directory::open(dir.path()).unwrap(), |_| Answer::Ok(serde_json::json!(1))).unwrap();
        let opened = File::open(dir.path()).unwrap();
        for nonsense in ["\n", "{\"ask\":\"rm\"}\n", "\u{0}\u{1}\n"] {
            let mut stream = UnixStream::connect(short_path(&opened, OsStr::new(CONTROL))).unwrap();
            stream.write_all(nonsense.as_bytes()).unwrap();
            let mut line = String::new();
            stream.read_to_string(&mut line).unwrap();
            assert!(line.contains("not understood"), "{line}");
        }
        drop(UnixStream::connect(short_path(&opened, OsStr::new(CONTROL))).unwrap());
        assert!(ask(dir.path(), &Question::Df).unwrap().is_some());
    }
}
