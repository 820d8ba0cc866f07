//! What the vault keeps under a key: a plan or a refusal, with the labels that people read.

use std::fmt;

/// Whether an entry answers "here it is" or "it cannot be had".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// The payload is a plan as the library wrote it.
    Plan,
    /// The payload is the reasons why there is no plan; it answers only for the library version that refused.
    Refusal,
}

impl EntryKind {
    /// The byte of the file format.
    pub(crate) fn code(self) -> u8 {
        match self {
            EntryKind::Plan => 1,
            EntryKind::Refusal => 2,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(EntryKind::Plan),
            2 => Some(EntryKind::Refusal),
            _ => None,
        }
    }
}

impl fmt::Display for EntryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EntryKind::Plan => "plan",
            EntryKind::Refusal => "refusal",
        })
    }
}

/// One entry, in memory. The vault gives back exactly what it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Plan or refusal.
    pub kind: EntryKind,
    /// Label of what the entry was compiled for, such as `sm_90 132sm driver 13.0 cudnn 9.27.0 slim`; at most 255 bytes.
    pub target: String,
    /// Short label of the attention, for lists and logs; at most 255 bytes.
    pub what: String,
    /// Version of the library that wrote the payload, such as `9.27.0`; at most 255 bytes. A refusal expires with it.
    pub library: String,
    /// Small facts that lists show without reading the payload; opaque to the vault; at most 65,535 bytes.
    pub meta: Vec<u8>,
    /// The plan or the reasons; opaque to the vault; at most [`MAX_PAYLOAD`](crate::MAX_PAYLOAD) bytes.
    pub payload: Vec<u8>,
}

impl Entry {
    /// Bytes this entry takes in memory, with what surrounds it.
    pub(crate) fn memory_bytes(&self) -> u64 {
        // The constant covers the struct, the allocation headers and the slot in the memory layer.
        const AROUND: usize = 320;
        let Entry { kind: _, target, what, library, meta, payload } = self;
        (target.len() + what.len() + library.len() + meta.len() + payload.len() + AROUND) as u64
    }
}
