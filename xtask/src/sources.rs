//! Rules for source files: the length of files and functions, a header that says what they own, and
//! the place of `unsafe`.
//!
//! A file has at most 800 lines, unless a line of its header says `//! Longer than 800 lines
//! because ...`. Every file begins with a `//!` header of at least 3 lines. A function has at most
//! 80 lines. `unsafe` occurs only in `crates/host`, and every other crate forbids it at its root,
//! so that the compiler also enforces the rule. Findings are lines `path: what`.

use std::fs;
use std::path::{Path, PathBuf};

const LINES_MAX: usize = 800;
const FUNCTION_LINES_MAX: usize = 80;
const HEADER_LINES_MIN: usize = 3;
const LONGER: &str = "//! Longer than 800 lines because ";
const UNSAFE_CRATE: &str = "crates/host/";

/// Returns all files below `root` with this extension, except build output, fuzzing corpora and
/// hidden directories.
pub fn files(root: &Path, extension: &str) -> Result<Vec<PathBuf>, String> {
    let mut all = all_files(root)?;
    all.retain(|path| path.extension().is_some_and(|found| found == extension));
    Ok(all)
}

/// Returns all files below `root`, with the same exceptions.
pub fn all_files(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = vec![];
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).map_err(|error| format!("{}: cannot be listed ({error})", folder.display()))?;
        for entry in entries.flatten() {
            let path = entry.path();
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if path.is_dir() && !path.is_symlink() {
                if name != "target" && name != "corpus" && (!name.starts_with('.') || name == ".ci") {
                    folders.push(path);
                }
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a path as printed in findings.
pub fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}

/// Finds files and functions that are too long, and files without a header.
pub fn lengths(root: &Path) -> Result<Vec<String>, String> {
    let mut findings = vec![];
    for path in files(root, "rs")? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        findings.extend(length_findings(&text).into_iter().map(|what| format!("{}: {what}", relative(root, &path))));
    }
    Ok(findings)
}

fn length_findings(text: &str) -> Vec<String> {
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("//!")).collect();
    let lines = text.lines().count();
    let mut findings = vec![];
    if lines > LINES_MAX && !header.iter().any(|line| line.starts_with(LONGER)) {
        findings.push(format!("{lines} lines, at most {LINES_MAX}; split it, or give a reason: `{LONGER}...`"));
    }
    if header.len() < HEADER_LINES_MIN {
        findings.push(format!("header of {} lines; say in `//!` lines what the file owns", header.len()));
    }
    findings.extend(long_functions(text).into_iter().map(|(name, lines)| {
        format!("`{name}` has {lines} lines, a function at most {FUNCTION_LINES_MAX}; split it by what its parts do")
    }));
    findings
}

/// Returns name and length of the functions that are too long. As formatted by `rustfmt`, a
/// function ends with a brace below its first word.
fn long_functions(text: &str) -> Vec<(&str, usize)> {
    let mut open: Vec<(&str, usize, usize)> = vec![];
    let mut found = vec![];
    for (number, line) in text.lines().enumerate() {
        let code = line.trim_start();
        let indent = line.len() - code.len();
        if let Some(name) = function_name(code) {
            // A function without a body whose signature has several lines is dropped when the next
            // one begins.
            open.retain(|&(_, above, _)| above < indent);
            if !code.ends_with(['}', ';']) {
                open.push((name, indent, number));
            }
        } else if code == "}"
            && let Some(&(name, _, first)) = open.last().filter(|&&(_, above, _)| above == indent)
        {
            open.pop();
            if number - first + 1 > FUNCTION_LINES_MAX {
                found.push((name, number - first + 1));
            }
        }
    }
    found
}

fn function_name(code: &str) -> Option<&str> {
    let (before, rest) = code.split_once("fn ")?;
    let is_qualifier = |word: &str| matches!(word, "pub" | "const" | "async" | "unsafe") || word.starts_with("pub(");
    let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    before.split_whitespace().all(is_qualifier).then_some(name)
}

/// Finds `unsafe` outside `host`, and crates that do not forbid it.
pub fn unsafe_code(root: &Path) -> Result<Vec<String>, String> {
    let mut findings = vec![];
    for path in files(root, "rs")? {
        let name = relative(root, &path);
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        if name.starts_with(UNSAFE_CRATE) {
            continue;
        }
        if let Some(line) = unsafe_line(&text) {
            findings.push(format!("{name}:{line}: `unsafe` outside {UNSAFE_CRATE}; move the operation there"));
        }
        let is_root = name.ends_with("src/lib.rs") || name.ends_with("src/main.rs");
        if is_root && !text.contains("#![forbid(unsafe_code)]") {
            findings.push(format!("{name}: does not say `#![forbid(unsafe_code)]`"));
        }
    }
    Ok(findings)
}

/// Returns the first line whose code (not a comment, not a string) contains the keyword.
fn unsafe_line(text: &str) -> Option<usize> {
    text.lines()
        .position(|line| {
            let code = line.split("//").next().unwrap_or_default();
            // Every second piece between quotes is text.
            let bare: String = code.split('"').step_by(2).collect::<Vec<_>>().join(" ");
            bare.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe")
        })
        .map(|index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_file_needs_a_reason_and_every_file_a_header() {
        let header = "//! One.\n//! Two.\n//! Three.\n";
        let body = "fn f() {}\n".repeat(LINES_MAX);
        assert_eq!(length_findings(header), Vec::<String>::new());
        assert_eq!(length_findings(&format!("{header}{body}")).len(), 1);
        assert_eq!(length_findings(&format!("{header}{LONGER}it is a table.\n{body}")), Vec::<String>::new());
        assert_eq!(length_findings(&format!("{header}{body}{LONGER}too late\n")).len(), 1, "only the header counts");
        assert_eq!(length_findings("//! One.\nfn f() {}\n").len(), 1);
    }

    #[test]
    fn a_long_function_is_found_wherever_it_stands() {
        let function =
            |lines: usize| format!("    pub(crate) fn long() {{\n{}    }}\n", "        f();\n".repeat(lines - 2));
        let around = |body: &str| format!("fn short() {{}}\nimpl T {{\n    fn one(&self);\n{body}}}\n");
        assert_eq!(long_functions(&around(&function(FUNCTION_LINES_MAX))), vec![]);
        assert_eq!(long_functions(&around(&function(FUNCTION_LINES_MAX + 1))), vec![("long", FUNCTION_LINES_MAX + 1)]);
        let nested = format!("fn outer() {{\n{}}}\n", function(FUNCTION_LINES_MAX));
        assert_eq!(long_functions(&nested), vec![("outer", FUNCTION_LINES_MAX + 2)]);
    }

    #[test]
    fn the_keyword_is_found_in_code_only() {
        assert_eq!(unsafe_line("fn f() {\n    unsafe { g() }\n}"), Some(2));
        assert_eq!(unsafe_line("pub unsafe fn f() {}"), Some(1));
        assert_eq!(unsafe_line("#![forbid(unsafe_code)]\n// unsafe\nlet s = \"unsafe\";"), None);
    }

    #[test]
    fn a_tree_with_a_planted_wrong_file_is_found() {
        let root = std::env::temp_dir().join(format!("shoal-sources-{}", std::process::id()));
        for (name, text) in [
            ("crates/host/src/lib.rs", "fn f() { unsafe { g() } }\n"),
            ("crates/fs/src/lib.rs", "fn f() { unsafe { g() } }\n"),
            ("target/skipped.rs", "unsafe\n"),
        ] {
            let path = root.join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let findings = unsafe_code(&root).unwrap();
        assert_eq!(findings.len(), 2, "{findings:?}");
        assert!(findings.iter().all(|finding| finding.starts_with("crates/fs/src/lib.rs")));
        assert_eq!(lengths(&root).unwrap().len(), 2);
        fs::remove_dir_all(root).unwrap();
    }
}
