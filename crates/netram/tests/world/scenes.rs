//! Scenes: short lives with a fixed sequence of events, for rules that random lives hardly ever
//! need.
//!
//! Each scene plays the one order of events in which its rule matters, with every choice of donors.
//! Withheld operations are in flight and do not arrive before their client dies.

use shoal_netram::{Config, DiskError, DonorOp, Policy};

use super::brief::Fate;
use super::{FRONT, Flight, SECTOR, World};

const DONOR_BYTES: u64 = 132_000;
/// Time between two rounds of delivery (ns), and the number of rounds.
const TICK_NS: u64 = 20_000_000;
const TICKS: usize = 50;
const SOON_TICKS: usize = 4;
const BUFFER_BLOCKS: u16 = 8;
/// Size of a header in these worlds (bytes).
const HEADER_BYTES: usize = 512;

/// A scene's name, and the scene.
type Scene = (&'static str, fn() -> Result<(), DiskError>);

/// All scenes.
pub const ALL: [Scene; 15] = [
    ("a unit's newer header is torn", torn_header),
    ("a parity that grows is torn", torn_parity),
    ("a group with a list is being erased", erased_list),
    ("a header that lists ranges lies over other blocks", list_left_behind),
    ("all room is in dead groups", room_in_dead_groups),
    ("a group is abandoned that was safe in part", abandoned),
    ("a superblock is torn", torn_superblock),
    ("a donor returns with news", news),
    ("a parity returns with a block that was not there", absent_block),
    ("a donor that joins is seen by nobody else", unseen_birth),
    ("no donor knows the new epoch", unknown_epoch),
    ("one donor knows the new epoch", half_known),
    ("all donors are given up", all_given_up),
    ("all donors of an empty disk go away", all_away),
    ("more donors have joined than there are places", places_used_again),
];

fn world(donors: usize) -> Result<World, DiskError> {
    world_of(donors, BUFFER_BLOCKS)
}

/// Makes a disk whose units have this many blocks.
fn world_of(donors: usize, buffer_blocks: u16) -> Result<World, DiskError> {
    let config = Config {
        policy: Policy::Caching,
        uuid: [7; 16],
        block_bytes: SECTOR as u32,
        buffer_blocks,
        idle_cleaning: false,
        timeout_ms: 0,
        ..Config::default()
    };
    let mut world = World::new(1, config, donors, DONOR_BYTES)?;
    world.unkind.is_on = true;
    world.donors.iter_mut().for_each(|donor| donor.trouble.fenced = true);
    Ok(world)
}

/// A donor refuses what a group has gained since a flush. What was flushed of it is trimmed, but no
/// flush covers the trim, and an older copy lies in another group.
fn abandoned() -> Result<(), DiskError> {
    for refuses in 0..4 {
        let mut world = world(4)?;
        let blocks = 3 * BUFFER_BLOCKS as usize;
        for sectors in [blocks, 1] {
            world.write(0, sectors, false)?;
            world.flush()?;
            world.settle()?;
        }
        world.trim(0, 1, false)?;
        world.refuse_all_of_writes(refuses, TICK_NS);
        world.write(blocks, blocks - 1, false)?;
        world.lets(|_| true)?;
        world.client_leaves(Fate::Nothing);
        world.opens_again(&format!("donor {refuses} refuses"))?;
    }
    Ok(())
}

/// Returns every ordered pair of different donors.
fn pairs(donors: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..donors).flat_map(move |one| (0..donors).map(move |other| (one, other))).filter(|(one, other)| one != other)
}

fn is_superblock(flight: &Flight) -> bool {
    matches!(flight.op, DonorOp::Write { at, .. } if (at as usize) < FRONT)
}

fn is_read(flight: &Flight) -> bool {
    matches!(flight.op, DonorOp::Read { .. })
}

/// The newer header of a unit that grows is torn. The parity, which lists the same blocks, is on a
/// donor that dies.
fn torn_header() -> Result<(), DiskError> {
    for (torn, dies) in pairs(4) {
        let mut world = world(4)?;
        for at in 0..3 {
            world.write(at, 1, false)?;
            world.flush()?;
            world.settle()?;
        }
        world.write(3, 1, false)?;
        world.flush()?;
        world.lets(|flight| flight.donor != torn || is_read(flight))?;
        world.tears(torn, |_| true, 100);
        world.client_leaves(Fate::Nothing);
        world.donors[dies].alive = false;
        world.opens_again(&format!("torn {torn}, dead {dies}"))?;
    }
    Ok(())
}

/// A write of a unit that grows is torn after its newer header. If the unit is the parity, it lists
/// a block but still covers only the former ones. A donor with another unit dies.
fn torn_parity() -> Result<(), DiskError> {
    for (torn, dies) in pairs(4) {
        let mut world = world(4)?;
        // One unit is full, and the next block is in the row of its first one.
        world.write(0, BUFFER_BLOCKS as usize, false)?;
        world.flush()?;
        world.settle()?;
        world.write(BUFFER_BLOCKS as usize, 1, false)?;
        world.flush()?;
        world.lets(|flight| flight.donor != torn || is_read(flight))?;
        world.tears(torn, |_| true, HEADER_BYTES);
        world.client_leaves(Fate::Nothing);
        world.donors[dies].alive = false;
        let scene = format!("torn {torn}, dead {dies}");
        if !world.open_when_possible()? {
            return Err(World::fault(format!("{scene}: not found again")));
        }
        world.settle()?;
        // The last block was never flushed.
        world.read(0, BUFFER_BLOCKS as usize)?;
        world.settle()?;
        if let Some(error) = world.errors.pop() {
            return Err(World::fault(format!("{scene}: {error}")));
        }
    }
    Ok(())
}

/// A group whose list of trims has moved elsewhere is being erased, and the erasure has reached one
/// donor. Another donor of the group dies when the next client has read the remaining headers.
fn erased_list() -> Result<(), DiskError> {
    for (erased, dies) in [(0, 1), (0, 2), (0, 3)] {
        let mut world = world(4)?;
        (world.config.idle_cleaning, world.config.patience_ms) = (true, 200);
        world.client_leaves(Fate::Nothing);
        world.opens_again("with cleaning")?;
        // Lists are kept for this group.
        world.write(40, 24, true)?;
        world.settle()?;
        let erases = |flight: &Flight| match &flight.op {
            DonorOp::Write { at, bytes } => *at as usize >= FRONT && bytes.iter().all(|&byte| byte == 0),
            _ => false,
        };
        // Repeat until the cleaner has moved a list.
        for _ in 0..20 {
            world.write(0, 15, true)?;
            world.lets(|flight| flight.donor == erased || !erases(flight))?;
            world.trim(0, 1, true)?;
            world.flush()?;
            world.lets(|flight| flight.donor == erased || !erases(flight))?;
        }
        if !world.flights.values().any(erases) {
            return Err(World::fault("nothing is erased".into()));
        }
        world.client_leaves(Fate::Nothing);
        let scene = format!("erased on {erased}, dead {dies}");
        let there: Vec<usize> = (0..4).collect();
        world.open(&there)?;
        let heads =
            |flight: &Flight| matches!(flight.op, DonorOp::Read { len, .. } if len as usize == 2 * HEADER_BYTES);
        world.lets(heads)?;
        world.donors[dies].alive = false;
        let number = world.numbers.iter().position(|&donor| donor == dies).expect("it was there");
        let now = world.now;
        world.engine().lost(number as u16, now);
        world.settle().map_err(|error| World::fault(format!("{scene}: {error}")))?;
        world.reads_all(&scene)?;
    }
    Ok(())
}

/// A group with a list is abandoned, because one donor does not take its part. Another donor gets
/// the unit's next write in part, all but the headers, and one more donor dies. If the group's
/// headers are still there, its list can be neither read nor left out.
fn list_left_behind() -> Result<(), DiskError> {
    for (refuses, other) in pairs(4) {
        for (part, dies) in pairs(4).filter(|&(part, _)| part != other) {
            let mut world = world_of(4, 1)?;
            world.config.patience_ms = 200;
            world.write(0, 24, true)?;
            world.settle()?;
            world.trim(0, 1, true)?;
            world.lets_soon(|_| true)?;
            // These blocks move to the group that the list goes to.
            world.refuse_all_of_writes(refuses, 60_000_000_000);
            world.write(8, 3, false)?;
            world.lets_soon(|flight| is_read(flight) || flight.donor == refuses)?;
            world.lets_soon(|_| true)?;
            world.refuse_all_of_writes(other, 60_000_000_000);
            world.flush()?;
            world.lets_soon(|_| true)?;
            world.takes_all()?;
            // New headers say that the list was safe. They are not where it was.
            let others = || (0..4).filter(|&donor| donor != refuses && donor != other);
            others().for_each(|donor| world.refuse_all_of_writes(donor, 60_000_000_000));
            world.write(12, 3, true)?;
            world.lets_soon(|_| true)?;
            world.takes_all()?;
            world.write(15, 9, false)?;
            world.lets_soon(is_read)?;
            world.tears_off(part, 2 * HEADER_BYTES);
            world.client_leaves(Fate::Nothing);
            world.donors[dies].alive = false;
            let scene = format!("{refuses} and {other} refuse, {part} does a part, {dies} is dead");
            world.opens_again(&scene)?;
        }
    }
    Ok(())
}

/// A disk is overwritten until the headers of all free units list blocks that live elsewhere. One
/// donor is away when the next client opens the disk. Until what was there is protected again, older
/// copies are kept: but not all of them, or nothing could be written.
fn room_in_dead_groups() -> Result<(), DiskError> {
    for away in 0..4 {
        let mut world = world(4)?;
        let (sectors, group) = (world.sectors() / 2, 3 * BUFFER_BLOCKS as usize);
        for at in (0..sectors).step_by(group) {
            world.write(at, group.min(sectors - at), true)?;
            world.lets_soon(|_| true)?;
        }
        for _ in 0..40 {
            // While nothing arrives, no unit is used twice.
            for n in 0..10 {
                let at = n * 7 % (sectors - group);
                if !world.is_busy(at, group) && world.in_flight() < 200 {
                    world.write(at, group, false)?;
                }
            }
            world.lets_soon(|_| true)?;
            for n in 0..20 {
                world.write(n * 11 % sectors, 1, false)?;
            }
            world.lets_soon(|_| true)?;
        }
        world.flush()?;
        world.lets_soon(|_| true)?;
        let scene = format!("{away} is away");
        world.client_leaves(Fate::Nothing);
        world.donors[away].alive = false;
        world.opens_again(&scene)?;
        for _ in 0..2 {
            world.write(0, group, true)?;
            world.settle().map_err(|error| World::fault(format!("{scene}: {error}")))?;
        }
        world.reads_all(&scene)?;
    }
    Ok(())
}

/// A donor's newer superblock is torn, and another donor dies.
fn torn_superblock() -> Result<(), DiskError> {
    for (torn, dies) in pairs(4) {
        let mut world = world(4)?;
        world.write(0, 8, true)?;
        world.settle()?;
        // After two changes of membership both slots are in use.
        for _ in 0..2 {
            world.join(DONOR_BYTES);
            world.donors.last_mut().expect("it joined").trouble.fenced = true;
            world.rest()?;
        }
        world.join(DONOR_BYTES);
        world.lets(|flight| flight.donor != torn || !is_superblock(flight))?;
        world.tears(torn, is_superblock, 50);
        world.client_leaves(Fate::Nothing);
        world.donors[dies].alive = false;
        world.opens_again(&format!("torn {torn}, dead {dies}"))?;
    }
    Ok(())
}

/// Makes a disk on three donors, where one donor alone has a block that no flush covered. Its
/// client is dead.
fn unflushed_on(donor: usize) -> Result<World, DiskError> {
    let mut world = world(3)?;
    world.write(0, 1, true)?;
    world.settle()?;
    world.write(1, 1, false)?;
    world.flush()?;
    world.lets(|flight| flight.donor == donor)?;
    world.client_leaves(Fate::Nothing);
    Ok(world)
}

/// One donor alone has a block that no flush covered. The donor is away at the next opening, so
/// that client reads the former value. Then the donor returns, and the client dies before anything
/// else is written.
fn news() -> Result<(), DiskError> {
    for returns in 0..3 {
        let mut world = unflushed_on(returns)?;
        world.returns_late(returns)?;
        world.opens_again(&format!("returned {returns}"))?;
    }
    Ok(())
}

/// A group is being sent. Of one data unit only the header arrives; the other data units and the
/// parity arrive whole. The donor with the parity is away at the next opening, so that client does
/// not find the blocks. Then the donor returns, and the client dies before anything else is
/// written.
fn absent_block() -> Result<(), DiskError> {
    for (torn, returns) in pairs(3) {
        let mut world = world(3)?;
        // Opening stops waiting for a donor that is away.
        world.config.patience_ms = 200;
        world.write(0, 16, false)?;
        world.lets(|flight| flight.donor != torn)?;
        world.tears(torn, |_| true, 2 * HEADER_BYTES);
        world.client_leaves(Fate::Nothing);
        world.returns_late(returns)?;
        world.opens_again(&format!("torn {torn}, returned {returns}"))?;
    }
    Ok(())
}

/// A joining donor has stored its birth when the client dies, and no other donor knows of it.
/// Another donor joins. Then both appear.
fn unseen_birth() -> Result<(), DiskError> {
    for (dies, first) in [(0, true), (1, true), (2, true), (0, false), (1, false), (2, false)] {
        let mut world = world(3)?;
        world.write(0, 8, true)?;
        world.settle()?;
        world.join(DONOR_BYTES);
        world.lets(|flight| flight.donor == 3 || !is_superblock(flight))?;
        world.client_leaves(Fate::Nothing);
        let there: Vec<usize> = (0..3).collect();
        world.open(&there)?;
        world.settle()?;
        world.join(DONOR_BYTES);
        world.rest()?;
        for at in 8..40 {
            world.write(at, 1, true)?;
            world.settle()?;
        }
        world.client_leaves(Fate::Nothing);
        world.donors[dies].alive = false;
        let both = if first { [3, 4] } else { [4, 3] };
        let there: Vec<usize> = (0..3).filter(|&n| n != dies).chain(both).collect();
        world.open(&there)?;
        world.pin()?;
        world.reads_all(&format!("dead {dies}, the unseen one first: {first}"))?;
    }
    Ok(())
}

/// Requests are served once the donors know the present epoch, and not before.
fn unknown_epoch() -> Result<(), DiskError> {
    for leaves in 0..3 {
        let mut world = world(3)?;
        world.write(0, 8, true)?;
        world.settle()?;
        world.client_leaves(Fate::Nothing);
        world.leaves(leaves);
        let there: Vec<usize> = (0..3).collect();
        world.open(&there)?;
        world.read(0, 8)?;
        world.lets(is_read)?;
        if world.in_flight() == 0 {
            return Err(World::fault(format!("without donor {leaves} a read is served before the epoch is known")));
        }
        world.settle()?;
        world.reads_all(&format!("without donor {leaves}"))?;
    }
    Ok(())
}

/// One donor alone has a block that no flush covered. It is away at the next opening, and another
/// donor refuses to store that fact. If anything is served all the same, the third donor dies,
/// which alone knows that the first is no source.
fn half_known() -> Result<(), DiskError> {
    for (returns, knows) in pairs(3) {
        let refuses = 3 - returns - knows;
        let scene = format!("{returns} is away, {refuses} refuses");
        let mut world = unflushed_on(returns)?;
        world.leaves(returns);
        world.refuse_all_of_writes(refuses, 60_000_000_000);
        let there: Vec<usize> = (0..3).collect();
        world.open(&there)?;
        world.ask_for_all()?;
        world.lets(|flight| is_read(flight) || is_superblock(flight))?;
        let is_served = !world.is_pinning();
        world.refuse_all_of_writes(refuses, 0);
        let trouble = &mut world.donors[returns].trouble;
        (trouble.stopped, trouble.away) = (false, !is_served);
        if is_served {
            world.client_leaves(Fate::Nothing);
            world.donors[knows].alive = false;
            world.opens_again(&scene)?;
        } else {
            world.come_back(returns)?;
            world.settle()?;
            world.reads_all(&scene)?;
        }
    }
    Ok(())
}

/// All donors of a disk that holds nothing go away, one after the other, and new ones join. Nothing
/// that is stored there may count: the next client finds only the former ones, which do not know
/// that they were excluded.
fn all_away() -> Result<(), DiskError> {
    for first in 0..2 {
        let mut world = world(2)?;
        world.settle()?;
        for donor in [first, 1 - first] {
            let now = world.now;
            world.donors[donor].trouble.away = true;
            world.engine().lost(donor as u16, now);
            world.collect()?;
            world.lets(|_| true)?;
        }
        world.join(DONOR_BYTES);
        world.join(DONOR_BYTES);
        world.write(0, 8, true)?;
        world.lets(|_| true)?;
        world.client_leaves(Fate::Nothing);
        for donor in 0..4 {
            world.donors[donor].trouble.away = donor >= 2;
        }
        world.opens_again(&format!("{first} away first"))?;
    }
    Ok(())
}

/// All donors die and are given up, and new ones join. The disk goes on with them: what was on it
/// is lost, also for the next client, and what is written afterwards is found.
fn all_given_up() -> Result<(), DiskError> {
    let mut world = world(3)?;
    world.write(0, 16, true)?;
    world.settle()?;
    for number in 0..3 {
        let now = world.now;
        world.kill(number);
        world.engine().lost(number, now);
        world.collect()?;
    }
    for number in 0..3 {
        let now = world.now;
        world.engine().forget(number, now)?;
        world.collect()?;
    }
    for _ in 0..3 {
        world.join(DONOR_BYTES);
    }
    world.heal()?;
    world.write(0, 8, true)?;
    world.settle()?;
    for client in ["the first", "the next"] {
        let lost = world.lost_blocks(1)?.len();
        if lost != 8 {
            return Err(World::fault(format!("{lost} blocks are lost for {client} client, not 8")));
        }
        world.client_leaves(Fate::Nothing);
        world.open(&[3, 4, 5])?;
        world.pin()?;
    }
    Ok(())
}

/// A donor is empty at each opening, as if its machine had been restarted. In every third opening the client dies when
/// some donors know who joins. There are 256 places, and 300 donors join.
fn places_used_again() -> Result<(), DiskError> {
    let mut world = world(3)?;
    world.write(0, 40, true)?;
    world.settle()?;
    for round in 0..300 {
        let scene = format!("round {round}");
        world.client_leaves(Fate::Nothing);
        let World { random, donors, .. } = &mut world;
        random.fill(&mut donors[round % 3].bytes);
        if round % 3 == 0 {
            world.opens_again(&scene)?;
            world.lets_for(round / 3 % 4, |flight| flight.donor != round / 3 % 2)?;
            world.client_leaves(Fate::Each);
        }
        world.opens_again(&scene)?;
        world.write(round % 40, 1, true)?;
        world.rest()?;
        let used = world.counting().len();
        if used != 3 {
            return Err(World::fault(format!("{scene}: {used} donors are in use")));
        }
    }
    world.reads_all("at the end")
}

impl World {
    /// Lets only operations picked by `wanted` arrive, for a while.
    fn lets(&mut self, wanted: impl Fn(&Flight) -> bool) -> Result<(), DiskError> {
        self.lets_for(TICKS, wanted)
    }

    /// Lets operations picked by `wanted` arrive, for so short a time that the disk is not idle.
    fn lets_soon(&mut self, wanted: impl Fn(&Flight) -> bool) -> Result<(), DiskError> {
        self.lets_for(SOON_TICKS, wanted)
    }

    /// Ends all refusals of writes, and waits until all donors are written to again.
    fn takes_all(&mut self) -> Result<(), DiskError> {
        (0..self.donors.len()).for_each(|donor| self.refuse_all_of_writes(donor, 0));
        for _ in 0..10 {
            self.read(0, 1)?;
            self.lets_soon(|_| true)?;
        }
        Ok(())
    }

    fn lets_for(&mut self, ticks: usize, wanted: impl Fn(&Flight) -> bool) -> Result<(), DiskError> {
        for _ in 0..ticks {
            loop {
                let next = self.flights.iter().find(|(_, flight)| wanted(flight)).map(|(&key, _)| key);
                let Some(key) = next else { break };
                let flight = self.flights.remove(&key).expect("it was found");
                self.now = self.now.max(key.0);
                let result = self.answer(flight.donor, flight.op);
                let now = self.now;
                self.engine().done(flight.ticket, result, now);
                self.collect()?;
            }
            self.tick(TICK_NS)?;
        }
        Ok(())
    }

    /// Lets the first `bytes` bytes of the first write to a donor that `wanted` picks arrive.
    fn tears(&mut self, donor: usize, wanted: impl Fn(&Flight) -> bool, bytes: usize) {
        let mut on_the_way = self.flights.values();
        let first = on_the_way.find(|flight| flight.donor == donor && !is_read(flight) && wanted(flight));
        if let Some(DonorOp::Write { at, bytes: all }) = first.map(|flight| flight.op.clone()) {
            self.donors[donor].bytes[at as usize..][..bytes].copy_from_slice(&all[..bytes]);
        }
    }

    /// Lets the writes to a donor arrive without their first `bytes` bytes.
    fn tears_off(&mut self, donor: usize, bytes: usize) {
        for flight in self.flights.values().filter(|flight| flight.donor == donor) {
            if let DonorOp::Write { at, bytes: all } = &flight.op {
                let at = *at as usize + bytes;
                self.donors[donor].bytes[at..][..all.len() - bytes].copy_from_slice(&all[bytes..]);
            }
        }
    }

    fn leaves(&mut self, donor: usize) {
        self.donors[donor].trouble.stopped = true;
        self.donors[donor].trouble.away = true;
    }

    /// Opens the disk without a donor and reads everything. The donor returns, and the client dies
    /// before it has written anything but superblocks and shorter headers.
    fn returns_late(&mut self, donor: usize) -> Result<(), DiskError> {
        self.leaves(donor);
        let there: Vec<usize> = (0..self.donors.len()).collect();
        self.open(&there)?;
        self.ask_for_all()?;
        let cuts = |flight: &Flight| matches!(&flight.op, DonorOp::Write { bytes, .. } if bytes.len() == HEADER_BYTES);
        let allowed = |flight: &Flight| is_read(flight) || is_superblock(flight) || cuts(flight);
        self.lets(allowed)?;
        if self.is_pinning() {
            return Err(Self::fault(format!("without donor {donor} nothing is read")));
        }
        self.donors[donor].trouble.stopped = false;
        self.come_back(donor)?;
        self.lets(allowed)?;
        self.client_leaves(Fate::Nothing);
        Ok(())
    }

    fn reads_all(&mut self, scene: &str) -> Result<(), DiskError> {
        self.check_all().map_err(|error| Self::fault(format!("{scene}: {error}")))
    }

    /// Opens the disk and checks everything that was flushed.
    fn opens_again(&mut self, scene: &str) -> Result<(), DiskError> {
        if !self.open_when_possible()? {
            return Err(Self::fault(format!("{scene}: not found again")));
        }
        self.pin().map_err(|error| Self::fault(format!("{scene}: {error}")))?;
        self.reads_all(scene)
    }
}
