//! The groups that are being filled: one for each stream of writes, one for all other writes (the
//! victim), one for blocks that are soon overwritten (hot), and the cleaner's.
//!
//! Owns: [`OpenGroups`]. Rules: a group is open in one cache at most. A group that is full,
//! abandoned or closed is in none. A stream's cache that has filled no group while the victim filled
//! two has stalled; what happens to it is up to [`Stalled`]. Left out: which blocks are hot (`fill`).

use crate::config::Stalled;

/// Groups that the victim fills before a stream's cache that has filled none has stalled.
const PATIENCE: u32 = 2;

/// A cache that fills one group at a time.
#[derive(Clone, Copy, Default)]
struct Cache {
    group: Option<u32>,
    /// The block that would continue the stream.
    next: u32,
    /// Groups the victim has filled since this cache last filled one.
    waited: u32,
}

impl Cache {
    fn has_stalled(&self) -> bool {
        self.group.is_some() && self.waited >= PATIENCE
    }
}

pub(crate) struct OpenGroups {
    /// Streams, the victim, the hot cache if there is one, the cleaner's cache.
    caches: Vec<Cache>,
    /// Caches of streams, without the victim: the victim's place.
    streams: usize,
    hot: Option<usize>,
    stalled: Stalled,
}

impl OpenGroups {
    /// Makes empty caches. `stream_caches` counts the victim.
    pub fn new(stream_caches: usize, has_hot: bool, stalled: Stalled) -> OpenGroups {
        let caches = vec![Cache::default(); stream_caches + usize::from(has_hot) + 1];
        OpenGroups { caches, streams: stream_caches - 1, hot: has_hot.then_some(stream_caches), stalled }
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

    /// Returns a group that writers fill, unless the cache is the cleaner's.
    pub fn other_than_cleaners(&self, cache: usize) -> Option<u32> {
        let cleaning = self.cleaning();
        self.caches[..cleaning].iter().filter(|_| cache != cleaning).find_map(|cache| cache.group)
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

    /// Returns the cache for hot blocks, if there is one.
    pub fn hot(&self) -> Option<usize> {
        self.hot
    }

    /// Chooses the cache for a request that begins at `block`, by the paper's rules: the stream that
    /// it continues, an empty cache, the victim. Before the victim comes a stalled cache whose group
    /// other blocks may finish.
    pub fn choose(&self, block: u32) -> usize {
        let find = |fits: &dyn Fn(&Cache) -> bool| self.caches[..self.streams].iter().position(fits);
        let continued = find(&|cache| cache.group.is_some() && cache.next == block);
        let empty = || find(&|cache| cache.group.is_none());
        let stalled = || find(&Cache::has_stalled).filter(|_| self.stalled == Stalled::Finished);
        continued.or_else(empty).or_else(stalled).unwrap_or(self.streams)
    }

    /// Records that a cache filled its group. Returns the group of a stalled cache that is closed as
    /// it is because of that.
    pub fn filled(&mut self, cache: usize) -> Option<u32> {
        self.caches[cache].waited = 0;
        if cache != self.streams {
            return None;
        }
        let streams = &mut self.caches[..self.streams];
        streams.iter_mut().for_each(|stream| stream.waited += 1);
        if self.stalled != Stalled::Closed {
            return None;
        }
        let stalled = streams.iter_mut().filter(|stream| stream.has_stalled()).max_by_key(|stream| stream.waited)?;
        stalled.waited = 0;
        stalled.group.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VICTIM: usize = 2;

    /// Two streams with a group each, and a victim that has filled two groups since.
    fn stalled(stalled: Stalled) -> (OpenGroups, Vec<u32>) {
        let mut open = OpenGroups::new(3, false, stalled);
        let mut closed = Vec::new();
        for (cache, block) in [(0, 10), (1, 50)] {
            assert_eq!(open.choose(block), cache);
            open.open(cache, cache as u32);
            open.goes_on_at(cache, block + 4);
        }
        for group in [7, 8] {
            assert_eq!(open.choose(90), VICTIM);
            open.open(VICTIM, group);
            open.leave(group);
            closed.extend(open.filled(VICTIM));
        }
        (open, closed)
    }

    #[test]
    fn the_victim_is_one_of_the_stream_caches() {
        let open = OpenGroups::new(1, false, Stalled::Finished);
        assert_eq!((open.choose(3), open.caches(), open.cleaning()), (0, 2, 1));
        let open = OpenGroups::new(2, true, Stalled::Finished);
        assert_eq!((open.choose(3), open.hot(), open.caches()), (0, Some(2), 4));
    }

    #[test]
    fn other_blocks_finish_the_group_of_a_stalled_stream() {
        let (mut open, closed) = stalled(Stalled::Finished);
        assert_eq!(closed, []);
        assert_eq!((open.choose(14), open.choose(54), open.choose(90)), (0, 1, 0));
        open.goes_on_at(0, 92);
        assert_eq!((open.choose(92), open.choose(14)), (0, 0), "it still takes any block");
        open.leave(0);
        open.filled(0);
        open.open(0, 9);
        assert_eq!(open.choose(200), 1, "the other stream has waited as long");
    }

    #[test]
    fn one_stalled_cache_is_closed_at_a_time_as_in_the_paper() {
        let (mut open, closed) = stalled(Stalled::Closed);
        assert_eq!(closed.len(), 1);
        open.open(VICTIM, 9);
        assert_eq!(open.filled(VICTIM).iter().chain(&closed).sum::<u32>(), 1, "then the other one");
    }

    #[test]
    fn a_stalled_cache_that_is_left_alone_waits_for_its_stream() {
        let (open, closed) = stalled(Stalled::Left);
        assert_eq!(closed, []);
        assert_eq!((open.choose(14), open.choose(90)), (0, VICTIM));
    }
}
