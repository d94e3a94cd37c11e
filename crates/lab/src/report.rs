//! The result of an experiment: tables, plots, and notes on them.
//!
//! | module | owns |
//! |---|---|
//! | `claims` | the paper's figures beside ours, each with a verdict |
//! | `machine` | the machine that a report is of |
//! | `plot` | a plot as SVG |
//!
//! Owns: [`Report`], [`Table`], and their form on a terminal, as CSV and as JSON. Rules: the title of
//! every table says whether its time is simulated. A cell that was not measured is empty, never 0.
//! Files are named after the experiment and the table.

mod claims;
mod machine;
mod plot;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use claims::{Better, Comparison, Said, Verdict};
pub use plot::{GAP, Kind, Plot, Series, Style};

/// The reason why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error("{path}: {source}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}")]
    Csv { path: PathBuf, source: csv::Error },
    #[error("plot {name}: {why}")]
    Plot { name: String, why: String },
}

/// One cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Text(String),
    Count(u64),
    /// A number and the decimals to show.
    Number(f64, usize),
    /// Not measured, or not given in the paper.
    Empty,
}

impl Cell {
    fn text(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.to_string(),
            Cell::Number(number, decimals) => format!("{number:.decimals$}"),
            Cell::Empty => String::new(),
        }
    }

    fn json(&self) -> Value {
        match self {
            Cell::Text(text) => json!(text),
            Cell::Count(count) => json!(count),
            Cell::Number(number, _) => json!(number),
            Cell::Empty => Value::Null,
        }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Cell {
        Cell::Text(text.into())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(count: u64) -> Cell {
        Cell::Count(count)
    }
}

/// Rows under named columns.
#[derive(Clone, Debug)]
pub struct Table {
    /// Part of file names: letters, digits, hyphens.
    pub name: String,
    pub title: String,
    columns: Vec<String>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    pub fn new(name: &str, title: impl Into<String>, columns: &[&str]) -> Table {
        Table {
            name: name.into(),
            title: title.into(),
            columns: columns.iter().map(|c| (*c).into()).collect(),
            rows: vec![],
        }
    }

    /// Appends a row with a cell for each column.
    pub fn push(&mut self, row: Vec<Cell>) {
        assert_eq!(row.len(), self.columns.len(), "row of table {}", self.name);
        self.rows.push(row);
    }

    pub fn rows(&self) -> &[Vec<Cell>] {
        &self.rows
    }

    /// Formats the table for a terminal: text to the left, numbers to the right, two spaces between
    /// columns.
    pub fn to_text(&self) -> String {
        let cells: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(Cell::text).collect()).collect();
        let width = |column: usize| {
            let widest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            widest.max(self.columns[column].chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let right: Vec<bool> = (0..self.columns.len())
            .map(|column| !self.rows.is_empty() && !self.rows.iter().any(|row| matches!(row[column], Cell::Text(_))))
            .collect();
        let line = |cells: &[String]| {
            let mut line = String::new();
            for (column, cell) in cells.iter().enumerate() {
                let width = widths[column];
                line += &if right[column] { format!("{cell:>width$}  ") } else { format!("{cell:<width$}  ") };
            }
            line.trim_end().to_string() + "\n"
        };
        let mut text = format!("{}\n", self.title);
        text += &line(&self.columns);
        text += &line(&widths.iter().map(|width| "-".repeat(*width)).collect::<Vec<_>>());
        for row in &cells {
            text += &line(row);
        }
        text
    }

    pub fn to_csv(&self) -> Result<Vec<u8>, csv::Error> {
        let mut writer = csv::Writer::from_writer(vec![]);
        writer.write_record(&self.columns)?;
        for row in &self.rows {
            writer.write_record(row.iter().map(Cell::text))?;
        }
        writer.into_inner().map_err(|error| error.into_error().into())
    }

    pub fn to_json(&self) -> Value {
        let rows: Vec<Value> = self
            .rows
            .iter()
            .map(|row| {
                let fields = self.columns.iter().zip(row).map(|(column, cell)| (column.clone(), cell.json()));
                Value::Object(fields.collect::<Map<String, Value>>())
            })
            .collect();
        json!({"name": self.name, "title": self.title, "columns": self.columns, "rows": rows})
    }
}

/// The results of an experiment.
#[derive(Debug)]
pub struct Report {
    pub experiment: String,
    /// The command that repeats the experiment.
    pub command: String,
    /// Seed of the random numbers, if the experiment uses any.
    pub seed: Option<u64>,
    /// Parts that were left out or replaced. They are also printed on standard error.
    pub skipped: Vec<String>,
    /// Remarks that a reader of the figures needs.
    pub notes: Vec<String>,
    pub tables: Vec<Table>,
    pub plots: Vec<Plot>,
}

#[derive(Serialize)]
struct Head<'a> {
    experiment: &'a str,
    command: &'a str,
    seed: Option<u64>,
    /// The day of the run (UTC), and the machine.
    date: String,
    machine: String,
    skipped: &'a [String],
    notes: &'a [String],
}

impl Report {
    pub fn to_text(&self) -> String {
        let mut text = format!("{}: {}\n", self.experiment, self.command);
        for skipped in &self.skipped {
            text += &format!("SKIPPED: {skipped}\n");
        }
        for table in &self.tables {
            text += "\n";
            text += &table.to_text();
        }
        if !self.notes.is_empty() {
            text += "\nNotes:\n";
        }
        for note in &self.notes {
            text += &format!("- {note}\n");
        }
        text
    }

    pub fn to_json(&self) -> Value {
        let head = Head {
            experiment: &self.experiment,
            command: &self.command,
            seed: self.seed,
            date: time::UtcDateTime::now().date().to_string(),
            machine: machine::describe(),
            skipped: &self.skipped,
            notes: &self.notes,
        };
        let mut value = json!(head);
        value["tables"] = self.tables.iter().map(Table::to_json).collect();
        value
    }

    /// Writes all tables as CSV, all plots as SVG and everything as JSON into a directory, which is
    /// created if necessary. Returns the files.
    pub fn write(&self, directory: &Path) -> Result<Vec<PathBuf>, ReportError> {
        let failed = |path: &Path| {
            let path = path.to_path_buf();
            move |source| ReportError::Write { path, source }
        };
        fs::create_dir_all(directory).map_err(failed(directory))?;
        let mut written = vec![];
        let mut put = |name: String, bytes: &[u8]| {
            let path = directory.join(name);
            fs::write(&path, bytes).map_err(failed(&path))?;
            written.push(path);
            Ok(())
        };
        for table in &self.tables {
            let name = format!("{}-{}.csv", self.experiment, table.name);
            let csv = table.to_csv().map_err(|source| ReportError::Csv { path: directory.join(&name), source })?;
            put(name, &csv)?;
        }
        for plot in &self.plots {
            put(format!("{}-{}.svg", self.experiment, plot.name), plot.to_svg()?.as_bytes())?;
        }
        let json = format!("{:#}\n", self.to_json());
        put(format!("{}.json", self.experiment), json.as_bytes())?;
        Ok(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new("t", "Table 1 (simulated time)", &["policy", "paper", "ours"]);
        table.push(vec!["adaptive, P=2".into(), Cell::Number(8520.39, 2), Cell::Number(81.4567, 2)]);
        table.push(vec!["none".into(), Cell::Empty, 7u64.into()]);
        table
    }

    #[test]
    fn text_is_aligned_and_what_is_not_known_is_empty() {
        let expected = "Table 1 (simulated time)\n\
                        policy           paper   ours\n\
                        -------------  -------  -----\n\
                        adaptive, P=2  8520.39  81.46\n\
                        none                        7\n";
        assert_eq!(table().to_text(), expected);
    }

    #[test]
    fn csv_quotes_and_json_keeps_all_digits() {
        let csv = String::from_utf8(table().to_csv().unwrap()).unwrap();
        assert_eq!(csv, "policy,paper,ours\n\"adaptive, P=2\",8520.39,81.46\nnone,,7\n");
        let json = table().to_json();
        assert_eq!(json["rows"][0]["ours"], 81.4567);
        assert_eq!(json["rows"][1]["paper"], Value::Null);
    }

    #[test]
    fn a_report_is_written_to_a_directory_that_was_not_there() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("a/b");
        let report = Report {
            experiment: "x".into(),
            command: "shoal lab run x".into(),
            seed: Some(3),
            skipped: vec!["the trace is not here".into()],
            notes: vec!["a note".into()],
            tables: vec![table()],
            plots: vec![Plot {
                name: "figure-6".into(),
                title: "Figure 6".into(),
                x: "extra space (%)".into(),
                y: "simulated time (s)".into(),
                series: vec![Series::new("none", [(0.0, 1.0), (5.0, 2.0)])],
                style: Style::default(),
            }],
        };
        let files = report.write(&directory).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["x-t.csv", "x-figure-6.svg", "x.json"]);
        let json: Value = serde_json::from_slice(&fs::read(&files[2]).unwrap()).unwrap();
        assert_eq!((&json["seed"], &json["tables"][0]["name"]), (&json!(3), &json!("t")));
        assert!(report.to_text().contains("\nSKIPPED: the trace is not here\n"));
        let file_in_the_way = files[2].join("x");
        assert!(matches!(report.write(&file_in_the_way), Err(ReportError::Write { .. })));
    }
}
