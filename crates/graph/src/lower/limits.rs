//! What limits lowering beyond what is not built: forms that a version knows, and descriptions that were seen to be computed
//! wrongly in every form that was tried.

use super::{CompileOptions, FUSED_OPS, Form, tails, unified};
use crate::expr::{Axis, Grad, Node, Program, TensorSpec};
use crate::{Attention, CudnnVersion, DropoutSource, Origin, Outputs, Pass, Reason, Target};

/// From here on a backward of one row is not put to the library: 9.26.0 and 9.27.0 end in a segmentation fault (head dims of 64
/// and 128; 192 and 256 are compiled); 9.19.0 to 9.25.1, every minor version between among them, compile it.
const SINGLE_ROW: CudnnVersion = CudnnVersion::v9(26, 0);

/// The form to write, and why it cannot be written.
pub(super) fn form(a: &Attention, target: &Target, policy: &CompileOptions) -> (Form, Vec<Reason>) {
    let Outputs { stats, max, sum_exp } = a.outputs;
    // The expanded softmax puts out the log-sum-exp, or maximum and sum, or neither: with another set cuDNN leaves some
    // unwritten without a word (H200, 9.19). The canonical backward has no maximum and no sum.
    let together = (stats && max) || max != sum_exp;
    let form = match policy.lab.form {
        Form::Auto if together => Form::Fused,
        Form::Unified if a.is_backward() => Form::Expanded,
        other => other.resolve(),
    };
    if form == Form::Unified {
        return (form, unified::reasons(a, target));
    }
    let mut reasons = Vec::new();
    let mut add = |code: &'static str, field: &'static str, given: String, needed: &'static str, fix: &'static str| {
        let mut reason = Reason::new(Origin::Rule, code, field, given, needed, fix);
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
        add("form.fused", "policy.lab.form", given, "band-mask and softmax operations", "use the expanded form");
    }
    (form, reasons)
}

/// Descriptions that cuDNN 9.19 computed wrongly on an H200, in every form that was tried, when compared with the float64 oracle
/// (`docs/results/selftest.md`).
pub(super) fn wrong(a: &Attention, target: &Target) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let mut add = |code: &'static str, field: &'static str, given: &str, fix: &'static str| {
        let needed = "cuDNN's result was wrong for this on the card, in every form that was tried";
        reasons.push(Reason::new(Origin::Quirk, code, field, given, needed, fix));
    };
    if tails::derivative_meets_lengths(a, target) {
        let given = "per-sequence lengths, with an expression whose derivative is not finite beyond the last row and key, and lengths \
                     that are no multiples of a tile";
        add(
            "backward.length-tail",
            "score_mod",
            given,
            "make the number of queries and of keys a multiple of 128 (the lengths say how much of it is used)",
        );
    }
    let (s_q, s_kv) = a.seq();
    let narrow = |spec: &&TensorSpec| {
        let [b, _, q, k] = spec.dims;
        spec.dtype.size() == 2 && b > 1 && (q, k) == (1, 1)
    };
    let tensors = || [&a.score_mod, &a.mask.mask_mod].into_iter().flatten().flat_map(|e| e.tensors());
    if s_q == 1
        && let Some(spec) = tensors().find(narrow)
    {
        add(
            "score-mod.one-query-narrow",
            "score_mod",
            &format!(
                "one query, with a {} tensor of extents {:?}: a misaligned read ends the launch",
                spec.dtype, spec.dims
            ),
            "give one number per sequence in f32",
        );
    }
    let Pass::Backward(gradients) = &a.pass else { return reasons };
    if target.cudnn >= SINGLE_ROW && (a.batch(), a.q.heads(), s_q) == (1, 1, 1) && a.head_dims().0 <= 128 {
        let given =
            "a backward of one row (one sequence, one head, one query) of up to 128; the library ends the process";
        add("backward.single-row", "q", given, "use two heads or two queries, or cuDNN 9.25");
    }
    let partial = |spec: &&TensorSpec| {
        let [_, _, q, k] = spec.dims;
        spec.grad == Grad::Needed && (q, k) != (s_q, s_kv)
    };
    if let Some(spec) = a.score_mod.as_ref().and_then(|score| score.tensors().iter().find(partial)) {
        add(
            "backward.tensor-gradient",
            "score_mod",
            &format!("the gradient of a tensor of extents {:?}, for {s_q} queries and {s_kv} keys", spec.dims),
            "ask for the gradient of a tensor with all queries and keys (batch and heads may be 1), and sum it",
        );
    }
    if gradients.d_sink && philox(a) {
        let given = "the gradient of a sink, with dropout drawn by Philox";
        add(
            "backward.sink-philox",
            "d_sink",
            given,
            "give the dropout mask as an operand, or leave the sink's gradient out",
        );
    }
    reasons
}

fn philox(a: &Attention) -> bool {
    a.dropout.is_some_and(|d| d.source == DropoutSource::Philox)
}

/// Whether the engine for one query computes with indices, as expressions and Philox do: it counts keys wrongly beyond 256 and over
/// pages, and reads memory that is not there; heads that share keys are rows of one tile to it, and have one index. Under 9.14 it
/// counts the query wrongly beyond 256 keys too, which 9.19 does not; between them no card was asked.
pub(super) fn engine_1_is_wrong(a: &Attention, version: CudnnVersion) -> bool {
    let (s_q, s_kv) = a.seq();
    let reads = |axis| {
        let read = |e: Option<&Program>| e.is_some_and(|e| e.contains(Node::Index(axis)));
        read(a.score_mod.as_deref()) || read(a.mask.mask_mod.as_deref())
    };
    let grouped = a.q.heads() != a.k.heads();
    // Values are paged where keys are.
    let paged = a.k.is_paged();
    let long = s_kv > 256 || paged;
    let query = version < CudnnVersion::v9(19, 0) && reads(Axis::Query);
    s_q == 1 && (long && (philox(a) || reads(Axis::Key) || query) || grouped && reads(Axis::Head))
}
