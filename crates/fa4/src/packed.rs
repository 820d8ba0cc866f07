//! Sequences one after another: lists of where they begin, and tensors that are counted through by rows.
//!
//! The kernels read one list of first rows and one of lengths for all operands with queries, and such lists for those
//! with keys. A kernel of our own makes them at each launch from the lengths and offsets of the description, where
//! every operand has offsets of its own, in elements. Tensor maps end where a sequence ends (`compiler.py`).

use crate::codes;
use qkvault_graph::{Corner, Gradients, Lengths, Pass, Reason, Role, Tensor, Valid};
use qkvault_kernels::recipe::{Launch, LaunchValue, RAGGED_ROWS};
use qkvault_kernels::{Sequences, sequence_rows};

use crate::args::{Arg, TensorView};
use crate::program::{Own, ProgramStep, ProgramWriter};
use crate::schedule::{SHARED_BYTES, Scheduled};

/// The extents of a ragged map beyond the rows.
const REACH: i64 = (1 << 31) - 1;

/// The steps of a ragged map back and forth, in elements of 16 bits.
const WRAP: i64 = 1 << 34;

/// Whether an attention is computed by kernels for sequences one after another.
pub(crate) fn is_packed(a: &Valid) -> bool {
    a.mask.lengths == Lengths::PerSequence
}

/// Why sequences with lengths are not taken.
pub(crate) fn reasons(a: &Valid) -> Vec<Reason> {
    let mut list = Vec::new();
    let mut when = |is: bool, reason: Reason| {
        if is {
            list.push(reason);
        }
    };
    let of = |given: &str| codes::FA4_SEQUENCES.reason(given.to_owned());
    when(a.mask.band.is_some_and(|band| band.corner == Corner::TopLeft), of("a top-left band").at("mask"));
    when(a.mask.mask_mod.is_some() || a.block_mask, of("a predicate or a block mask").at("mask"));
    if let Pass::Backward(Gradients { deterministic, .. }) = a.pass {
        when(deterministic, of("a deterministic backward"));
    }
    list
}

/// Whether the rows of an operand can be counted through.
pub(crate) fn counts(tensor: &Tensor) -> bool {
    sequence_rows(tensor).is_some()
}

/// First rows and lengths of sequences, as tensors of kernels.
#[derive(Clone, Debug)]
pub(crate) struct Lists {
    pub(crate) rows_q: Arg,
    pub(crate) rows_k: Arg,
    pub(crate) used_q: Arg,
    pub(crate) used_k: Arg,
    /// The table of keys and values in pages ([`Sequences::tables`]).
    pub(crate) tables: Option<u64>,
    /// The place and rows of Stats of sequences, where those of the description have other strides.
    pub(crate) stats: Option<(u64, i64)>,
    /// The launches behind the kernels.
    pub(crate) after: Vec<Launch>,
}

impl Lists {
    /// In the order of kernels.
    pub(crate) fn all(&self) -> [Arg; 4] {
        [&self.rows_q, &self.rows_k, &self.used_q, &self.used_k].map(Clone::clone)
    }
}

impl ProgramWriter<'_> {
    /// The lists of an attention with lengths, which kernels of our own make first.
    pub(crate) fn sequences(&mut self) -> Option<Lists> {
        let a = self.attention;
        let Sequences { source, options, before, after, at, tables, stats, end } =
            Some(a).filter(|a| is_packed(a)).and_then(|a| Sequences::for_attention(a, self.program.scratch))?;
        self.program.scratch = end;
        self.program.own = Some(Own { source, options });
        self.program.steps.extend(before.into_iter().map(|launch| ProgramStep::Own(Box::new(launch))));
        let batch = a.batch();
        let list =
            |at: u64, count: i64| Arg::Tensor { at: LaunchValue::Scratch(at), extents: vec![count], strides: vec![] };
        let [rows_q, rows_k, used_q, used_k] = at;
        let (rows_q, rows_k) = (list(rows_q, batch + 1), list(rows_k, batch + 1));
        let (used_q, used_k) = (list(used_q, batch), list(used_k, batch));
        let stats = stats.map(|at| (at, capacity(&a.q)));
        Some(Lists { rows_q, rows_k, used_q, used_k, tables, stats, after })
    }

    /// The launches behind the kernels of an attention with lengths.
    pub(crate) fn finish(&mut self, lists: Option<Lists>) {
        let after = lists.into_iter().flat_map(|lists| lists.after);
        self.program.steps.extend(after.map(|launch| ProgramStep::Own(Box::new(launch))));
    }
}

/// Rows of all sequences of an operand.
pub(crate) fn capacity(tensor: &Tensor) -> i64 {
    sequence_rows(tensor).unwrap_or(0)
}

/// An operand as tensor maps see it: rows, head dim, heads, and the two dims by which a copy begins and ends anywhere.
pub(crate) fn view(role: Role, tensor: &Tensor) -> TensorView {
    let ([_, heads, _, columns], [_, head, row, _]) = (tensor.dims, tensor.strides);
    TensorView {
        role,
        dtype: tensor.dtype,
        extents: vec![RAGGED_ROWS as i64, columns, heads, REACH, REACH],
        strides: vec![row, 1, head, WRAP - row, row],
    }
}

/// Tiles of a list of sequences.
#[derive(Clone, Debug)]
pub(crate) struct PackedTiles {
    /// Rows of all sequences, and of a tile.
    pub(crate) rows: i64,
    pub(crate) tile: i64,
    pub(crate) heads: i64,
    pub(crate) batch: i64,
    /// Bytes of a tile of the other side that blocks which run together share.
    pub(crate) shared_bytes: i64,
    /// The lists of this side.
    pub(crate) list: Arg,
    pub(crate) used: Arg,
}

impl PackedTiles {
    /// A block for a tile, of as many as sequences of these rows can have.
    pub(crate) fn scheduled(self) -> Scheduled {
        let PackedTiles { rows, tile, heads, batch, shared_bytes, list, used } = self;
        let most = rows.saturating_add(batch.saturating_mul(tile - 1)) / tile;
        let args = vec![Arg::Int(rows), Arg::Int(heads), Arg::Int(batch), Arg::Int(SHARED_BYTES / shared_bytes.max(1))];
        Scheduled { args: args.into_iter().chain([list, used]).collect(), grid: [most.saturating_mul(heads), 1, 1] }
    }
}

/// Rows of numbers that each sequence begins at a tile of.
pub(crate) fn padded(rows: i64, batch: i64, tile: i64) -> i64 {
    rows.saturating_add((batch + 1).saturating_mul(tile)).saturating_sub(1) / tile * tile
}
