//! Recipes of random valid attentions: independent choices, each of which shrinks separately, and the attention that
//! they give.

use proptest::prelude::*;

use super::choices::{Rows, band, flag, rows, sometimes};
use super::tensor::{self, Layout};
use super::{Features, Space, Term};
use crate::MAX_DRAFTS;
use crate::registry::codes;
use crate::{
    Attention, BackwardOptions, Band, DType, Dropout, DropoutSource, Fp8, Lengths, Mask, Origins, Outputs, PaddedRows,
    ScoreExpr, Tensor, validate,
};

/// The choices for an attention. Any values give a valid one.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    batch: i64,
    /// Key heads, value heads, and the factor from their least common multiple to the query heads.
    heads: (i64, i64, i64),
    seq: (i64, i64),
    head_dim: (i64, i64),
    bf16: bool,
    /// Of Q, K, V, O, dO, dQ, dK, dV, dO in 16 bits.
    layouts: [Layout; 9],
    storage: Rows,
    /// Tokens beyond those that the batch needs, pages, rows of a page.
    room: (i64, i64, i64),
    mask: (Option<Band>, bool, Option<Term>),
    score: Option<Term>,
    own: Option<u8>,
    sink: bool,
    dropout: Option<(bool, f32)>,
    block_mask: bool,
    outputs: Outputs,
    padded_rows: bool,
    invariant: bool,
    draft_tree: bool,
    fp8: Option<(Fp8, [bool; 2])>,
    backward: Option<(bool, bool)>,
    /// Whether every query sees a key.
    origins: Option<bool>,
}

pub(super) fn recipe(space: Space) -> impl Strategy<Value = Recipe> + use<> {
    let Space { batch, heads, seq, head_dim, features } = space;
    let Features {
        storage,
        score_mod,
        mask_mod,
        sink,
        dropout,
        block_mask,
        outputs,
        padded_rows,
        invariant,
        draft_tree,
        fp8,
        backward,
        origins,
    } = features;
    let head_dim = 1..=(head_dim / 8).max(1);
    let shape = (1..=batch, (1..=heads, 1..=heads, 1..=2_i64), (1..=seq, 1..=seq), (head_dim.clone(), head_dim));
    let storing = (
        prop::array::uniform9(tensor::layout()),
        rows(storage),
        (0..=seq, 1..=4 * batch, 1..=seq.min(256)),
        any::<bool>(),
    );
    let masks = (
        prop::option::weighted(0.6, band()),
        any::<bool>(),
        sometimes(mask_mod, 0.3, || Term::predicate(3)),
        sometimes(score_mod, 0.4, || Term::score(3)),
        sometimes(score_mod, 0.2, || 0..3_u8),
    );
    let probability = prop_oneof![4 => 0.01_f32..0.99, 1 => Just(0.0_f32)];
    let extras = (
        flag(sink, 0.2),
        sometimes(dropout, 0.2, move || (any::<bool>(), probability.clone())),
        flag(block_mask, 0.1),
        (any::<bool>(), flag(outputs, 0.3), flag(outputs, 0.3)),
        (flag(padded_rows, 0.3), flag(invariant, 0.2), flag(draft_tree, 0.2)),
    );
    let regimes = (
        sometimes(fp8, 0.2, || {
            (prop::sample::select(vec![Fp8::Delayed, Fp8::Current, Fp8::Block, Fp8::Cache]), any::<[bool; 2]>())
        }),
        any::<bool>(),
        sometimes(backward, 0.4, any::<(bool, bool)>),
        sometimes(origins, 0.3, any::<bool>),
    );
    (shape, storing, masks, extras, regimes).prop_map(
        |(
            (batch, heads, seq, (d_qk, d_v)),
            (layouts, storage, room, bf16),
            (band, lengths, mask_mod, score, own),
            (sink, dropout, block_mask, (stats, max, sum_exp), (padded_rows, invariant, draft_tree)),
            (fp8, amax, backward, origins),
        )| Recipe {
            batch,
            heads,
            seq,
            head_dim: (8 * d_qk, 8 * d_v),
            bf16,
            layouts,
            storage,
            room,
            mask: (band, lengths, mask_mod),
            score,
            own,
            sink,
            dropout,
            block_mask,
            outputs: Outputs { stats, max, sum_exp, amax },
            padded_rows,
            invariant,
            draft_tree,
            fp8,
            backward,
            origins,
        },
    )
}

impl Recipe {
    /// The attention of these choices.
    pub(super) fn build(&self) -> Attention {
        let (h_k, h_v, times) = self.heads;
        let h_q = least_common_multiple(h_k, h_v) * times;
        let ((s_q, s_kv), (d_qk, d_v), b) = (self.seq, self.head_dim, self.batch);
        let [q, k, v, o, d_o, d_q, d_k, d_v_layout, d_o_half] = self.layouts;
        let (input, cache, output) = self.dtypes();
        // A backward has no paged operands.
        let storage = match self.storage {
            Rows::Paged { varlen_q: true } if self.backward.is_some() => Rows::Varlen { kv: false },
            Rows::Paged { varlen_q: false } if self.backward.is_some() => Rows::Dense,
            storage => storage,
        };
        let query = |layout, d, dtype| self.rows_of_q(storage, layout, [b, h_q, s_q, d], dtype);
        let key = |layout, h, d, dtype| self.rows_of_kv(storage, layout, [b, h, s_kv, d], dtype);
        let mut a = Attention::forward(
            query(q, d_qk, input),
            key(k, h_k, d_qk, cache),
            key(v, h_v, d_v, cache),
            query(o, d_v, output),
        );
        let scores = [b, h_q, s_q, s_kv];
        let (band, lengths, mask_mod) = &self.mask;
        let lengths = if *lengths || storage != Rows::Dense { Lengths::PerSequence } else { Lengths::Full };
        // Bounds of positions may be negative.
        let shift = if self.origins == Some(false) { self.room.0 } else { 0 };
        let band = band.map(|Band { corner, left, right }| Band {
            corner,
            left: left.map(|l| l + shift),
            right: right.map(|r| r - shift),
        });
        a.mask = Mask { band, lengths, mask_mod: mask_mod.as_ref().and_then(|term| predicate(term, scores)) };
        a.score_mod = self.score.as_ref().and_then(|term| term.write(scores).build_score_mod().ok());
        a.score_mod_bprop =
            self.own.filter(|_| self.backward.is_some()).zip(a.score_mod.as_ref()).and_then(own_derivative);
        a.origins = self.origins.map(|promised| if promised { Origins::EveryQuerySeesAKey } else { Origins::Any });
        a.sink = self.sink;
        a.dropout = self.dropout.map(|(mask, probability)| Dropout {
            source: if mask { DropoutSource::Mask } else { DropoutSource::Philox },
            probability,
        });
        a.block_mask = self.block_mask;
        a.outputs = self.outputs;
        a.padded_rows = if self.padded_rows { PaddedRows::Zero } else { PaddedRows::Undefined };
        a.invariant = self.invariant;
        a.draft_tree = self.draft_tree && s_q <= MAX_DRAFTS && self.backward.is_none() && self.origins.is_none();
        a.fp8 = self.scaling().map(|(scaling, _)| scaling);
        if let Some((d_sink, deterministic)) = self.backward {
            a.outputs.stats = true;
            let gradient = self.gradient_dtype(input);
            a = a.backward(BackwardOptions {
                d_o: Some(query(d_o, d_v, self.d_o_dtype(input))),
                d_o_half: (self.fp8.is_some_and(|(scaling, _)| scaling == Fp8::Block))
                    .then(|| query(d_o_half, d_v, output)),
                d_q: Some(query(d_q, d_qk, gradient)),
                d_k: Some(key(d_k, h_k, d_qk, gradient)),
                d_v: Some(key(d_v_layout, h_v, d_v, gradient)),
                d_sink: d_sink && self.sink,
                deterministic,
            });
        }
        // The only choices that can contradict each other: a predicate and a band, and an expression that does not read
        // the score or lacks a derivative for the backward.
        if let Err(refusal) = validate(a.clone()) {
            if refusal.has(&codes::MASK_CONTRADICTION) {
                a.mask.mask_mod = None;
            }
            if refusal.has(&codes::SCORE_MOD_UNREAD) || refusal.has(&codes::SCORE_MOD_DERIVATIVE) {
                (a.score_mod, a.score_mod_bprop) = (None, None);
            }
        }
        a
    }

    /// The scaling, and two choices of types. A cache has no backward.
    fn scaling(&self) -> Option<(Fp8, [bool; 2])> {
        self.fp8.filter(|(scaling, _)| self.backward.is_none() || *scaling != Fp8::Cache)
    }

    /// Element types of Q, of K and V, and of O.
    fn dtypes(&self) -> (DType, DType, DType) {
        let half = if self.bf16 { DType::BF16 } else { DType::F16 };
        match self.scaling() {
            None => (half, half, half),
            Some((Fp8::Cache, [range, _])) => (half, eight(range), half),
            Some((Fp8::Delayed, [range, _])) => (eight(range), eight(range), eight(range)),
            Some((Fp8::Current | Fp8::Block, [range, _])) => (eight(range), eight(range), half),
        }
    }

    fn gradient_dtype(&self, input: DType) -> DType {
        match self.scaling() {
            None | Some((Fp8::Cache, _)) => input,
            Some((Fp8::Delayed, [_, range])) => eight(range),
            Some((Fp8::Current | Fp8::Block, [_, half])) => {
                if half {
                    DType::F16
                } else {
                    DType::BF16
                }
            }
        }
    }

    fn d_o_dtype(&self, input: DType) -> DType {
        self.scaling().map_or(input, |(_, [_, range])| eight(range))
    }

    fn rows_of_q(&self, storage: Rows, layout: Layout, dims: [i64; 4], dtype: DType) -> Tensor {
        match storage {
            Rows::Dense | Rows::Paged { varlen_q: false } => tensor::dense(layout, dims, dtype),
            Rows::Varlen { .. } | Rows::Paged { varlen_q: true } => {
                tensor::varlen(layout, dims, dims[0] + self.room.0, dtype)
            }
        }
    }

    fn rows_of_kv(&self, storage: Rows, layout: Layout, dims: [i64; 4], dtype: DType) -> Tensor {
        match storage {
            Rows::Dense | Rows::Varlen { kv: false } => tensor::dense(layout, dims, dtype),
            Rows::Varlen { kv: true } => tensor::varlen(layout, dims, dims[0] + self.room.0, dtype),
            Rows::Paged { .. } => tensor::paged(layout, dims, self.room.1, self.room.2, dtype),
        }
    }
}

fn eight(range: bool) -> DType {
    if range { DType::E5M2 } else { DType::E4M3 }
}

/// The author's own derivative, trusted: not the derived one, over a scalar of the modification if it has one.
fn own_derivative((kind, score_mod): (u8, &ScoreExpr)) -> Option<crate::ScoreModBprop> {
    let (score, one) = (crate::expr::score(), crate::expr::Expr::from(1.0));
    let floats = score_mod
        .scalars()
        .iter()
        .zip(score_mod.scalar_names())
        .find(|(spec, _)| spec.ty == crate::expr::ScalarTy::Float);
    let factor = floats.map_or(one.clone(), |(_, name)| crate::expr::scalar(name));
    let derivative = match kind {
        0 => factor * 0.5,
        1 => score.gt(0.0).select(factor, 0.25),
        _ => (one - score.tanh() * 0.5) * factor,
    };
    derivative.build_score_mod().ok().map(crate::ScoreModBprop::trusted)
}

fn predicate(term: &Term, scores: [i64; 4]) -> Option<ScoreExpr> {
    let mask_mod = term.write(scores).build_mask_mod().ok()?;
    (!matches!(mask_mod.nodes(), [crate::expr::Node::Bool(false)])).then_some(mask_mod)
}

fn least_common_multiple(a: i64, b: i64) -> i64 {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}
