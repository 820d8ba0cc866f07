//! The choice of the form, and of engines that are excluded.

use super::{CompileOptions, Form};
use crate::expr::{Axis, Node, Program};
use crate::{Attention, CudnnVersion, DropoutSource, Outputs};

/// The form that is written.
pub(crate) fn chosen_form(a: &Attention, options: &CompileOptions) -> Form {
    match options.lab.form {
        Form::Auto if need_the_softmax_operation(a.outputs) => Form::Fused,
        other => other.resolve(),
    }
}

/// Whether a set of outputs needs the softmax operation. The expanded softmax outputs the log-sum-exp, or maximum and
/// sum, or neither; of another set, cuDNN leaves some outputs unwritten without an error (H200, 9.19). The canonical
/// backward has no maximum and no sum.
pub(crate) const fn need_the_softmax_operation(outputs: Outputs) -> bool {
    let Outputs { stats, max, sum_exp, .. } = outputs;
    (stats && max) || max != sum_exp
}

fn philox(a: &Attention) -> bool {
    a.dropout.is_some_and(|d| d.source == DropoutSource::Philox)
}

/// Whether engine 1, the engine for one query, computes wrong indices for expressions and Philox. It counts keys
/// wrongly beyond 256 and over pages, and reads memory out of bounds; heads that share keys are rows of one tile and
/// get the same index. On 9.14 it also counts the query wrongly beyond 256 keys; 9.19 does not. Versions in between
/// were not tested on a GPU.
pub(super) fn engine_1_is_wrong(a: &Attention, version: CudnnVersion) -> bool {
    let (s_q, s_kv) = a.seq();
    let reads = |axis| {
        let read = |e: Option<&Program>| e.is_some_and(|e| e.contains(Node::Index(axis)));
        read(a.score_mod.as_deref()) || read(a.mask.mask_mod.as_deref())
    };
    let grouped = a.q.heads() != a.k.heads();
    // Values are paged if keys are.
    let paged = a.k.is_paged();
    let long = s_kv > 256 || paged;
    let query = version < CudnnVersion::v9(19, 0) && reads(Axis::Query);
    s_q == 1 && (long && (philox(a) || reads(Axis::Key) || query) || grouped && reads(Axis::Head))
}
