//! Offers of a server: exports, their catalog, and status contexts.
//!
//! An export is a block device under a name, with the promises that its owner makes for it (one
//! cache behind all connections, fast zeroing, read-only). A catalog finds exports by name, and may
//! make them on demand or refuse them with a reason. It is asked again in each step of a handshake,
//! so it must be cheap and must not reserve anything permanently before a device is used. An export
//! lives as long as a connection holds it; dropping it means disconnection.

use std::net::IpAddr;
use std::sync::Arc;

use shoal_media::{BlockDevice, MediaError};

use crate::clients::Clients;
use crate::limits::REQUEST_BYTES_MAX;
use crate::wire::TEXT_BYTES_MAX;
use crate::wire::handshake::{BlockSizes, ListEntry};
use crate::wire::transmission::{
    Extent, FLAG_CAN_MULTI_CONN, FLAG_HAS_FLAGS, FLAG_READ_ONLY, FLAG_ROTATIONAL, FLAG_SEND_CACHE, FLAG_SEND_DF,
    FLAG_SEND_FAST_ZERO, FLAG_SEND_FLUSH, FLAG_SEND_FUA, FLAG_SEND_TRIM, FLAG_SEND_WRITE_ZEROES,
};

/// A status of ranges that clients can ask for, under a name like `shoal:redundancy`.
pub trait BlockStatus: Send + Sync {
    /// `namespace:leaf`, constant.
    fn context(&self) -> &str;

    /// Returns consecutive extents from `at` on: at most `extents_max`, and together at most `len`
    /// bytes. The range lies within the export. Called on the connection's thread: it may wait, but
    /// holds up that connection's requests.
    fn status(&self, at: u64, len: u32, extents_max: usize) -> Result<Vec<Extent>, MediaError>;
}

/// `base:allocation` of a device that does not know its holes: everything is data.
struct Allocated;

impl BlockStatus for Allocated {
    fn context(&self) -> &str {
        BASE_ALLOCATION
    }

    fn status(&self, _at: u64, len: u32, _extents_max: usize) -> Result<Vec<Extent>, MediaError> {
        Ok(vec![Extent { len, flags: 0 }])
    }
}

/// The one context the protocol itself defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// A device that cannot be exported.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExportError {
    #[error("export name of {bytes} bytes: at most {TEXT_BYTES_MAX} bytes without NUL; choose another name")]
    Name { bytes: usize },
    #[error("export {name:?}: blocks of {block_bytes} bytes, but the protocol ends at 65536; use smaller blocks")]
    BlockBytes { name: String, block_bytes: u32 },
    #[error("metadata context {context:?}: must be `namespace:leaf`, at most {TEXT_BYTES_MAX} bytes, and unique")]
    Context { context: String },
}

/// A block device under a name.
#[derive(Clone)]
pub struct Export {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) sizes: BlockSizes,
    pub(crate) read_only: bool,
    pub(crate) fast_zero: bool,
    multi_conn: bool,
    rotational: bool,
    contexts: Vec<Arc<dyn BlockStatus>>,
    pub(crate) clients: Option<Arc<Clients>>,
}

impl Export {
    pub fn new(name: impl Into<String>, device: Arc<dyn BlockDevice>) -> Result<Export, ExportError> {
        let name = name.into();
        if name.len() > TEXT_BYTES_MAX || name.contains('\0') {
            return Err(ExportError::Name { bytes: name.len() });
        }
        let geometry = device.geometry();
        let minimum = geometry.block_bytes.max(1);
        if minimum > 1 << 16 || !minimum.is_power_of_two() {
            return Err(ExportError::BlockBytes { name, block_bytes: minimum });
        }
        Ok(Export {
            name,
            description: String::new(),
            device,
            sizes: BlockSizes { minimum, preferred: minimum.max(4096), maximum: REQUEST_BYTES_MAX },
            read_only: false,
            fast_zero: false,
            multi_conn: false,
            rotational: false,
            contexts: vec![Arc::new(Allocated)],
            clients: None,
        })
    }

    /// Size of the device now (bytes): it may grow. A client sees the size that it had when the client connected.
    pub(crate) fn bytes(&self) -> u64 {
        // No aligned request could reach a remainder shorter than a block.
        let minimum = u64::from(self.sizes.minimum);
        self.device.geometry().bytes / minimum * minimum
    }

    /// Text for people, shown in lists. Truncated at the protocol's bound.
    pub fn description(mut self, text: &str) -> Export {
        self.description = text.chars().filter(|c| *c != '\0').take(TEXT_BYTES_MAX / 4).collect();
        self
    }

    pub fn read_only(mut self, yes: bool) -> Export {
        self.read_only = yes;
        self
    }

    /// Promises that a flush on any connection covers the completed writes of all. True for one device behind one
    /// server; false where each connection has a cache of its own.
    pub fn multi_conn(mut self, yes: bool) -> Export {
        self.multi_conn = yes;
        self
    }

    pub fn rotational(mut self, yes: bool) -> Export {
        self.rotational = yes;
        self
    }

    /// Admits one client at a time, among those that name themselves.
    pub fn clients(mut self, clients: Arc<Clients>) -> Export {
        self.clients = Some(clients);
        self
    }

    /// Says that the device zeroes a range faster than it writes one.
    pub fn fast_zero(mut self, yes: bool) -> Export {
        self.fast_zero = yes;
        self
    }

    /// Adds a status context. A context named `base:allocation` replaces "all is data".
    pub fn context(mut self, status: Arc<dyn BlockStatus>) -> Result<Export, ExportError> {
        let name = status.context();
        let whole = name.split_once(':').is_some_and(|(space, leaf)| !space.is_empty() && !leaf.is_empty());
        let known = name != BASE_ALLOCATION && self.contexts.iter().any(|other| other.context() == name);
        if !whole || known || name.len() > TEXT_BYTES_MAX || name.contains('\0') {
            return Err(ExportError::Context { context: name.to_string() });
        }
        self.contexts.retain(|other| other.context() != name);
        self.contexts.push(status);
        Ok(self)
    }

    /// The transmission flags.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_SEND_CACHE;
        let writes = FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO;
        flags |= if self.read_only { FLAG_READ_ONLY } else { writes };
        flags |= if self.rotational { FLAG_ROTATIONAL } else { 0 };
        flags |= if self.multi_conn { FLAG_CAN_MULTI_CONN } else { 0 };
        flags | if structured { FLAG_SEND_DF } else { 0 }
    }

    /// Returns the contexts that a query names. With `wildcards`, `namespace:` names all contexts
    /// of that namespace. The position among all contexts, from 1, is the context's id.
    pub(crate) fn matching(&self, queries: &[String], wildcards: bool) -> Vec<(u32, Arc<dyn BlockStatus>)> {
        let wanted = |name: &str| {
            let named = |query: &String| query == name || wildcards && query.ends_with(':') && name.starts_with(query);
            queries.iter().any(named) || wildcards && queries.is_empty()
        };
        let numbered = self.contexts.iter().enumerate().map(|(at, context)| (at as u32 + 1, context.clone()));
        numbered.filter(|(_, context)| wanted(context.context())).collect()
    }
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Export").field("name", &self.name).field("bytes", &self.bytes()).finish_non_exhaustive()
    }
}

/// The asking client.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    /// Address, for messages.
    pub address: String,
    /// The host that the client connects from, always as IPv4 if it has an IPv4 address; none for a
    /// UNIX socket.
    pub ip: Option<IpAddr>,
    /// TLS is on, and the client's certificate was checked if the server demands one.
    pub tls: bool,
}

impl Peer {
    /// A client known by its address alone.
    pub(crate) fn at(address: impl std::fmt::Display) -> Peer {
        Peer { address: address.to_string(), ..Peer::default() }
    }
}

/// Why a catalog does not hand out an export.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("no export of this name")]
    Unknown,
    #[error("{reason}")]
    Policy { reason: String },
}

/// Exports by name.
pub trait Catalog: Send + Sync {
    /// Exports that `LIST` shows; others may exist.
    fn list(&self, peer: &Peer) -> Vec<ListEntry>;

    /// Finds an export. The empty name asks for the default export.
    fn find(&self, name: &str, peer: &Peer) -> Result<Arc<Export>, Refusal>;
}

/// A fixed list. The first is the default export.
impl Catalog for Vec<Arc<Export>> {
    fn list(&self, _peer: &Peer) -> Vec<ListEntry> {
        let entry =
            |export: &Arc<Export>| ListEntry { name: export.name.clone(), description: export.description.clone() };
        self.iter().map(entry).collect()
    }

    fn find(&self, name: &str, _peer: &Peer) -> Result<Arc<Export>, Refusal> {
        let named = self.iter().find(|export| export.name == name);
        named.or(self.first().filter(|_| name.is_empty())).cloned().ok_or(Refusal::Unknown)
    }
}
