//! Op graphs: what cuDNN is given, as data. Tensors and operations in emission order, referring to each other by index.

mod check;
mod print;

use serde::{Deserialize, Serialize};

use crate::{DType, QuirkSet, Role};

pub use check::{GraphFault, check};

/// Index of a tensor in [`OpGraph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

/// What cuDNN is given: tensors and the operations over them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpGraph {
    /// Every tensor, operands and intermediates.
    pub tensors: Vec<OpTensor>,
    /// Operations in emission order; an operation reads operands and results of earlier ones only.
    pub ops: Vec<Op>,
    /// Engines of cuDNN, by number, that are known to compute this graph wrongly and are passed over.
    #[serde(default)]
    pub avoid: Vec<i64>,
    /// Quirks that apply and that the policy allows: cuDNN computes this graph wrongly, and it is wanted all the same.
    #[serde(default)]
    pub despite: QuirkSet,
}

/// One tensor of an op graph.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpTensor {
    /// Logical dims as this graph declares them (K of the composite form has its last two swapped).
    pub dims: [i64; 4],
    /// Strides in elements.
    pub strides: [i64; 4],
    /// Element type.
    pub dtype: DType,
    /// Where the tensor's values come from.
    pub kind: TensorKind,
    /// The tensor of offsets that says where each sequence begins, for packed operands.
    pub offsets: Option<TensorId>,
}

/// Where the values of a tensor of an op graph come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TensorKind {
    /// The result of an operation, never in memory.
    Virtual,
    /// An operand in device memory, bound at launch.
    Operand(Role),
    /// One number on the host, given at launch.
    Slot(Role),
    /// One number on the host, fixed by the graph. cuDNN does not store it in a plan, so the plan's record must.
    Constant(Constant),
}

/// A number fixed by the graph. Floats are held as bits so that equality and hashing are exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Constant {
    /// Bits of an f32.
    F32(u32),
    /// An i32.
    I32(i32),
}

impl Constant {
    /// A float constant; negative zero becomes zero.
    #[must_use]
    pub fn f32(value: f32) -> Constant {
        Constant::F32(if value == 0.0 { 0 } else { value.to_bits() })
    }

    /// The element type of the tensor that carries it.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Constant::F32(_) => DType::F32,
            Constant::I32(_) => DType::I32,
        }
    }

    /// The value as bytes in host order, as cuDNN reads it.
    #[must_use]
    pub const fn bytes(self) -> [u8; 4] {
        match self {
            Constant::F32(bits) => bits.to_ne_bytes(),
            Constant::I32(value) => value.to_ne_bytes(),
        }
    }
}

/// Pointwise operations, with the numbers of `cudnnPointwiseMode_t` (graph header of cuDNN 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
#[allow(missing_docs, reason = "named like cuDNN's modes; Gelu is the erf form, GeluTanh its approximation")]
pub enum Pointwise {
    Add = 0,
    Mul = 1,
    Min = 2,
    Max = 3,
    Sqrt = 4,
    Div = 6,
    Mod = 7,
    Pow = 8,
    Sub = 9,
    Abs = 10,
    Ceil = 11,
    Cos = 12,
    Exp = 13,
    Floor = 14,
    Log = 15,
    Neg = 16,
    Rsqrt = 17,
    Sin = 18,
    Tan = 19,
    Erf = 20,
    Identity = 21,
    Reciprocal = 22,
    Atan2 = 23,
    Relu = 100,
    Tanh = 101,
    Sigmoid = 102,
    Elu = 103,
    Gelu = 104,
    Softplus = 105,
    Swish = 106,
    GeluTanh = 107,
    CmpEq = 300,
    CmpNeq = 301,
    CmpGt = 302,
    CmpGe = 303,
    CmpLt = 304,
    CmpLe = 305,
    And = 400,
    Or = 401,
    Not = 402,
    GenIndex = 501,
    Select = 601,
}

/// How a reduction combines elements, with the numbers of `cudnnReduceTensorOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
#[allow(missing_docs, reason = "named like cuDNN's operators")]
pub enum Reduce {
    Add = 0,
    Max = 3,
    Amax = 4,
}

/// One operation. Fields are named after the attributes of cuDNN's operation descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Op {
    /// `c = a · b` over the last two dims, in f32; the overrides cut dims to per-sequence lengths inside fused attention.
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
    /// `y = mode(x, b)`, or `y = t ? x : b` for [`Pointwise::Select`], or the index along `axis` for [`Pointwise::GenIndex`].
    Pointwise {
        /// The operation.
        mode: Pointwise,
        /// First operand; for an index, any tensor of the wanted shape.
        x: TensorId,
        /// Second operand.
        b: Option<TensorId>,
        /// Condition of a select.
        t: Option<TensorId>,
        /// Result.
        y: TensorId,
        /// Axis of an index.
        axis: Option<u8>,
        /// Type computed in.
        compute: DType,
    },
    /// `y` is `x` combined over the dims that are smaller in `y` (1, or for heads a divisor), in f32.
    Reduction {
        /// How elements combine.
        op: Reduce,
        /// Input.
        x: TensorId,
        /// Output.
        y: TensorId,
    },
    /// Bernoulli random numbers, Philox as PyTorch's: 1 with probability `keep`.
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
    /// `y` is `x` seen with other dims and strides (and, inside attention, another element type).
    Reshape {
        /// Input.
        x: TensorId,
        /// Output.
        y: TensorId,
    },
    /// Rows of a paged pool, gathered.
    PagedLoad {
        /// (pages, heads, rows of a page, hidden).
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
    /// Softmax over the last dim, with its by-products (cuDNN 9.21 on).
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

impl OpGraph {
    /// The tensor of this index.
    ///
    /// # Panics
    ///
    /// When the index is out of range; [`check`] finds such graphs without a panic.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> &OpTensor {
        &self.tensors[id.0 as usize]
    }

    /// The unique id under which cuDNN knows a tensor: the role's own, or one above 10,000 for virtual tensors and constants.
    #[must_use]
    pub fn uid(&self, id: TensorId) -> i64 {
        match self.tensor(id).kind {
            TensorKind::Operand(role) | TensorKind::Slot(role) => role.uid(),
            TensorKind::Virtual | TensorKind::Constant(_) => 10_000 + i64::from(id.0),
        }
    }

    /// Every role that a launch must bind, in order of unique id.
    #[must_use]
    pub fn roles(&self) -> Vec<Role> {
        let mut roles: Vec<Role> = self
            .tensors
            .iter()
            .filter_map(|t| match t.kind {
                TensorKind::Operand(role) | TensorKind::Slot(role) => Some(role),
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
            | Op::PagedLoad { y, .. }
            | Op::BandMask { y, .. } => vec![y],
            Op::Softmax { y, stats, max, sum_exp, .. } => {
                [Some(y), stats, max, sum_exp].into_iter().flatten().collect()
            }
        }
    }
}
