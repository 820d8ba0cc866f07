//! One row of the table of forwards: its varied properties, and its attention.

use std::fmt;

use qkvault_cudnn::Form;
use qkvault_graph::expr::library::{alibi, document_mask, prefix_lm, softcap};
use qkvault_graph::expr::{scalar, score};
use qkvault_graph::{Attention, Band, Corner, DType, Order, Outputs, Storage, Tensor};

/// Sequences in every case.
const BATCH: i64 = 2;

/// A forward, described by the properties that the table varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Element type.
    pub dtype: DType,
    /// Query heads and KV heads.
    pub heads: (i64, i64),
    /// Head dim of Q and K, and of V and O.
    pub head_dim: (i64, i64),
    /// Numbers of queries and keys.
    pub seq: (i64, i64),
    /// A causal mask or a window.
    pub band: Option<Band>,
    /// Whether a launch has lengths per sequence.
    pub lengths: bool,
    /// Outputs in addition to O.
    pub outputs: Outputs,
    /// A further feature of the attention.
    pub extra: Extra,
    /// Memory layout of the operands.
    pub layout: Layout,
    /// Form of the op graph.
    pub form: Form,
    /// Profile of the target GPU.
    pub gpu: &'static str,
}

/// Features of an attention other than bands and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// No further feature.
    Plain,
    /// A learnable sink.
    Sink,
    /// A softcap whose cap is a scalar.
    Softcap,
    /// ALiBi with a tensor of slopes.
    Alibi,
    /// Philox dropout.
    Dropout,
    /// A mask predicate for a causal mask with a prefix that all queries see.
    Prefix,
    /// A mask predicate for documents.
    Documents,
}

/// Memory layout of the operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each operand contiguous in this order.
    Each(Order),
    /// Q, K and V (or only K and V, if Q is shorter) are parts of the rows of one buffer; O is contiguous BSHD.
    Parts,
}

impl Case {
    /// The attention of this row.
    ///
    /// # Panics
    ///
    /// Never panics, because the expressions are well typed.
    #[must_use]
    pub fn attention(&self) -> Attention {
        let Case { dtype, heads: (h_q, h_kv), head_dim: (d_qk, d_v), seq: (s_q, s_kv), .. } = *self;
        let Case { band, lengths, outputs, extra, layout, form: _, gpu: _, .. } = *self;
        let [q, k, v] = [[BATCH, h_q, s_q, d_qk], [BATCH, h_kv, s_kv, d_qk], [BATCH, h_kv, s_kv, d_v]];
        let o = [BATCH, h_q, s_q, d_v];
        let mut a = match layout {
            Layout::Each(order) => {
                let [q, k, v, o] = [q, k, v, o].map(|dims| Tensor::dense(order, dims, dtype));
                Attention::forward(q, k, v, o)
            }
            Layout::Parts => {
                let kv_row = h_kv * (d_qk + d_v);
                // All three share one buffer only if there are as many queries as keys.
                let (q_row, kv_row) = if s_q == s_kv {
                    let row = h_q * d_qk + kv_row;
                    (row, row)
                } else {
                    (h_q * d_qk, kv_row)
                };
                let part = |dims: [i64; 4], row: i64| Tensor {
                    dims,
                    strides: [dims[2] * row, dims[3], row, 1],
                    dtype,
                    storage: Storage::Dense,
                };
                let o = Tensor::dense(Order::Bshd, o, dtype);
                Attention::forward(part(q, q_row), part(k, kv_row), part(v, kv_row), o)
            }
        };
        a.mask.band = band;
        a.outputs = outputs;
        if lengths {
            a = a.with_lengths();
        }
        let (batch, queries, keys) = (BATCH, s_q, s_kv);
        match extra {
            Extra::Plain => a,
            Extra::Sink => a.with_sink(),
            Extra::Softcap => a.with_score_mod(softcap(score(), scalar("softcap")).build_score_mod().unwrap()),
            Extra::Alibi => a.with_score_mod(alibi(score(), h_q).build_score_mod().unwrap()),
            Extra::Dropout => a.with_dropout(0.1),
            Extra::Prefix => a.with_mask_mod(prefix_lm("prefix", batch).build_mask_mod().unwrap()),
            Extra::Documents => {
                let keep = document_mask("query_documents", "key_documents", batch, queries, keys);
                a.with_mask_mod(keep.build_mask_mod().unwrap())
            }
        }
    }
}

/// The row's name in goldens: all varied properties.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { dtype, heads, head_dim, seq, band, lengths, outputs, extra, layout, form, gpu } = *self;
        write!(
            f,
            "{gpu} {form:?} | {dtype} h{}/{} q{} kv{} d{}/{}",
            heads.0, heads.1, seq.0, seq.1, head_dim.0, head_dim.1
        )?;
        match layout {
            Layout::Each(order) => write!(f, " {order}")?,
            Layout::Parts => f.write_str(" parts")?,
        }
        if let Some(Band { corner, left, right }) = band {
            f.write_str(if corner == Corner::TopLeft { " top-left" } else { " bottom-right" })?;
            for (name, bound) in [("left", left), ("right", right)] {
                bound.map_or(Ok(()), |n| write!(f, " {name} {n}"))?;
            }
        }
        let Outputs { stats, max, sum_exp, .. } = outputs;
        let words = [(lengths, "lengths"), (stats, "stats"), (max, "max"), (sum_exp, "sum-exp")];
        for (_, word) in words.iter().filter(|(there, _)| *there) {
            write!(f, " {word}")?;
        }
        match extra {
            Extra::Plain => Ok(()),
            other => write!(f, " {}", format!("{other:?}").to_lowercase()),
        }
    }
}
