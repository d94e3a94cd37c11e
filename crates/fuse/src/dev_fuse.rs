//! The transport of `/dev/fuse`: one `read` for a message in, one `writev` for a message out.
//!
//! Each thread reads from a descriptor of its own if the device can be opened again; otherwise all
//! threads share the one that was mounted. The kernel gives a whole request to one reader. ENOENT
//! means that the request was withdrawn. ENODEV means the end of the connection: it was unmounted
//! or aborted.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use shoal_host::Pause;

use crate::channel::Channel;

#[derive(Clone)]
pub(crate) struct DevFuse(Arc<OwnedFd>);

impl DevFuse {
    pub fn new(device: OwnedFd) -> DevFuse {
        DevFuse(Arc::new(device))
    }

    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.0
    }

    /// Returns a further channel of the same connection.
    pub fn another(&self) -> DevFuse {
        match shoal_host::clone_connection(self.0.as_fd()) {
            Ok(device) => DevFuse::new(device),
            // Not every container has the device. The shared descriptor works as well, a little
            // slower.
            Err(error) => {
                tracing::debug!("/dev/fuse: {error}; the threads share one descriptor");
                self.clone()
            }
        }
    }
}

impl Channel for DevFuse {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut pause = Pause::default();
        loop {
            match rustix::io::read(&*self.0, &mut *buffer) {
                Ok(len) => return Ok(Some(len)),
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(error) => wait(&mut pause, error, "reading a request")?,
            }
        }
    }

    fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<()> {
        let mut pause = Pause::default();
        loop {
            // The kernel takes a message whole or not at all.
            match rustix::io::writev(&*self.0, pieces) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => wait(&mut pause, error, "answering a request")?,
            }
        }
    }
}

fn wait(pause: &mut Pause, error: Errno, during: &str) -> io::Result<()> {
    if pause.after(error)? {
        tracing::warn!("/dev/fuse: {during}: {error}; tried again");
    }
    Ok(())
}
