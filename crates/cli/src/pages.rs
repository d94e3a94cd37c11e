//! The manual pages of `shoal`.
//!
//! `shoal man DIR` writes `shoal.1`, one page for each command, and `mount.fuse.shoal.8`. The pages
//! of commands that `shoal-lab` carries out are written by `shoal-lab man DIR`.

use std::path::Path;

use clap::CommandFactory;
use shoal_devices::Outcome;

use crate::args::{Cli, MountHelper};
use crate::lab;
use crate::manual::{write_page, write_pages};

pub fn write_manual(directory: &Path) -> Outcome<()> {
    let mut shoal = Cli::command();
    shoal.build();
    let own = shoal.get_subcommands().filter(|command| !lab::COMMANDS.contains(&command.get_name()));
    write_pages(directory, "shoal", own)?;
    write_page(directory, Cli::command(), "1")?;
    write_page(directory, MountHelper::command(), "8")
}

#[cfg(test)]
mod tests {
    use std::fs;

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

    #[test]
    fn a_page_has_a_term_for_every_option_and_keeps_examples_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        write_manual(dir.path()).unwrap();
        for page in ["shoal-mount.1", "mount.fuse.shoal.8"] {
            let page = fs::read_to_string(dir.path().join(page)).unwrap();
            for name in ["noxattr", "threads=N", "sums, nosums", "scrub=DAYS", "pack_age=SECONDS"] {
                assert!(page.contains(&format!("\n.TP\n\\fB{name}\\fR\n")), "{name}: {page}");
            }
            assert!(page.contains(".nf\n/srv/store /mnt fuse.shoal noatime,nofail 0 0\n.fi"), "{page}");
        }
    }
}
