//! The canonical form of a sound attention: of all ways to write the same computation, one.
//!
//! * Strides that no step is taken along are those of the memory order around them ([`super::strides`]).
//! * A band's bounds that hide nothing are dropped, and its corners are one when every sequence is square; a predicate that is
//!   true everywhere is no predicate.
//! * A score expression that leaves the score alone is none; Philox dropout that drops nothing is none.
//! * Padded rows are undefined where no row is padding; a backward has no other output of its forward than the one it reads.
//!
//! The corners of a band stay apart for sequences of fixed, unequal lengths, although one could be written as the other there:
//! cuDNN has rules of its own for each, so which one is asked for is part of the description.

use crate::expr::{Node, ScoreExpr};
use crate::{
    Attention, Dropout, DropoutSource, Gradients, Lengths, Mask, Outputs, PaddedRows, Pass, Tensor, valid::strides,
};

pub(super) fn form(attention: Attention) -> Attention {
    let Attention { q, k, v, o, mask, score, sink, dropout, block_mask, outputs, padded_rows, fp8, pass } = attention;
    let (s_q, s_kv) = (q.dims[2], k.dims[2]);
    let Mask { band, lengths, keep } = mask;
    let mask = Mask {
        band: band.and_then(|b| b.canonical(s_q, s_kv, lengths)),
        lengths,
        keep: keep.filter(|e| !matches!(e.nodes(), [Node::Bool(true)])),
    };
    let outputs = match pass {
        Pass::Forward => outputs,
        Pass::Backward(_) => {
            let Outputs { stats, max: _, sum_exp: _ } = outputs;
            Outputs { stats, max: false, sum_exp: false }
        }
    };
    Attention {
        q: tensor(q),
        k: tensor(k),
        v: tensor(v),
        o: tensor(o),
        mask,
        score: score.filter(|e| !is_identity(e)),
        sink,
        dropout: dropout.filter(drops),
        block_mask,
        outputs,
        padded_rows: match lengths {
            Lengths::Full => PaddedRows::Undefined,
            Lengths::PerSequence => padded_rows,
        },
        fp8,
        pass: match pass {
            Pass::Forward => Pass::Forward,
            Pass::Backward(gradients) => Pass::Backward(self::gradients(gradients)),
        },
    }
}

fn tensor(t: Tensor) -> Tensor {
    let strides = strides::canonical(&t);
    let Tensor { dims, strides: _, dtype, storage } = t;
    Tensor { dims, strides, dtype, storage }
}

fn gradients(gradients: Gradients) -> Gradients {
    let Gradients { d_o, d_q, d_k, d_v, d_sink, deterministic } = gradients;
    Gradients { d_o: tensor(d_o), d_q: tensor(d_q), d_k: tensor(d_k), d_v: tensor(d_v), d_sink, deterministic }
}

fn is_identity(score: &ScoreExpr) -> bool {
    matches!(score.nodes(), [Node::Score])
}

/// Whether dropout does anything: a given mask is applied whatever the probability, a drawn one of probability 0 keeps all.
fn drops(dropout: &Dropout) -> bool {
    let Dropout { source, probability } = *dropout;
    match source {
        DropoutSource::Philox => probability > 0.0,
        DropoutSource::Mask => true,
    }
}
