//! Measures how long a full disk takes to open by its checkpoint, what it reads, and how much
//! memory it needs.
//!
//! `cargo run --release -p shoal-netram --example opening -- GIB DONORS [SHARE]` simulates a full
//! disk of GIB GiB with 4 KiB blocks, buffer 8 and one parity unit. A checkpoint has been made, and
//! 1/SHARE (128) of the units were written since. Donors are functions of an address: their
//! contents are computed when they are read. Left out: the network; the bytes read from each donor
//! say what it adds. Prints CPU time, bytes read from each donor, and memory (steady, and at the
//! peak).

use std::collections::HashMap;

use shoal_format::Sums;
use shoal_format::ram::{DiskSuperblock, DonorPlace, GroupId, SUPERBLOCK_BYTES, Standing, UnitEntry, UnitHeader};
use shoal_format::ram_checkpoint::{
    Kind, Layout, PIECE_HEADER, Root, Stamp, encode, encode_group, encode_list, encode_range, group_bytes, units,
};
use shoal_netram::{Action, Config, DonorInfo, DonorOp, Engine};

const BLOCK: u64 = 4096;
const BUFFER: u64 = 8;
const UUID: [u8; 16] = [9; 16];
const NUMBER: u64 = 65537;

/// A disk: group `g` is unit `g` of each donor. It holds `slots` consecutive blocks from block
/// `g * slots` on, written in this order.
struct Model {
    donors: u64,
    groups: u64,
    units: u32,
    blocks: u64,
    layout: Layout,
    header_bytes: usize,
    unit_bytes: u64,
    /// Groups from here on were written since the checkpoint began. They hold blocks spread over
    /// the disk.
    fresh: u64,
    /// The first page of the table.
    table_from: u64,
    pages: u64,
}

impl Model {
    fn new(gib: u64, donors: u64, share: u64) -> Model {
        let data = donors - 1;
        let slots = data * BUFFER;
        let blocks = gib << 18;
        let full = blocks.div_ceil(slots);
        let fresh = full;
        let groups = full + full / share;
        let header_bytes = UnitHeader::bytes(data as usize, BUFFER as usize);
        let unit_bytes = 2 * header_bytes as u64 + BUFFER * BLOCK;
        // A fifth of spare room.
        let units = (full + full / 5) as u32;
        let layout = Layout::new(SUPERBLOCK_BYTES as u64, units, unit_bytes as usize, BUFFER as usize);
        let room = layout.page_bytes - PIECE_HEADER - 8;
        let table_from = full.div_ceil((room / group_bytes(donors as usize)) as u64);
        let pages = table_from + blocks.div_ceil(room as u64 / 8);
        Model { donors, groups, units, blocks, layout, header_bytes, unit_bytes, fresh, table_from, pages }
    }

    fn data(&self) -> u64 {
        self.donors - 1
    }

    fn slots(&self) -> u64 {
        self.data() * BUFFER
    }

    fn bytes(&self) -> u64 {
        self.layout.at + self.layout.bytes()
    }

    fn stamp(&self, donor: u64) -> Stamp {
        Stamp { uuid: UUID, number: NUMBER, donor: donor as u16, born: donor as u32 + 1 }
    }

    fn sum(block: u64) -> u32 {
        (block as u32).wrapping_mul(2_654_435_761) | 1
    }

    /// Returns the block in a slot of a group. Blocks written since the checkpoint are anywhere.
    fn block(&self, group: u64, slot: u64) -> u64 {
        let n = group * self.slots() + slot;
        if group < self.fresh { n } else { n.wrapping_mul(6_364_136_223_846_793_005) % self.blocks }
    }

    fn superblock(&self, donor: u64) -> Vec<u8> {
        let place = |n: u64| DonorPlace { standing: Standing::Counts, born: n as u32 + 1, domain: 0 };
        let mut bytes = DiskSuperblock {
            uuid: UUID,
            epoch: 3,
            donor: donor as u16,
            policy: 6,
            data: self.data() as u8,
            parity: 1,
            streams: 2,
            buffer_blocks: BUFFER as u16,
            flags: 1,
            block_bytes: BLOCK as u32,
            blocks: self.blocks,
            checkpoint: Some(NUMBER),
            sums: Sums::Xxh3,
            sealed: false,
            donors: (0..self.donors).map(place).collect(),
        }
        .encode();
        bytes.resize(SUPERBLOCK_BYTES, 0);
        bytes
    }

    fn page(&self, donor: u64, index: u64) -> Vec<u8> {
        let page = index * self.donors + donor;
        let room = (self.layout.page_bytes - PIECE_HEADER - 8) as u64;
        let mut out = Vec::with_capacity(self.layout.page_bytes);
        let kind = if page < self.table_from {
            let each = room / group_bytes(self.donors as usize) as u64;
            let (first, last) = (page * each, ((page + 1) * each).min(self.fresh));
            encode_range(first as u32, (last - first) as u32, &mut out);
            for group in first..last {
                let members = (0..self.donors as u16).map(|donor| (donor, group as u32, BUFFER as u8));
                encode_group(GroupId::new(group + 1), group * self.slots() + 1, self.data() as u8, members, &mut out);
            }
            Kind::Groups
        } else {
            let each = room / 8;
            let (first, last) =
                ((page - self.table_from) * each, ((page - self.table_from + 1) * each).min(self.blocks));
            encode_range(first as u32, (last - first) as u32, &mut out);
            for block in first..last {
                out.extend_from_slice(&((Self::sum(block) as u64) << 32 | (block + 1)).to_le_bytes());
            }
            Kind::Table
        };
        encode(&self.stamp(donor), kind, index as u32, &out)
    }

    fn heads(&self, donor: u64, unit: u64) -> Vec<u8> {
        if unit >= self.groups {
            return vec![0; 2 * self.header_bytes];
        }
        let entry = |slot: u64| {
            let block = self.block(unit, slot);
            // Blocks written since the checkpoint have other contents.
            let sum = if unit < self.fresh { Self::sum(block) } else { !Self::sum(block) };
            UnitEntry { block: block as u32, sum, sequence: unit * self.slots() + slot + 1 }
        };
        let list = |place: u64| (0..BUFFER).map(|row| entry(place * BUFFER + row)).collect();
        let lists = match donor < self.data() {
            true => vec![list(donor)],
            false => (0..self.data()).map(list).collect(),
        };
        let header = UnitHeader {
            uuid: UUID,
            group: GroupId::new(unit + 1),
            donor: donor as u16,
            born: donor as u32 + 1,
            horizon: u64::MAX,
            cut: 0,
            member: donor as u8,
            data: self.data() as u8,
            parity: 1,
            lists,
        };
        let mut bytes = Vec::with_capacity(2 * self.header_bytes);
        header.encode(self.header_bytes, &mut bytes);
        bytes.extend_from_within(..);
        bytes
    }

    /// Checks that each block has the sum of its newest copy.
    fn compare(&self, found: &[Option<u32>]) {
        let mut written = vec![false; found.len()];
        for group in self.fresh..self.groups {
            (0..self.slots()).for_each(|slot| written[self.block(group, slot) as usize] = true);
        }
        for (block, (&found, written)) in found.iter().zip(written).enumerate() {
            let sum = Self::sum(block as u64);
            assert_eq!(found, Some(if written { !sum } else { sum }), "block {block}");
        }
    }

    fn read(&self, donor: u64, at: u64, len: usize) -> Vec<u8> {
        let layout = &self.layout;
        let (root, log, pages) = (layout.root_at(1), layout.record_at(1, 0), layout.page_at(1, 0));
        let mine = (self.pages - donor).div_ceil(self.donors);
        let mut bytes = if at < layout.at {
            self.heads(donor, (at - SUPERBLOCK_BYTES as u64) / self.unit_bytes)
        } else if at == root {
            let root = Root {
                sequence: self.fresh * self.slots() + 1,
                horizon: self.fresh * self.slots() + 1,
                next_sequence: self.groups * self.slots() + 1,
                next_group: GroupId::new(self.groups + 1),
                first_group: GroupId::new(self.fresh + 1),
                groups: self.fresh as u32,
                blocks: self.blocks as u32,
                pages: mine as u32,
            };
            encode(&self.stamp(donor), Kind::Root, 0, &root.encode())
        } else if at < pages {
            let ahead = (self.units / 128).clamp(128, 4096);
            let open: Vec<u32> = (self.fresh as u32..self.groups as u32 + ahead).collect();
            let first = (at - log) / layout.record_bytes as u64;
            let mut bytes = Vec::new();
            for index in first..first + (len / layout.record_bytes) as u64 {
                let mut piece = match open.chunks(layout.names()).nth(index as usize) {
                    Some(units) => encode(&self.stamp(donor), Kind::List, index as u32, &encode_list(units)),
                    None => encode(&self.stamp(donor), Kind::End, index as u32, &[]),
                };
                piece.resize(layout.record_bytes, 0);
                bytes.extend(piece);
            }
            bytes
        } else {
            let first = (at - pages) / layout.page_bytes as u64;
            let mut bytes = Vec::with_capacity(len);
            for index in first..first + (len / layout.page_bytes) as u64 {
                let mut page = self.page(donor, index);
                page.resize(layout.page_bytes, 0);
                bytes.extend(page);
            }
            bytes
        };
        bytes.resize(len, 0);
        bytes
    }
}

/// Reads a figure of this process (bytes).
fn memory(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// CPU time of this thread (s).
fn cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|ns| ns.parse::<f64>().ok()).unwrap_or(0.0) / 1e9
}

/// The cost of opening.
pub struct Figures {
    pub seconds: f64,
    pub operations: u64,
    /// Bytes read from the donor that was read most.
    pub read_bytes: u64,
    /// Memory for each block of the disk, when open and at the peak (bytes).
    pub memory: f64,
    pub peak: f64,
}

/// Opens a full disk of `gib` GiB of which 1/`share` was written since its checkpoint began.
pub fn open(gib: u64, donors: u64, share: u64) -> Figures {
    let model = Model::new(gib, donors, share);
    let fits = units(model.bytes(), SUPERBLOCK_BYTES as u64, model.unit_bytes as usize, BUFFER as usize);
    assert_eq!(fits, model.units, "units of a donor");
    let config = Config { checkpoints: true, idle_cleaning: false, ..Config::default() };
    let info = |n: u64| DonorInfo { name: format!("donor{n}"), bytes: model.bytes(), domain: 0 };
    // Count the peak from here: a disk opened earlier in this process does not count.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak of the memory can be reset");
    let before = memory("VmRSS");
    let mut begun = cpu();
    let infos = (0..donors).map(|n| (info(n), Some(model.superblock(n)))).collect();
    let mut engine = Engine::open(&config, infos, 0).expect("a disk");
    // The time that donors take to compute their answers is not the engine's.
    let mut seconds = cpu() - begun;
    let (mut read, mut operations) = (HashMap::<u16, u64>::new(), 0);
    let mut now = 0;
    while !engine.is_ready() {
        let actions = engine.actions();
        assert!(!actions.is_empty(), "nothing to do");
        let mut answers = Vec::new();
        for action in actions {
            let Action::Donor { ticket, donor, op, .. } = action else { continue };
            operations += 1;
            let answer = match op {
                DonorOp::Read { at, len } => {
                    *read.entry(donor).or_default() += len as u64;
                    model.read(donor as u64, at, len as usize)
                }
                _ => Vec::new(),
            };
            answers.push((ticket, answer));
        }
        begun = cpu();
        for (ticket, answer) in answers {
            now += 1000;
            engine.done(ticket, Ok(answer), now);
        }
        seconds += cpu() - begun;
    }
    let (open, peak) = (memory("VmRSS"), memory("VmHWM"));
    let status = engine.status();
    assert!(status.counts.opened_by_checkpoint, "all units were looked at");
    assert_eq!(status.counts.mapped, model.blocks);
    model.compare(&engine.checksums());
    let each = |bytes: u64| bytes.saturating_sub(before) as f64 / model.blocks as f64;
    let read_bytes = read.values().copied().max().unwrap_or(0);
    Figures { seconds, operations, read_bytes, memory: each(open), peak: each(peak) }
}

#[allow(dead_code, reason = "a test uses the rest")]
fn main() {
    let number = |n: usize, usual: u64| std::env::args().nth(n).map_or(usual, |text| text.parse().expect("a number"));
    let (gib, donors, share) = (number(1, 16), number(2, 4), number(3, 128));
    let Figures { seconds, operations, read_bytes, memory, peak } = open(gib, donors, share);
    println!(
        "{gib} GiB, {donors} donors, 1/{share} of the units written since: {seconds:.2} s; {operations} operations, {:.1} MB read of a \
         donor; {memory:.2} bytes of memory a block, {peak:.2} at the peak",
        read_bytes as f64 / 1e6,
    );
}
