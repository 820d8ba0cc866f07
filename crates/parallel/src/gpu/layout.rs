//! The memory of a rank: one block of scratch memory with everything that the caller does not bring.

use qkvault_graph::DType;

use crate::{PerSequence, RankSchedule, Slice};

/// Every part of the block begins at a multiple of this many bytes.
pub(super) const ALIGNMENT: u64 = 256;

/// Where something lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// In a buffer of the rank: bytes from its start.
    Buffer { buffer: usize, offset: u64 },
    /// In the block: bytes from its start.
    Block { offset: u64 },
}

/// Numbers for each sequence, in the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RankSequences {
    pub(super) which: PerSequence,
    pub(super) slice: Option<Slice>,
    pub(super) dtype: DType,
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// The division of the block.
#[derive(Debug, Default)]
pub(super) struct RankLayout {
    /// The place of each buffer that is scratch memory.
    pub(super) buffers: Vec<Option<u64>>,
    pub(super) sequences: Vec<RankSequences>,
    /// Of launches of `Compute`, and of those beside them.
    pub(super) workspaces: [(u64, u64); 2],
    /// The place of the flags of peer copies.
    pub(super) flags: u64,
    pub(super) flag_bytes: u64,
    pub(super) bytes: u64,
}

impl RankLayout {
    pub(super) fn new(rank: &RankSchedule) -> RankLayout {
        let mut layout = RankLayout::default();
        for buffer in &rank.buffers {
            let bytes = buffer.tensor.bytes().map_or(0, i64::unsigned_abs);
            let at = buffer.operand.is_none().then(|| layout.take(bytes));
            layout.buffers.push(at);
        }
        layout
    }

    /// Room for so many bytes, and four behind them: kernels read 16-bit biases two at a time.
    fn take(&mut self, bytes: u64) -> u64 {
        let at = self.bytes;
        self.bytes = (at + bytes + 4).next_multiple_of(ALIGNMENT);
        at
    }

    /// The place of numbers for each sequence, which equal ones share.
    pub(super) fn sequences(&mut self, which: PerSequence, slice: Option<Slice>, dtype: DType, bytes: u64) -> Where {
        let same = |s: &&RankSequences| (s.which, s.slice, s.dtype, s.bytes) == (which, slice, dtype, bytes);
        if let Some(found) = self.sequences.iter().find(same) {
            return Where::Block { offset: found.offset };
        }
        let offset = self.take(bytes);
        self.sequences.push(RankSequences { which, slice, dtype, offset, bytes });
        Where::Block { offset }
    }

    /// Flags of so many bytes.
    pub(super) fn flags(&mut self, bytes: u64) {
        self.flags = self.take(bytes);
        self.flag_bytes = bytes;
    }

    /// Scratch memory of the launches of both streams; those of one follow each other and share it.
    pub(super) fn workspaces(&mut self, bytes: [u64; 2]) {
        self.workspaces = bytes.map(|bytes| (self.take(bytes), bytes));
    }
}
