//! Names in code marks on the pages: each must exist in the code.
//!
//! Searches ARCHITECTURE.md and the pages below `docs/` for spans that can only be names of the
//! code: a path (`Bulk::flush`), a call (`sync_to()`), a type (`PersistentMemory`) or a source file
//! (`large.rs`). Every word of such a name must occur somewhere in the Rust sources, or as a file
//! or directory there. A lower-case word (`packer`, `spill_percent`) may also be an option or a
//! command: it must occur somewhere in the sources, tests or scripts, unless it is one of
//! [`OTHERS`]. Spans in fenced blocks are ignored. Left out: whether the page describes the name
//! correctly.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use crate::sources::{all_files, files, relative};

/// Names of the kernel, of libraries and of other programs that only the pages mention.
const OTHERS: [&str; 19] = [
    "auto_da_alloc",
    "d_revalidate",
    "delay_ms_max",
    "fsxattr",
    "fuse_dentry_revalidate",
    "fuse_direct_io",
    "fuse_fill_write_pages",
    "fuse_notify_store",
    "fuse_readdir_uncached",
    "fuse_send_writepage",
    "hplajw",
    "mremap",
    "nohup",
    "oom_score_adj",
    "open_by_handle_at",
    "ovl_make_workdir",
    "ovl_revalidate_real",
    "perf",
    "utimes",
];

pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let Known { code, all } = known(root)?;
    let mut findings = vec![];
    for path in files(root, "md")? {
        let name = relative(root, &path);
        if !(name == "ARCHITECTURE.md" || name.starts_with("docs/")) {
            continue;
        }
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for span in spans(&text) {
            let word = match is_name(span) {
                true => missing(span, &code),
                false => Some(span).filter(|word| is_lower_case(word) && !all.contains(*word)),
            };
            if let Some(word) = word {
                findings.push(format!("{name}: `{span}`: nothing in the sources is called {word}"));
            }
        }
    }
    Ok(findings)
}

/// Words that may stand on the pages.
struct Known {
    /// Words of the Rust sources' code and paths. Their comments do not count.
    code: HashSet<String>,
    /// Words of all files but the pages, and those in [`OTHERS`].
    all: HashSet<String>,
}

fn known(root: &Path) -> Result<Known, String> {
    let (mut code, mut all) = (HashSet::new(), HashSet::from(OTHERS.map(str::to_string)));
    for path in all_files(root)? {
        let (extension, name) = (path.extension().unwrap_or_default(), relative(root, &path));
        all.extend(words(&name).map(str::to_string));
        let text = fs::read_to_string(&path);
        if extension == "rs" {
            let text = text.map_err(|error| format!("{name}: {error}"))?;
            let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default());
            let found: HashSet<String> = lines.flat_map(words).map(str::to_string).collect();
            // The examples of the test below are names of nothing.
            if name != "xtask/src/names.rs" {
                all.extend(found.iter().cloned());
            }
            code.extend(found);
            code.extend(name.split('/').flat_map(|part| [part, part.trim_end_matches(".rs")]).map(str::to_string));
        } else if extension != "md" {
            // Recorded data is no text.
            all.extend(text.iter().flat_map(|text| words(text)).map(str::to_string));
        }
    }
    Ok(Known { code, all })
}

fn is_lower_case(span: &str) -> bool {
    span.starts_with(|c: char| c.is_ascii_lowercase())
        && span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
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
    fn a_lower_case_word_is_told_from_options_and_paths() {
        assert!(["packer", "spill_percent", "ext4"].iter().all(|word| is_lower_case(word)));
        assert!(["--json", "/dev/fuse", "shoal mount", "PATH", "a.json"].iter().all(|word| !is_lower_case(word)));
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
