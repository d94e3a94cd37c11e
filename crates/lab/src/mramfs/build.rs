//! A build, as in 5.2.2: `make` over a generated C program, at each directory in turn.
//!
//! Owns: [`Tree`], the program as a function of a seed, and [`Builds`], the times. Rules: the tree is
//! copied before the clock starts; the compiler is the machine's `cc`, without optimization and
//! without a cache, one file at a time. Left out: configuration, which the thesis had done before, and
//! the engine in this process, which no compiler can read.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::Duration;

use shoal_sim::Random;

use super::measure::Place;
use crate::experiment::LabError;
use crate::target::Directory;
use crate::trees::programs::Programs;

const HEADERS: u64 = 40;
/// Functions of a file: with the others of its lines, about 24 KB, as the thesis's 16 MB in 684.
const FUNCTIONS: u64 = 36;
const TIMEOUT: Duration = Duration::from_secs(3600);
const COMPILER: &str = "cc";
const PROGRAMS: [&str; 2] = ["make", COMPILER];

/// A C program: names and contents of its files.
pub struct Tree {
    files: Vec<(String, String)>,
}

/// Writes a function of some lines.
fn function(out: &mut String, file: u32, number: u64, random: &mut Random) {
    let [a, b, c] = [7, 31, 997].map(|most| 1 + random.below(most));
    let _ = write!(
        out,
        "\n/* Mixes two numbers: variant {number} of unit {file}. */\n\
         int unit_{file}_{number}(int left, int right)\n{{\n\
         \tstruct record_{} record = {{ left, right, {c} }};\n\
         \tint sum = 0;\n\tint round;\n\n\
         \tfor (round = 0; round < {b}; round++) {{\n\
         \t\tif ((record.left ^ round) & {a})\n\t\t\tsum += record.right * {c};\n\
         \t\telse\n\t\t\tsum -= record.left + LIMIT_{};\n\
         \t\trecord.left = (record.left << 1) ^ (sum >> {a});\n\t\trecord.right += round;\n\t}}\n\
         \tswitch (sum & 3) {{\n\tcase 0:\n\t\treturn sum + record.extra;\n\tcase 1:\n\t\treturn sum - {b};\n\
         \tdefault:\n\t\treturn sum ^ {c};\n\t}}\n}}\n",
        random.below(HEADERS),
        random.below(HEADERS),
    );
}

impl Tree {
    pub fn generate(files: u32, seed: u64) -> Tree {
        let mut random = Random::new(seed);
        let mut tree = Tree { files: vec![] };
        let mut all = String::new();
        for header in 0..HEADERS {
            let limit = random.below(1 << 16);
            let text = format!(
                "#ifndef H{header}\n#define H{header}\n#define LIMIT_{header} {limit}\n\
                 struct record_{header} {{\n\tint left;\n\tint right;\n\tint extra;\n}};\n#endif\n"
            );
            tree.files.push((format!("h{header}.h"), text));
            let _ = writeln!(all, "#include \"h{header}.h\"");
        }
        tree.files.push(("all.h".into(), all));
        for file in 0..files {
            let mut text = String::from("#include \"all.h\"\n");
            (0..FUNCTIONS).for_each(|number| function(&mut text, file, number, &mut random));
            tree.files.push((format!("unit{file}.c"), text));
        }
        let objects: String = (0..files).map(|file| format!(" unit{file}.o")).collect();
        let makefile = format!(
            "CC = {COMPILER}\nCFLAGS = -O0 -w\nOBJECTS ={objects}\nlibunits.a: $(OBJECTS)\n\tar rc $@ $(OBJECTS)\n$(OBJECTS): all.h\n"
        );
        tree.files.push(("Makefile".into(), makefile));
        tree
    }

    pub fn bytes(&self) -> usize {
        self.files.iter().map(|(_, text)| text.len()).sum()
    }

    fn write(&self, directory: &Path) -> std::io::Result<()> {
        self.files.iter().try_for_each(|(name, text)| fs::write(directory.join(name), text))
    }
}

/// Times of the builds.
#[derive(Debug, Default)]
pub struct Builds {
    pub files: u32,
    pub bytes: usize,
    /// For each place, seconds of each run; nothing for the engine.
    pub times: Vec<Vec<f64>>,
    /// Programs that are not here, without which there is no build.
    pub missing: Vec<&'static str>,
}

/// Builds the tree at each place in turn.
pub fn measure(places: &[Place], files: u32, seed: u64, runs: u32) -> Result<Builds, LabError> {
    let mut builds = Builds { files, times: vec![vec![]; places.len()], ..Builds::default() };
    let programs = Programs {
        path: std::env::var_os("PATH").unwrap_or_default(),
        timeout: TIMEOUT,
        scratch: std::env::temp_dir(),
    };
    builds.missing = PROGRAMS.into_iter().filter(|name| !programs.has(name)).collect();
    let has_directory = places.iter().any(|place| matches!(place, Place::Directory { .. }));
    if files == 0 || !has_directory || !builds.missing.is_empty() {
        return Ok(builds);
    }
    let tree = Tree::generate(files, seed);
    builds.bytes = tree.bytes();
    PROGRAMS.iter().for_each(|name| programs.load(name));
    for _ in 0..runs {
        for (place, times) in places.iter().zip(&mut builds.times) {
            let Place::Directory { path, .. } = place else { continue };
            let directory = Directory::create_in(path)?;
            tree.write(directory.root()).map_err(|error| LabError::Broken {
                what: directory.root().display().to_string(),
                why: error.to_string(),
            })?;
            times.push(programs.run("make", &[&"-s"], directory.root())?.took_s);
        }
    }
    Ok(builds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_program_is_built_and_depends_on_the_seed() {
        let files = |seed| Tree::generate(3, seed).files;
        assert_eq!(files(1), files(1));
        assert_ne!(files(1), files(2));
        let size = files(1).iter().find(|(name, _)| name == "unit0.c").unwrap().1.len();
        assert!((16_000..20_000).contains(&size), "{size}");
        let scratch = tempfile::tempdir().unwrap();
        let at = [Place::Directory { label: "here".into(), path: scratch.path().into() }];
        let builds = measure(&at, 3, 1, 2).unwrap();
        if !builds.missing.is_empty() {
            eprintln!("SKIPPED: {:?} are not here", builds.missing);
            return;
        }
        assert_eq!(builds.times.iter().map(Vec::len).collect::<Vec<_>>(), [2]);
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0);
    }
}
