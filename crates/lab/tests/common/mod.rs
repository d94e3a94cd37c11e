//! Runs an experiment as the command line does, for the tests of whole experiments.
//!
//! Owns: the way from words to a report, and to the rows of its tables. Left out: the assertions (the tests).

use clap::Parser;
use serde_json::Value;
use shoal_lab::RunArgs;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: RunArgs,
}

/// The parsed arguments of a command line with the program's name first.
pub fn args<'a>(line: impl IntoIterator<Item = &'a str>) -> RunArgs {
    Line::parse_from(line).args
}

/// The report of `run` with these words behind it, and the names of its files.
pub fn report(words: &str) -> (Value, Vec<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut args = args(format!("run {words}").split_whitespace());
    args.common.out = Some(scratch.path().to_path_buf());
    let (report, files) = shoal_lab::run(&args).unwrap();
    let names = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap().to_string()).collect();
    (report.to_json(), names)
}

/// The rows of one of a report's tables.
pub fn rows<'a>(report: &'a Value, table: &str) -> &'a Vec<Value> {
    let tables = report["tables"].as_array().unwrap();
    let table = tables.iter().find(|found| found["name"] == table).unwrap_or_else(|| panic!("no table {table}"));
    table["rows"].as_array().unwrap()
}

/// Whether the command line refuses these words.
pub fn is_refused(words: impl IntoIterator<Item = String>) -> bool {
    Line::try_parse_from(words).is_err()
}
