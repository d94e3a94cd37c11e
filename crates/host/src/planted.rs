//! Bugs to plant: rules of this crate that a test can break one at a time (docs/design/testing.md, T7 and T12).
//!
//! Owns: the list of rules. Left out: the switch (`shoal_media::plantable`), and the harness
//! (`tests/recorded.rs` of `shoal-fs`).

shoal_media::plantable! {
    /// A rule that can be broken.
    pub enum Bug {
        /// Bytes stored through the log's map are not marked for the next sync.
        MapStoreUnmarked,
        /// Bytes written with `pwrite` are not marked for the next sync.
        WriteUnmarked,
        /// The log's directory is not synced after a segment was named.
        DirectoryUnsynced,
        /// A segment gets its name before its length and blocks are durable.
        SpareUnsynced,
        /// A sync of the log covers only the segment written last.
        OlderSegmentsUnsynced,
        /// The sync of an image does nothing.
        ImageUnsynced,
        /// The flush of the bulk file does nothing.
        BulkUnflushed,
        /// Opening a log treats bytes that an earlier process left in the page cache as durable.
        ReopenedClean,
    }
}
