//! The cause of a medium's first failed flush, kept for later refusals.
//!
//! Owns: [`Poison`]. Every later refusal names the first cause, because by the time somebody reads a
//! message the error that matters is long past. Left out: which failures poison (each medium's own
//! contract).

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

use crate::{MediaError, Result};

/// Unset while the medium works; set once and for good.
#[derive(Debug, Default)]
pub struct Poison(OnceLock<Arc<str>>);

impl Poison {
    /// Makes the medium refuse writes from now on because of `cause`. An earlier cause stays.
    pub fn set(&self, cause: impl Display) {
        self.0.get_or_init(|| cause.to_string().into());
    }

    pub fn is_set(&self) -> bool {
        self.0.get().is_some()
    }

    /// Fails when poisoned; `what` names the medium.
    pub fn refuse(&self, what: &str) -> Result<()> {
        match self.0.get() {
            None => Ok(()),
            Some(cause) => Err(MediaError::Poisoned { what: what.into(), cause: cause.clone() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_names_the_first_cause() {
        let poison = Poison::default();
        assert!(poison.refuse("disk").is_ok() && !poison.is_set());
        poison.set("Input/output error (os error 5)");
        poison.set("something later");
        let text = poison.refuse("disk").unwrap_err().to_string();
        assert_eq!(text, "disk: refuses writes after a failed flush (Input/output error (os error 5))");
    }
}
