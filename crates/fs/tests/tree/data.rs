//! The walker's steps on the bytes of files: write, read, truncate, allocate and punch, copy, seek.
//!
//! A file is never longer than [`FILE_BYTES`], and mostly short. The thresholds of the stores are
//! such that files move between the region and the bulk device all the time.
//! An operation that runs out of room may have changed times, and may have erased part of what it
//! was to erase, but nothing else.

use shoal_fs::{Error, Seek, SetAttr};

use super::NodeId;
use super::steps::{Outcome, Walker};

/// Longest file the steps make (bytes).
const FILE_BYTES: u64 = 300 << 10;

impl Walker {
    fn length(&mut self) -> u64 {
        match self.below(20) {
            0..10 => 1 + self.below(200),
            10..16 => 1 + self.below(6000),
            16..19 => 1 + self.below(60_000),
            _ => 1 + self.below(150_000),
        }
    }

    fn place(&mut self, size: u64) -> u64 {
        let at = match self.below(10) {
            0..4 => size,
            4..7 => self.below(size + 1),
            7..9 => 0,
            _ => size + self.below(100_000),
        };
        at.min(FILE_BYTES)
    }

    /// Reads a file after an operation on it ran out of room. Times may have changed, and contents
    /// must be as `allowed` says.
    fn after_refusal(&mut self, id: NodeId, allowed: impl Fn(usize, u8, u8) -> bool) -> Outcome {
        let node = self.model.node(id);
        let attr = self.fs.getattr(node.ino).map_err(|e| format!("getattr: {e}"))?;
        let mut found = vec![0; attr.size as usize];
        self.fs.read(node.ino, 0, &mut found).map_err(|e| format!("read: {e}"))?;
        let old = node.data();
        for (at, &byte) in found.iter().enumerate() {
            let before = old.get(at).copied().unwrap_or(0);
            if byte != before && !allowed(at, before, byte) {
                return Err(format!("refused for lack of room, but byte {at} changed from {before:#x} to {byte:#x}"));
            }
        }
        if found.len() != old.len() {
            return Err(format!("refused for lack of room, but the size went from {} to {}", old.len(), found.len()));
        }
        let node = self.model.node_mut(id);
        (node.mtime, node.ctime) = (attr.mtime, attr.ctime);
        *self.model.data_mut(id) = found;
        Ok(())
    }

    fn splice(&mut self, id: NodeId, at: u64, bytes: &[u8]) {
        let data = self.model.data_mut(id);
        let end = at as usize + bytes.len();
        if data.len() < end {
            data.resize(end, 0);
        }
        data[at as usize..end].copy_from_slice(bytes);
        self.touch(id);
    }

    pub(super) fn write(&mut self) -> Outcome {
        let Some(id) = self.file() else { return Ok(()) };
        let (at, len) = (self.model.node(id).size(), self.length());
        let at = self.place(at);
        let mut bytes = vec![0; len as usize];
        self.random.fill(&mut bytes);
        if self.below(2) == 0 {
            // Packing shrinks these.
            bytes.chunks_mut(64).for_each(|line| line.fill(line[0]));
        }
        self.last = format!("{id} at {at}, {len} bytes (size {})", self.model.node(id).size());
        let found = self.fs.write(self.model.node(id).ino, at, &bytes);
        match self.settle(found, Ok(()))? {
            None => self.after_refusal(id, |_, _, _| false),
            Some(written) => {
                if written != bytes.len() && !self.tight || written == 0 {
                    return Err(format!("{written} bytes were written"));
                }
                self.splice(id, at, &bytes[..written]);
                Ok(())
            }
        }
    }

    pub(super) fn read(&mut self) -> Outcome {
        let Some(id) = self.file() else { return Ok(()) };
        let size = self.model.node(id).size();
        let (at, len) = (self.place(size), self.length());
        self.last = format!("{id} at {at}, {len} bytes (size {size})");
        let mut out = vec![0xee; len as usize];
        let got = self.fs.read(self.model.node(id).ino, at, &mut out).map_err(|e| format!("answered '{e}'"))?;
        let data = self.model.node(id).data();
        let expected = &data[(at as usize).min(data.len())..(at as usize + len as usize).min(data.len())];
        if &out[..got] != expected {
            let at = (0..got.min(expected.len())).find(|&i| out[i] != expected[i]);
            return Err(format!("read {got} bytes, expected {}; first difference at {at:?}", expected.len()));
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self) -> Outcome {
        let Some(id) = self.file() else { return Ok(()) };
        let old = self.model.node(id).size();
        let size = match self.below(4) {
            0 => 0,
            1 => self.place(old),
            _ => self.below(old + 1),
        };
        self.last = format!("{id} from {old} to {size}");
        let found = self.fs.setattr(self.model.node(id).ino, &SetAttr { size: Some(size), ..SetAttr::default() });
        let done = if size <= old { self.settle_removal(found, Ok(()))? } else { self.settle(found, Ok(()))? };
        match done {
            None => self.after_refusal(id, |_, _, _| false),
            Some(_) => {
                self.model.data_mut(id).resize(size as usize, 0);
                self.touch(id);
                Ok(())
            }
        }
    }

    pub(super) fn fallocate(&mut self) -> Outcome {
        let Some(id) = self.file() else { return Ok(()) };
        let size = self.model.node(id).size();
        let (at, len) = (self.place(size), self.length());
        let mode = [0, 1, 3, 3, 16, 17, 8, 2][self.below(8) as usize];
        self.last = format!("{id} mode {mode} at {at}, {len} bytes (size {size})");
        let expected = if matches!(mode, 8 | 2) { Err(Error::NotSupported) } else { Ok(()) };
        let found = self.fs.fallocate(self.model.node(id).ino, mode, at, len);
        let refused = matches!(found, Err(Error::NoSpace(_)));
        if self.settle(found, expected)?.is_none() {
            let range = at as usize..(at + len) as usize;
            let erases = mode & 16 != 0;
            return if refused {
                self.after_refusal(id, |i, _, now| erases && now == 0 && range.contains(&i))
            } else {
                Ok(())
            };
        }
        let data = self.model.data_mut(id);
        let (start, end) = ((at as usize).min(data.len()), ((at + len) as usize).min(data.len()));
        if mode & 18 != 0 {
            data[start..end].fill(0);
        }
        if mode & 1 == 0 && data.len() < (at + len) as usize {
            data.resize((at + len) as usize, 0);
        }
        self.touch(id);
        Ok(())
    }

    pub(super) fn copy(&mut self) -> Outcome {
        let (Some(from), Some(to)) = (self.file(), self.file()) else { return Ok(()) };
        let (size, to_size) = (self.model.node(from).size(), self.model.node(to).size());
        let (at, to_at, len) = (self.below(size + 1), self.place(to_size), self.length());
        self.last = format!("{from} at {at} (size {size}) to {to} at {to_at} (size {to_size}), {len} bytes");
        let overlap = from == to && at < to_at + len && to_at < at + len;
        let expected = if overlap { Err(Error::Invalid) } else { Ok(()) };
        let (from_ino, to_ino) = (self.model.node(from).ino, self.model.node(to).ino);
        let found = self.fs.copy_range(from_ino, at, to_ino, to_at, len);
        let refused = matches!(found, Err(Error::NoSpace(_)));
        let Some(copied) = self.settle(found, expected)? else {
            return if refused { self.after_refusal(to, |_, _, _| false) } else { Ok(()) };
        };
        let most = len.min(size - at);
        if copied > most || copied < most && !self.tight {
            return Err(format!("{copied} bytes were copied of {most}"));
        }
        if copied > 0 {
            let bytes = self.model.node(from).data()[at as usize..(at + copied) as usize].to_vec();
            self.splice(to, to_at, &bytes);
        }
        if self.tight {
            // A copy that ran out of room may have moved the target's data.
            let attr = self.fs.getattr(to_ino).map_err(|e| format!("getattr: {e}"))?;
            let node = self.model.node_mut(to);
            (node.mtime, node.ctime) = (attr.mtime, attr.ctime);
        }
        Ok(())
    }

    pub(super) fn seek(&mut self) -> Outcome {
        let Some(id) = self.file() else { return Ok(()) };
        let data = self.model.node(id).data();
        let at = self.random.below(data.len() as u64 + 2);
        self.last = format!("{id} at {at} of {}", data.len());
        let ino = self.model.node(id).ino;
        match self.fs.seek(ino, at, Seek::Data) {
            Ok(found) if found < at || found >= data.len() as u64 => {
                return Err(format!("data is said to be at {found}"));
            }
            Ok(found) if data[at as usize..found as usize].iter().any(|&b| b != 0) => {
                return Err(format!("data before {found} was passed over"));
            }
            Err(Error::NoDevice) if data.iter().skip(at as usize).any(|&b| b != 0) => {
                return Err("there is said to be no data".into());
            }
            Ok(_) | Err(Error::NoDevice) => {}
            Err(error) => return Err(format!("answered '{error}'")),
        }
        match self.fs.seek(ino, at, Seek::Hole) {
            Ok(found) if found < at || found > data.len() as u64 => Err(format!("a hole is said to be at {found}")),
            Err(Error::NoDevice) if at < data.len() as u64 => Err("there is said to be no hole".into()),
            Ok(_) | Err(Error::NoDevice) => Ok(()),
            Err(error) => Err(format!("answered '{error}'")),
        }
    }
}
