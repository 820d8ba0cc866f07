//! Op graphs, the input of cuDNN: tensors and operations in emission order, which refer to each other by index.

mod binding;
mod check;
mod engine;
mod mode;
mod print;
mod scratch;
mod tensor;

use serde::{Deserialize, Serialize};

use crate::{DType, QuirkSet, Role};

pub use binding::Fixed;
pub use check::{GraphFault, check};
pub use engine::{Knob, NamedEngine};
pub use mode::{Pointwise, Reduce};
pub use scratch::{Scratch, keeps_scores};
pub use tensor::{Constant, OfOrigins, OpTensor, TensorKind};

/// Index of a tensor in [`OpGraph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// The input of cuDNN: tensors and the operations over them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpGraph {
    /// Every tensor, operands and intermediates.
    pub tensors: Vec<OpTensor>,
    /// Operations in emission order; an operation reads operands and results of earlier ones only.
    pub ops: Vec<Op>,
    /// Numbers of cuDNN engines that are known to compute this graph wrongly and are excluded.
    #[serde(default)]
    pub excluded_engines: Vec<i64>,
    /// Quirks that apply and that the options allow: cuDNN computes this graph wrongly, and it is compiled anyway.
    #[serde(default)]
    pub accepted_quirks: QuirkSet,
    /// The engine that computes this graph, if it is named; otherwise heuristics choose.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<NamedEngine>,
}

/// One operation. Fields are named after the attributes of cuDNN's operation descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Op {
    /// `c = a · b` over the last two dims, in f32. Inside fused attention, lengths cut dims for each sequence.
    Matmul {
        /// (b, h, m, k).
        a: TensorId,
        /// (b, h or a divisor of it, k, n).
        b: TensorId,
        /// (b, h, m, n).
        c: TensorId,
        /// Lengths (b, 1, 1, 1) that replace m.
        m: Option<TensorId>,
        /// Lengths that replace n.
        n: Option<TensorId>,
        /// Lengths that replace k.
        k: Option<TensorId>,
    },
    /// `y = mode(x, b)`, or `y = t ? x : b` for [`Pointwise::Select`], or the index along `axis` for
    /// [`Pointwise::GenIndex`].
    Pointwise {
        /// The operation.
        mode: Pointwise,
        /// First operand; for an index, any tensor of the shape of the result.
        x: TensorId,
        /// Second operand.
        b: Option<TensorId>,
        /// Condition of a select.
        t: Option<TensorId>,
        /// Result.
        y: TensorId,
        /// Axis of an index.
        axis: Option<u8>,
        /// Type of the computation.
        compute: DType,
    },
    /// `y` is `x` reduced over the dims that are smaller in `y` (1, or for heads a divisor), in f32.
    Reduction {
        /// How elements are combined.
        op: Reduce,
        /// Input.
        x: TensorId,
        /// Output.
        y: TensorId,
    },
    /// Bernoulli random numbers by Philox as in PyTorch: 1 with probability `keep`.
    Rng {
        /// Bits of the f64 probability of a one.
        keep: u64,
        /// Seed, i64 on the device.
        seed: TensorId,
        /// Offset, i64 on the device.
        offset: TensorId,
        /// Result.
        y: TensorId,
    },
    /// `y` is `x` with other dims and strides (and, inside attention, another element type).
    Reshape {
        /// Input.
        x: TensorId,
        /// Output.
        y: TensorId,
    },
    /// `y = x · scale` in f32, where 32 neighbours of `x` share a power of two (MXFP8; in attention since cuDNN 9.21).
    ///
    /// Of the last two dims of `scale`, one counts the blocks of `x`, padded to a multiple of 4; the other is that of
    /// `x`, padded to a multiple of 128. Its memory has cuDNN's order `F8_128x4`: one matrix for each head if blocks
    /// lie along the head dim, which is contiguous in `x`; otherwise one matrix for all heads, in which the first 128
    /// elements of the head dim of every head stand before the next 128.
    Dequantize {
        /// 8-bit numbers.
        x: TensorId,
        /// Powers of two, [`DType::E8M0`].
        scale: TensorId,
        /// Real numbers.
        y: TensorId,
    },
    /// Rows of a paged pool, gathered.
    PagedLoad {
        /// (pages, heads, rows of a page, head dim).
        container: TensorId,
        /// (b, 1, pages of a sequence, 1), i32.
        table: TensorId,
        /// KV lengths (b, 1, 1, 1).
        lengths: TensorId,
        /// Result.
        y: TensorId,
    },
    /// `y` is `x` inside a diagonal band and `fill` outside it (cuDNN 9.21 on).
    BandMask {
        /// Scores.
        x: TensorId,
        /// Value outside the band.
        fill: TensorId,
        /// Query lengths, for a band aligned bottom right.
        seq_q: Option<TensorId>,
        /// KV lengths, likewise.
        seq_kv: Option<TensorId>,
        /// Length of a window that looks back.
        left: Option<TensorId>,
        /// Keys seen beyond the diagonal.
        shift_right: Option<TensorId>,
        /// Masked scores.
        y: TensorId,
        /// [`Pointwise::CmpGe`] for a right bound, [`Pointwise::CmpGt`] for a left one.
        compare: Pointwise,
    },
    /// Softmax over the last dim, with its other outputs (cuDNN 9.21 on).
    Softmax {
        /// Scores.
        x: TensorId,
        /// Probabilities.
        y: TensorId,
        /// Log-sum-exp.
        stats: Option<TensorId>,
        /// Row maximum.
        max: Option<TensorId>,
        /// Row sum of exponentials.
        sum_exp: Option<TensorId>,
        /// Logits that join the denominator.
        sink: Option<TensorId>,
    },
}

/// The unique id of a tensor that has no role.
#[must_use]
pub const fn unnamed_uid(id: TensorId) -> i64 {
    10_000 + id.0 as i64
}

impl OpGraph {
    /// The tensor with this index.
    ///
    /// # Panics
    ///
    /// If the index is out of range; [`check`] reports such graphs without a panic.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> &OpTensor {
        &self.tensors[id.0 as usize]
    }

    /// The unique id of a tensor in cuDNN: its role's, or one above 10,000 for virtual tensors and constants.
    #[must_use]
    pub fn uid(&self, id: TensorId) -> i64 {
        match self.tensor(id).kind {
            TensorKind::Operand(role) | TensorKind::Scalar(role) => role.uid(),
            TensorKind::Virtual | TensorKind::Constant(_) => unnamed_uid(id),
        }
    }

    /// Every declared role, in order of unique id, including those that share the memory of another ([`Role::memory`]).
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let mut roles: Vec<Role> = self
            .tensors
            .iter()
            .filter_map(|t| match t.kind {
                TensorKind::Operand(role) | TensorKind::Scalar(role) => Some(role),
                TensorKind::Virtual | TensorKind::Constant(_) => None,
            })
            .collect();
        roles.sort_unstable_by_key(|r| r.uid());
        roles.dedup();
        roles
    }
}

impl Op {
    /// The tensors that the operation reads.
    #[must_use]
    pub fn inputs(&self) -> Vec<TensorId> {
        let list = match *self {
            Op::Matmul { a, b, c: _, m, n, k } => vec![Some(a), Some(b), m, n, k],
            Op::Pointwise { mode: _, x, b, t, y: _, axis: _, compute: _ } => vec![Some(x), b, t],
            Op::Reduction { op: _, x, y: _ } | Op::Reshape { x, y: _ } => vec![Some(x)],
            Op::Rng { keep: _, seed, offset, y: _ } => vec![Some(seed), Some(offset)],
            Op::Dequantize { x, scale, y: _ } => vec![Some(x), Some(scale)],
            Op::PagedLoad { container, table, lengths, y: _ } => vec![Some(container), Some(table), Some(lengths)],
            Op::BandMask { x, fill, seq_q, seq_kv, left, shift_right, y: _, compare: _ } => {
                vec![Some(x), Some(fill), seq_q, seq_kv, left, shift_right]
            }
            Op::Softmax { x, y: _, stats: _, max: _, sum_exp: _, sink } => vec![Some(x), sink],
        };
        list.into_iter().flatten().collect()
    }

    /// The tensors that the operation writes.
    #[must_use]
    pub fn outputs(&self) -> Vec<TensorId> {
        match *self {
            Op::Matmul { c: y, .. }
            | Op::Pointwise { y, .. }
            | Op::Reduction { y, .. }
            | Op::Rng { y, .. }
            | Op::Reshape { y, .. }
            | Op::Dequantize { y, .. }
            | Op::PagedLoad { y, .. }
            | Op::BandMask { y, .. } => vec![y],
            Op::Softmax { y, stats, max, sum_exp, .. } => {
                [Some(y), stats, max, sum_exp].into_iter().flatten().collect()
            }
        }
    }
}
