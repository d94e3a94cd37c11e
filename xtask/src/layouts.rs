//! The layout tables of `docs/spec/region.md` against the structs of `crates/format`.
//!
//! For every `#[repr(C)]` struct the page has a heading `### `Name`` and below it a table with rows `| offset | size |
//! field | meaning |`, decimal, in order. The struct is read from its source: all fields are unaligned (`U16`, `U32`,
//! `U64`, `I64`, `u8`, `[u8; N]`), so that offsets are sums of sizes. Each difference is one finding. Left out:
//! encodings that are not structs; the page describes them in words.

use std::fs;
use std::path::Path;

use crate::sources::files;

/// Field name, offset and size in bytes.
type Field = (String, usize, usize);

/// A struct, or a table, by name.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    name: String,
    fields: Vec<Field>,
}

/// Findings for the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut structs = vec![];
    for path in files(&root.join("crates/format/src"), "rs")? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        structs.extend(parse_structs(&text).map_err(|what| format!("{}: {what}", path.display()))?);
    }
    if structs.is_empty() {
        return Err("crates/format/src: has no #[repr(C)] struct; was it moved?".into());
    }
    let page = root.join("docs/spec/region.md");
    let text = fs::read_to_string(&page)
        .map_err(|error| format!("docs/spec/region.md: cannot be read ({error}); it must hold the layout tables"))?;
    Ok(differences(&structs, &parse_tables(&text)))
}

fn differences(structs: &[Layout], tables: &[Layout]) -> Vec<String> {
    let mut findings = vec![];
    for layout in structs {
        let name = &layout.name;
        let Some(table) = tables.iter().find(|table| table.name == *name) else {
            findings.push(format!("docs/spec/region.md: no heading \"### `{name}`\" with a table"));
            continue;
        };
        let show = |field: Option<&Field>| {
            field.map_or("nothing".to_string(), |(name, at, size)| format!("`{name}` at {at}, {size} bytes"))
        };
        for index in 0..layout.fields.len().max(table.fields.len()) {
            let (code, page) = (layout.fields.get(index), table.fields.get(index));
            if code != page {
                findings.push(format!("docs/spec/region.md: {name}: code has {}, page has {}", show(code), show(page)));
            }
        }
    }
    findings
}

fn parse_structs(text: &str) -> Result<Vec<Layout>, String> {
    let mut found = vec![];
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("#[repr(C") {
            continue;
        }
        let head = lines.by_ref().find(|line| line.contains("struct ")).ok_or("#[repr(C)] without a struct")?;
        let name = head.split("struct ").nth(1).unwrap_or_default();
        let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default().to_string();
        if !head.trim_end().ends_with('{') {
            return Err(format!("struct {name}: expected one field on each line"));
        }
        let mut fields = vec![];
        let mut offset = 0;
        for line in lines.by_ref() {
            let line = line.split("//").next().unwrap_or_default().trim().trim_end_matches(',');
            if line == "}" {
                break;
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (field, kind) = line
                .trim_start_matches("pub ")
                .split_once(": ")
                .ok_or_else(|| format!("struct {name}: cannot read the field `{line}`"))?;
            let size = size_of_type(kind).ok_or_else(|| format!("struct {name}: unknown type `{kind}` of {field}"))?;
            fields.push((field.trim_start_matches("pub(crate) ").to_string(), offset, size));
            offset += size;
        }
        found.push(Layout { name, fields });
    }
    Ok(found)
}

fn size_of_type(kind: &str) -> Option<usize> {
    match kind {
        "u8" => Some(1),
        "U16" => Some(2),
        "U32" => Some(4),
        "U64" | "I64" => Some(8),
        _ => {
            let (of, count) = kind.strip_prefix('[')?.strip_suffix(']')?.split_once("; ")?;
            Some(size_of_type(of)? * count.parse::<usize>().ok()?)
        }
    }
}

fn parse_tables(text: &str) -> Vec<Layout> {
    let mut found: Vec<Layout> = vec![];
    let mut open = false;
    for line in text.lines() {
        if line.starts_with('#') {
            let name = line.strip_prefix("### `").and_then(|rest| rest.split('`').next());
            open = name.is_some();
            found.extend(name.map(|name| Layout { name: name.to_string(), fields: vec![] }));
        } else if open && line.starts_with('|') {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            // The head and the rule below it have no numbers.
            if let [offset, size, field, ..] = cells[..]
                && let (Ok(offset), Ok(size)) = (offset.parse(), size.parse())
            {
                let fields = &mut found.last_mut().expect("a heading opened it").fields;
                fields.push((field.trim_matches('`').to_string(), offset, size));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "#[derive(Clone)]\n#[repr(C)]\npub struct Head {\n    pub magic: U64,\n    /// Kind: x.\n    \
                        pub kind: u8,\n    pub pad: [u8; 3],\n    pub crc: U32, // last\n}\n";
    const PAGE: &str = "### `Head`\n\nWords.\n\n| offset | size | field | meaning |\n|---|---|---|---|\n\
                        | 0 | 8 | `magic` | a |\n| 8 | 1 | `kind` | b |\n| 9 | 3 | pad | zero |\n| 12 | 4 | `crc` | c |\n";

    #[test]
    fn a_page_that_agrees_passes() {
        let structs = parse_structs(CODE).unwrap();
        assert_eq!(structs[0].fields.last(), Some(&("crc".to_string(), 12, 4)));
        assert_eq!(differences(&structs, &parse_tables(PAGE)), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let structs = parse_structs(CODE).unwrap();
        for (from, to) in [
            ("| 12 | 4 |", "| 13 | 4 |"),
            ("| 9 | 3 |", "| 9 | 2 |"),
            ("`kind`", "`sort`"),
            ("| 12 | 4 | `crc` | c |\n", ""),
            ("### `Head`", "### `Tail`"),
        ] {
            let page = PAGE.replace(from, to);
            assert_ne!(page, PAGE);
            assert_eq!(differences(&structs, &parse_tables(&page)).len(), 1, "{from} -> {to}");
        }
        let longer = format!("{PAGE}| 16 | 4 | `more` | d |\n");
        assert_eq!(differences(&structs, &parse_tables(&longer)).len(), 1);
    }

    #[test]
    fn a_type_without_a_size_is_refused() {
        assert!(parse_structs(&CODE.replace("U64", "u64")).unwrap_err().contains("unknown type"));
    }
}
