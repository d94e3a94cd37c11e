//! `shoal lab run small-files`: mramfs' study of small files on real trees.
//!
//! | module | owns |
//! |---|---|
//! | `compressors` | the compressors, all behind one trait |
//! | `lzrw1`, `lzo` | LZRW1 and LZO's fast level, for which no maintained free library exists |
//! | `kinds` | what a file is: text, a program, compressed, or another |
//! | `measure` | files in memory, and their sizes and speeds under each compressor |
//! | `figures` | table 4.1 and figures 4.1 to 4.3 |
//! | `claims` | the paper's figures beside ours |
//!
//! Owns: the experiment's options. Rules: files of 1 byte to 128 KiB, drawn by a seed if there are
//! too many. Every file is decompressed and compared. A dictionary is trained on files that are not
//! measured.

mod claims;
mod compressors;
mod figures;
mod kinds;
mod lzo;
mod lzrw1;
mod measure;

use std::path::PathBuf;

use clap::Args;

use crate::experiment::{Common, LabError, Run};
use crate::report::Report;

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal lab run small-files --tree /usr\n  \
    shoal lab run small-files --tree /home --mib 1024 --out results")]
pub struct Options {
    /// Directories with the files to compress
    #[arg(long, value_name = "DIR", required = true, num_args = 1..)]
    pub tree: Vec<PathBuf>,
    /// Most data to measure (MiB); if there is more, the files are drawn at random
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub mib: u64,
    /// Number of runs of each speed measurement; the fastest is shown
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Seed for drawing the files
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Total size of the files that `--quick` measures (bytes).
const QUICK: u64 = 4 << 20;

impl Run for Options {
    const PAPER: &'static str = "Edel: MRAMFS, a compressing file system for byte-addressable non-volatile RAM (thesis, UCSC), chapter 4: table 4.1, figures 4.1 to 4.3";

    fn run(&self, common: &Common) -> Result<Report, LabError> {
        let bytes = if common.quick { QUICK } else { self.mib << 20 };
        let runs = if common.quick { 1 } else { self.runs };
        let sample = measure::Sample::draw(&self.tree, bytes, self.seed)?;
        let found = measure::measure(&sample, runs)?;
        let trees: Vec<String> = self.tree.iter().map(|path| path.display().to_string()).collect();
        let mut skipped = vec![];
        if common.quick {
            skipped.push("--quick: few files, one run; figures are not to be quoted".into());
        }
        if sample.unread > 0 {
            skipped.push(format!("{} files or directories that could not be read", sample.unread));
        }
        skipped.push("LZO's own library, which is under the GPL: `lzo` is written from its format; lzokay searches more places, and decompresses both".into());
        Ok(Report {
            experiment: "small-files".into(),
            command: format!(
                "shoal lab run small-files{} --mib {} --runs {} --seed {} --tree {}",
                if common.quick { " --quick" } else { "" },
                self.mib,
                self.runs,
                self.seed,
                trees.join(" ")
            ),
            seed: Some(self.seed),
            skipped,
            notes: figures::notes(&sample, &found),
            tables: figures::tables(&found),
            plots: figures::plots(&found),
        })
    }
}
