//! What limits lowering beyond what is not built: forms that a version knows, and backwards that were seen to be computed
//! wrongly in the form that is emitted, which are refused until another form is found.

use super::{FUSED_OPS, Form, Policy};
use crate::expr::{Axis, Node};
use crate::{Attention, Layer, Lengths, Outputs, Pass, Reason, Target};

/// Width of the widest tile of cuDNN's attention kernels, in queries and in keys.
const TILE: i64 = 128;

/// The form to write, and why it cannot be written.
pub(super) fn form(a: &Attention, target: &Target, policy: &Policy) -> (Form, Vec<Reason>) {
    let Outputs { stats, max, sum_exp } = a.outputs;
    // The expanded softmax puts out the log-sum-exp, or maximum and sum, or neither: with another set cuDNN leaves some
    // unwritten without a word (H200, 9.19).
    let together = !a.is_backward() && ((stats && (max || sum_exp)) || max != sum_exp);
    let form = match policy.form {
        Form::Auto if together => Form::Fused,
        other => other.resolve(),
    };
    let mut reasons = Vec::new();
    let mut add = |code: &'static str, field: &'static str, given: String, needed: &'static str, fix: &'static str| {
        let mut reason = Reason::new(Layer::Rule, code, field, given, needed, fix);
        reason.since = Some(FUSED_OPS);
        reasons.push(reason);
    };
    if together && (target.cudnn < FUSED_OPS || form == Form::Expanded) {
        add(
            "outputs.combination",
            "outputs",
            format!("stats {stats}, max {max}, sum_exp {sum_exp}, for cuDNN {} and {form:?}", target.cudnn),
            "Stats alone, or Max and Sum_exp together; other sets need the softmax operation",
            "ask for Stats alone: it is Max + ln(Sum_exp)",
        );
    } else if form == Form::Fused && target.cudnn < FUSED_OPS {
        let given = format!("fused, for cuDNN {}", target.cudnn);
        add("form.fused", "policy.form", given, "band-mask and softmax operations", "use the expanded form");
    }
    (form, reasons)
}

/// Descriptions that cuDNN 9.19 computed wrongly on an H200, in the form that is emitted, when compared with the float64
/// oracle (`docs/results/selftest.md`).
pub(super) fn wrong(a: &Attention) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |code: &'static str, field: &'static str, given: &str, fix: &'static str| {
        let needed = "cuDNN's result was wrong for this on the card, in the form that is emitted";
        reasons.push(Reason::new(Layer::Quirk, code, field, given, needed, fix));
    };
    let reads = |axis| [&a.score, &a.mask.keep].into_iter().flatten().any(|e| e.contains(Node::Index(axis)));
    let (s_q, s_kv) = a.seq();
    if s_q == 1 && reads(Axis::Key) {
        let given = "one query, with an expression that reads the key's index";
        add("score.one-query-index", "score", given, "say it as a bias tensor of extents [1, heads, 1, keys]");
    }
    let Pass::Backward(_) = a.pass else { return reasons };
    if a.dropout.is_some_and(|d| d.probability > 0.0) {
        add("backward.dropout", "dropout", "dropout in a backward", "the CPU reference computes it");
    }
    let whole = s_q % TILE == 0 && s_kv % TILE == 0;
    if !whole && a.mask.lengths == Lengths::Full && (reads(Axis::Key) || reads(Axis::Query)) {
        let given = "an expression that reads an index, in a backward whose lengths are no multiples of 128";
        add(
            "backward.index-tail",
            "score",
            given,
            "add per-sequence lengths: then what a tile holds beyond them is hidden",
        );
    }
    reasons
}

/// The reason against a derivative that does more than reuse what the forward computed.
///
/// Seen wrong: `score + score * score * slot`, whose derivative reads the score and the slot again (all gradients NaN). Seen
/// right: derivatives of one, and those of tanh over its own value.
pub(super) fn derivative(text: &str) -> Reason {
    Reason::new(
        Layer::Quirk,
        "backward.derivative",
        "score",
        format!("a derivative that reads the score, an index, a slot or a tensor anew: {text}"),
        "cuDNN's result was wrong for such derivatives on the card, in the form that is emitted",
        "the CPU reference computes it; softcap, ALiBi, bias and windows are not affected",
    )
}
