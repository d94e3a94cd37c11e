//! Runs an experiment as the command line does, for tests of whole experiments.
//!
//! Owns: the conversion of words to a report, and to the rows of its tables. Left out: the
//! assertions (the tests).

use clap::Parser;
use serde_json::Value;
use shoal_lab::RunArgs;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: RunArgs,
}

/// Parses a command line that begins with the program's name.
pub fn args<'a>(line: impl IntoIterator<Item = &'a str>) -> RunArgs {
    Line::parse_from(line).args
}

/// Returns the report of `run` followed by these words, and the names of its files.
pub fn report(words: &str) -> (Value, Vec<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut args = args(format!("run {words}").split_whitespace());
    args.common.out = Some(scratch.path().to_path_buf());
    let (report, files) = shoal_lab::run(&args).unwrap();
    let names = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_string()).collect();
    (report.to_json(), names)
}

/// Returns the rows of one of a report's tables.
pub fn rows<'a>(report: &'a Value, table: &str) -> &'a Vec<Value> {
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|found| found["name"] == table).unwrap_or_else(|| panic!("no table {table}"));
    table["rows"].as_array().unwrap()
}

/// Returns whether the command line refuses these words.
pub fn is_refused(words: impl IntoIterator<Item = String>) -> bool {
    Line::try_parse_from(words).is_err()
}
