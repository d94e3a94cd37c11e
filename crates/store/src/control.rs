//! A server's control socket (`STORE/control` of a mount's daemon): one JSON line asks, one JSON
//! line answers.
//!
//! Some questions can be answered only by the process that has the store or device open: `df` and
//! `inspect` of a mounted store, the `status` of its bulk devices or of a served device. The same
//! holds for changes of bulk devices and of a network RAM disk's donors. Only the owner may use the
//! socket. Its path is taken relative to the open directory, because the address of a UNIX socket
//! holds 108 bytes and a store may lie deeper. Rules: clients are answered concurrently, except
//! that changes run one after the other. Every client has a time limit, and so has an asker, since
//! the process may be stopped. Nothing here changes the contents of a store.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};

use shoal_devices::{DonorChange, Failure, Outcome};
use shoal_host::Directory;

use crate::bulks::BulkChange;
use crate::holder;
use crate::names::CONTROL;

/// Longest question (bytes). A path in it has at most 4096 bytes, and each byte takes up to 6 in
/// JSON.
const QUESTION_BYTES_MAX: usize = 64 << 10;
/// Maximum number of clients answered at a time.
const CLIENTS_MAX: usize = 64;
/// Pause before the next accept, when no descriptor was free.
const PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take to send its question. A healthy client sends it at once.
const QUESTION_PATIENCE: Duration = Duration::from_secs(5);
/// Time-out of most answers.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time-out of [`Question::Who`], which needs nothing but a thread.
const WHO_PATIENCE: Duration = Duration::from_secs(3);
/// After this much silence the asker checks whether the other process is stopped.
const GLANCE: Duration = Duration::from_millis(200);
/// How long a client may take to read an answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(60);
/// Time-out of an answer that waits for the bulk device, or until everything in the store is durable.
const SYNC_PATIENCE: Duration = Duration::from_secs(600);

/// A question or change for the process that has a store or device open.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase")]
pub enum Question {
    /// The process, and the mount it serves ([`Who`]).
    Who,
    Df,
    /// The file at this path. The path is bytes, which need not be text.
    Inspect {
        path: Vec<u8>,
    },
    /// The inode numbers of the regular files and directories at and below a path.
    Files {
        path: Vec<u8>,
    },
    /// Packs these files and directories now. If the list is empty, compacts the memory.
    Pack {
        files: Vec<u64>,
    },
    /// Lists the files at and below a path that are not on the tier where their threshold puts
    /// them.
    Misplaced {
        path: Vec<u8>,
    },
    /// Moves the first of these files to that tier.
    Rebalance {
        items: Vec<crate::rebalance::Item>,
    },
    /// Reads a part of bulk storage, starting at a byte of a file, and compares it with its
    /// checksums.
    Scrub {
        inode: u64,
        byte: u64,
    },
    /// The state of the device, and a mount's requests by kind.
    Status,
    /// Changes the mount. A change to read-only is answered when everything is durable.
    Remount {
        read_only: bool,
        access_times: String,
        /// Part of the memory (percent) above which small files spill. Unchanged if absent.
        #[serde(default)]
        spill_percent: Option<u8>,
        /// Size above which files are large (bytes). Unchanged if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        threshold_bytes: Option<u64>,
        /// A new update policy, and a new bound on the bytes written back in a second (0: none).
        /// Unchanged if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update_policy: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        update_rate: Option<u64>,
    },
    /// Sets new limits within the layout. `None` leaves a limit as it is.
    Resize {
        memory_bytes: Option<u64>,
        bulk_bytes: Option<u64>,
    },
    /// A change of a network RAM disk.
    Donor {
        change: DonorChange,
        donor: String,
    },
    /// A change of the bulk devices. A removal continues after the answer.
    Bulk {
        change: BulkChange,
    },
    /// The bulk devices.
    Bulks,
    /// The files on one bulk device.
    BulkFiles {
        device: String,
    },
}

/// A process that has a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Who {
    /// The process's own id for itself. Another process namespace has another number.
    pub pid: u32,
    /// `None` for a program that has the store open without a mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<PathBuf>,
    /// The mount's number, `major:minor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl Who {
    /// True if the process serves the mount with this number.
    pub fn serves(&self, device: &str) -> bool {
        self.device.as_deref() == Some(device)
    }
}

/// A report, or the sentence that says why there is none.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    Ok(serde_json::Value),
    Error(String),
}

impl Question {
    /// True for questions that are carried out one at a time. Reports are made beside them.
    fn changes(&self) -> bool {
        !matches!(
            self,
            Question::Who
                | Question::Df
                | Question::Inspect { .. }
                | Question::Files { .. }
                | Question::Misplaced { .. }
                | Question::Status
                | Question::Bulks
                | Question::BulkFiles { .. }
        )
    }

    /// Returns how long to wait for the answer.
    fn patience(&self) -> Duration {
        match self {
            Question::Who => WHO_PATIENCE,
            Question::Remount { .. }
            | Question::Resize { .. }
            | Question::Misplaced { .. }
            | Question::Rebalance { .. }
            | Question::Bulk { .. }
            | Question::BulkFiles { .. } => SYNC_PATIENCE,
            _ => PATIENCE,
        }
    }
}

/// Bound on an answer (bytes). A report on the largest store is shorter.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of clients that wait to be accepted.
const BACKLOG: i32 = 128;

type Answers = Box<dyn Fn(Question) -> Answer + Send + Sync>;

/// What a socket answers at present.
struct Open {
    /// `None`: nothing any more.
    answers: Option<Answers>,
    changes: bool,
}

impl Open {
    fn answer(&self, question: Question) -> Answer {
        match &self.answers {
            Some(answers) if self.changes || !question.changes() => answers(question),
            _ => Answer::Error("the store is being closed; ask again when it is".into()),
        }
    }
}

/// A socket that threads of its own answer.
pub struct Control {
    listener: Arc<UnixListener>,
    path: PathBuf,
    /// The socket, by which its name is known again.
    name: FileId,
    open: Arc<RwLock<Open>>,
}

impl Control {
    /// Refuses changes from here on. On return none is under way.
    pub fn refuse_changes(&self) {
        self.open.write().changes = false;
    }

    /// Stops answering and removes the socket. On return no answer is under way.
    pub fn stop(self) {
        self.open.write().answers = None;
        // Another process may have replaced it. If it cannot be removed, it refuses connections,
        // which clients understand as well.
        if identity(&self.path).is_ok_and(|name| name == self.name) {
            let _ = fs::remove_file(&self.path);
        }
        let _ = net::shutdown(&self.listener, net::Shutdown::Both);
    }
}

/// What tells a file from others on this machine.
#[derive(PartialEq, Eq)]
struct FileId {
    device: u64,
    inode: u64,
}

fn identity(path: &Path) -> io::Result<FileId> {
    fs::symlink_metadata(path).map(|found| FileId { device: found.dev(), inode: found.ino() })
}

/// Opens the socket of a store and answers.
pub(crate) fn serve(
    directory: &Directory,
    answer: impl Fn(Question) -> Answer + Send + Sync + 'static,
) -> io::Result<Control> {
    serve_at(&directory.through_descriptor(OsStr::new(CONTROL)), answer)
}

/// Like `serve`, for a socket at `path`. Every client gets a thread, so that a silent client delays
/// no other.
pub fn serve_at(path: &Path, answer: impl Fn(Question) -> Answer + Send + Sync + 'static) -> io::Result<Control> {
    let (listener, name) = listen(path)?;
    let listener = Arc::new(listener);
    let open = Arc::new(RwLock::new(Open { answers: Some(Box::new(answer)), changes: true }));
    let control = Control { listener: listener.clone(), path: path.to_path_buf(), name, open: open.clone() };
    let changing = Mutex::new(());
    let answer = move |question: Question| {
        let _alone = question.changes().then(|| changing.lock());
        open.read().answer(question)
    };
    let (answer, open) = (Arc::new(answer), control.open.clone());
    let clients = Arc::new(());
    std::thread::Builder::new().name("control".into()).spawn(move || {
        for stream in listener.incoming() {
            if open.read_recursive().answers.is_none() {
                return;
            }
            // No descriptor is free, so the client waits in the queue.
            let Ok(stream) = stream else {
                std::thread::sleep(PAUSE);
                continue;
            };
            // The count is the number of clones that the client threads hold.
            if Arc::strong_count(&clients) > CLIENTS_MAX {
                turn_away(&stream);
                continue;
            }
            let (answer, client) = (answer.clone(), clients.clone());
            let conversation = move || {
                let _client = client;
                if let Err(error) = converse(&stream, &*answer) {
                    tracing::debug!("control socket: {error}");
                }
            };
            // Without a thread the connection closes, which the client sees.
            if let Err(error) = std::thread::Builder::new().name("control-client".into()).spawn(conversation) {
                tracing::warn!("control socket: {error}");
            }
        }
    })?;
    Ok(control)
}

/// Opens a listener with this name. The socket gets its name only after it listens, and only its
/// owner may use it, so a connection by that name is answered. A socket that a dead process left
/// behind is replaced.
fn listen(path: &Path) -> io::Result<(UnixListener, FileId)> {
    let (directory, name) = parts(path)?;
    let mut fresh = name.to_owned();
    fresh.push(".new");
    let fresh_path = directory.join(&fresh);
    match fs::remove_file(&fresh_path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let opened = File::open(directory)?;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The name gets the socket's mode. A later chmod would use the name, which may lead elsewhere
    // by then.
    rustix::fs::fchmod(&socket, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)?;
    net::bind(&socket, &SocketAddrUnix::new(short_path(&opened, &fresh))?)?;
    let listening = net::listen(&socket, BACKLOG).map_err(io::Error::from).and_then(|()| {
        let name = identity(&fresh_path)?;
        fs::rename(&fresh_path, path).map(|()| name)
    });
    let name = listening.inspect_err(|_| drop(fs::remove_file(&fresh_path)))?;
    Ok((UnixListener::from(socket), name))
}

/// Makes the directory of a socket, for its owner alone. Refuses a socket that is already answered,
/// with `AddrInUse`.
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

/// Reads one question and answers it. Each has a time limit that received bytes do not extend, so a
/// line that dribbles in is cut off like silence.
fn converse(stream: &UnixStream, answer: &dyn Fn(Question) -> Answer) -> io::Result<()> {
    let line = question(stream, Instant::now() + QUESTION_PATIENCE)?;
    let answer = match serde_json::from_slice(&line) {
        Ok(question) => answer(question),
        Err(error) => Answer::Error(format!("question not understood: {error}")),
    };
    let mut text = serde_json::to_string(&answer)?;
    text.push('\n');
    let (mut left, end) = (text.as_bytes(), Instant::now() + ANSWER_PATIENCE);
    while !left.is_empty() {
        stream.set_write_timeout(Some(until(end)?))?;
        match (&*stream).write(left)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => left = &left[written..],
        }
    }
    Ok(())
}

/// Reads a question: its line, or everything until the client stops sending.
fn question(stream: &UnixStream, end: Instant) -> io::Result<Vec<u8>> {
    let (mut line, mut piece) = (Vec::new(), [0; 4096]);
    while line.last() != Some(&b'\n') {
        stream.set_read_timeout(Some(until(end)?))?;
        match (&*stream).read(&mut piece)? {
            0 => break,
            len => line.extend_from_slice(&piece[..len]),
        }
        if line.len() > QUESTION_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a question without an end"));
        }
    }
    Ok(line)
}

/// Returns the time left. Fails with `TimedOut` if there is none.
fn until(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// Tells a client that too many others are there, without waiting for it.
fn turn_away(stream: &UnixStream) {
    let told = format!("{CLIENTS_MAX} clients are being answered; try again in a moment");
    if let (Ok(()), Ok(mut text)) = (stream.set_nonblocking(true), serde_json::to_string(&Answer::Error(told))) {
        text.push('\n');
        let _ = (&*stream).write_all(text.as_bytes());
    }
}

/// The outcome of a question.
enum Reply {
    Answered(Answer),
    /// No process listens.
    Nobody,
    /// No answer came within this time.
    Silence(Duration),
}

/// Asks the daemon of a store. `None` if there is no daemon.
pub fn ask(directory: &Path, question: &Question) -> Outcome<Option<serde_json::Value>> {
    let what = format!("daemon of {}", directory.display());
    // A stopped process never answers, so it is not waited for.
    let is_stopped = || holder::of(directory).is_some_and(holder::is_stopped);
    match exchange(&directory.join(CONTROL), question, &is_stopped).map_err(|error| refused(&what, error))? {
        Reply::Answered(Answer::Ok(value)) => Ok(Some(value)),
        Reply::Answered(Answer::Error(error)) => Err(Failure::told(error)),
        Reply::Nobody => Ok(None),
        Reply::Silence(waited) => Err(holder::silent(directory, waited)),
    }
}

/// Asks the process that listens at `path`; `what` names it in errors.
pub fn ask_at(path: &Path, what: &str, question: &Question) -> Outcome<Option<serde_json::Value>> {
    match exchange(path, question, &|| false).map_err(|error| refused(what, error))? {
        Reply::Answered(Answer::Ok(value)) => Ok(Some(value)),
        Reply::Answered(Answer::Error(error)) => Err(Failure::told(error)),
        Reply::Nobody => Ok(None),
        Reply::Silence(waited) => Err(Failure::new(what, format!("has not answered for {} s", waited.as_secs()))
            .remedy("see whether its process is stopped, or try again when it is less busy")),
    }
}

fn refused(what: &str, error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            Failure::new(what, error.to_string()).remedy("ask as the user who started it, or as root")
        }
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            Failure::new(what, "ended before it answered").remedy("see what its log says")
        }
        _ => Failure::new(what, error),
    }
}

/// What the daemon of a store reports about itself.
pub(crate) enum Said {
    Who(Who),
    /// It answers, but not this question: it is of an earlier version, or belongs to another user.
    Other,
    Nobody,
    /// No answer came within this time.
    Nothing(Duration),
}

pub(crate) fn said(directory: &Path) -> Said {
    let is_stopped = || holder::of(directory).is_some_and(holder::is_stopped);
    match exchange(&directory.join(CONTROL), &Question::Who, &is_stopped) {
        Ok(Reply::Answered(Answer::Ok(value))) => serde_json::from_value(value).map_or(Said::Other, Said::Who),
        Ok(Reply::Answered(Answer::Error(_))) | Err(_) => Said::Other,
        Ok(Reply::Nobody) => Said::Nobody,
        Ok(Reply::Silence(waited)) => Said::Nothing(waited),
    }
}

/// Asks which mount the daemon of a store serves. `None` if there is no daemon, or it does not say.
pub(crate) fn who(directory: &Path) -> Outcome<Option<Who>> {
    match said(directory) {
        Said::Who(who) => Ok(Some(who)),
        Said::Other | Said::Nobody => Ok(None),
        Said::Nothing(waited) => Err(holder::silent(directory, waited)),
    }
}

/// Sends one question and waits for its answer. Gives up after the question's time-out, or at a
/// pause in the answer if `give_up` returns true.
fn exchange(path: &Path, question: &Question, give_up: &dyn Fn() -> bool) -> io::Result<Reply> {
    let (begin, patience) = (Instant::now(), question.patience());
    let stream = match connect(path) {
        Ok(stream) => stream,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(Reply::Nobody);
        }
        // The process's queue is full, and it accepts no client.
        Err(error) if is_silence(&error) => return Ok(Reply::Silence(begin.elapsed())),
        Err(error) => return Err(error),
    };
    let mut text = serde_json::to_string(question)?;
    text.push('\n');
    stream.set_read_timeout(Some(GLANCE))?;
    // A client that is turned away can read the reason even if sending its question failed.
    let sent = (&stream).write_all(text.as_bytes());
    let (mut answers, mut line) = (BufReader::new((&stream).take(ANSWER_BYTES_MAX)), Vec::new());
    loop {
        match answers.read_until(b'\n', &mut line) {
            Ok(_) if line.is_empty() => return sent.and(Err(io::ErrorKind::UnexpectedEof.into())),
            Ok(_) if line.last() != Some(&b'\n') => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => return Ok(Reply::Answered(serde_json::from_slice(&line)?)),
            // The part received so far stays in `line`.
            Err(error) if is_silence(&error) && begin.elapsed() < patience && !give_up() => {}
            Err(error) if is_silence(&error) => return Ok(Reply::Silence(begin.elapsed())),
            Err(error) => return Err(error),
        }
    }
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Connects within a time limit, since the queue of a stopped process fills up.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let (directory, name) = parts(path)?;
    // A link might lead to the daemon of another store.
    let named = shoal_host::open_socket(directory, name)?;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    net::sockopt::set_socket_timeout(&socket, net::sockopt::Timeout::Send, Some(WHO_PATIENCE))?;
    net::connect(&socket, &SocketAddrUnix::new(format!("/proc/self/fd/{}", named.as_raw_fd()))?)?;
    Ok(UnixStream::from(socket))
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
    use std::os::unix::fs::PermissionsExt;

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
        let first = serve(&held, answer).unwrap();
        assert_eq!(fs::metadata(deep.join(CONTROL)).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(ask(&deep, &Question::Df).unwrap().unwrap()["x"], 1);
        let error = ask(&deep, &Question::Inspect { path: vec![47, 255] }).unwrap_err().to_string();
        assert!(error.ends_with("no [47, 255]"), "{error}");
        // A second daemon, started after a crash of the first, takes over the name.
        let second = serve(&held, |_| Answer::Ok(serde_json::json!(2))).unwrap();
        assert_eq!(ask(&deep, &Question::Df).unwrap().unwrap(), 2);
        first.stop();
        assert_eq!(ask(&deep, &Question::Df).unwrap().unwrap(), 2, "the name is the second one's");
        second.refuse_changes();
        assert_eq!(ask(&deep, &Question::Df).unwrap().unwrap(), 2);
        let refused = ask(&deep, &Question::Pack { files: vec![] }).unwrap_err().to_string();
        assert!(refused.contains("is being closed"), "{refused}");
        second.stop();
        assert!(!deep.join(CONTROL).exists());
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

    #[test]
    fn a_silent_client_holds_up_no_other_and_an_endless_one_is_cut_off() {
        let dir = tempfile::tempdir().unwrap();
        serve(&Directory::open(dir.path()).unwrap(), |_| Answer::Ok(serde_json::json!(1))).unwrap();
        let connected = || connect(&dir.path().join(CONTROL)).unwrap();
        let silent: Vec<_> = (0..CLIENTS_MAX - 2).map(|_| connected()).collect();
        let begin = Instant::now();
        assert!(ask(dir.path(), &Question::Df).unwrap().is_some());
        let mut endless = connected();
        while endless.write_all(&[b'x'; 4096]).is_ok() {}
        assert!(begin.elapsed() < PATIENCE);
        // At the maximum number of clients, further ones are turned away with a message.
        let more: Vec<_> = (0..4).map(|_| connected()).collect();
        let told = ask(dir.path(), &Question::Df).unwrap_err().to_string();
        assert!(told.contains("clients are being answered; try again"), "{told}");
        drop((silent, more));
        while ask(dir.path(), &Question::Df).is_err() {
            assert!(begin.elapsed() < PATIENCE, "clients that went are still counted");
        }
    }

    #[test]
    fn reports_are_answered_beside_a_change_and_changes_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let under_way = Arc::new(Mutex::new(0));
        serve(&Directory::open(dir.path()).unwrap(), {
            let under_way = under_way.clone();
            move |question| {
                if matches!(question, Question::Pack { .. }) {
                    *under_way.lock() += 1;
                    std::thread::sleep(Duration::from_millis(300));
                    let beside = std::mem::replace(&mut *under_way.lock(), 0);
                    return Answer::Ok(beside.into());
                }
                Answer::Ok(serde_json::json!(0))
            }
        })
        .unwrap();
        std::thread::scope(|scope| {
            let pack = || ask(dir.path(), &Question::Pack { files: vec![] }).unwrap().unwrap();
            let packs: Vec<_> = (0..2).map(|_| scope.spawn(pack)).collect();
            let begin = Instant::now();
            assert_eq!(ask(dir.path(), &Question::Df).unwrap().unwrap(), 0);
            assert!(begin.elapsed() < Duration::from_millis(250), "{:?}", begin.elapsed());
            packs.into_iter().for_each(|pack| assert_eq!(pack.join().unwrap(), 1));
        });
    }

    #[test]
    fn a_process_that_says_nothing_is_given_up_in_time() {
        let dir = tempfile::tempdir().unwrap();
        let _silent = listen(&dir.path().join(CONTROL)).unwrap();
        let begin = Instant::now();
        let Said::Nothing(_) = said(dir.path()) else { panic!("it was silent") };
        assert!((WHO_PATIENCE..WHO_PATIENCE + PATIENCE).contains(&begin.elapsed()), "{:?}", begin.elapsed());
        // Fill its queue.
        let mut waiting = Vec::new();
        while let Ok(stream) = connect(&dir.path().join(CONTROL)) {
            waiting.push(stream);
        }
        let Said::Nothing(_) = said(dir.path()) else { panic!("its queue was full") };
    }
}
