//! Pages of checkpoints: their contents, and writing them.
//!
//! Rules: a page describes a group only if the group was sealed, complete and safe when the round
//! began. Blocks of other groups are marked as blocks to look for. Left out: when a round begins
//! and when it counts (`checkpoint`).

use std::sync::Arc;

use shoal_format::ram_checkpoint::{
    Kind, LOOK, PIECE_HEADER, encode, encode_group, encode_list, encode_range, group_bytes,
};

use crate::api::{DonorId, DonorOp, Purpose};
use crate::state::State;
use crate::state::checkpoints::{NEXT, Round};
use crate::state::group::Group;
use crate::state::place::Member;
use crate::task::{Core, join};
use crate::views::Window;

/// Pages in flight to each donor.
const PAGES_AT_ONCE: usize = 2;
/// Blocks that a page without entries covers at most.
const EMPTY_MAX: usize = 1 << 20;

impl Window<'_> {
    /// Returns whether a page may describe the group.
    pub fn is_vouched(&self, round: &Round, group: &Group) -> bool {
        let is_old = group.exists() && group.id < round.first_group && !round.excluded.contains(&group.id);
        let is_sure = |member: &Member| self.donors[member.donor as usize].units.is_sure(member.unit);
        is_old
            && !group.is_in_memory()
            && group.incomplete().is_none()
            && group.notes().is_empty()
            && group.members.iter().filter(|member| member.exists()).all(is_sure)
    }
}

/// The progress of a round.
pub(crate) enum Cursor {
    Groups(usize),
    Table(usize),
    Lost(Vec<u32>),
}

impl State {
    /// Makes the next page, at most `bytes` long; `None`: there are no more.
    pub fn next_page(&mut self, cursor: &mut Cursor, bytes: usize) -> Option<(Kind, Vec<u8>)> {
        let room = bytes - PIECE_HEADER - 8;
        let mut round = self.checkpoints.round.take().expect("pages are those of a round");
        let page = loop {
            let page = match cursor {
                Cursor::Groups(first) => self.groups_page(&mut round, first, room),
                Cursor::Table(first) => self.table_page(&round, first, room),
                Cursor::Lost(lost) => {
                    let some = lost.split_off(lost.len().saturating_sub(room / 4));
                    break (!some.is_empty()).then(|| (Kind::Lost, encode_list(&some)));
                }
            };
            if page.is_some() {
                break page;
            }
            *cursor = match cursor {
                Cursor::Groups(_) => Cursor::Table(0),
                _ => Cursor::Lost(self.map.lost()),
            };
        };
        self.checkpoints.round = Some(round);
        page
    }

    fn groups_page(&mut self, round: &mut Round, first: &mut usize, room: usize) -> Option<(Kind, Vec<u8>)> {
        let mut body = Vec::with_capacity(room);
        let mut next = *first;
        while next < self.groups.places() as usize {
            let vouched = self.window().is_vouched(round, &self.groups[next as u32]);
            let group = &self.groups[next as u32];
            let width = if vouched { group.members.len() } else { 0 };
            if body.len() + group_bytes(width) > room {
                break;
            }
            let members = group.members[..width].iter().map(|member| (member.donor, member.unit, member.count));
            encode_group(group.id, group.first_sequence, group.data() as u8, members, &mut body);
            round.vouched.set(next, vouched);
            for member in group.members[..width].iter().filter(|member| member.exists()) {
                if let Some(log) = self.donors[member.donor as usize].units.log_mut(NEXT) {
                    log.open.set(member.unit as usize, false);
                }
            }
            next += 1;
        }
        if next == *first {
            return None;
        }
        let mut out = Vec::with_capacity(room + 8);
        encode_range(*first as u32, (next - *first) as u32, &mut out);
        out.extend(body);
        *first = next;
        Some((Kind::Groups, out))
    }

    fn table_page(&self, round: &Round, first: &mut usize, room: usize) -> Option<(Kind, Vec<u8>)> {
        let rest = &self.map.entries()[*first..];
        if rest.is_empty() {
            return None;
        }
        let most = rest.len().min(room / 8);
        let empty = rest.iter().take(EMPTY_MAX).take_while(|&&entry| entry == 0).count();
        let count = empty.max(most);
        let mut out = Vec::with_capacity(room + 8);
        encode_range(*first as u32, count as u32, &mut out);
        if empty < count {
            let slots = self.map.slots() as u32;
            for &entry in &rest[..count] {
                let place = entry as u32;
                let is_vouched = place != 0 && round.vouched.get(((place - 1) / slots) as usize);
                let written = match place {
                    0 => 0,
                    _ if is_vouched => entry,
                    _ => LOOK as u64,
                };
                out.extend_from_slice(&written.to_le_bytes());
            }
        }
        *first += count;
        Some((Kind::Table, out))
    }
}

/// The pages that were written.
pub(crate) struct Written {
    /// Number of pages on each donor.
    pub written: Vec<u32>,
    pub groups: u32,
}

pub(crate) async fn write_pages(core: &Arc<Core>, number: u64, donors: &[usize]) -> Option<Written> {
    let mut cursor = Cursor::Groups(0);
    let mut pages = Written { written: vec![0; donors.len()], groups: 0 };
    loop {
        let mut ops = Vec::new();
        let over = {
            let state = &mut *core.lock();
            if !state.window().is_in_round(number) {
                return None;
            }
            let mut over = false;
            while ops.len() < PAGES_AT_ONCE * donors.len() && !over {
                // Write to the donor with the most room.
                let left = |&place: &usize| {
                    let layout = state.window().layout(donors[place]);
                    (layout.pages - pages.written[place]) as u64 * layout.page_bytes as u64
                };
                let place = (0..donors.len()).max_by_key(left)?;
                let (donor, index) = (donors[place], pages.written[place]);
                let layout = state.window().layout(donor);
                if index == layout.pages {
                    return None;
                }
                let Some((kind, payload)) = state.next_page(&mut cursor, layout.page_bytes) else {
                    over = true;
                    break;
                };
                if let Cursor::Groups(done) = cursor {
                    pages.groups = done as u32;
                }
                let bytes = encode(&state.window().stamp(donor, number), kind, index, &payload);
                let at = layout.page_at(number % 2, index);
                pages.written[place] += 1;
                ops.push(core.op(state, donor as DonorId, DonorOp::Write { at, bytes }, Purpose::Upkeep));
            }
            over
        };
        if join(ops).await {
            return None;
        }
        if over {
            return Some(pages);
        }
    }
}
