//! One row of the table of forwards: what is varied, and the attention that it comes to.

use std::fmt;

use qkvault_graph::expr::library::{alibi, document_mask, prefix_lm, softcap};
use qkvault_graph::expr::{scalar, score};
use qkvault_graph::{Attention, Band, Corner, DType, Form, Order, Outputs, Storage, Tensor};

/// Sequences in every case.
const BATCH: i64 = 2;

/// A forward, by what the table varies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Element type.
    pub dtype: DType,
    /// Query heads, key/value heads.
    pub heads: (i64, i64),
    /// Head dim of Q and K, of V and O.
    pub head_dim: (i64, i64),
    /// Queries, keys.
    pub seq: (i64, i64),
    /// Causal or a window.
    pub band: Option<Band>,
    /// Whether lengths are given at launch.
    pub lengths: bool,
    /// Outputs beside O.
    pub outputs: Outputs,
    /// What else the attention has.
    pub extra: Extra,
    /// How the operands lie in memory.
    pub layout: Layout,
    /// How the op graph is written.
    pub form: Form,
    /// The profile that is compiled for.
    pub gpu: &'static str,
}

/// What an attention may have besides a band and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extra {
    /// Nothing.
    Plain,
    /// A learnable sink.
    Sink,
    /// A softcap whose cap is a scalar.
    Softcap,
    /// ALiBi, slopes in a tensor.
    Alibi,
    /// Philox dropout.
    Dropout,
    /// A causal mask with a prefix that is seen whole, as the keep predicate.
    Prefix,
    /// A document mask as the keep predicate.
    Documents,
}

/// How the operands lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Each operand contiguous in this order.
    Each(Order),
    /// Q, K and V (or K and V alone, where Q is shorter) as parts of the rows of one buffer; O contiguous BSHD.
    Parts,
}

impl Case {
    /// The attention described.
    ///
    /// # Panics
    ///
    /// Never: the expressions are well typed.
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
                // One buffer for all three only where there are as many queries as keys.
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

/// The row's name in goldens: everything that is varied, and nothing else.
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
