//! Links between the pages: every relative link in a Markdown file must lead to an existing file,
//! and to an existing heading if it names one.
//!
//! Reads inline links `[text](target)` and definitions `[label]: target` outside of code. Addresses
//! with a scheme are ignored: a check of the project must not depend on the network. Findings are
//! lines `path: target: reason`.

use std::fs;
use std::path::Path;

use crate::sources::{files, relative};

/// Returns the findings in all pages below `root`.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut findings = vec![];
    for path in files(root, "md")? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        for target in targets(&text) {
            if let Some(what) = broken(&path, &text, &target) {
                findings.push(format!("{}: {target}: {what}", relative(root, &path)));
            }
        }
    }
    Ok(findings)
}

/// Returns why `target` leads nowhere from the page at `path`, or `None`.
fn broken(path: &Path, text: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').map_or((target, None), |(f, h)| (f, Some(h)));
    let (there, body) = if file.is_empty() {
        (path.to_path_buf(), text.to_string())
    } else {
        let there = path.parent()?.join(file);
        if !there.exists() {
            return Some("no such file".into());
        }
        let body = fs::read_to_string(&there).unwrap_or_default();
        (there, body)
    };
    let heading = heading?;
    let is_page = there.extension().is_some_and(|extension| extension == "md");
    (is_page && !anchors(&body).any(|anchor| anchor == heading)).then(|| "no such heading".into())
}

/// Returns the link targets of a page.
fn targets(text: &str) -> Vec<String> {
    let mut found = vec![];
    let prose = without_code(text);
    let mut rest = prose.as_str();
    while let Some(at) = rest.find("](") {
        rest = &rest[at + 2..];
        if let Some(end) = rest.find(')') {
            // A title may follow the target.
            found.extend(rest[..end].split_whitespace().next().map(str::to_string));
        }
    }
    for line in prose.lines() {
        if let Some((label, target)) = line.trim_start().split_once("]: ")
            && label.starts_with('[')
            && !label.starts_with("[^")
        {
            found.extend(target.split_whitespace().next().map(str::to_string));
        }
    }
    found
}

/// Removes fenced blocks and code spans from the text.
fn without_code(text: &str) -> String {
    let mut prose = String::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            line.split('`').step_by(2).for_each(|piece| prose.push_str(piece));
        }
        prose.push('\n');
    }
    prose
}

/// Returns the anchors of headings: lower case, punctuation dropped, spaces as hyphens.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    text.lines().filter(|line| line.starts_with('#')).map(|line| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title
            .chars()
            .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_prose_are_read_and_those_in_code_are_not() {
        let text = "see [a](x.md) and [b](y.md#z \"title\")\n```\n[c](no.md)\n```\n`[d](no.md)`\n[e]: w.md\n[^1]: note";
        assert_eq!(targets(text), ["x.md", "y.md#z", "w.md"]);
    }

    #[test]
    fn a_link_to_nowhere_is_found() {
        let root = std::env::temp_dir().join(format!("shoal-links-{}", std::process::id()));
        fs::create_dir_all(root.join("docs")).unwrap();
        fs::write(root.join("docs/a.md"), "# The `Name`, twice\n").unwrap();
        let page = "[ok](docs/a.md) [ok](docs/a.md#the-name-twice) [ok](https://x.invalid/) [ok](#here) [gone](b.md) \
                    [gone](docs/a.md#other) [gone](#there)\n# Here\n";
        fs::write(root.join("page.md"), page).unwrap();
        let findings = check(&root).unwrap();
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert_eq!(findings[0], "page.md: b.md: no such file");
        fs::remove_dir_all(root).unwrap();
    }
}
