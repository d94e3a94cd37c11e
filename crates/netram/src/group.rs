//! Groups, as small as they can be: a large disk has ten million of them.
//!
//! Owns: [`Group`], its units and what only few groups have. Rules: what few groups have lies in a box of its own ([`Rare`]), and a
//! box that says nothing is given back. Left out: what happens to groups (`state`).

use shoal_format::ram::UnitEntry;

use crate::api::DonorId;
use crate::memory::Memory;
use crate::place::Members;

/// Data units first, then parity.
#[derive(Default)]
pub(crate) struct Group {
    /// 0: this place is unused.
    pub id: u64,
    /// Lowest sequence of its entries.
    pub first_sequence: u64,
    /// No block with this sequence or a higher one took the place of one of this group.
    pub killed: u64,
    pub members: Members,
    pub memory: Option<Box<Memory>>,
    rare: Option<Box<Rare>>,
    pub live: u32,
    data: u8,
    /// A job works on it: not to be cleaned, freed or moved.
    pub busy: bool,
    /// Its live blocks cannot be moved: it is not tried again.
    pub hopeless: bool,
}

/// What few groups have.
#[derive(Default)]
struct Rare {
    /// Found like this at opening: units are missing, or the parity covers only the first blocks of each data unit.
    incomplete: Option<Incomplete>,
    /// Places (unit, row) of lists of trimmed ranges that still count.
    notes: Vec<(usize, usize)>,
    /// So many times it is kept because it has older copies of what opening found and is not safe yet (`found`).
    held: u32,
}

pub(crate) struct Incomplete {
    /// Blocks of each data unit that the parity covers.
    pub covered: Vec<u8>,
    /// Blocks that each data unit holds itself.
    pub own: Vec<u8>,
    /// What counts of each data unit.
    pub lists: Vec<Vec<UnitEntry>>,
    /// The first row with a block that is listed, and that everybody asked said is not there. A parity unit that was away
    /// could compute it: what this opening did not find must not be found by the next one.
    pub absent: usize,
}

impl Group {
    pub fn new(id: u64, data: usize, members: impl Into<Members>) -> Group {
        Group { id, data: data as u8, members: members.into(), first_sequence: u64::MAX, ..Group::default() }
    }

    /// Its data units.
    pub fn data(&self) -> usize {
        self.data as usize
    }

    pub fn incomplete(&self) -> Option<&Incomplete> {
        self.rare.as_ref().and_then(|rare| rare.incomplete.as_ref())
    }

    pub fn incomplete_mut(&mut self) -> Option<&mut Incomplete> {
        self.rare.as_mut().and_then(|rare| rare.incomplete.as_mut())
    }

    pub fn set_incomplete(&mut self, found: Option<Incomplete>) {
        self.change_rare(|rare| rare.incomplete = found);
    }

    pub fn notes(&self) -> &[(usize, usize)] {
        self.rare.as_ref().map_or(&[], |rare| &rare.notes)
    }

    pub fn add_note(&mut self, place: (usize, usize)) {
        self.change_rare(|rare| rare.notes.push(place));
    }

    /// True if it was one.
    pub fn remove_note(&mut self, place: (usize, usize)) -> bool {
        let found = self.notes().iter().position(|&other| other == place);
        if let Some(found) = found {
            self.change_rare(|rare| {
                rare.notes.swap_remove(found);
            });
        }
        found.is_some()
    }

    pub fn is_held(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.held > 0)
    }

    /// One reason more to keep it.
    pub fn hold(&mut self) {
        self.change_rare(|rare| rare.held += 1);
    }

    pub fn let_go(&mut self) {
        self.change_rare(|rare| rare.held -= 1);
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut Rare)) {
        let mut rare = self.rare.take().unwrap_or_default();
        change(&mut rare);
        let says = rare.incomplete.is_some() || !rare.notes.is_empty() || rare.held > 0;
        self.rare = says.then_some(rare);
    }

    /// Has this donor a unit of the group?
    pub fn is_on(&self, donor: DonorId) -> bool {
        self.members.iter().any(|member| member.is_on(donor))
    }

    /// Blocks of a data unit that the parity covers.
    pub fn covered(&self, unit: usize) -> u8 {
        self.incomplete().map_or(self.members[unit].count, |found| found.covered[unit])
    }

    pub fn is_abandoned(&self) -> bool {
        self.memory.as_ref().is_some_and(|memory| memory.abandoned)
    }

    /// Blocks that a data unit holds itself.
    pub fn own(&self, unit: usize) -> u8 {
        self.incomplete().map_or(self.members[unit].count, |found| found.own[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::Member;

    #[test]
    fn a_group_of_four_units_needs_88_bytes_and_no_allocation() {
        assert_eq!(size_of::<Group>(), 88);
        assert!(matches!(Members::from(vec![Member::NONE; 4]), Members::Few(4, _)));
        assert!(matches!(Members::from(vec![Member::NONE; 5]), Members::Many(_)));
    }

    #[test]
    fn what_says_nothing_is_given_back() {
        let mut group = Group::new(1, 1, vec![Member::NONE; 2]);
        group.add_note((0, 3));
        group.hold();
        assert!(group.rare.is_some() && group.is_held() && group.notes() == [(0, 3)]);
        group.let_go();
        assert!(group.remove_note((0, 3)) && !group.remove_note((0, 3)));
        assert!(group.rare.is_none());
    }
}
