//! Random contents of every kind, and changes to them.
//!
//! There are files of all layouts, sparse files, attributes, further names, symbolic links, and
//! directories in one bucket and under nodes. Deletions leave segments with a slot or two.
//! Everything follows from the seed.

use shoal_format::BULK_BLOCK;
use shoal_fs::{Caller, Error, Fs, Ino, ROOT, RenameMode, SetAttr, XattrMode};
use shoal_sim::Random;

const FILE: u32 = 0o100644;

pub struct Contents {
    pub random: Random,
    serial: u64,
    /// Directories, and files by directory and name.
    dirs: Vec<Ino>,
    files: Vec<(Ino, Vec<u8>)>,
    large: bool,
}

impl Contents {
    pub fn new(seed: u64, large: bool) -> Contents {
        Contents { random: Random::new(seed), serial: 0, dirs: vec![ROOT], files: Vec::new(), large }
    }

    fn name(&mut self) -> Vec<u8> {
        self.serial += 1;
        let long = self.random.below(60) as usize;
        format!("{}{}", self.serial, "n".repeat(long)).into_bytes()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.random.fill(&mut bytes);
        bytes
    }

    fn write(&mut self, fs: &Fs, ino: Ino, at: u64, len: usize) -> Result<(), Error> {
        let bytes = self.bytes(len);
        let mut done = 0;
        while done < len {
            done += fs.write(ino, at + done as u64, &bytes[done..])?;
        }
        Ok(())
    }

    fn create(&mut self, fs: &Fs) -> Result<(), Error> {
        let (parent, name) = (self.dirs[self.random.below(self.dirs.len() as u64) as usize], self.name());
        let ino = fs.mknod(&Caller::default(), parent, &name, FILE, 0)?.ino;
        fs.forget(ino, 1);
        self.files.push((parent, name));
        let sizes: &[u64] = if self.large { &[0, 40, 700, 9000, 60_000, 300_000] } else { &[0, 40, 700, 9000, 60_000] };
        let most = sizes[self.random.below(sizes.len() as u64) as usize];
        let len = 1 + self.random.below(most + 1) as usize;
        if len > 1 {
            self.write(fs, ino, 0, len)?;
        }
        match self.random.below(8) {
            0 => self.write(fs, ino, 70_000, 20)?,
            1 if self.large => self.write(fs, ino, 40 * BULK_BLOCK + 5, 100)?,
            2 => {
                let value = self.bytes(3000);
                fs.setxattr(ino, b"user.v", &value, XattrMode::Any)?;
                fs.setxattr(ino, b"user.w", b"small", XattrMode::Any)?;
            }
            3 => {
                let (parent, name) = (self.dirs[self.random.below(self.dirs.len() as u64) as usize], self.name());
                fs.link_held(ino, parent, &name)?;
                fs.forget(ino, 1);
                self.files.push((parent, name));
            }
            _ => {}
        }
        Ok(())
    }

    fn step(&mut self, fs: &Fs) -> Result<(), Error> {
        match self.random.below(20) {
            0 if self.dirs.len() < 12 => {
                let (parent, name) = (self.dirs[self.random.below(self.dirs.len() as u64) as usize], self.name());
                let ino = fs.mkdir(&Caller::default(), parent, &name, 0o755)?.ino;
                self.dirs.push(ino);
            }
            1 => {
                let (parent, name) = (self.dirs[self.random.below(self.dirs.len() as u64) as usize], self.name());
                let ino = fs.symlink(&Caller::default(), parent, &name, b"somewhere/else")?.ino;
                fs.forget(ino, 1);
                self.files.push((parent, name));
            }
            2..8 if !self.files.is_empty() => {
                let (parent, name) = self.files.swap_remove(self.random.below(self.files.len() as u64) as usize);
                fs.unlink(parent, &name)?;
            }
            8 if !self.files.is_empty() => {
                let victim = self.random.below(self.files.len() as u64) as usize;
                let (parent, name) = self.files[victim].clone();
                let ino = fs.lookup(parent, &name)?.ino;
                let size = self.random.below(100_000);
                match fs.setattr(ino, &SetAttr { size: Some(size), ..SetAttr::default() }) {
                    // The file is a symbolic link.
                    Err(Error::Invalid) | Ok(_) => {}
                    Err(error) => return Err(error),
                }
            }
            9 if !self.files.is_empty() => {
                let victim = self.random.below(self.files.len() as u64) as usize;
                let (parent, name) = self.files[victim].clone();
                let (target, new) = (self.dirs[self.random.below(self.dirs.len() as u64) as usize], self.name());
                fs.rename(parent, &name, target, &new, RenameMode::Replace)?;
                self.files[victim] = (target, new);
            }
            _ => self.create(fs)?,
        }
        Ok(())
    }

    /// Makes `steps` random changes. Some may fail for lack of room.
    pub fn change(&mut self, fs: &Fs, steps: u64) {
        for _ in 0..steps {
            match self.step(fs) {
                Ok(()) | Err(Error::NoSpace(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Makes many small files in one directory and keeps few of them. This leaves sparse segments,
    /// and inode blocks that can be given back.
    pub fn fragment(&mut self, fs: &Fs, files: u64) {
        let home = fs.mkdir(&Caller::default(), ROOT, &self.name(), 0o755).unwrap().ino;
        self.dirs.push(home);
        let mut made = Vec::new();
        for _ in 0..files {
            let name = self.name();
            let Ok(attr) = fs.mknod(&Caller::default(), home, &name, FILE, 0) else { break };
            fs.forget(attr.ino, 1);
            made.push(name);
            let len = 200 + self.random.below(1200) as usize;
            if self.write(fs, attr.ino, 0, len).is_err() {
                break;
            }
        }
        for (index, name) in made.into_iter().enumerate() {
            if index % 37 == 0 {
                self.files.push((home, name));
            } else {
                fs.unlink(home, &name).unwrap();
            }
        }
    }

    /// Leaves a file without a name that the kernel holds, which is an orphan after a crash.
    pub fn leave_orphan(&mut self, fs: &Fs) {
        let name = self.name();
        if let Ok(attr) = fs.mknod(&Caller::default(), ROOT, &name, FILE, 0) {
            let _ = self.write(fs, attr.ino, 0, 50_000);
            fs.unlink(ROOT, &name).unwrap();
        }
    }

    /// Fills the store until nothing fits, then deletes all files. Returns how many were made.
    pub fn fill_and_empty(&mut self, fs: &Fs) -> u64 {
        let mut full = 0;
        let mut made = 0;
        while full < 200 {
            match self.create(fs) {
                Ok(()) => made += 1,
                Err(Error::NoSpace(_)) => full += 1,
                Err(error) => panic!("{error}"),
            }
        }
        for (parent, name) in std::mem::take(&mut self.files) {
            fs.unlink(parent, &name).unwrap();
        }
        made
    }
}
