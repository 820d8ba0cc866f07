//! What a vault may do with its folder, and how large the folder may grow.

use std::time::Duration;

/// What the vault may do with its folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Keep entries in the memory of this process alone: no folder, no layers, no remote.
    Off,
    /// Read stored entries; write, touch, move and delete nothing.
    ReadOnly,
    /// Read and write.
    ReadWrite,
}

/// Limits of the folder on disk. [`Vault::gc`](crate::Vault::gc) applies them; it also runs by itself after writes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskLimits {
    /// Most bytes of entries; `None` for no limit.
    pub max_bytes: Option<u64>,
    /// Longest time since the last use; `None` for no limit.
    pub max_age: Option<Duration>,
    /// Share of `max_bytes`, 0 to 1, down to which a collection evicts, so that not every write evicts.
    pub low_water: f64,
    /// Entries written or used within this time are never evicted.
    pub grace: Duration,
}

impl Default for DiskLimits {
    /// 4 GiB, no age limit, eviction down to four fifths, ten minutes of grace.
    fn default() -> Self {
        DiskLimits { max_bytes: Some(4 << 30), max_age: None, low_water: 0.8, grace: Duration::from_secs(600) }
    }
}
