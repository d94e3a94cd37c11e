//! Opens what a device's description names, and answers for it: status, redundancy, changes of its donors.
//!
//! Owns the choice among a file, a connection to an NBD server, a network RAM disk and a virtual-log disk; each is a `BlockDevice` of its
//! own.
//! Rules: an error names the device and what to do; nothing is made here. A disk that is not there any more (the donors of a network RAM
//! disk forget when they restart) must not come back empty: only `shoal format` makes disks.

use std::sync::Arc;

use shoal_host::FileDevice;
use shoal_media::{BlockDevice, MediaError};
use shoal_nbd::{BlockStatus, Extent};

use crate::control::DonorChange;
use crate::device::Description;
use crate::failure::{Failure, Outcome};
use crate::nbd_link::{Contents, Link};
use crate::netram_disk::NetramDisk;
use crate::status::DeviceReport;
use crate::vlog_disk::VlogDisk;

/// An open device.
pub struct Device {
    kind: Kind,
}

enum Kind {
    File(Arc<FileDevice>, Description),
    Nbd(Arc<Link>, Description),
    Netram(Arc<NetramDisk>),
    Vlog(Arc<VlogDisk>),
}

pub fn open(description: &Description) -> Outcome<Device> {
    let kind = match description {
        Description::File(path) => {
            let remedy = "make it first, for example with `truncate -s 1G FILE`";
            let file = FileDevice::open(path).map_err(|error| Failure::told(error).remedy(remedy))?;
            // A copy of a store's directory names the same file, and would write over this store's blocks.
            file.claim().map_err(|error| Failure::new(path.display(), error))?;
            Kind::File(Arc::new(file), description.clone())
        }
        Description::Nbd { uri, lost_after } => {
            let link = Link::connect(uri, Contents::Durable, *lost_after).map_err(Failure::told)?;
            if !link.can_flush() {
                let cause = "the server knows no flush, so nothing on it can be called durable";
                return Err(Failure::new(uri, cause).remedy("use a server with flush, or this one as a donor"));
            }
            Kind::Nbd(Arc::new(link), description.clone())
        }
        Description::Netram(wanted) => Kind::Netram(Arc::new(NetramDisk::open(wanted)?)),
        Description::Vlog(path) => Kind::Vlog(Arc::new(VlogDisk::open(path)?)),
    };
    Ok(Device { kind })
}

impl Device {
    /// How to open it again.
    pub fn description(&self) -> Description {
        match &self.kind {
            Kind::File(_, description) | Kind::Nbd(_, description) => description.clone(),
            Kind::Netram(disk) => Description::Netram(Box::new(disk.description())),
            Kind::Vlog(disk) => disk.description(),
        }
    }

    /// What it is, in words for anybody.
    pub fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::File(..) => "disk",
            Kind::Nbd(..) => "network block device",
            Kind::Netram(_) => "network RAM disk",
            Kind::Vlog(_) => "virtual-log disk",
        }
    }

    pub fn block_device(&self) -> Arc<dyn BlockDevice> {
        match &self.kind {
            Kind::File(device, _) => device.clone(),
            Kind::Nbd(link, _) => link.clone(),
            Kind::Netram(disk) => disk.block_device(),
            Kind::Vlog(disk) => disk.block_device(),
        }
    }

    pub fn report(&self) -> DeviceReport {
        let (kind, connection, disk, vlog) = match &self.kind {
            Kind::File(..) => ("file", None, None, None),
            Kind::Nbd(link, _) => ("nbd", Some(link.state().to_string()), None, None),
            Kind::Netram(disk) => ("netram", None, Some(disk.report()), None),
            Kind::Vlog(disk) => ("vlog", None, None, Some(disk.report())),
        };
        DeviceReport {
            device: self.description().without_secrets().to_string(),
            kind: kind.into(),
            size_bytes: self.block_device().geometry().bytes,
            connection,
            disk,
            vlog,
        }
    }

    /// After the last request: what makes the next opening quick is written down.
    pub fn close(&self) -> Outcome<()> {
        match &self.kind {
            Kind::Vlog(disk) => disk.close(),
            Kind::Netram(disk) => {
                disk.close();
                Ok(())
            }
            Kind::File(..) | Kind::Nbd(..) => Ok(()),
        }
    }

    /// The status context of its export, if it has one.
    pub fn redundancy(&self) -> Option<Arc<dyn BlockStatus>> {
        match &self.kind {
            Kind::Netram(disk) => Some(Arc::new(Redundancy(disk.clone()))),
            _ => None,
        }
    }

    pub fn change(&self, change: DonorChange, donor: &str) -> Outcome<String> {
        match &self.kind {
            Kind::Netram(disk) => disk.change(change, donor),
            _ => Err(Failure::new(self.description().without_secrets(), "has no donors")
                .remedy("name a server of a network RAM disk")),
        }
    }
}

/// `shoal:redundancy`: 1 where the loss of a donor would lose data.
struct Redundancy(Arc<NetramDisk>);

impl BlockStatus for Redundancy {
    fn context(&self) -> &str {
        "shoal:redundancy"
    }

    fn status(&self, _at: u64, len: u32, _extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        // One state for the whole disk: which blocks a repair has done already changes while the answer travels.
        Ok(vec![Extent { len, flags: u32::from(!self.0.report().survives_a_loss()) }])
    }
}
