//! Connects the protocol and the actions: a message is decoded, carried out by `requests`, and its
//! answer encoded.
//!
//! One arm for each operation, without policy, except for two rules of the connection: who may use
//! the mount, and the answer to messages that cannot be understood (EIO; never ENOSYS, which would
//! switch the operation off for good).

use std::io;
use std::sync::Arc;
use std::time::Instant;

use shoal_fs::Ino;
use zerocopy::{Immutable, IntoBytes};

use crate::channel::{Port, Reply};
use crate::errno::Errno;
use crate::options::Access;
use crate::protocol::layout::{CreateOut, GetXattrOut, IoctlOut, LseekOut, OpenOut, StatfsOut, WriteOut};
use crate::protocol::{self, Agreed, Listing, Operation, Request, decode, setattr};
use crate::requests::{Asker, AttributeChange, Copy, Created, Entry, Outcome, REQUEST_BYTES_MAX, Requests};

/// Serves the requests of one mount.
pub(crate) struct Service {
    pub requests: Requests,
    pub agreed: Agreed,
    pub access: Access,
    /// Uid of the user who mounted.
    pub owner: u32,
}

/// A thread's next step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Request,
    /// Take the next request, after the kernel has forgotten inodes.
    Forgotten,
    /// The connection is over.
    End,
}

/// Returns the inode of a node that the kernel names. The kernel invents no nodes; a number that is
/// too large becomes 0, which is no inode.
fn inode(node: u64) -> Ino {
    Ino::try_from(node).unwrap_or(Ino::ZERO)
}

impl Service {
    /// Carries out one message. `scratch` is the thread's buffer for data that is read.
    pub fn serve(&self, message: &[u8], port: &Arc<Port>, scratch: &mut Vec<u8>) -> io::Result<Next> {
        let began = Instant::now();
        let request = match decode(message, &self.agreed) {
            Ok(request) => request,
            Err(malformed) => {
                tracing::error!("request {} of {} bytes cannot be understood", malformed.opcode, message.len());
                if let Some(unique) = malformed.unique {
                    Reply::to_malformed(unique, malformed.opcode, port, began).error(Errno::IO);
                } else if malformed.opcode == 0 {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "a message without a header"));
                }
                return Ok(Next::Request);
            }
        };
        match request.operation {
            // The kernel waits for no answer to these.
            Operation::Forget { count } => self.requests.forget(inode(request.node), count),
            Operation::BatchForget(forgets) => {
                forgets.iter().for_each(|(node, count)| self.requests.forget(inode(node), count));
            }
            Operation::NotifyReply => {}
            Operation::Destroy => {
                Reply::to(&request, port, began).empty();
                return Ok(Next::End);
            }
            _ => {
                let reply = Reply::to(&request, port, began);
                match self.admits(&request) {
                    true => self.answer(&request, reply, scratch),
                    false => reply.error(Errno::ACCES),
                }
                return Ok(Next::Request);
            }
        }
        port.counts.note(request.opcode, began.elapsed());
        Ok(if matches!(request.operation, Operation::NotifyReply) { Next::Request } else { Next::Forgotten })
    }

    /// Returns whether the caller may use the mount. If permissions are checked, the kernel has
    /// decided. Otherwise the kernel has looked at the ids of the process, not at the user for whom
    /// the process uses files.
    fn admits(&self, request: &Request<'_>) -> bool {
        let is_admitted = self.access.is_checked() || request.uid == self.owner;
        // The kernel writes back a file's times on nobody's behalf.
        let is_times = |valid: u32| valid & !(setattr::MTIME | setattr::FH) == setattr::CTIME;
        // The kernel also sends these on its own behalf.
        is_admitted
            || matches!(request.operation, Operation::Setattr(asked) if is_times(asked.valid))
            || matches!(
                request.operation,
                Operation::Read { .. }
                    | Operation::Write { .. }
                    | Operation::Readdir { .. }
                    | Operation::Readdirplus { .. }
                    | Operation::Fsync
                    | Operation::Fsyncdir
                    | Operation::Flush
                    | Operation::Release
                    | Operation::Releasedir
                    | Operation::Interrupt
            )
    }

    fn answer(&self, request: &Request<'_>, reply: Reply, scratch: &mut Vec<u8>) {
        let (requests, node) = (&self.requests, inode(request.node));
        let asker = Asker { uid: request.uid, gid: request.gid, pid: request.pid };
        match request.operation {
            // Handled in `serve`, or by the handshake.
            Operation::Forget { .. }
            | Operation::BatchForget(_)
            | Operation::NotifyReply
            | Operation::Destroy
            | Operation::Init(_) => reply.error(Errno::IO),
            Operation::Lookup { name } => self.entry(reply, requests.lookup(node, name)),
            Operation::Getattr => attr(reply, requests.getattr(node)),
            Operation::Statx { .. } => value(reply, requests.getattr(node).map(|attr| protocol::statx(&attr))),
            Operation::Setattr(asked) => requests.setattr(asker, node, &asked, move |outcome| attr(reply, outcome)),
            Operation::Readlink => bytes(reply, requests.readlink(node)),
            Operation::Symlink { name, target } => {
                self.entry(reply, requests.create(asker, node, name, Created::Symlink { target }));
            }
            Operation::Mknod { name, mode, rdev, umask } => {
                self.entry(reply, requests.create(asker, node, name, Created::Node { mode, rdev, umask }));
            }
            Operation::Mkdir { name, mode, umask } => {
                self.entry(reply, requests.create(asker, node, name, Created::Directory { mode, umask }));
            }
            Operation::Unlink { name } => reply.finish(requests.unlink(node, name)),
            Operation::Rmdir { name } => reply.finish(requests.rmdir(node, name)),
            Operation::Rename { name, new_directory, new_name, flags } => {
                let (from, to) = ((node, name), (inode(new_directory), new_name));
                requests.rename(asker, from, to, flags, move |outcome| reply.finish(outcome));
            }
            Operation::Link { target, name } => self.entry(reply, requests.link(inode(target), node, name)),
            Operation::Open { .. } => opened(reply, requests.open()),
            Operation::Opendir => opened(reply, requests.opendir()),
            // The kernel then makes a node instead, looks at nothing else, and sends no RELEASE.
            Operation::Create { .. } => reply.error(Errno::NOSYS),
            Operation::Tmpfile { mode, umask, .. } => self.created(reply, requests.tmpfile(asker, node, mode, umask)),
            Operation::Read { offset, size } => self.read(reply, node, offset, size, scratch),
            Operation::Write { offset, data, flags } => {
                let killer = (flags & protocol::WRITE_KILL_SUIDGID != 0).then_some(asker);
                let is_page = flags & protocol::WRITE_CACHE != 0;
                let least = if is_page { data.len() } else { 0 };
                requests.write(node, offset, data, is_page, killer, move |outcome| {
                    written(reply, whole(outcome, least).map(|bytes| bytes as u32));
                });
            }
            Operation::Statfs => value(reply, Ok(statfs(&requests.statfs()))),
            // No handles exist. A kernel that sends these uses the value that every open returns.
            Operation::Release | Operation::Releasedir => reply.empty(),
            Operation::Fsync | Operation::Fsyncdir => requests.fsync(node, move |outcome| reply.finish(outcome)),
            Operation::Syncfs => requests.syncfs(move |outcome| reply.finish(outcome)),
            Operation::Readdir { offset, size } => self.readdir(reply, node, offset, size),
            Operation::Readdirplus { offset, size } => {
                self.listed(reply, requests.readdirplus(node, offset, listing_bytes(size)));
            }
            Operation::Setxattr { name, value, flags, more_flags } => {
                let change = AttributeChange { name, value, flags, more_flags };
                reply.finish(requests.setxattr(asker, node, &change));
            }
            Operation::Getxattr { name, size } => sized(reply, requests.getxattr(node, name), size),
            Operation::Listxattr { size } => sized(reply, requests.listxattr(asker, node), size),
            Operation::Removexattr { name } => reply.finish(requests.removexattr(asker, node, name)),
            Operation::Ioctl { command, data, out_size } => {
                controlled(reply, requests.ioctl(asker, node, command, data, out_size));
            }
            Operation::Fallocate { offset, len, mode } => {
                requests.fallocate(asker, node, mode, offset, len, move |outcome| reply.finish(outcome));
            }
            Operation::Lseek { offset, whence } => {
                value(reply, requests.seek(node, offset, whence).map(|offset| LseekOut { offset }));
            }
            Operation::CopyFileRange { offset, to_node, to_offset, len, wide } => {
                let copy = Copy { from: node, from_at: offset, to: inode(to_node), to_at: to_offset, len };
                requests.copy_range(asker, copy, move |outcome| copied(reply, outcome, wide));
            }
            Operation::Flush => reply.finish(requests.flush(asker, node)),
            // ACCESS comes only without default_permissions, and then nothing is checked. After this
            // answer the kernel sends no INTERRUPT; no long wait here could be cancelled anyway.
            Operation::Access | Operation::Interrupt | Operation::Unknown => reply.error(Errno::NOSYS),
        }
    }

    fn read(&self, reply: Reply, node: Ino, offset: u64, size: u32, scratch: &mut Vec<u8>) {
        let scratch = room(scratch, size.min(REQUEST_BYTES_MAX) as usize);
        self.requests.read(node, offset, scratch, move |outcome| bytes(reply, outcome));
    }

    fn readdir(&self, reply: Reply, node: Ino, offset: u64, size: u32) {
        let listing = self.requests.readdir(node, offset, listing_bytes(size));
        bytes(reply, listing.as_ref().map(Listing::bytes).map_err(|&error| error));
    }

    fn entry(&self, reply: Reply, outcome: Outcome<Entry>) {
        match outcome {
            Ok(Entry::Found { attr, lifetime_s }) => {
                if !reply.value(&protocol::entry(&attr, lifetime_s)) {
                    self.requests.not_delivered(attr.ino);
                }
            }
            Ok(Entry::Absent) => {
                reply.value(&protocol::no_such_name());
            }
            Err(error) => reply.error(error),
        }
    }

    /// Answers with an entry that is open.
    fn created(&self, reply: Reply, outcome: Outcome<shoal_fs::Attr>) {
        match outcome {
            Ok(attr) => {
                let flags = protocol::open::KEEP_CACHE | protocol::open::NOFLUSH;
                let entry = protocol::entry(&attr, protocol::FOR_EVER_S);
                if !reply.value(&CreateOut { entry, open: OpenOut { flags, ..OpenOut::default() } }) {
                    self.requests.not_delivered(attr.ino);
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn listed(&self, reply: Reply, outcome: Outcome<(Listing, Vec<Ino>)>) {
        match outcome {
            Ok((listing, held)) => {
                if !reply.bytes(listing.bytes()) {
                    held.into_iter().for_each(|ino| self.requests.not_delivered(ino));
                }
            }
            Err(error) => reply.error(error),
        }
    }
}

fn value(reply: Reply, outcome: Outcome<impl IntoBytes + Immutable>) {
    match outcome {
        Ok(value) => {
            reply.value(&value);
        }
        Err(error) => reply.error(error),
    }
}

fn attr(reply: Reply, outcome: Outcome<shoal_fs::Attr>) {
    value(reply, outcome.map(|attr| protocol::attr(&attr)));
}

fn opened(reply: Reply, outcome: Outcome<u32>) {
    value(reply, outcome.map(|flags| OpenOut { flags, ..OpenOut::default() }));
}

/// Fails a short write of pages that the kernel writes back. To the kernel they count as written,
/// whatever number the answer has, so the bytes after a write cut short for lack of space would be
/// lost silently.
fn whole(outcome: Outcome<usize>, least: usize) -> Outcome<usize> {
    match outcome {
        Ok(done) if done < least => Err(shoal_fs::Error::NO_SPACE.into()),
        outcome => outcome,
    }
}

fn written(reply: Reply, outcome: Outcome<u32>) {
    value(reply, outcome.map(|bytes| WriteOut { bytes, ..WriteOut::default() }));
}

/// Answers a copy with the number of bytes, in 64 bits if `wide`.
fn copied(reply: Reply, outcome: Outcome<u64>, wide: bool) {
    match wide {
        true => value(reply, outcome),
        false => written(reply, outcome.map(|copied| copied as u32)),
    }
}

fn controlled(reply: Reply, outcome: Outcome<Vec<u8>>) {
    match outcome {
        Ok(bytes) => {
            reply.value_and_bytes(&IoctlOut::default(), &bytes);
        }
        Err(error) => reply.error(error),
    }
}

fn statfs(is: &shoal_fs::StatFs) -> StatfsOut {
    StatfsOut {
        blocks: is.blocks,
        free: is.free,
        available: is.available,
        files: is.files,
        files_free: is.files_free,
        block_bytes: is.block_bytes,
        name_max: is.name_max,
        fragment_bytes: is.block_bytes,
        ..StatfsOut::default()
    }
}

fn bytes(reply: Reply, outcome: Outcome<impl AsRef<[u8]>>) {
    match outcome {
        Ok(bytes) => {
            reply.bytes(bytes.as_ref());
        }
        Err(error) => reply.error(error),
    }
}

/// Returns the first `len` bytes of a buffer that grows as needed.
fn room(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

/// Answers a query for the size, or sends the bytes if there is room for them.
fn sized(reply: Reply, outcome: Outcome<Vec<u8>>, size: u32) {
    match outcome {
        Ok(value) if size == 0 => {
            reply.value(&GetXattrOut { bytes: value.len() as u32, ..GetXattrOut::default() });
        }
        Ok(value) if value.len() > size as usize => reply.error(Errno::RANGE),
        outcome => bytes(reply, outcome),
    }
}

fn listing_bytes(size: u32) -> usize {
    size.min(REQUEST_BYTES_MAX) as usize
}

#[cfg(test)]
#[path = "service_tests.rs"]
mod tests;
