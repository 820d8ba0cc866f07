//! Checks masks, score expression, dropout, sinks, outputs and gradients for contradictions.

use super::Problems;
use super::canonical::RECOGNISED;
use super::tensors::countable;
use crate::expr::{
    Axis, DeriveError, Grad, Node, OverrideError, ScoreExpr, TensorId, Tolerance, Ty, check_override, over_operands_of,
};
use crate::registry::codes;
use crate::{
    Attention, Band, Corner, Dropout, DropoutSource, Gradients, Lengths, MAX_DRAFTS, MAX_ORIGIN, Pass, ScoreModBprop,
    Storage,
};

pub(super) fn check(a: &Attention, problems: &mut Problems) {
    if let Some(band) = a.mask.band {
        check_band(a, band, problems);
    }
    if a.origins.is_some() {
        origins(a, problems);
    }
    if a.draft_tree {
        drafts(a, problems);
    }
    if let Some(mask_mod) = &a.mask.mask_mod {
        expression(a, "mask.mask_mod", mask_mod, Ty::Bool, problems);
        predicate(mask_mod, problems);
        contradiction(a, mask_mod, problems);
    }
    if let Some(score) = &a.score_mod {
        expression(a, "score_mod", score, Ty::Float, problems);
        modification(a, score, problems);
    }
    if let Some(own) = &a.score_mod_bprop {
        bprop(a.score_mod.as_ref(), own, problems);
    }
    lengths(a, problems);
    if let Some(Dropout { source, probability }) = a.dropout {
        if !(0.0..1.0).contains(&probability) {
            problems.add(codes::DROPOUT_PROBABILITY.reason(probability.to_string()));
        }
        match source {
            DropoutSource::Philox | DropoutSource::Mask | DropoutSource::Places => {}
        }
    }
    if let Pass::Backward(gradients) = &a.pass {
        backward(a, gradients, problems);
    }
}

fn check_band(a: &Attention, band: Band, problems: &mut Problems) {
    let Band { corner: _, left, right } = band;
    // Bounds of positions may be negative.
    let whole = a.origins.is_none();
    if let Some(left) = left.filter(|&l| whole && l < 1) {
        problems.add(codes::BAND_LEFT.reason(left.to_string()));
    }
    if let Some(right) = right.filter(|&r| whole && r < 0) {
        problems.add(codes::BAND_RIGHT.reason(right.to_string()));
    }
    if band.left.is_none() && band.right.is_none() {
        problems.add(codes::BAND_EMPTY.reason("neither a left nor a right bound"));
    }
}

/// Checks an attention whose queries are a tree of drafts.
fn drafts(a: &Attention, problems: &mut Problems) {
    let queries = a.q.dims[2];
    if queries > MAX_DRAFTS {
        problems.add(codes::DRAFT_TREE_QUERIES.reason(queries.to_string()));
    }
    if a.is_backward() {
        problems.add(codes::DRAFT_TREE_BACKWARD.reason("a backward"));
    }
    if a.origins.is_some() {
        problems.add(codes::DRAFT_TREE_ORIGINS.reason("origins"));
    }
}

/// Checks an attention with origins.
fn origins(a: &Attention, problems: &mut Problems) {
    let (s_q, s_kv) = a.seq();
    if s_q.max(s_kv) > i64::from(MAX_ORIGIN) {
        return problems.add(codes::ORIGINS_EXTENT.reason(format!("{s_q} queries and {s_kv} keys")));
    }
    if let Some(band) = a.mask.band.filter(|band| band.is_empty_with_origins()) {
        problems.add(codes::MASK_CONTRADICTION.reason(format!("the band {band:?}, whatever the origins are")));
    }
}

fn expression(a: &Attention, field: &'static str, e: &ScoreExpr, ty: Ty, problems: &mut Problems) {
    if e.root_ty() != ty {
        problems.add(
            codes::SCORE_MOD_TYPE
                .reason(e.root_ty().to_string())
                .at(field)
                .with_needed(format!("an expression of type {ty}")),
        );
    }
    if !countable(&a.q) || !countable(&a.k) {
        return;
    }
    let (s_q, s_kv) = a.seq();
    let scores = [a.batch(), a.q.heads(), s_q, s_kv];
    for (i, tensor) in e.tensors().iter().enumerate() {
        if let Some(axis) = tensor.misfit(scores) {
            let name = e.tensor_name(TensorId(i as u32));
            let or = match scores[axis.dim()] {
                1 => String::new(),
                extent => format!(" or {extent}"),
            };
            problems.add(
                codes::SCORE_MOD_BROADCAST
                    .reason(format!("dims {:?}", tensor.dims))
                    .at(format!("{field}: tensor {name}"))
                    .with_needed(format!("the {} extent must be 1{or}", Axis::name(axis))),
            );
        }
        if let Some(slopes) = tensor.alibi.filter(|_| tensor.dims[1] != scores[1]) {
            problems.add(
                codes::SCORE_MOD_SLOPES
                    .reason(format!("slopes ({slopes}) for {} of {} heads", tensor.dims[1], scores[1]))
                    .at(format!("{field}: tensor {}", e.tensor_name(TensorId(i as u32)))),
            );
        }
    }
}

/// Checks a score expression.
fn modification(a: &Attention, score: &ScoreExpr, problems: &mut Problems) {
    if score.root_ty() != Ty::Float {
        return;
    }
    if !score.contains(Node::Score) {
        problems.add(codes::SCORE_MOD_UNREAD.reason(score.to_string()));
    } else if a.is_backward() {
        for problem in a.score_mod_vjp().and_then(Result::err).into_iter().flatten() {
            // [`bprop`] reports it.
            if matches!(problem, DeriveError::Own { .. }) {
                continue;
            }
            problems.add(codes::SCORE_MOD_DERIVATIVE.reason(score.to_string()).with_needed(problem.to_string()));
        }
    }
}

/// Checks the author's backward of the score modification.
fn bprop(score_mod: Option<&ScoreExpr>, own: &ScoreModBprop, problems: &mut Problems) {
    let ScoreModBprop { derivative, trusted } = own;
    let Some(score_mod) = score_mod else {
        return problems.add(codes::SCORE_MOD_BPROP_ALONE.reason(derivative.to_string()));
    };
    if score_mod.root_ty() != Ty::Float {
        return;
    }
    let checked = match (derivative.root_ty(), trusted) {
        (Ty::Float, true) => over_operands_of(score_mod, derivative).err(),
        (given, true) => Some(OverrideError::NotAFloat { which: "own backward", given }),
        (_, false) => check_override(score_mod, derivative, Tolerance::default()).err(),
    };
    let Some(error) = checked else { return };
    let code = match error {
        OverrideError::NotAFloat { .. } => &codes::SCORE_MOD_BPROP_TYPE,
        OverrideError::ForeignOperand { .. } => &codes::SCORE_MOD_BPROP_OPERAND,
        OverrideError::Disagrees { .. } => &codes::SCORE_MOD_BPROP_DISAGREES,
        OverrideError::Undecided { .. } => &codes::SCORE_MOD_BPROP_UNCHECKED,
    };
    problems.add(code.reason(derivative.to_string()).with_needed(error.to_string()));
}

/// Checks a mask predicate.
fn predicate(mask_mod: &ScoreExpr, problems: &mut Problems) {
    if mask_mod.contains(Node::Score) {
        problems.add(codes::MASK_MOD_SCORE.reason("a predicate that reads the score"));
    }
    if matches!(mask_mod.nodes(), [Node::Bool(false)]) {
        problems.add(codes::MASK_MOD_NOTHING.reason("false everywhere"));
    }
    for (spec, name) in mask_mod.tensors().iter().zip(mask_mod.tensor_names()) {
        if spec.grad == Grad::Needed {
            problems.add(
                codes::MASK_MOD_GRADIENT.reason("a requested gradient").at(format!("mask.mask_mod: tensor {name}")),
            );
        }
    }
}

/// Finds a predicate and a band, or a predicate alone, with bounds that no key can meet.
fn contradiction(a: &Attention, mask_mod: &ScoreExpr, problems: &mut Problems) {
    let (s_q, s_kv) = a.seq();
    let recognised = countable(&a.q) && countable(&a.k) && s_q < RECOGNISED && s_kv < RECOGNISED;
    let Some((corner, left, right)) = mask_mod.diagonal_bounds().filter(|_| recognised) else { return };
    // The smallest and the largest distance of query and key from the diagonal of a corner.
    let (mut low, mut high) = match corner {
        _ if a.origins.is_some() => (i64::MIN, i64::MAX),
        Corner::TopLeft => (1 - s_kv, s_q - 1),
        Corner::BottomRight => (1 - s_q, s_kv - 1),
    };
    let mut bound = |left: Option<i64>, right: Option<i64>, shift: i64| {
        low = right.map_or(low, |r| low.max(shift.saturating_sub(r)));
        high = left.map_or(high, |l| high.min(shift.saturating_add(l - 1)));
    };
    bound(left, right, 0);
    if let Some(band) = a.mask.band.filter(|b| a.origins.is_some() || b.left.is_none_or(|l| l >= 1)) {
        let shift = match (band.corner, corner) {
            (x, y) if x == y => Some(0),
            _ if a.origins.is_some() => Some(0),
            _ if a.mask.lengths == Lengths::PerSequence => None,
            (Corner::TopLeft, _) => Some(s_kv - s_q),
            (Corner::BottomRight, _) => Some(s_q - s_kv),
        };
        if let Some(shift) = shift {
            bound(band.left, band.right, shift);
        }
    }
    if low > high {
        problems.add(codes::MASK_CONTRADICTION.reason(format!(
            "a predicate with the bounds left {left:?}, right {right:?} ({corner:?}), and the band {:?}",
            a.mask.band
        )));
    }
}

fn lengths(a: &Attention, problems: &mut Problems) {
    if a.mask.lengths == Lengths::PerSequence {
        return;
    }
    for (name, t, _) in super::tensors::named(a) {
        if t.storage != Storage::Dense {
            problems.add(codes::LENGTHS_MISSING.reason(format!("full, with {name} {:?}", t.storage)));
            return;
        }
    }
}

fn backward(a: &Attention, g: &Gradients, problems: &mut Problems) {
    let Gradients { d_o: _, d_o_half: _, d_q: _, d_k: _, d_v: _, d_sink, deterministic: _ } = g;
    if !a.outputs.stats {
        problems.add(codes::BACKWARD_STATS.reason("false"));
    }
    if *d_sink && !a.sink {
        problems.add(codes::BACKWARD_SINK.reason("true, without a sink"));
    }
}
