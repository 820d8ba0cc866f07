//! Which form is written, and which engine must not compute it.

use super::{CompileOptions, Form};
use crate::expr::{Axis, Node, Program};
use crate::{Attention, CudnnVersion, DropoutSource, Outputs};

/// The form to write.
pub(crate) fn chosen_form(a: &Attention, policy: &CompileOptions) -> Form {
    match policy.lab.form {
        Form::Auto if need_the_softmax_operation(a.outputs) => Form::Fused,
        Form::Unified if a.is_backward() => Form::Expanded,
        other => other.resolve(),
    }
}

/// Whether a set of outputs needs the softmax operation: the expanded softmax puts out the log-sum-exp, or maximum and
/// sum, or neither. With another set cuDNN leaves some unwritten without a word (H200, 9.19). The canonical backward
/// has no maximum and no sum.
pub(crate) const fn need_the_softmax_operation(outputs: Outputs) -> bool {
    let Outputs { stats, max, sum_exp } = outputs;
    (stats && max) || max != sum_exp
}

fn philox(a: &Attention) -> bool {
    a.dropout.is_some_and(|d| d.source == DropoutSource::Philox)
}

/// Whether the engine for one query computes with indices, as expressions and Philox do: it counts keys wrongly beyond
/// 256 and over pages, and reads memory that is not there; heads that share keys are rows of one tile to it, and have
/// one index. Under 9.14 it counts the query wrongly beyond 256 keys too, which 9.19 does not; between them no card was
/// asked.
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
