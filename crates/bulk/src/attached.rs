//! The device behind a bulk device of the store, and whether it can be read and written.
//!
//! Owns: the device with its state, which change together, and the state that reports show. Left
//! out: what is on the device (`unit`).

use std::sync::Arc;

use shoal_media::BlockDevice;

/// How far a bulk device can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UseState {
    /// It is read and written.
    Open,
    /// It is read and written, gets no new blocks, and is being emptied.
    Leaving,
    /// It takes no writes since a flush failed.
    Closed { cause: String, leaving: bool },
    /// It is missing.
    Lost { cause: String, leaving: bool },
}

impl UseState {
    pub fn is_leaving(&self) -> bool {
        match *self {
            UseState::Open => false,
            UseState::Leaving => true,
            UseState::Closed { leaving, .. } | UseState::Lost { leaving, .. } => leaving,
        }
    }

    pub fn is_lost(&self) -> bool {
        matches!(self, UseState::Lost { .. })
    }

    /// Returns why the device takes no writes.
    pub fn cause(&self) -> Option<&str> {
        match self {
            UseState::Open | UseState::Leaving => None,
            UseState::Closed { cause, .. } | UseState::Lost { cause, .. } => Some(cause),
        }
    }
}

/// A device with its state. The text is the cause: why the device takes no writes, or is missing.
pub(crate) enum Attached {
    Open(Arc<dyn BlockDevice>),
    Closed(Arc<dyn BlockDevice>, Arc<str>),
    Lost(Arc<str>),
}

impl Attached {
    pub fn device(&self) -> Option<&Arc<dyn BlockDevice>> {
        match self {
            Attached::Open(device) | Attached::Closed(device, _) => Some(device),
            Attached::Lost(_) => None,
        }
    }

    /// Returns the device if it takes writes.
    pub fn open(&self) -> Option<&Arc<dyn BlockDevice>> {
        match self {
            Attached::Open(device) => Some(device),
            Attached::Closed(..) | Attached::Lost(_) => None,
        }
    }

    /// Lets no more writes through. Returns the device, if it is there.
    pub fn close(&mut self, cause: &str) -> Option<Arc<dyn BlockDevice>> {
        let device = self.device().cloned();
        *self = match &device {
            Some(device) => Attached::Closed(device.clone(), cause.into()),
            None => Attached::Lost(cause.into()),
        };
        device
    }

    pub fn use_state(&self, leaving: bool) -> UseState {
        match self {
            Attached::Open(_) if leaving => UseState::Leaving,
            Attached::Open(_) => UseState::Open,
            Attached::Closed(_, cause) => UseState::Closed { cause: cause.to_string(), leaving },
            Attached::Lost(cause) => UseState::Lost { cause: cause.to_string(), leaving },
        }
    }

    /// Returns how a refused caller is told of the state.
    pub fn refusal(&self) -> String {
        match self {
            // It has come back since the caller looked.
            Attached::Open(_) => "refuses writes: closed".into(),
            Attached::Closed(_, cause) => format!("refuses writes: {cause}"),
            Attached::Lost(cause) => format!("is lost: {cause}"),
        }
    }
}
