//! Reports as JSON, for `--json`.
//!
//! One object, indented, on standard output. Programs rely on its keys, so they never change.

/// Prints a report as JSON on standard output.
pub fn print_json(report: &impl serde::Serialize) {
    match serde_json::to_string_pretty(report) {
        Ok(text) => println!("{text}"),
        // Paths that are not UTF-8 are the only values that JSON cannot hold.
        Err(error) => eprintln!("shoal: report: {error}"),
    }
}
