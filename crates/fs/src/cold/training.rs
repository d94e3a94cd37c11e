//! When short files get a dictionary, when another one follows, and when an old one goes.
//!
//! Short files that are to be packed wait until a trial has told whether a dictionary pays. A
//! dictionary is trained on most of a sample and tried on the rest. It becomes the newest if what
//! it saves is worth its room. Trials come at the first 512 short files, then at growing distances,
//! up to one in 16,384 files, so that contents that drift get a dictionary of their own kind. Old
//! dictionaries stay for the files that have them. Left out: where dictionaries lie
//! (`dictionaries`).

use std::collections::VecDeque;
use std::time::Duration;

use shoal_format::inode::{Inode, InodeSlot, Layout};
use shoal_format::object::OBJECT_HEAD;
use shoal_format::slot::{CLASS_SIZES, SLOT_MAX, class_for};
use shoal_pack::{Compressor, Dictionary, Method, takes_dictionary, train};

use crate::cold::cooled::{has_data, may_be_packed};
use crate::cold::objects::Placed;
use crate::planted::{Bug, is_planted};
use crate::rooms::Cooling;
use crate::{Error, Ino, Result, small};

/// Most short files that wait for each other.
pub(crate) const SHORT_FILES: usize = 4096;
/// Short files seen before the first trial, and at most between two trials.
const FIRST_TRIAL: u64 = 512;
const TRIAL_EVERY: u64 = 16_384;
/// Bytes to train on; one file in [`TRIED_ONE_OF`] is kept for the trial instead.
const SAMPLE_BYTES: usize = 1 << 20;
const TRIED_ONE_OF: usize = 8;
/// Least time between two searches of background work for users of old dictionaries.
const LOOK_EVERY: Duration = Duration::from_secs(600);
/// Least gain in percent: of a first dictionary, and of one that follows another.
const GAIN_PERCENT: (u64, u64) = (5, 10);

/// What is known between trials.
#[derive(Default)]
pub(crate) struct Training {
    /// Short files that were most recently due for packing.
    recent: VecDeque<Ino>,
    /// How many short files came since the last trial, and how many make the next one due; 0 before
    /// the first.
    seen: u64,
    due: u64,
    /// No search for users of old dictionaries before then (monotonic, ns).
    looks_at_ns: u64,
}

/// Dictionaries that may go after a look at all files.
#[derive(Default)]
pub(crate) struct Users {
    /// Dictionaries that were old when the look began and have met no user yet.
    idle: Vec<u16>,
}

/// Contents of files, one behind the other.
#[derive(Default)]
struct Sample {
    bytes: Vec<u8>,
    lengths: Vec<usize>,
}

impl Sample {
    fn add(&mut self, file: &[u8]) {
        self.bytes.extend(file);
        self.lengths.push(file.len());
    }

    fn files(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &self.bytes[..];
        self.lengths.iter().map(move |&len| {
            let (file, behind) = rest.split_at(len);
            rest = behind;
            file
        })
    }

    /// Returns the bytes of the slots that the files take when they are packed with this
    /// dictionary.
    fn packed(&self, compressor: &mut Compressor, method: Method, dictionary: Option<&Dictionary>) -> u64 {
        let mut payload = Vec::new();
        let slot = |len: usize| class_for(len as u64).map_or(SLOT_MAX, |class| CLASS_SIZES[usize::from(class)].into());
        let files = self.files().map(|file| {
            let codec = compressor.compress(method, file, file.len(), &mut payload, dictionary);
            slot(file.len()).min(codec.map_or(SLOT_MAX, |_| slot(OBJECT_HEAD + payload.len())))
        });
        files.sum()
    }
}

impl<'a> Cooling<'a> {
    /// Tries whether the short ones of these files, which are to be packed next, are worth a
    /// dictionary.
    pub fn consider_dictionary(self, files: &[Ino]) -> Result<()> {
        let is_short = |ino: Ino| {
            let _lock = self.fs.locks.read(ino);
            let inode = self.fs.load(ino).ok().filter(may_be_packed);
            inode.is_some_and(|inode| takes_dictionary(self.fs.tree().method_of(&inode), inode.size))
        };
        let short: Vec<Ino> = files.iter().copied().filter(|&ino| is_short(ino)).collect();
        self.train(&mut self.fs.packer.lock().training, &short)
    }

    /// Tries whether these short files, which are to be packed next, are worth a dictionary. The
    /// caller holds the packer's lock.
    pub(crate) fn train(self, training: &mut Training, short: &[Ino]) -> Result<()> {
        // These files' own methods take a dictionary even if the store's does not.
        let method = Some(self.fs.options.method).filter(|&method| takes_dictionary(method, 1)).unwrap_or_default();
        let newest = self.fs.objects.dictionaries.newest();
        training.seen += short.len() as u64;
        training.recent.extend(short);
        let surplus = training.recent.len().saturating_sub(SHORT_FILES);
        training.recent.drain(..surplus);
        if training.due == 0 {
            training.due = if newest.is_some() { TRIAL_EVERY } else { FIRST_TRIAL };
        }
        if training.seen < training.due || !self.fs.objects.dictionaries.has_place() {
            return Ok(());
        }
        training.seen = 0;
        training.due = (training.due * 2).min(TRIAL_EVERY);
        let Some((trained, tried)) = self.sample(&training.recent)? else { return Ok(()) };
        let Some(bytes) = train(&trained.bytes, &trained.lengths) else { return Ok(()) };
        let mut compressor = Compressor::new().map_err(|_| Error::NO_SPACE)?;
        let candidate = Dictionary { number: 0, bytes };
        let before = tried.packed(&mut compressor, method, newest.as_deref());
        let after = tried.packed(&mut compressor, method, Some(&candidate));
        let percent = if newest.is_some() { GAIN_PERCENT.1 } else { GAIN_PERCENT.0 };
        let gained = before.saturating_sub(after);
        // There are two copies, which the files at hand must pay for.
        let pays =
            gained * training.recent.len() as u64 / tried.lengths.len() as u64 >= 2 * candidate.bytes.len() as u64;
        if pays && gained * 100 >= before * percent {
            match self.add_dictionary(candidate.bytes) {
                // A store without room for a dictionary needs packing all the more, and goes on
                // without.
                Ok(()) | Err(Error::NoSpace(_)) => training.due = TRIAL_EVERY,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns the contents of these files, picked evenly: those to train on, and those to try
    /// with. `None` if there are too few.
    fn sample(self, files: &VecDeque<Ino>) -> Result<Option<(Sample, Sample)>> {
        let (mut trained, mut tried) = (Sample::default(), Sample::default());
        let mut contents = Vec::new();
        // Neighbours are alike. Steps of this prime visit all files in scattered order.
        let mut at = 0;
        for turn in 0..files.len() {
            at = (at + 2_654_435_761) % files.len();
            if trained.bytes.len() >= SAMPLE_BYTES {
                break;
            }
            let ino = files[at];
            let _lock = self.fs.locks.read(ino);
            let inode = match self.fs.load(ino) {
                Err(Error::Stale) => continue,
                inode => inode?,
            };
            if !has_data(&inode) || !takes_dictionary(Method::Auto, inode.size) {
                continue;
            }
            contents.resize(inode.size as usize, 0);
            // Damage is reported to those who read the file.
            if small::read(&self.fs.region, &self.fs.objects, &inode, 0, &mut contents).is_ok() {
                let sample = if turn % TRIED_ONE_OF == 0 { &mut tried } else { &mut trained };
                sample.add(&contents);
            }
        }
        Ok((tried.lengths.len() >= FIRST_TRIAL as usize / TRIED_ONE_OF / 2).then_some((trained, tried)))
    }

    /// Begins a search for users of old dictionaries.
    pub(crate) fn idle_dictionaries(self) -> Users {
        Users { idle: self.fs.objects.dictionaries.old() }
    }

    /// Does the same for background work, if there are old dictionaries and the last search was
    /// long ago.
    pub(crate) fn look_for_users(self, training: &mut Training) -> Option<Users> {
        let (now, users) = (self.fs.clock.monotonic_ns(), self.idle_dictionaries());
        if users.idle.is_empty() || now < training.looks_at_ns {
            return None;
        }
        training.looks_at_ns = now.saturating_add(LOOK_EVERY.as_nanos() as u64);
        Some(users)
    }

    /// Notes which dictionaries the files of an inode block have.
    pub(crate) fn note_users(self, block: u64, users: Option<&mut Users>) -> Result<()> {
        let Some(users) = users.filter(|users| !users.idle.is_empty()) else { return Ok(()) };
        let is_user = |inode: &Inode| inode.layout == Layout::Packed && takes_dictionary(Method::Auto, inode.size);
        let mut files = Vec::new();
        self.fs.table.for_block(&self.fs.region, block, &mut |ino, slot| match slot {
            InodeSlot::Used(inode) if is_user(&inode) => files.push(ino),
            _ => {}
        })?;
        for ino in files {
            // The object may move without the file's lock.
            let _lock = self.fs.locks.read(ino);
            let object = self.fs.load(ino).and_then(|inode| match is_user(&inode) {
                true => Ok(Placed::load(&self.fs.region, inode.root)?.object.dictionary),
                false => Ok(0),
            });
            match object {
                Ok(_) if is_planted(Bug::DictionaryNotNoted) => {}
                Ok(number) => users.idle.retain(|idle| *idle != number),
                Err(Error::Stale) => {}
                // The file may use any of them.
                Err(_) => users.idle.clear(),
            }
        }
        Ok(())
    }

    /// Forgets the dictionaries that have met no user in a search of all files.
    pub(crate) fn forget_idle(self, users: Option<&Users>) -> Result<()> {
        match users {
            // A repair may bring back a file whose inode is damaged.
            Some(users) if !users.idle.is_empty() && !self.fs.table.damage.is_known() => {
                self.forget_dictionaries(&users.idle)
            }
            _ => Ok(()),
        }
    }
}
