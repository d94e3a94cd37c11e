//! Comparison of the layout tables of `docs/spec/` with the structs of `crates/format`.
//!
//! For every `#[repr(C)]` struct its page has a heading `### `Name`` and below it a table with rows
//! `| offset | size | field | meaning |`, decimal, in order; and every such heading has its struct.
//! The struct is read from its source: all fields are unaligned (`U16`, `U32`, `U64`, `I64`, `u8`,
//! another such struct, or an array of these whose length is a number), so offsets are sums of
//! sizes. Each difference is one finding. Left out: encodings that are not structs; the pages
//! describe them in words.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use crate::sources::files;

/// The specifications, each with the modules of `crates/format` whose structs it describes. The
/// first one describes all others.
const PAGES: [(&str, &[&str]); 5] = [
    ("docs/spec/region.md", &[]),
    ("docs/spec/netram.md", &["ram", "ram_checkpoint"]),
    ("docs/spec/vlog.md", &["vlog"]),
    ("docs/spec/cache.md", &["cache"]),
    ("docs/spec/pack.md", &["packed"]),
];

/// Field name, offset and size in bytes.
type Field = (String, usize, usize);

/// A struct, or a table, by name.
#[derive(Debug, PartialEq, Eq)]
struct Layout {
    name: String,
    fields: Vec<Field>,
}

/// A struct as in its source: fields with their types.
type Source = (String, Vec<(String, String)>);

/// Returns the findings for the workspace at `root`.
pub fn check(root: &Path) -> Result<Vec<String>, String> {
    let mut sources: [Vec<Source>; PAGES.len()] = Default::default();
    let folder = root.join("crates/format/src");
    for path in files(&folder, "rs")? {
        let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let found = parse_structs(&text).map_err(|what| format!("{}: {what}", path.display()))?;
        sources[page_of(path.strip_prefix(&folder).unwrap_or(&path))].extend(found);
    }
    let mut findings = vec![];
    for ((page, _), sources) in PAGES.iter().zip(sources) {
        if sources.is_empty() {
            return Err(format!("{page}: crates/format/src has no #[repr(C)] struct for it; was it moved?"));
        }
        let text = fs::read_to_string(root.join(page))
            .map_err(|error| format!("{page}: cannot be read ({error}); it must hold the layout tables"))?;
        let structs = layouts(&sources).map_err(|what| format!("{page}: {what}"))?;
        findings.extend(differences(&structs, &parse_tables(&text)).iter().map(|what| format!("{page}: {what}")));
    }
    Ok(findings)
}

/// Returns the index in [`PAGES`] of the page for a source file. `vlog.rs` and everything in
/// `vlog/` are the module `vlog`.
fn page_of(path: &Path) -> usize {
    let module = path.iter().next().unwrap_or_default().to_string_lossy();
    let module = module.trim_end_matches(".rs");
    PAGES.iter().position(|(_, modules)| modules.contains(&module)).unwrap_or(0)
}

fn differences(structs: &[Layout], tables: &[Layout]) -> Vec<String> {
    let mut findings = vec![];
    for layout in structs {
        let name = &layout.name;
        let Some(table) = tables.iter().find(|table| table.name == *name) else {
            findings.push(format!("no heading \"### `{name}`\" with a table"));
            continue;
        };
        let show = |field: Option<&Field>| {
            field.map_or("nothing".to_string(), |(name, at, size)| format!("`{name}` at {at}, {size} bytes"))
        };
        for index in 0..layout.fields.len().max(table.fields.len()) {
            let (code, page) = (layout.fields.get(index), table.fields.get(index));
            if code != page {
                findings.push(format!("{name}: code has {}, page has {}", show(code), show(page)));
            }
        }
    }
    let unknown = |table: &&Layout| !structs.iter().any(|layout| layout.name == table.name);
    findings.extend(tables.iter().filter(unknown).map(|table| format!("{}: no such struct in the code", table.name)));
    findings
}

/// Computes offsets and sizes of structs that may contain each other.
fn layouts(sources: &[Source]) -> Result<Vec<Layout>, String> {
    let mut sizes: HashMap<&str, usize> = HashMap::new();
    let mut found: Vec<Option<Layout>> = sources.iter().map(|_| None).collect();
    // Each round resolves at least the structs that contain none of the unresolved ones.
    for _ in sources {
        for ((name, fields), place) in sources.iter().zip(&mut found).filter(|(_, place)| place.is_none()) {
            let mut offset = 0;
            let fields: Option<Vec<Field>> = fields
                .iter()
                .map(|(field, kind)| {
                    let (at, size) = (offset, size_of_type(kind, &sizes)?);
                    offset += size;
                    Some((field.clone(), at, size))
                })
                .collect();
            if let Some(fields) = fields {
                *place = Some(Layout { name: name.clone(), fields });
                sizes.insert(name, offset);
            }
        }
    }
    let resolve = |((name, fields), layout): (&Source, Option<Layout>)| {
        let unknown = || fields.iter().find(|(_, kind)| size_of_type(kind, &sizes).is_none());
        layout.ok_or_else(|| {
            let (field, kind) = unknown().expect("it kept the struct from being resolved");
            format!("struct {name}: unknown type `{kind}` of {field}")
        })
    };
    sources.iter().zip(found).map(resolve).collect()
}

fn parse_structs(text: &str) -> Result<Vec<Source>, String> {
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
        for line in lines.by_ref() {
            let line = line.split("//").next().unwrap_or_default().trim().trim_end_matches(',');
            if line == "}" {
                break;
            }
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let line = line.trim_start_matches("pub ").trim_start_matches("pub(crate) ");
            let (field, kind) =
                line.split_once(": ").ok_or_else(|| format!("struct {name}: cannot read the field `{line}`"))?;
            fields.push((field.to_string(), kind.to_string()));
        }
        found.push((name, fields));
    }
    Ok(found)
}

/// Returns the size of a type. `sizes` are those of the structs known so far.
fn size_of_type(kind: &str, sizes: &HashMap<&str, usize>) -> Option<usize> {
    match kind {
        "u8" => Some(1),
        "U16" => Some(2),
        "U32" => Some(4),
        "U64" | "I64" => Some(8),
        _ if kind.starts_with('[') => {
            let (of, count) = kind.strip_prefix('[')?.strip_suffix(']')?.rsplit_once("; ")?;
            Some(size_of_type(of, sizes)? * count.parse::<usize>().ok()?)
        }
        _ => sizes.get(kind).copied(),
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
            // The header row and the rule below it have no numbers.
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

    fn structs(code: &str) -> Result<Vec<Layout>, String> {
        layouts(&parse_structs(code)?)
    }

    #[test]
    fn a_page_that_agrees_passes() {
        let structs = structs(CODE).unwrap();
        assert_eq!(structs[0].fields.last(), Some(&("crc".to_string(), 12, 4)));
        assert_eq!(differences(&structs, &parse_tables(PAGE)), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_difference_is_found() {
        let structs = structs(CODE).unwrap();
        for (from, to, findings) in [
            ("| 12 | 4 |", "| 13 | 4 |", 1),
            ("| 9 | 3 |", "| 9 | 2 |", 1),
            ("`kind`", "`sort`", 1),
            ("| 12 | 4 | `crc` | c |\n", "", 1),
            // The struct has no table, and the table has no struct.
            ("### `Head`", "### `Tail`", 2),
        ] {
            let page = PAGE.replace(from, to);
            assert_ne!(page, PAGE);
            assert_eq!(differences(&structs, &parse_tables(&page)).len(), findings, "{from} -> {to}");
        }
        let longer = format!("{PAGE}| 16 | 4 | `more` | d |\n");
        assert_eq!(differences(&structs, &parse_tables(&longer)).len(), 1);
    }

    #[test]
    fn structs_may_hold_structs_and_arrays_of_arrays() {
        let outer = "#[repr(C)]\nstruct Outer {\n    first: Head,\n    rows: [[Head; 2]; 3],\n    pub(crate) end: [U16; 5],\n}\n";
        let structs = structs(&format!("{outer}{CODE}")).unwrap();
        let expected = [("first", 0, 16), ("rows", 16, 96), ("end", 112, 10)];
        assert_eq!(structs[0].fields, expected.map(|(name, at, size)| (name.to_string(), at, size)));
    }

    #[test]
    fn a_type_without_a_size_is_refused() {
        let refused = |code: &str| structs(code).unwrap_err().contains("unknown type");
        assert!(refused(&CODE.replace("U64", "u64")));
        assert!(refused(&CODE.replace("U64", "Head")), "a struct that holds itself");
        assert!(refused(&CODE.replace("[u8; 3]", "[u8; MANY]")));
    }

    #[test]
    fn a_source_file_belongs_to_one_page() {
        for (file, page) in [
            ("superblock.rs", 0),
            ("ram.rs", 1),
            ("ram/unit.rs", 1),
            ("ram_checkpoint.rs", 1),
            ("vlog.rs", 2),
            ("vlog/map.rs", 2),
            ("cache.rs", 3),
            ("packed.rs", 4),
        ] {
            assert_eq!(page_of(Path::new(file)), page, "{file}");
        }
    }
}
