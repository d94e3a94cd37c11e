//! The input for all places: the tar file of a source tree, and a git repository made from it.
//!
//! Owns: [`Source`], made once in the scratch directory. Rules: the scratch directory is in no
//! place, so that every place reads its input from outside. A repository is packed, like one that
//! people clone, and git does not repack it at a time of its own. A tree's settings for line ends
//! and filters do not apply, so a clone has the tree's own bytes and a status is empty.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::programs::Programs;
use super::shape::{BYTES, FILES, Shape};
use super::{Part, Plan};
use crate::experiment::LabError;
use crate::places::Place;
use crate::tree;

/// The source tree used in a run.
#[derive(Debug)]
pub struct Source {
    /// Description for the report.
    pub name: String,
    pub tar: PathBuf,
    /// None if the plan has no part that clones it.
    pub repository: Option<PathBuf>,
    /// Git's template of new repositories.
    pub template: PathBuf,
}

fn broken(path: &Path) -> impl Fn(io::Error) -> LabError {
    move |error| LabError::Broken { what: path.display().to_string(), why: error.to_string() }
}

/// Returns the scratch directory, which must be in no place.
pub fn scratch(plan: &Plan, places: &[Place]) -> Result<PathBuf, LabError> {
    let option = |why: String| LabError::Option { what: "--scratch", why };
    let find = |path: &Path| {
        fs::canonicalize(path)
            .map_err(|error| option(format!("{}: {error}; name a directory that exists", path.display())))
    };
    let scratch = find(&plan.scratch)?;
    for place in places {
        let Some(directory) = &place.directory else { continue };
        if scratch.starts_with(find(directory)?) {
            let (scratch, label) = (scratch.display(), &place.label);
            return Err(option(format!("{scratch} is in the place {label}; name a directory outside of all places")));
        }
    }
    Ok(scratch)
}

impl Source {
    pub fn make(plan: &Plan, programs: &Programs, scratch: &Path) -> Result<Source, LabError> {
        let (tar, name) = match &plan.tree {
            None => Source::generate(plan, scratch.join("tree.tar"))?,
            Some(path) => Source::given(path, programs, scratch.join("tree.tar"))?,
        };
        let mut source = Source { name, tar, repository: None, template: scratch.join("template") };
        if plan.has(Part::Git) {
            source.repository = Some(source.make_repository(programs, scratch)?);
        }
        Ok(source)
    }

    fn generate(plan: &Plan, tar: PathBuf) -> Result<(PathBuf, String), LabError> {
        let files = plan.scaled(FILES);
        let shape = Shape::generate(plan.seed, files, BYTES * u64::from(files) / u64::from(FILES));
        let write = || {
            let mut out = BufWriter::new(File::create(&tar)?);
            shape.write_tar(&mut out)?;
            out.flush()
        };
        write().map_err(broken(&tar))?;
        let (files, directories, mb) = (shape.files(), shape.directories(), shape.bytes() as f64 / 1e6);
        Ok((tar, format!("made from the seed: {files} files in {directories} directories, {mb:.1} MB")))
    }

    /// Takes a directory or a tar file of the user.
    fn given(path: &Path, programs: &Programs, tar: PathBuf) -> Result<(PathBuf, String), LabError> {
        let wrong = |why: String| LabError::Option {
            what: "--tree",
            why: format!("{}: {why}; name a directory, or a tar file", path.display()),
        };
        let whole = fs::canonicalize(path).map_err(|error| wrong(error.to_string()))?;
        let name = path.display().to_string();
        match fs::metadata(&whole).map_err(|error| wrong(error.to_string()))? {
            of if of.is_dir() => {
                // A history is not part of a tree; the clone has its own.
                programs.run("tar", &[&"--exclude=.git", &"-cf", &tar, &"."], &whole)?;
                Ok((tar, name))
            }
            of if of.is_file() => Ok((whole, name)),
            _ => Err(wrong("neither".into())),
        }
    }

    fn make_repository(&self, programs: &Programs, scratch: &Path) -> Result<PathBuf, LabError> {
        let (work, repository, info) = (scratch.join("work"), scratch.join("tree.git"), self.template.join("info"));
        for directory in [&work, &info] {
            fs::create_dir_all(directory).map_err(broken(directory))?;
        }
        let attributes = info.join("attributes");
        fs::write(&attributes, "* -text !eol !ident !filter !working-tree-encoding\n").map_err(broken(&attributes))?;
        // Git distrusts a tree that belongs to another user.
        programs.run("tar", &[&"--no-same-owner", &"-xf", &self.tar], &work)?;
        programs.run("git", &[&"init", &"-q", &"--template", &self.template], &work)?;
        programs.run("git", &[&"add", &"--all", &"--force", &"."], &work)?;
        programs.run(
            "git",
            &[&"-c", &"gc.auto=0", &"-c", &"maintenance.auto=false", &"commit", &"-qm", &"the tree"],
            &work,
        )?;
        // Skip the search for deltas, which takes long and changes little for a clone.
        programs.run("git", &[&"-c", &"pack.window=0", &"repack", &"-adq"], &work)?;
        fs::rename(work.join(".git"), &repository).map_err(broken(&repository))?;
        fs::remove_dir_all(&work).map_err(broken(&work))?;
        Ok(repository)
    }

    /// Reads the tar file, so that no place waits for the disk of the tar file.
    pub fn warm_tar(&self) -> Result<(), LabError> {
        warm(&self.tar)
    }

    /// Reads the repository, if there is one.
    pub fn warm_repository(&self) -> Result<(), LabError> {
        let Some(repository) = &self.repository else { return Ok(()) };
        let (found, _) = tree::walk(repository)?;
        found.iter().filter(|(_, metadata)| metadata.is_file()).try_for_each(|(path, _)| warm(path))
    }
}

fn warm(path: &Path) -> Result<(), LabError> {
    let read = || io::copy(&mut File::open(path)?, &mut io::sink());
    read().map(drop).map_err(broken(path))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clone_has_the_trees_own_bytes_whatever_its_files_tell_git() {
        let [tree, scratch] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let files = [
            (".gitattributes", "* text eol=crlf ident\n"),
            (".gitignore", "*.o\n"),
            ("ignored.o", "1\n"),
            ("a/b", "$Id$\nlf\ncrlf\r\n"),
        ];
        fs::create_dir(tree.path().join("a")).unwrap();
        for (name, contents) in files {
            fs::write(tree.path().join(name), contents).unwrap();
        }
        let path = std::env::var_os("PATH").unwrap();
        let programs = Programs { path, timeout: Duration::from_secs(60), scratch: scratch.path().into() };
        let plan = Plan {
            at: vec![],
            tree: Some(tree.path().into()),
            scratch: scratch.path().into(),
            parts: vec![Part::Git],
            keeps_caches: true,
            seed: 1,
            runs: 1,
            scale: 1.0,
            timeout: programs.timeout,
            path: programs.path.clone(),
        };
        let source = Source::make(&plan, &programs, scratch.path()).unwrap();
        source.warm_tar().and_then(|()| source.warm_repository()).unwrap();
        let repository = source.repository.as_ref().unwrap();
        let clone = scratch.path().join("clone");
        programs
            .run("git", &[&"clone", &"-q", &"--template", &source.template, repository, &clone], Path::new("/"))
            .unwrap();
        for (name, contents) in files {
            assert_eq!(fs::read_to_string(clone.join(name)).unwrap(), contents, "{name}");
        }
        assert_eq!(programs.run("git", &[&"status", &"--porcelain"], &clone).unwrap().output, "");
        let packs = fs::read_dir(repository.join("objects/pack")).unwrap().count();
        assert!(packs >= 2, "a pack and its index");
    }
}
