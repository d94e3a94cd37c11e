//! The whole path of a message, over a real engine in memory and a channel that records what is
//! sent.
//!
//! Owns: tests of the policy (requests that are never sent again, references, set-id bits, who is
//! admitted), of the rule that each request gets one answer within its room, and the property test
//! of any message. `SHOAL_SEED` chooses other messages, `SHOAL_DEEP` makes more.
//! Left out: bytes and offsets (`protocol`), what programs see (`tests/real`).

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use shoal_fs::Fs;
use shoal_life::{Breaker, Clocks, Syncer, SyncerThread, WaiterThreads, Waiters};
use zerocopy::{FromBytes, IntoBytes};

use super::*;
use crate::channel::Channel;
use crate::lane::Lane;
use crate::options::MountOptions;
use crate::protocol::layout::{
    AttrOut, EntryOut, InitInRest, InitInShort, InitOut, MkdirIn, MknodIn, OutHeader, ReadIn, SetattrIn, WriteIn,
};
use crate::protocol::tests::{message, random_from_environment, rounds};
use crate::protocol::{init_flags, opcode, setattr};
use crate::requests::Readers;
use crate::session::{Threads, Way, handshake};
use shoal_sim::Random;

#[expect(dead_code, reason = "its devices are as fast as memory here")]
#[path = "../../life/src/test_store.rs"]
mod test_store;

/// The node of the root directory.
const ROOT: u64 = 1;

/// Answers sent: errno and body by request.
type Sent = HashMap<u64, Vec<(i32, Vec<u8>)>>;

/// A kernel that takes every answer or none, and sends the requests that it is given.
#[derive(Clone, Default)]
struct Kernel(Arc<KernelState>);

#[derive(Default)]
struct KernelState {
    sent: Mutex<Sent>,
    questions: Mutex<Vec<Vec<u8>>>,
    is_deaf: AtomicBool,
}

impl Channel for Kernel {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(message) = self.0.questions.lock().unwrap().pop() else { return Ok(None) };
        buffer[..message.len()].copy_from_slice(&message);
        Ok(Some(message.len()))
    }

    fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let bytes = pieces.iter().flat_map(|piece| piece.iter().copied()).collect::<Vec<u8>>();
        let (header, body) = OutHeader::read_from_prefix(&bytes).expect("a message has a header");
        assert_eq!(header.len as usize, bytes.len(), "the header tells the length");
        if self.0.is_deaf.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.0.sent.lock().unwrap().entry(header.unique).or_default().push((-header.error, body.to_vec()));
        Ok(())
    }
}

/// A service without a mount.
struct Mounted {
    kernel: Kernel,
    fs: Arc<Fs>,
    service: Service,
    port: Arc<Port>,
    threads: (Clocks, SyncerThread, WaiterThreads),
}

const ALL: u64 = init_flags::NO_OPEN_SUPPORT
    | init_flags::NO_OPENDIR_SUPPORT
    | init_flags::HANDLE_KILLPRIV_V2
    | init_flags::SETXATTR_EXT
    | init_flags::POSIX_ACL;

fn mounted(change: impl FnOnce(&mut MountOptions), flags: u64) -> Mounted {
    let fs = test_store::store(1000).fs;
    let mut options = MountOptions { access: Access::All, ..MountOptions::new("/s".into()) };
    change(&mut options);
    let (clocks, bell) = Clocks::start(&fs).unwrap();
    let (syncer, syncer_thread) = Syncer::start(&fs, bell, 4, &Breaker::default()).unwrap();
    let (waiters, waiter_threads) = Waiters::start(&Breaker::default()).unwrap();
    let kernel = Kernel::default();
    let agreed = Agreed { flags, write_bytes_max: REQUEST_BYTES_MAX };
    let requests = Requests::new(
        fs.clone(),
        syncer,
        waiters.clone(),
        Readers::new(waiters, 4),
        &options,
        agreed,
        Box::new(kernel.clone()),
    );
    let service = Service { requests, agreed, access: options.access, owner: 0 };
    let port = Port::new(Box::new(kernel.clone()));
    Mounted { kernel, fs, service, port, threads: (clocks, syncer_thread, waiter_threads) }
}

impl Mounted {
    fn serve(&self, message: &[u8]) -> io::Result<Next> {
        self.service.serve(message, &self.port, &mut Vec::new())
    }

    /// Returns errno and body of the one answer.
    fn ask(&self, opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        self.ask_as(1000, opcode, node, body)
    }

    fn ask_as(&self, uid: u32, opcode: u32, node: u64, body: &[u8]) -> (i32, Vec<u8>) {
        let mut message = message(opcode, node, body);
        message[24..28].copy_from_slice(&uid.to_ne_bytes());
        assert_eq!(self.serve(&message).unwrap(), Next::Request);
        let unique = 2 * u64::from(opcode);
        let begin = Instant::now();
        loop {
            if let Some(mut answers) = self.kernel.0.sent.lock().unwrap().remove(&unique) {
                assert_eq!(answers.len(), 1);
                return answers.pop().unwrap();
            }
            assert!(begin.elapsed() < Duration::from_secs(10), "no answer to {opcode}");
            std::thread::yield_now();
        }
    }

    fn make(&self, name: &str, mode: u32) -> u64 {
        let body = [MknodIn { mode, ..MknodIn::default() }.as_bytes(), name.as_bytes(), b"\0"].concat();
        let (errno, body) = self.ask(opcode::MKNOD, ROOT, &body);
        assert_eq!(errno, 0);
        EntryOut::read_from_bytes(&body).unwrap().node
    }

    fn mode(&self, node: u64) -> u32 {
        let (errno, body) = self.ask(opcode::GETATTR, node, &[0; 16]);
        assert_eq!(errno, 0);
        AttrOut::read_from_bytes(&body).unwrap().attr.mode & 0o7777
    }

    fn end(self) {
        drop(self.service);
        self.threads.2.stop();
        self.threads.1.stop();
        self.threads.0.stop();
        self.fs.shutdown().unwrap();
    }
}

fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

fn write(data: &[u8], at: u64, flags: u32) -> Vec<u8> {
    let fields = WriteIn { offset: at, size: data.len() as u32, write_flags: flags, ..WriteIn::default() };
    [fields.as_bytes(), data].concat()
}

#[test]
fn names_that_do_not_exist_are_remembered_and_handles_are_never_asked_for_again() {
    let mount = mounted(|_| {}, ALL);
    let (errno, body) = mount.ask(opcode::LOOKUP, ROOT, &text("none"));
    let entry = EntryOut::read_from_bytes(&body).unwrap();
    assert_eq!((errno, entry.node), (0, 0));
    assert!(entry.entry_valid_s > 1 << 20);
    for opcode in [opcode::OPEN, opcode::OPENDIR, opcode::FLUSH, opcode::INTERRUPT, opcode::ACCESS] {
        assert_eq!(mount.ask(opcode, ROOT, &[0; 24]), (38, Vec::new()), "opcode {opcode}");
    }
    let body = [&[0; 16], &text("c")[..]].concat();
    assert_eq!(mount.ask(opcode::CREATE, ROOT, &body).0, 38);
    assert_eq!(mount.ask(40, ROOT, &[]).0, 38, "POLL");
    mount.end();
    // A kernel that needs handles gets handles without meaning.
    let mount = mounted(|_| {}, 0);
    let (errno, body) = mount.ask(opcode::OPEN, ROOT, &[0; 8]);
    assert_eq!((errno, body.len(), body[8]), (0, 16, (protocol::open::KEEP_CACHE | protocol::open::NOFLUSH) as u8));
    assert_eq!(mount.ask(opcode::RELEASE, ROOT, &[0; 24]).0, 0);
    mount.end();
}

#[test]
fn an_inode_lives_as_long_as_the_kernel_knows_it_and_no_longer() {
    let mount = mounted(|_| {}, ALL);
    let node = mount.make("f", 0o100644);
    assert_eq!(mount.ask(opcode::UNLINK, ROOT, &text("f")).0, 0);
    assert_eq!(mount.mode(node), 0o644, "open, as it were");
    mount.serve(&message(opcode::FORGET, node, &1u64.to_ne_bytes())).unwrap();
    assert_eq!(mount.ask(opcode::GETATTR, node, &[0; 16]).0, 116);
    // An entry that the kernel never received is not a reference.
    mount.kernel.0.is_deaf.store(true, Ordering::Relaxed);
    let body = [MknodIn { mode: 0o100600, ..MknodIn::default() }.as_bytes(), b"lost\0"].concat();
    mount.serve(&message(opcode::MKNOD, ROOT, &body)).unwrap();
    mount.serve(&message(opcode::READDIRPLUS, ROOT, &[&[0; 16], &[0, 16, 0, 0][..], &[0; 20]].concat())).unwrap();
    mount.kernel.0.is_deaf.store(false, Ordering::Relaxed);
    let lost = mount.fs.lookup(Ino::ROOT, b"lost").unwrap().ino;
    assert_eq!(mount.ask(opcode::UNLINK, ROOT, &text("lost")).0, 0);
    assert_eq!(mount.ask(opcode::GETATTR, lost.into(), &[0; 16]).0, 116, "nobody holds it");
    mount.end();
}

#[test]
fn an_unnamed_file_gets_a_name_or_goes_with_its_last_reference() {
    let mount = mounted(|_| {}, ALL);
    let body = [&[1, 0, 0, 0], &0o100640u32.to_ne_bytes()[..], &[0; 8], b"/\0"].concat();
    let (errno, body) = mount.ask(opcode::TMPFILE, ROOT, &body);
    assert_eq!((errno, body.len()), (0, 144));
    let entry = EntryOut::read_from_bytes(&body[..128]).unwrap();
    assert_eq!((entry.attr.nlink, entry.attr.mode), (0, 0o100640));
    // Do as overlayfs when it copies a file up: the mode first, then the owner.
    for change in [
        SetattrIn { valid: setattr::MODE, mode: 0o6755, ..SetattrIn::default() },
        SetattrIn {
            valid: setattr::UID | setattr::GID | setattr::KILL_SUIDGID,
            uid: 5,
            gid: 6,
            ..SetattrIn::default()
        },
    ] {
        assert_eq!(mount.ask_as(0, opcode::SETATTR, entry.node, change.as_bytes()).0, 0);
    }
    assert_eq!(mount.mode(entry.node), 0o6755);
    let body = [&entry.node.to_ne_bytes()[..], b"named\0"].concat();
    assert_eq!(mount.ask(opcode::LINK, ROOT, &body).0, 0);
    assert_eq!(mount.fs.lookup(Ino::ROOT, b"named").unwrap().nlink, 1);
    mount.end();
}

#[test]
fn set_id_bits_go_when_the_kernel_says_so_and_stay_for_root() {
    let mount = mounted(|_| {}, ALL);
    let node = mount.make("f", 0o104755);
    assert_eq!(mount.ask(opcode::WRITE, node, &write(b"x", 0, 0)).0, 0);
    assert_eq!(mount.mode(node), 0o4755, "the writer has CAP_FSETID");
    assert_eq!(mount.ask(opcode::WRITE, node, &write(b"x", 0, protocol::WRITE_KILL_SUIDGID)).0, 0);
    assert_eq!(mount.mode(node), 0o755);
    let told = mount.kernel.0.sent.lock().unwrap().remove(&0).expect("the kernel is told of the mode");
    assert_eq!(told, [(-protocol::NOTIFY_INVAL_INODE, [node.to_ne_bytes(), [255; 8], [0; 8]].concat())]);
    let set = |mode, size, valid, uid| {
        let change = |valid, mode, uid, size| SetattrIn { valid, mode, uid, size, ..SetattrIn::default() };
        mount.ask_as(0, opcode::SETATTR, node, change(setattr::MODE, mode, 0, 0).as_bytes());
        assert_eq!(mount.ask_as(uid, opcode::SETATTR, node, change(valid, 0, 1000, size).as_bytes()).0, 0);
        mount.mode(node)
    };
    assert_eq!(set(0o4755, 5, setattr::SIZE, 1000), 0o4755, "truncated by somebody with the capability");
    assert_eq!(set(0o4755, 6, setattr::SIZE | setattr::KILL_SUIDGID, 0), 0o755, "or by root without it");
    assert_eq!(set(0o6755, 0, setattr::UID | setattr::KILL_SUIDGID, 1000), 0o755, "a user's chown");
    assert_eq!(set(0o6755, 0, setattr::UID | setattr::KILL_SUIDGID, 0), 0o755, "root's chown to the same owner");
    assert_eq!(set(0o2644, 0, setattr::UID | setattr::KILL_SUIDGID, 0), 0o2644, "no group execution");
    // The caller's group is 100, and so is the file's until here.
    assert_eq!(set(0o2644, 7, setattr::SIZE | setattr::KILL_SUIDGID, 1000), 0o2644, "a member of the group");
    let change = SetattrIn { valid: setattr::GID, gid: 4_000_000_000, ..SetattrIn::default() };
    mount.ask_as(0, opcode::SETATTR, node, change.as_bytes());
    assert_eq!(set(0o2644, 8, setattr::SIZE | setattr::KILL_SUIDGID, 1000), 0o644, "a stranger to the group");
    assert_eq!(set(0o2644, 0, setattr::UID | setattr::KILL_SUIDGID, 1000), 0o644, "a stranger's chown");
    // chown(2) with neither an owner nor a group, with and without times that the kernel keeps.
    assert_eq!(set(0o6755, 0, 0, 0), 0o755, "root's chown of nothing");
    assert_eq!(set(0o6755, 0, setattr::CTIME, 1000), 0o755, "the owner's");
    assert_eq!(set(0o6755, 0, 0, 1001), 0o6755, "nobody else's");
    // fallocate does not tell whether the caller has CAP_FSETID.
    mount.ask_as(
        0,
        opcode::SETATTR,
        node,
        SetattrIn { valid: setattr::MODE, mode: 0o4755, ..SetattrIn::default() }.as_bytes(),
    );
    let beyond = [0u64, 1 << 62, 4096, 0].map(u64::to_ne_bytes).concat();
    assert_eq!(mount.ask_as(1000, opcode::FALLOCATE, node, &beyond).0, 27, "EFBIG");
    assert_eq!(mount.mode(node), 0o4755, "what cannot be changes nothing");
    let room = [0u64, 0, 4096, 0].map(u64::to_ne_bytes).concat();
    assert_eq!((mount.ask_as(0, opcode::FALLOCATE, node, &room).0, mount.mode(node)), (0, 0o4755));
    assert_eq!((mount.ask_as(1000, opcode::FALLOCATE, node, &room).0, mount.mode(node)), (0, 0o755));
    mount.end();
}

#[test]
fn an_access_acl_takes_set_group_id_when_the_kernel_says_so() {
    // Version 2; owner, group and others may read.
    let entries = [(1u16, 6u16), (4, 4), (32, 4)]
        .map(|(tag, bits)| [&tag.to_ne_bytes()[..], &bits.to_ne_bytes(), &[255; 4]].concat());
    let value = [&2u32.to_ne_bytes()[..], &entries.concat()].concat();
    let name = text("system.posix_acl_access");
    let set = |mount: &Mounted, node, flags: &[u32]| {
        let fields = [&[value.len() as u32, 0][..], flags].concat();
        let fields = fields.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<u8>>();
        assert_eq!(mount.ask(opcode::SETXATTR, node, &[&fields[..], &name, &value].concat()).0, 0);
        mount.mode(node) & 0o7000
    };
    let mount = mounted(|_| {}, ALL);
    let node = mount.make("f", 0o102654);
    assert_eq!(set(&mount, node, &[0, 0]), 0o2000);
    assert_eq!(set(&mount, node, &[protocol::SETXATTR_ACL_KILL_SGID, 0]), 0);
    mount.end();
    // If the kernel does not tell, the caller's own group decides, which is 100 here.
    let mount = mounted(|_| {}, ALL & !init_flags::SETXATTR_EXT);
    let node = mount.make("f", 0o102654);
    assert_eq!(set(&mount, node, &[]), 0o2000);
    let change = SetattrIn { valid: setattr::GID | setattr::MODE, gid: 7, mode: 0o2654, ..SetattrIn::default() };
    assert_eq!(mount.ask_as(0, opcode::SETATTR, node, change.as_bytes()).0, 0);
    assert_eq!(set(&mount, node, &[]), 0);
    mount.end();
}

#[test]
fn without_attributes_each_of_their_requests_is_refused_for_good() {
    let mount = mounted(|options| options.xattrs = false, ALL);
    let named = [&[0; 8], &text("user.x")[..]].concat();
    for (opcode, body) in [
        (opcode::GETXATTR, named.clone()),
        (opcode::LISTXATTR, vec![0; 8]),
        (opcode::REMOVEXATTR, text("user.x")),
        (opcode::SETXATTR, [&[0; 16], &text("user.x")[..]].concat()),
    ] {
        assert_eq!(mount.ask(opcode, ROOT, &body).0, 38, "opcode {opcode}");
    }
    mount.end();
}

#[test]
fn names_are_listed_for_who_can_read_them_and_tuning_is_the_owners() {
    let mount = mounted(|_| {}, ALL);
    let node = mount.make("f", 0o100666);
    let set = |uid, name: &str, value: &str| {
        let body =
            [&(value.len() as u32).to_ne_bytes()[..], &[0; 12], name.as_bytes(), b"\0", value.as_bytes()].concat();
        mount.ask_as(uid, opcode::SETXATTR, node, &body).0
    };
    for (uid, name, value, errno) in [
        (0, "trusted.t", "1", 0),
        (1000, "user.u", "2", 0),
        (1001, "user.other", "3", 0),
        (1001, "user.shoal.compress", "lz4", 1),
        (1001, "user.shoal.threshold", "64K", 1),
        (1000, "user.shoal.compress", "lz4", 0),
        (0, "user.shoal.threshold", "64K", 0),
    ] {
        assert_eq!(set(uid, name, value), errno, "{name} by {uid}");
    }
    let remove = |uid| mount.ask_as(uid, opcode::REMOVEXATTR, node, &text("user.shoal.compress")).0;
    assert_eq!([remove(1001), remove(1000)], [1, 0]);
    let listed = |uid| {
        let (errno, body) = mount.ask_as(uid, opcode::LISTXATTR, node, &[0, 16, 0, 0, 0, 0, 0, 0]);
        assert_eq!(errno, 0);
        String::from_utf8(body).unwrap()
    };
    let all = "trusted.t\0user.u\0user.other\0user.shoal.threshold\0";
    assert_eq!([listed(0), listed(1000)], [all, &all["trusted.t\0".len()..]]);
    let (errno, size) = mount.ask_as(1000, opcode::LISTXATTR, node, &[0; 8]);
    assert_eq!((errno, size[0] as usize), (0, listed(1000).len()), "the size that is asked for first");
    mount.end();
}

#[test]
fn a_mount_without_checks_refuses_other_names_but_serves_the_kernel() {
    let mount = mounted(|options| options.access = Access::OwnerUnchecked, ALL);
    let service = Service { owner: 55, ..mount.service };
    let mount = Mounted { service, ..mount };
    let look = |uid| mount.ask_as(uid, opcode::LOOKUP, ROOT, &text("x")).0;
    assert_eq!((look(55), look(0), look(1000)), (0, 13, 13));
    assert_eq!(mount.ask_as(1000, opcode::FSYNC, ROOT, &[0; 16]).0, 0, "written back in somebody's name");
    mount.end();
}

#[test]
fn with_write_back_the_kernel_keeps_the_times_and_sends_them_in_nobodys_name() {
    let options = MountOptions { writeback: true, ..MountOptions::new("/s".into()) };
    assert!(crate::requests::wanted(&options).flags & init_flags::WRITEBACK_CACHE != 0);
    let mount = mounted(|options| options.access = Access::OwnerUnchecked, ALL);
    let service = Service { owner: 55, ..mount.service };
    let mount = Mounted { service, ..mount };
    let attr = mount
        .fs
        .mknod(&shoal_fs::Caller { hold: true, ..Default::default() }, shoal_fs::ROOT, b"f", 0o100600, 0)
        .unwrap();
    assert_eq!(mount.ask_as(55, opcode::FLUSH, u64::from(attr.ino), &[0; 24]).0, 38, "nothing is held back");
    let set = |valid| {
        let times =
            SetattrIn { valid, mtime: 5, mtime_ns: 6, ctime: 7, ctime_ns: 8, mode: 0o644, ..SetattrIn::default() };
        mount.ask_as(0, opcode::SETATTR, u64::from(attr.ino), times.as_bytes()).0
    };
    assert_eq!(set(setattr::MTIME | setattr::CTIME | setattr::FH), 0);
    let now = mount.fs.getattr(attr.ino).unwrap();
    assert_eq!((now.mtime, now.ctime), (5_000_000_006, 7_000_000_008));
    for other in [setattr::MTIME, setattr::MODE | setattr::CTIME, setattr::ATIME | setattr::CTIME] {
        assert_eq!(set(other), 13, "that is somebody else");
    }
    mount.end();
}

#[test]
fn with_write_back_a_close_is_answered_and_no_hole_is_told_and_writes_leave_the_times_alone() {
    let holes = |flags| {
        let mount = mounted(|_| {}, flags);
        let node = mount.make("f", 0o100644);
        let size = SetattrIn { valid: setattr::SIZE, size: 1 << 20, ..SetattrIn::default() };
        assert_eq!(mount.ask(opcode::SETATTR, node, size.as_bytes()).0, 0);
        let seek = |at: u64| {
            let body = [0, at, 3].map(u64::to_ne_bytes).concat();
            let (errno, body) = mount.ask(opcode::LSEEK, node, &body);
            (errno, body.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes)))
        };
        let blocks = || AttrOut::read_from_bytes(&mount.ask(opcode::GETATTR, node, &[0; 16]).1).unwrap().attr.blocks;
        let before = mount.fs.getattr(Ino::new(node as u32)).unwrap();
        let untouched = seek(0);
        assert_eq!(blocks(), 1, "a map may have stored into it");
        assert_eq!(
            mount.ask(opcode::READ, node, ReadIn { offset: 8192, size: 4096, ..ReadIn::default() }.as_bytes()).0,
            0
        );
        let is_read = seek(0);
        std::thread::sleep(Duration::from_millis(30));
        assert_eq!(mount.ask(opcode::WRITE, node, &write(b"x", 100, 0)).0, 0);
        let after = mount.fs.getattr(Ino::new(node as u32)).unwrap();
        let flush = mount.ask(opcode::FLUSH, node, &[0; 24]).0;
        mount.end();
        (untouched, is_read, flush, (after.mtime, after.ctime) == (before.mtime, before.ctime))
    };
    assert_eq!(holes(ALL), ((6, None), (0, Some(8192)), 38, false));
    assert_eq!(holes(ALL | init_flags::WRITEBACK_CACHE), ((38, None), (38, None), 0, true));
}

#[test]
fn zeros_that_the_kernel_has_from_writes_and_cuts_count_as_data_until_it_forgets_the_file() {
    let mount = mounted(|_| {}, ALL);
    let node = mount.make("f", 0o100644);
    let seek = |at: u64| {
        let (errno, body) = mount.ask(opcode::LSEEK, node, &[0, at, 3].map(u64::to_ne_bytes).concat());
        if errno == 0 { u64::from_ne_bytes(*body.first_chunk().unwrap()) } else { 0 }
    };
    let resize = |size| {
        let size = SetattrIn { valid: setattr::SIZE, size, ..SetattrIn::default() };
        assert_eq!(mount.ask(opcode::SETATTR, node, size.as_bytes()).0, 0);
    };
    resize(76 * 4096);
    assert_eq!(mount.ask(opcode::WRITE, node, &write(&[0; 65536], 65536, 0)).0, 0);
    let punch = [0u64, 65536, 65536, 3].map(u64::to_ne_bytes).concat();
    assert_eq!(mount.ask(opcode::FALLOCATE, node, &punch).0, 0);
    assert_eq!((seek(0), seek(131_072)), (65536, 0));
    resize(200_000);
    resize(1 << 20);
    assert_eq!((seek(131_072), seek(200_704)), (196_608, 0));
    let punch = [0u64, 300_001, 100_000, 3].map(u64::to_ne_bytes).concat();
    assert_eq!(mount.ask(opcode::FALLOCATE, node, &punch).0, 0);
    assert_eq!((seek(200_704), seek(303_104)), (299_008, 397_312));
    mount.serve(&message(opcode::FORGET, node, &1u64.to_ne_bytes())).unwrap();
    mount.fs.hold(Ino::new(node as u32)).unwrap();
    assert_eq!(seek(0), 0);
    mount.end();
}

#[test]
fn an_answer_that_was_forgotten_or_is_too_long_is_an_error_and_there_is_only_one() {
    let mount = mounted(|_| {}, ALL);
    let message = message(opcode::READLINK, ROOT, &[]);
    let request = decode(&message, &mount.service.agreed).unwrap();
    let answers = |reply: &dyn Fn(Reply)| {
        reply(Reply::to(&request, &mount.port, Instant::now()));
        mount.kernel.0.sent.lock().unwrap().remove(&request.unique).unwrap()
    };
    assert_eq!(answers(&|reply| drop(reply)), [(5, Vec::new())]);
    assert_eq!(answers(&|reply| assert!(!reply.bytes(&[0; 4096]))), [(5, Vec::new())]);
    assert_eq!(answers(&|reply| assert!(reply.bytes(&[7; 4095]))), [(0, vec![7; 4095])]);
    assert!(mount.serve(&[1, 2, 3]).is_err(), "no request at all");
    assert_eq!(mount.ask(opcode::LOOKUP, ROOT, b"no end").0, 5);
    mount.end();
}

#[test]
fn a_connection_begins_with_init_and_ends_with_destroy() {
    let begin = |first: Vec<Vec<u8>>| {
        let kernel = Kernel::default();
        *kernel.0.questions.lock().unwrap() = first.into_iter().rev().collect();
        let options = MountOptions::new("/s".into());
        let agreed = handshake(&Port::new(Box::new(kernel.clone())), &crate::requests::wanted(&options));
        (agreed, kernel.0.sent.lock().unwrap().remove(&52).unwrap_or_default())
    };
    let init = |major, minor, flags: u64| {
        let short = InitInShort { major, minor, read_ahead_max: 1 << 17, flags: flags as u32 };
        let rest = InitInRest { flags2: (flags >> 32) as u32, ..InitInRest::default() };
        message(opcode::INIT, 0, &[short.as_bytes(), rest.as_bytes()].concat())
    };
    // Offer all flags of Linux 6.18, and more.
    let (agreed, sent) = begin(vec![init(8, 0, 0), init(7, 45, u64::MAX)]);
    let agreed = agreed.unwrap();
    assert_eq!(sent.len(), 2, "its newer version is answered with ours");
    let answer = InitOut::read_from_bytes(&sent[1].1).unwrap();
    assert_eq!((answer.major, answer.minor, answer.write_bytes_max), (7, 45, 1 << 20));
    assert!(agreed.has(init_flags::POSIX_ACL) && agreed.has(init_flags::SETXATTR_EXT));
    assert!(!agreed.has(1 << 15), "ASYNC_DIO leaves old pages");
    assert!(!agreed.has(init_flags::WRITEBACK_CACHE), "it would lose writes that returned; only on request");
    assert!(begin(vec![init(7, 8, 0)]).0.is_err(), "too old");
    assert!(begin(vec![message(opcode::GETATTR, 1, &[0; 16])]).0.is_err());
    assert!(begin(vec![]).0.is_err(), "ended before it began");

    let mount = mounted(|_| {}, ALL);
    *mount.kernel.0.questions.lock().unwrap() =
        vec![message(opcode::DESTROY, 0, &[]), message(opcode::GETATTR, ROOT, &[0; 16])];
    let Mounted { kernel, service, port, threads, fs } = mount;
    let served = Threads::start(service, vec![Way::Device(port, None)], None, &Breaker::default()).unwrap();
    let counts = served.counts();
    served.join().unwrap();
    assert_eq!(kernel.0.sent.lock().unwrap().len(), 2);
    assert_eq!(counts.report().len(), 2);
    assert_eq!(Arc::strong_count(&kernel.0), 1, "counts keep no channel open");
    threads.2.stop();
    threads.1.stop();
    threads.0.stop();
    fs.shutdown().unwrap();
}

#[test]
fn once_a_queue_has_ended_all_threads_of_the_device_serve() {
    let mount = mounted(|_| {}, ALL);
    let Mounted { kernel, service, port, threads, fs } = mount;
    // The queue has no requests, so its connection is over at once.
    let (ended, lane) =
        (Port::new(Box::new(Kernel::default())), Lane::new(Arc::new(std::fs::File::open("/dev/null").unwrap().into())));
    let behind = Way::Behind(port, lane.clone());
    *kernel.0.questions.lock().unwrap() =
        vec![message(opcode::DESTROY, 0, &[]), message(opcode::GETATTR, ROOT, &[0; 16])];
    let waits = std::thread::spawn({
        let lane = lane.clone();
        move || lane.wait()
    });
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!waits.is_finished(), "nothing comes by the device while queues serve");
    Threads::start(service, vec![behind, Way::Queue(ended, lane)], None, &Breaker::default()).unwrap().join().unwrap();
    waits.join().unwrap();
    assert_eq!(kernel.0.sent.lock().unwrap().len(), 2);
    threads.2.stop();
    threads.1.stop();
    threads.0.stop();
    fs.shutdown().unwrap();
}

/// Returns plausible bodies, with existing inode numbers.
fn plausible(random: &mut Random, opcode: u32) -> Vec<u8> {
    let name = |random: &mut Random| text(["a", "b", "c", "d/e", ".", ".."][random.below(6) as usize]);
    let mut body: Vec<u8> = match opcode {
        opcode::MKNOD => {
            let mode = [0o100644, 0o104755, 0o010600, 0o120777, 0][random.below(5) as usize];
            MknodIn { mode, ..MknodIn::default() }.as_bytes().to_vec()
        }
        opcode::MKDIR => MkdirIn { mode: 0o755, umask: 0 }.as_bytes().to_vec(),
        opcode::WRITE => {
            let len = [0, 1, 100, 5000, 200_000][random.below(5) as usize];
            return write(&vec![7; len], random.below(300_000), random.below(8) as u32);
        }
        opcode::INIT => vec![7; 16],
        opcode::LOOKUP | opcode::SYMLINK | opcode::UNLINK | opcode::RMDIR | opcode::REMOVEXATTR => Vec::new(),
        opcode::GETXATTR | opcode::RENAME | opcode::LINK => u64::to_ne_bytes(random.below(5)).to_vec(),
        opcode::RENAME2 | opcode::SETXATTR | opcode::CREATE | opcode::TMPFILE => {
            [u64::to_ne_bytes(random.below(5)), u64::to_ne_bytes(random.below(3))].concat()
        }
        _ => (0..11)
            .flat_map(|_| u64::to_ne_bytes([0, 1, 3, 100, 4096, random.next_u64()][random.below(6) as usize]))
            .collect(),
    };
    body.extend_from_slice(&name(random));
    body.extend_from_slice(&name(random));
    body
}

/// A request without an answer would leave a program waiting, and the kernel refuses an answer that
/// is too long.
#[test]
fn any_message_is_answered_once_and_within_its_room() {
    let mut random = random_from_environment();
    let mount = mounted(|_| {}, ALL);
    let mut kinds = HashMap::new();
    for round in 0..rounds(30_000) {
        let opcode = random.below(u64::from(opcode::END) + 2) as u32;
        let node = [1, 1, 2, 3, 4, 5, 6, random.next_u64()][random.below(8) as usize];
        let mut bytes = message(opcode, node, &plausible(&mut random, opcode));
        let unique = round + 1;
        bytes[8..16].copy_from_slice(&unique.to_ne_bytes());
        if random.below(4) == 0 {
            // Spare the header's first half: another length makes another message, another number
            // another request.
            let at = 16 + random.below(bytes.len() as u64 - 16) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        if opcode == opcode::FALLOCATE || opcode == opcode::COPY_FILE_RANGE || opcode == opcode::COPY_FILE_RANGE_64 {
            // Clear the high bytes: gigabytes would only take time.
            bytes[58..64].fill(0);
            let end = bytes.len().min(88);
            bytes[82..end].fill(0);
        }
        let (is_answered, bytes_max) = match decode(&bytes, &mount.service.agreed) {
            Ok(request) => match request.operation {
                Operation::Forget { .. } | Operation::BatchForget(_) | Operation::NotifyReply => (false, 0),
                operation => (true, operation.answer_bytes_max()),
            },
            Err(malformed) => (malformed.unique.is_some(), 0),
        };
        mount.serve(&bytes).unwrap();
        if !is_answered {
            assert!(!mount.kernel.0.sent.lock().unwrap().contains_key(&unique));
            continue;
        }
        let begin = Instant::now();
        let answers = loop {
            if let Some(answers) = mount.kernel.0.sent.lock().unwrap().remove(&unique) {
                break answers;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "no answer to {bytes:?}");
            std::thread::yield_now();
        };
        let [(errno, body)] = &answers[..] else { panic!("{} answers to {bytes:?}", answers.len()) };
        assert!(body.len() <= bytes_max, "{} bytes for {bytes_max}: {bytes:?}", body.len());
        assert!((0..4096).contains(errno) && (*errno == 0 || body.is_empty()), "{errno} to {bytes:?}");
        *kinds.entry((opcode, *errno == 0)).or_insert(0) += 1;
    }
    assert!(mount.kernel.0.sent.lock().unwrap().keys().all(|&unique| unique == 0), "an answer nobody waited for");
    let succeeded = kinds.keys().filter(|(_, ok)| *ok).count();
    assert!(succeeded > 25, "only {succeeded} kinds of request succeeded: {kinds:?}");
    mount.end();
}
