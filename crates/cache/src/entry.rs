//! An entry: a plan, a refusal or measured times, with the labels that people read.

use std::fmt;

/// What an entry is: a plan, the reasons why there is none, or measured times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// The payload is a plan as the library wrote it.
    Plan,
    /// The payload is the reasons why there is no plan. The entry is valid only for the library version that refused.
    Refusal,
    /// The payload is times that were measured, by which one of several plans is chosen.
    Times,
}

impl EntryKind {
    /// The byte that stands for the kind in the file format.
    pub(crate) fn code(self) -> u8 {
        match self {
            EntryKind::Plan => 1,
            EntryKind::Refusal => 2,
            EntryKind::Times => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(EntryKind::Plan),
            2 => Some(EntryKind::Refusal),
            3 => Some(EntryKind::Times),
            _ => None,
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EntryKind::Plan => "plan",
            EntryKind::Refusal => "refusal",
            EntryKind::Times => "times",
        })
    }
}

/// One entry, in memory. The vault returns it exactly as it was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Plan, refusal or times.
    pub kind: EntryKind,
    /// Label of the target, such as `sm_90 132sm driver 13.0 cudnn 9.27.0 slim`; at most 255 bytes.
    pub target: String,
    /// Short label of the attention, for lists and logs; at most 255 bytes.
    pub what: String,
    /// Version of the library that wrote the payload, such as `9.27.0`; at most 255 bytes. A refusal is valid for this
    /// version alone.
    pub library: String,
    /// Facts that lists show without reading the payload. The vault does not interpret them; at most 65,535 bytes.
    pub meta: Vec<u8>,
    /// The plan, the reasons or the times. The vault does not interpret them; at most
    /// [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) bytes.
    pub payload: Vec<u8>,
}

impl Entry {
    /// Bytes that the entry takes in memory, allocation headers included.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // The struct, the allocation headers and the place in the memory cache.
        const AROUND: usize = 320;
        let Entry { kind: _, target, what, library, meta, payload } = self;
        (target.len() + what.len() + library.len() + meta.len() + payload.len() + AROUND) as u64
    }
}
