//! The names that may borrow, as `--allow` lists them, some with a secret.
//!
//! A client asks for the export `NAME`, or `NAME:SECRET`; the empty name means `default`. Without a
//! list every name is allowed. The answer does not show whether the name is unknown or the secret
//! wrong. Neither does its time, since secrets are compared in constant time, even where there is
//! none. Secrets are kept out of messages.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use subtle::ConstantTimeEq;

use crate::failure::{During, Failure, Outcome};

/// Name that the empty name stands for.
pub const DEFAULT: &str = "default";

/// Maximum bytes of a name or a secret: both have to fit an export name with room to spare.
const BYTES_MAX: usize = 1024;

/// `--allow NAME[:SECRET_FILE]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allow {
    name: String,
    secret_file: Option<PathBuf>,
}

impl FromStr for Allow {
    type Err = String;

    fn from_str(text: &str) -> Result<Allow, String> {
        let (name, file) = match text.split_once(':') {
            Some((name, file)) => (name, Some(PathBuf::from(file))),
            None => (text, None),
        };
        if name.is_empty() || !fits(name) || file.as_ref().is_some_and(|file| file.as_os_str().is_empty()) {
            return Err(format!("write NAME or NAME:SECRET_FILE, the name of at most {BYTES_MAX} bytes"));
        }
        Ok(Allow { name: name.into(), secret_file: file })
    }
}

fn fits(text: &str) -> bool {
    text.len() <= BYTES_MAX && !text.contains(char::is_control)
}

/// The names that may borrow.
pub struct Names {
    /// `None`: every name may borrow.
    listed: Option<BTreeMap<String, Option<String>>>,
}

impl Names {
    pub fn load(allowed: &[Allow]) -> Outcome<Names> {
        let mut listed = BTreeMap::new();
        for Allow { name, secret_file } in allowed {
            let secret = secret_file.as_deref().map(read_secret).transpose()?;
            if listed.insert(name.clone(), secret).is_some() {
                let why = format!("{name:?} is named twice");
                return Err(Failure::new("--allow", why).remedy("give each name once").misuse());
            }
        }
        Ok(Names { listed: (!allowed.is_empty()).then_some(listed) })
    }

    pub fn have_secrets(&self) -> bool {
        self.listed.iter().flat_map(BTreeMap::values).any(Option::is_some)
    }

    /// Names that may be shown: none if there are secrets to guess, and none without a list.
    pub fn public(&self) -> Vec<&str> {
        if self.have_secrets() {
            return vec![];
        }
        self.listed.iter().flat_map(BTreeMap::keys).map(String::as_str).collect()
    }

    pub fn are_listed(&self) -> bool {
        self.listed.is_some()
    }

    /// Returns the name that a client asks for, if the client may have it.
    pub fn admit<'a>(&self, asked: &'a str) -> Option<&'a str> {
        let (name, given) = match asked.split_once(':') {
            Some((name, secret)) => (name, Some(secret)),
            None => (asked, None),
        };
        let name = if name.is_empty() { DEFAULT } else { name };
        let allowed = match &self.listed {
            None => given.is_none() && fits(name),
            Some(listed) => {
                let entry = listed.get(name);
                let secret = entry.and_then(Option::as_deref);
                let same =
                    bool::from(secret.unwrap_or_default().as_bytes().ct_eq(given.unwrap_or_default().as_bytes()));
                // Both must have a secret, or neither: an empty secret is not the same as none.
                same & entry.is_some() & (secret.is_some() == given.is_some())
            }
        };
        allowed.then_some(name)
    }
}

fn read_secret(path: &Path) -> Outcome<String> {
    let text = fs::read_to_string(path).during(path.display())?;
    let secret = text.lines().next().unwrap_or_default();
    if secret.is_empty() || !fits(secret) {
        let why = format!("the first line must be a secret of 1 to {BYTES_MAX} bytes");
        return Err(Failure::new(path.display(), why).remedy("write one, for example from `openssl rand -hex 32`"));
    }
    let mode = fs::metadata(path).during(path.display())?.mode();
    if mode & 0o077 != 0 {
        let why = format!("others may read or change the secret (mode {:o})", mode & 0o777);
        return Err(Failure::new(path.display(), why).remedy(format!("chmod 600 {}", path.display())));
    }
    Ok(secret.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(lines: &[&str]) -> Outcome<Names> {
        Names::load(&lines.iter().map(|line| line.parse().unwrap()).collect::<Vec<Allow>>())
    }

    #[test]
    fn without_a_list_every_plain_name_may_borrow() {
        let names = names(&[]).unwrap();
        assert_eq!(names.admit(""), Some("default"));
        assert_eq!(names.admit("a"), Some("a"));
        for asked in ["a:", "a:b", ":", "a\nb", &"n".repeat(1025)] {
            assert_eq!(names.admit(asked), None, "{asked:?}");
        }
        assert!(!names.are_listed() && names.public().is_empty());
    }

    #[test]
    fn a_listed_name_needs_its_secret_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        fs::write(&file, "open sesame\nnot this\n").unwrap();
        let line = format!("guarded:{}", file.display());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let error = names(&[&line]).err().unwrap().to_string();
        assert!(error.contains("mode 640") && error.contains("chmod 600"), "{error}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let both = names(&["plain", &line]).unwrap();
        assert_eq!(both.admit("guarded:open sesame"), Some("guarded"));
        assert_eq!(both.admit("plain"), Some("plain"));
        let refused =
            ["guarded", "guarded:", "guarded:open", "guarded:open sesame!", "guarded:not this", "plain:", "plain:x"];
        for asked in refused.into_iter().chain(["other", "other:", "other:open sesame", "", ":open sesame"]) {
            assert_eq!(both.admit(asked), None, "{asked:?}");
        }
        assert!(both.have_secrets() && both.public().is_empty());
        assert_eq!(names(&["b", "a"]).unwrap().public(), ["a", "b"]);
        for text in ["", "\nsecond line", "\u{7}"] {
            fs::write(&file, text).unwrap();
            assert!(names(&[&line]).is_err(), "{text:?}");
        }
        assert!(names(&["a", "a"]).is_err());
    }

    #[test]
    fn what_is_not_a_name_is_refused() {
        for text in ["", ":file", "a:", "a\u{0}"] {
            assert!(text.parse::<Allow>().is_err(), "{text:?}");
        }
        let parsed: Allow = "a:/x:y".parse().unwrap();
        assert_eq!((parsed.name.as_str(), parsed.secret_file), ("a", Some("/x:y".into())));
    }
}
