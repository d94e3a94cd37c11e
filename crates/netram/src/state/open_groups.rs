//! The groups that are being filled: one for each stream of writes, one for all other writes, and
//! the cleaner's.
//!
//! Owns: [`OpenGroups`]. Rules: a group is open in one cache at most. A group that is full,
//! abandoned or closed is in none.

/// A cache that fills one group at a time.
#[derive(Clone, Copy, Default)]
struct Cache {
    group: Option<u32>,
    /// The block that would continue the stream.
    next: u32,
    /// Groups the victim has filled since this cache last filled one.
    waited: u32,
}

pub(crate) struct OpenGroups {
    /// Streams, then the victim if there is one, then the cleaner's cache.
    caches: Vec<Cache>,
    streams: usize,
}

impl OpenGroups {
    /// Makes empty caches. With one stream there is no victim.
    pub fn new(streams: usize) -> OpenGroups {
        let caches = if streams == 1 { 2 } else { streams + 2 };
        OpenGroups { caches: vec![Cache::default(); caches], streams }
    }

    /// Number of caches.
    pub fn caches(&self) -> usize {
        self.caches.len()
    }

    /// Index of the cleaner's cache.
    pub fn cleaning(&self) -> usize {
        self.caches.len() - 1
    }

    pub fn group(&self, cache: usize) -> Option<u32> {
        self.caches[cache].group
    }

    /// Returns the group that the cleaner fills.
    pub fn cleaners(&self) -> Option<u32> {
        self.group(self.cleaning())
    }

    pub fn open(&mut self, cache: usize, group: u32) {
        self.caches[cache].group = Some(group);
    }

    /// Closes the cache's group.
    pub fn close(&mut self, cache: usize) {
        self.caches[cache].group = None;
    }

    /// Closes the group, whatever cache it is in.
    pub fn leave(&mut self, group: u32) {
        for cache in self.caches.iter_mut().filter(|cache| cache.group == Some(group)) {
            cache.group = None;
        }
    }

    /// Records where a request ended: a stream would continue at `block`.
    pub fn goes_on_at(&mut self, cache: usize, block: u32) {
        self.caches[cache].next = block;
    }

    /// Chooses the cache for a request that begins at `block`, by the paper's rules.
    pub fn choose(&self, block: u32) -> usize {
        if self.streams == 1 {
            return 0;
        }
        let streams = &self.caches[..self.streams];
        let continued = streams.iter().position(|cache| cache.group.is_some() && cache.next == block);
        let empty = || streams.iter().position(|cache| cache.group.is_none());
        continued.or_else(empty).unwrap_or(self.streams)
    }

    /// Records that a cache filled its group. When the victim fills its second group, streams that
    /// have not filled one meanwhile are closed as they are. Returns their groups.
    pub fn filled(&mut self, cache: usize) -> Vec<u32> {
        self.caches[cache].waited = 0;
        if self.streams == 1 || cache != self.streams {
            return Vec::new();
        }
        let mut closed = Vec::new();
        for stream in &mut self.caches[..self.streams] {
            stream.waited += 1;
            if stream.waited >= 2
                && let Some(group) = stream.group.take()
            {
                stream.waited = 0;
                closed.push(group);
            }
        }
        closed
    }
}
