//! Faults: a way to break each rule of validation in any valid attention; several at once if they affect different
//! parts.

use crate::expr::{AlibiSlopes, Expr, TensorSpec, constant, key, query, scalar, score, tensor};
use crate::{
    Attention, BackwardOptions, Band, Corner, DType, Dropout, DropoutSource, Fp8, Gradients, Lengths, MAX_DRAFTS,
    MAX_ORIGIN, Origins, Pass, ScoreModBprop, Storage,
};

/// A way to break one rule.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The code of the reason that validation must return.
    pub code: &'static str,
    /// The parts that it affects; faults without a common zone can be combined.
    pub zones: &'static [&'static str],
    /// Prepares the attention for it, without a fault.
    pub(super) prepare: fn(&mut Attention),
    /// Breaks the rule.
    pub(super) inject: fn(&mut Attention),
}

impl Fault {
    /// Adds the fault to an attention.
    pub fn put(&self, attention: &mut Attention) {
        (self.prepare)(attention);
        (self.inject)(attention);
    }
}

const fn fault(code: &'static str, zones: &'static [&'static str], inject: fn(&mut Attention)) -> Fault {
    Fault { code, zones, prepare: |_| {}, inject }
}

const fn prepared(
    code: &'static str,
    zones: &'static [&'static str],
    prepare: fn(&mut Attention),
    inject: fn(&mut Attention),
) -> Fault {
    Fault { code, zones, prepare, inject }
}

/// A fault for every code of validation.
pub const FAULTS: &[Fault] = &[
    fault("tensor.dims", &["k"], |a| a.k.dims[3] = 0),
    fault("tensor.dims-limit", &["v"], |a| a.v.dims[2] = 1 << 31),
    fault("tensor.strides", &["o places"], |a| a.o.strides[1] = 0),
    fault("tensor.head-dim-stride", &["q places"], |a| a.q.strides[3] = 2),
    fault("tensor.tokens", &["q storage"], |a| a.q.storage = Storage::Varlen { tokens: 0 }),
    fault("tensor.pages", &["k storage"], |a| a.k.storage = Storage::Paged { pages: 0, page_size: 16 }),
    fault("tensor.pages-limit", &["v storage"], |a| a.v.storage = Storage::Paged { pages: 1 << 31, page_size: 16 }),
    fault("tensor.span", &["v", "v storage"], |a| {
        a.v.storage = Storage::Dense;
        a.v.dims[2] = 5;
        a.v.strides[2] = i64::MAX / 3;
    }),
    fault("tensor.overlap", &["o", "o storage", "o places", "pass"], |a| {
        a.pass = Pass::Forward;
        a.o.storage = Storage::Dense;
        a.o.dims = [2; 4];
        a.o.strides = [4, 2, 1, 1];
    }),
    fault("shape.mismatch", &["o"], |a| a.o.dims[1] += 1),
    fault("heads.group", &["k"], |a| a.k.dims[1] = 2 * a.q.dims[1]),
    fault("shape.scores", &["q", "q places", "k"], |a| a.q.dims = [i64::from(i32::MAX); 4]),
    fault("storage.paged", &["q storage"], |a| a.q.storage = Storage::Paged { pages: 4, page_size: 4 }),
    fault("storage.varlen", &["q storage", "o storage"], |a| {
        a.q.storage = Storage::Dense;
        a.o.storage = Storage::Varlen { tokens: 1 << 20 };
    }),
    fault("storage.paged-pair", &["k storage", "v storage"], |a| {
        a.k.storage = Storage::Paged { pages: 4, page_size: 4 };
        a.v.storage = Storage::Dense;
    }),
    fault("dtype.mixed", &["dtype"], |a| a.k.dtype = if a.q.dtype == DType::F16 { DType::BF16 } else { DType::F16 }),
    fault("dtype.input", &["dtype"], |a| a.q.dtype = DType::F32),
    fault("dtype.output", &["dtype"], |a| a.o.dtype = DType::I64),
    prepared("storage.gradient", &["pass", "q storage"], into_backward, |a| {
        let dense = a.q.storage == Storage::Dense;
        gradients(a).d_q.storage = if dense { Storage::Varlen { tokens: 1 << 20 } } else { Storage::Dense };
    }),
    prepared("storage.paged-backward", &["pass", "k storage", "v storage"], into_backward, |a| {
        let pool = Storage::Paged { pages: 4, page_size: 4 };
        (a.k.storage, a.v.storage) = (pool, pool);
        (gradients(a).d_k.storage, gradients(a).d_v.storage) = (pool, pool);
    }),
    prepared("dtype.gradient", &["pass"], into_backward, |a| gradients(a).d_k.dtype = DType::I32),
    fault("band.left", &["band"], |a| {
        a.origins = None;
        a.mask.band = Some(Band { corner: Corner::TopLeft, left: Some(0), right: Some(0) });
    }),
    fault("band.right", &["band"], |a| {
        a.origins = None;
        a.mask.band = Some(Band { corner: Corner::BottomRight, left: None, right: Some(-1) });
    }),
    fault("origins.extent", &["q", "q places", "band"], |a| {
        a.origins = Some(Origins::Any);
        a.q.dims[2] = i64::from(MAX_ORIGIN) + 1;
    }),
    fault("draft-tree.queries", &["draft_tree", "q"], |a| {
        a.draft_tree = true;
        a.q.dims[2] = MAX_DRAFTS + 1;
    }),
    prepared("draft-tree.backward", &["draft_tree", "pass"], into_backward, |a| a.draft_tree = true),
    fault("draft-tree.origins", &["draft_tree", "band", "origins"], |a| {
        a.draft_tree = true;
        a.origins = Some(Origins::Any);
    }),
    fault("band.empty", &["band"], |a| {
        a.mask.band = Some(Band { corner: Corner::TopLeft, left: None, right: None });
    }),
    fault("score-mod.type", &["score_mod"], |a| modify(a, query().le(key()))),
    fault("score-mod.broadcast", &["score_mod", "q", "k"], |a| {
        let heads = a.q.dims[1] + 1;
        modify(a, score() + tensor("bias", TensorSpec::new(DType::F32, [1, heads, 1, 1])));
    }),
    fault("score-mod.slopes", &["score_mod", "q", "k"], |a| {
        let heads = a.q.dims[1] + 1;
        let slopes = TensorSpec::of_slopes(heads, AlibiSlopes::for_heads(i32::MAX.unsigned_abs()));
        modify(a, score() + tensor("slopes", slopes));
    }),
    fault("score-mod.unread", &["score_mod"], |a| modify(a, query().to_float())),
    prepared("score-mod.derivative", &["score_mod", "pass"], into_backward, |a| modify(a, score().floor())),
    fault("score-mod-bprop.alone", &["score_mod"], |a| {
        a.score_mod = None;
        a.score_mod_bprop = trusted(constant(1.0));
    }),
    fault("score-mod-bprop.type", &["score_mod"], |a| {
        modify(a, score() * 2.0);
        a.score_mod_bprop = trusted(score().gt(0.0));
    }),
    fault("score-mod-bprop.operand", &["score_mod"], |a| {
        modify(a, score() * 2.0);
        a.score_mod_bprop = trusted(scalar("of_nothing"));
    }),
    fault("score-mod-bprop.disagrees", &["score_mod"], |a| {
        modify(a, score() * 2.0);
        a.score_mod_bprop = constant(3.0).build().ok().map(ScoreModBprop::checked);
    }),
    fault("score-mod-bprop.unchecked", &["score_mod"], |a| {
        modify(a, (score() * 1e6).sin());
        a.score_mod_bprop = constant(0.0).build().ok().map(ScoreModBprop::checked);
    }),
    fault("mask-mod.score", &["mask_mod"], |a| a.mask.mask_mod = score().gt(0.5).build().ok()),
    fault("mask-mod.nothing", &["mask_mod"], |a| a.mask.mask_mod = Expr::from(false).build().ok()),
    fault("mask-mod.gradient", &["mask_mod"], |a| {
        let learned = tensor("learned", TensorSpec::new(DType::F32, [1; 4]).with_grad());
        a.mask.mask_mod = learned.gt(0.5).build().ok();
    }),
    fault("mask.contradiction", &["mask_mod", "band", "q", "k"], |a| {
        a.mask.band = Some(Band::CAUSAL);
        a.mask.mask_mod = query().lt(key()).build().ok();
    }),
    fault("lengths.missing", &["lengths", "k storage"], |a| {
        a.mask.lengths = Lengths::Full;
        a.k.storage = Storage::Varlen { tokens: 1 << 20 };
    }),
    fault("dropout.probability", &["dropout"], |a| {
        a.dropout = Some(Dropout { source: DropoutSource::Philox, probability: 1.0 });
    }),
    prepared("backward.stats", &["pass"], into_backward, |a| a.outputs.stats = false),
    prepared("backward.half-missing", &["pass", "dtype", "fp8"], into_backward, |a| {
        a.fp8 = Some(Fp8::Block);
        gradients(a).d_o_half = None;
    }),
    prepared("backward.cache", &["pass", "dtype", "fp8"], into_backward, |a| a.fp8 = Some(Fp8::Cache)),
    prepared("backward.half-extra", &["pass", "dtype", "fp8"], into_backward, |a| {
        a.fp8 = None;
        let like = a.o;
        gradients(a).d_o_half = Some(like);
    }),
    prepared("backward.sink", &["pass", "sink"], into_backward, |a| {
        a.sink = false;
        gradients(a).d_sink = true;
    }),
];

/// Sets another score modification, with a derived backward.
fn modify(a: &mut Attention, score_mod: Expr) {
    (a.score_mod, a.score_mod_bprop) = (score_mod.build().ok(), None);
}

fn trusted(derivative: Expr) -> Option<ScoreModBprop> {
    derivative.build().ok().map(ScoreModBprop::trusted)
}

fn into_backward(a: &mut Attention) {
    if a.is_backward() {
        return;
    }
    for t in [&mut a.k, &mut a.v] {
        if t.is_paged() {
            t.storage = Storage::Dense;
        }
    }
    a.outputs.stats = true;
    *a = a.backward(BackwardOptions::default());
}

fn gradients(a: &mut Attention) -> &mut Gradients {
    if !a.is_backward() {
        into_backward(a);
    }
    match &mut a.pass {
        Pass::Backward(gradients) => gradients,
        Pass::Forward => unreachable!("it is a backward now"),
    }
}
