//! The kinds of memory a region can lie in, by their properties.
//!
//! All other code asks for a property, never for a kind. So a new kind is a row here and a module
//! in `store` that makes and opens its media. Rules: codes are on media and are never reused; names
//! are what users type.

/// Where a region's memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Ordinary DRAM; log and images on a disk.
    Logged,
    /// RAM kept by a battery; the log is a ring in the region.
    Battery,
    /// Byte-addressable persistent memory; ring in the region, explicit cache-line write-back.
    Dax,
}

/// Properties of a kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryProperties {
    /// The kind's word in commands and reports.
    pub name: &'static str,
    /// The kind's number in the superblock.
    pub code: u32,
    /// The region outlives its process: it lies in a file of its own, and its log is a ring inside
    /// it. Otherwise each opening builds the region from an image and the log's files.
    pub in_place: bool,
    /// The region's file takes memory page by page as the region grows, so its host may run out of
    /// memory.
    pub on_demand: bool,
    /// The region is saved in two image files.
    pub images: bool,
    /// A store is durable only when its cache line has been written back and fenced.
    pub write_back: bool,
}

const ROWS: [(MemoryKind, MemoryProperties); 3] = {
    use MemoryKind::{Battery, Dax, Logged};
    let logged = MemoryProperties {
        name: "logged",
        code: 0,
        in_place: false,
        on_demand: false,
        images: true,
        write_back: false,
    };
    [
        (Logged, logged),
        (Battery, MemoryProperties { name: "battery", code: 1, in_place: true, on_demand: true, ..logged }),
        (Dax, MemoryProperties { name: "dax", code: 2, in_place: true, images: false, write_back: true, ..logged }),
    ]
};

impl MemoryKind {
    /// Returns every kind.
    pub fn all() -> impl Iterator<Item = MemoryKind> {
        ROWS.iter().map(|(kind, _)| *kind)
    }

    /// Returns the properties of this kind.
    pub const fn properties(self) -> MemoryProperties {
        // The rows are in the order of the enum.
        ROWS[self as usize].1
    }

    /// Returns whether the log is a ring inside the region.
    pub const fn has_ring(self) -> bool {
        self.properties().in_place
    }

    /// Returns whether region and images count restores. They do where the region may come back
    /// from an image while an older or newer copy of it still exists.
    pub const fn has_incarnations(self) -> bool {
        self.properties().in_place && self.properties().images
    }

    pub const fn name(self) -> &'static str {
        self.properties().name
    }

    /// Returns the kind with this number in a superblock.
    pub fn of_code(code: u32) -> Option<MemoryKind> {
        MemoryKind::all().find(|kind| kind.properties().code == code)
    }

    /// Returns the kind with this name.
    pub fn named(name: &str) -> Option<MemoryKind> {
        MemoryKind::all().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_row_code_and_name() {
        for (index, kind) in MemoryKind::all().enumerate() {
            assert_eq!(kind as usize, index, "rows are in the order of the kinds");
            assert_eq!(MemoryKind::of_code(kind.properties().code), Some(kind));
            assert_eq!(MemoryKind::named(kind.name()), Some(kind));
        }
        assert_eq!((MemoryKind::of_code(3), MemoryKind::named("ram")), (None, None));
    }
}
