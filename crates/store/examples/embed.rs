//! A program that keeps its files in a store of its own, without a mount.
//!
//!     cargo run --example embed -- /tmp/notes "buy milk"
//!
//! Makes a store in the given directory if there is none, adds a note, and lists all notes with
//! their times.

use std::error::Error;
use std::path::Path;
use std::time::UNIX_EPOCH;

use shoal_store::{FormatOptions, Store, Volume};

fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1);
    let (Some(directory), Some(note)) = (words.next(), words.next()) else {
        return Err("usage: embed DIRECTORY NOTE".into());
    };
    let directory = Path::new(&directory);
    if Store::describe(directory).is_err() {
        let options = FormatOptions { memory_bytes: Some(64 << 20), ..FormatOptions::default() };
        let made = Store::format(directory, &options)?;
        println!("made {}, store {}", made.store, made.uuid);
    }
    let volume = Volume::open(directory)?;
    volume.create_dir_all("notes")?;
    let number = volume.read_dir("notes")?.count();
    // Write the note under another name first, so that it is there whole or not at all.
    let file = volume.create("notes.new")?;
    file.write_all_at(note.as_encoded_bytes(), 0)?;
    file.sync_all()?;
    drop(file);
    volume.rename("notes.new", format!("notes/{number:06}"))?;
    let mut names: Vec<_> = volume.read_dir("notes")?.collect::<Result<_, _>>()?;
    names.sort_by(|one, other| one.file_name().cmp(other.file_name()));
    for entry in names {
        let path = Path::new("notes").join(entry.file_name());
        let written = volume.metadata(&path)?.modified().duration_since(UNIX_EPOCH)?;
        println!("{}  {}", written.as_secs(), String::from_utf8_lossy(&volume.read(&path)?));
    }
    volume.close()?;
    Ok(())
}
