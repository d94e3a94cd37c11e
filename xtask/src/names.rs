//! Names in code marks on the pages: each must exist in the code.
//!
//! Searches ARCHITECTURE.md and the pages below `docs/` for spans that can only be names of the
//! code: a path (`Bulk::flush`), a call (`sync_to()`), a type (`PersistentMemory`) or a source file
//! (`large.rs`). Every word of such a name must occur somewhere in the Rust sources, or as a file
//! or directory there. Spans in fenced blocks, and lower-case words that may be options or
//! commands, are ignored. Left out: whether the page describes the name correctly.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::sources::{files, relative};

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut known: HashSet<String> = HashSet::new();
    for path in files(root, "rs")? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        // A name that occurs only in comments does not count.
        let code = text.lines().map(|line| line.split("//").next().unwrap_or_default());
        known.extend(code.flat_map(words).map(str::to_string));
        for part in path.strip_prefix(root).unwrap_or(&path).components() {
            let part = part.as_os_str().to_string_lossy();
            known.extend([part.trim_end_matches(".rs").to_string(), part.to_string()]);
        }
    }
    let mut findings = vec![];
    for path in files(root, "md")? {
        let name = relative(root, &path);
        if !(name == "ARCHITECTURE.md" || name.starts_with("docs/")) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for span in spans(&text).filter(|span| is_name(span)) {
            if let Some(word) = missing(span, &known) {
                findings.push(format!("{name}: `{span}`: nothing in the sources is called {word}"));
            }
        }
    }
    Ok(findings)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty())
}

/// Returns the code spans outside of fenced blocks.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().flat_map(move |line| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let prose = if fenced || fence { "" } else { line };
        prose.split('`').skip(1).step_by(2)
    })
}

/// Returns whether this span must be a name of the code.
fn is_name(span: &str) -> bool {
    let path = span.trim_end_matches("()");
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if let Some(file) = path.strip_suffix(".rs") {
        return file.split('/').all(|part| is_word(&part.replace('-', "_")));
    }
    if !path.split("::").all(is_word) {
        return false;
    }
    let capitals = path.chars().filter(char::is_ascii_uppercase).count();
    let is_type = path.starts_with(|c: char| c.is_ascii_uppercase())
        && capitals >= 2
        && path.chars().any(|c| c.is_ascii_lowercase())
        && !path.contains('_');
    path.contains("::") || path.len() < span.len() || is_type
}

fn missing<'a>(span: &'a str, known: &HashSet<String>) -> Option<&'a str> {
    let path = span.trim_end_matches("()");
    if path.ends_with(".rs") {
        let file = path.rsplit('/').next().unwrap_or(path);
        return (!known.contains(file)).then_some(file);
    }
    path.split("::").find(|word| !known.contains(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_code_are_told_from_other_code() {
        for name in ["Bulk::flush", "sync_to()", "PersistentMemory", "fs/src/large.rs", "large.rs"] {
            assert!(is_name(name), "{name}");
        }
        for other in
            ["shoal mount", "--memory", "fsync", "battery", "ENOSPC", "EINTR", "a.json", "log-<n>", "SHOAL_SEED"]
        {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn spans_are_read_outside_of_blocks() {
        assert_eq!(spans("a `b` c `d`\n```\n`e`\n```\n`f`").collect::<Vec<_>>(), ["b", "d", "f"]);
    }

    #[test]
    fn the_word_that_is_missing_is_named() {
        let known = ["Bulk", "flush", "large.rs"].map(str::to_string).into();
        assert_eq!(missing("Bulk::flush()", &known), None);
        assert_eq!(missing("fs/large.rs", &known), None);
        assert_eq!(missing("Bulk::close", &known), Some("close"));
        assert_eq!(missing("small.rs", &known), Some("small.rs"));
    }
}
