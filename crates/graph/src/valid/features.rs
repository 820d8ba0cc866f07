//! Masks, score expression, dropout, sinks, outputs and gradients: whether they say something sound together.

use super::Problems;
use super::canonical::RECOGNISED;
use super::tensors::countable;
use crate::expr::{
    Axis, DeriveError, Grad, Node, OverrideError, ScoreExpr, TensorId, Tolerance, Ty, check_override, over_operands_of,
};
use crate::{Attention, Band, Corner, Dropout, DropoutSource, Gradients, Lengths, Pass, ScoreModBprop, Storage};

pub(super) fn check(a: &Attention, problems: &mut Problems) {
    if let Some(band) = a.mask.band {
        check_band(band, problems);
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
            problems.add(
                "dropout.probability",
                "dropout.probability",
                probability.to_string(),
                "the probability of zeroing must be at least 0 and below 1",
                "leave dropout out for 0; 1 would zero everything",
            );
        }
        match source {
            DropoutSource::Philox | DropoutSource::Mask => {}
        }
    }
    if let Pass::Backward(gradients) = &a.pass {
        backward(a, gradients, problems);
    }
}

fn check_band(band: Band, problems: &mut Problems) {
    let Band { corner: _, left, right } = band;
    if let Some(left) = left.filter(|&l| l < 1) {
        problems.add(
            "band.left",
            "mask.band.left",
            left.to_string(),
            "a window that looks back holds at least the diagonal: 1 or more",
            "the length counts the diagonal; use None for no bound",
        );
    }
    if let Some(right) = right.filter(|&r| r < 0) {
        problems.add(
            "band.right",
            "mask.band.right",
            right.to_string(),
            "keys beyond the diagonal: 0 (causal) or more",
            "use None for no bound",
        );
    }
    if band.left.is_none() && band.right.is_none() {
        problems.add(
            "band.empty",
            "mask.band",
            "neither a left nor a right bound",
            "at least one bound",
            "leave the band out for a full mask",
        );
    }
}

fn expression(a: &Attention, field: &'static str, e: &ScoreExpr, ty: Ty, problems: &mut Problems) {
    if e.root_ty() != ty {
        problems.add(
            "score-mod.type",
            field,
            e.root_ty().to_string(),
            format!("an expression of type {ty}"),
            "score_mod is a float and mask_mod a boolean; compare to get a predicate, select to get a score",
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
            problems.add(
                "score-mod.broadcast",
                format!("{field}: tensor {name}"),
                format!("dims {:?}", tensor.dims),
                format!("the {} extent must be 1 or {}", Axis::name(axis), scores[axis.dim()]),
                "tensors broadcast over (batch, query heads, queries, keys) by extents of 1",
            );
        }
        if let Some(slopes) = tensor.alibi.filter(|_| tensor.dims[1] != scores[1]) {
            problems.add(
                "score-mod.slopes",
                format!("{field}: tensor {}", e.tensor_name(TensorId(i as u32))),
                format!("slopes ({slopes}) for {} of {} heads", tensor.dims[1], scores[1]),
                "a slope of ALiBi for each query head",
                "give the tensor as many heads as Q; `alibi N from I` says which of a model's N heads they are",
            );
        }
    }
}

/// What holds for score expressions beyond what holds for every expression.
fn modification(a: &Attention, score: &ScoreExpr, problems: &mut Problems) {
    if score.root_ty() != Ty::Float {
        return;
    }
    if !score.contains(Node::Score) {
        problems.add(
            "score-mod.unread",
            "score_mod",
            score.to_string(),
            "an expression that reads the score: without it Q and K have no part in the result",
            "add to the score or multiply it; hide keys with the mask's predicate",
        );
    } else if a.is_backward() {
        for problem in a.score_mod_vjp().and_then(Result::err).into_iter().flatten() {
            // Said by [`bprop`].
            if matches!(problem, DeriveError::Own { .. }) {
                continue;
            }
            problems.add(
                "score-mod.derivative",
                "score_mod",
                score.to_string(),
                problem.to_string(),
                "change the expression, ask for no gradient of that tensor, or run the forward alone",
            );
        }
    }
}

/// What holds for predicates beyond what holds for every expression.
/// The backward of the score modification by its author.
fn bprop(score_mod: Option<&ScoreExpr>, own: &ScoreModBprop, problems: &mut Problems) {
    let ScoreModBprop { derivative, trusted } = own;
    let (field, given) = ("score_mod_bprop", derivative.to_string());
    let Some(score_mod) = score_mod else {
        let needed = "a score modification: without one the gradient of the score is that of the softmax";
        return problems.add("score-mod-bprop.alone", field, given, needed, "add the modification, or leave it out");
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
    let needed = error.to_string();
    match error {
        OverrideError::NotAFloat { .. } => {
            problems.add("score-mod-bprop.type", field, given, needed, "write the derivative as a number");
        }
        OverrideError::ForeignOperand { .. } => {
            let fix = "read the scalars and tensors of the modification, by their names there";
            problems.add("score-mod-bprop.operand", field, given, needed, fix);
        }
        OverrideError::Disagrees { .. } => {
            let fix = "mend the derivative, leave it out to have it derived, or say that it is trusted";
            problems.add("score-mod-bprop.disagrees", field, given, needed, fix);
        }
        OverrideError::Undecided { .. } => {
            let fix = "leave the derivative out to have it derived, or say that it is trusted";
            problems.add("score-mod-bprop.unchecked", field, given, needed, fix);
        }
    }
}

fn predicate(mask_mod: &ScoreExpr, problems: &mut Problems) {
    if mask_mod.contains(Node::Score) {
        problems.add(
            "mask-mod.score",
            "mask.mask_mod",
            "a predicate that reads the score",
            "which keys are seen depends on indices, lengths, scalars and tensors alone",
            "change the score itself with a score expression: select(condition, score, a large negative number)",
        );
    }
    if matches!(mask_mod.nodes(), [Node::Bool(false)]) {
        problems.add(
            "mask-mod.nothing",
            "mask.mask_mod",
            "false everywhere",
            "a predicate that some key can satisfy",
            "leave the predicate out for a full mask",
        );
    }
    for (spec, name) in mask_mod.tensors().iter().zip(mask_mod.tensor_names()) {
        if spec.grad == Grad::Needed {
            problems.add(
                "mask-mod.gradient",
                format!("mask.mask_mod: tensor {name}"),
                "a gradient is asked for",
                "a predicate has no derivative",
                "ask for no gradient, or use the tensor in the score expression",
            );
        }
    }
}

/// A predicate and a band, or a predicate by itself, whose bounds leave nothing between them.
fn contradiction(a: &Attention, mask_mod: &ScoreExpr, problems: &mut Problems) {
    let (s_q, s_kv) = a.seq();
    let recognised = countable(&a.q) && countable(&a.k) && s_q < RECOGNISED && s_kv < RECOGNISED;
    let Some((corner, left, right)) = mask_mod.diagonal_bounds().filter(|_| recognised) else { return };
    // Distances of query and key along the diagonal of a corner, from `low` to `high`.
    let (mut low, mut high) = match corner {
        Corner::TopLeft => (1 - s_kv, s_q - 1),
        Corner::BottomRight => (1 - s_q, s_kv - 1),
    };
    let mut bound = |left: Option<i64>, right: Option<i64>, shift: i64| {
        low = right.map_or(low, |r| low.max(shift.saturating_sub(r)));
        high = left.map_or(high, |l| high.min(shift.saturating_add(l - 1)));
    };
    bound(left, right, 0);
    if let Some(band) = a.mask.band.filter(|b| b.left.is_none_or(|l| l >= 1)) {
        let shift = match (band.corner, corner) {
            (x, y) if x == y => Some(0),
            _ if a.mask.lengths == Lengths::PerSequence => None,
            (Corner::TopLeft, _) => Some(s_kv - s_q),
            (Corner::BottomRight, _) => Some(s_q - s_kv),
        };
        if let Some(shift) = shift {
            bound(band.left, band.right, shift);
        }
    }
    if low > high {
        problems.add(
            "mask.contradiction",
            "mask",
            format!(
                "a predicate with the bounds left {left:?}, right {right:?} ({corner:?}), and the band {:?}",
                a.mask.band
            ),
            "some key must be seen by some query",
            "drop the part of the mask that hides what the other part keeps",
        );
    }
}

fn lengths(a: &Attention, problems: &mut Problems) {
    if a.mask.lengths == Lengths::PerSequence {
        return;
    }
    for (name, t, _) in super::tensors::named(a) {
        if t.storage != Storage::Dense {
            problems.add(
                "lengths.missing",
                "mask.lengths",
                format!("full, with {name} {:?}", t.storage),
                "varlen and paged operands have sequences of differing lengths",
                "use per-sequence lengths",
            );
            return;
        }
    }
}

fn backward(a: &Attention, g: &Gradients, problems: &mut Problems) {
    let Gradients { d_o: _, d_o_half: _, d_q: _, d_k: _, d_v: _, d_sink, deterministic: _ } = g;
    if !a.outputs.stats {
        problems.add(
            "backward.stats",
            "outputs.stats",
            "false",
            "the backward reads the log-sum-exp of the forward",
            "add `with_stats()` to the forward that this backward belongs to",
        );
    }
    if *d_sink && !a.sink {
        problems.add(
            "backward.sink",
            "pass.d_sink",
            "true, without a sink",
            "a gradient of the sink needs a sink",
            "add the sink to the forward or drop d_sink",
        );
    }
}
