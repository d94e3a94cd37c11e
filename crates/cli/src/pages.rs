//! Manual pages and completions, generated from the definitions of the command line.
//!
//! `shoal man DIR` writes `shoal.1`, one page for each command, and `mount.fuse.shoal.8`.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use shoal_devices::{During, Outcome};

use crate::args::{Cli, MountHelper};

pub fn write_manual(directory: &Path) -> Outcome<()> {
    fs::create_dir_all(directory).during(directory.display())?;
    let mut shoal = Cli::command();
    shoal.build();
    for command in shoal.get_subcommands().filter(|command| !command.is_hide_set()) {
        let name: &'static str = format!("shoal-{}", command.get_name()).leak();
        write_page(directory, command.clone().name(name), "1")?;
    }
    write_page(directory, Cli::command(), "1")?;
    write_page(directory, MountHelper::command(), "8")
}

fn write_page(directory: &Path, command: Command, section: &str) -> Outcome<()> {
    let path = directory.join(format!("{}.{section}", command.get_name()));
    let mut page = Vec::new();
    let man = Man::new(command).section(section).source("Shoal").manual("Shoal");
    man.render(&mut page).and_then(|()| fs::write(&path, &page)).during(path.display())
}

pub fn print_completions(shell: clap_complete::Shell) -> Outcome<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "shoal", &mut script);
    io::stdout().write_all(&script).during("standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options() {
        let dir = tempfile::tempdir().unwrap();
        write_manual(dir.path()).unwrap();
        for name in ["format", "mount", "umount", "df", "check", "inspect", "bench", "donate", "serve", "status"] {
            let page = fs::read_to_string(dir.path().join(format!("shoal-{name}.1"))).unwrap();
            assert!(page.contains("json"), "{name}");
            assert!(page.contains("SYNOPSIS"), "{name}");
        }
        assert!(!dir.path().join("shoal-man.1").exists(), "hidden commands have no page");
        assert!(fs::read_to_string(dir.path().join("shoal.1")).unwrap().contains("shoal format /srv/store"));
        assert!(dir.path().join("mount.fuse.shoal.8").exists());
    }
}
