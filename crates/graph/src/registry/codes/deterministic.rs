//! What the engine takes that NVIDIA names for deterministic backwards on compute capability 10.x, and what it does
//! not.
//!
//! Found without a GPU; the descriptions and versions are in `docs/results/forms.md`. The kernel for head dims of 256
//! is one of its own, with bounds of its own.

use super::{FE_TESTS, NAMED};
use crate::registry::entry::entries;
use crate::registry::{Applies, Entry, Facts, Gpus, Versions};

/// The fix that always holds.
const ANY_ORDER: &str = "sum gradients in any order (deterministic: no)";

/// Whether the kernel is that for head dims of 256.
fn wide(f: &Facts<'_>) -> bool {
    (f.d_qk, f.d_v) == (256, 256)
}

fn given(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (is && f.names_engine()).then(|| format!("{what}, in a deterministic backward"))
}

entries![
    BACKWARD_DETERMINISTIC_ONE_QUERY = Entry {
        code: "backward.deterministic-one-query",
        cause: "The kernel that the library generates for a deterministic backward of one query does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[2]",
        needed: "in a deterministic backward on compute capability 10.x, more than one query or sequence (or a single \
                 head, for head_dim sizes of 256): the kernel that the library generates for one does not compile",
        fix: "pad to two queries, with lengths that say one, or sum gradients in any order (deterministic: no)",
        source: NAMED,
        applies: Applies::Rules(|f| {
            let one = f.s_q == 1 && f.a.batch() == 1 && !(wide(f) && f.a.q.heads() == 1);
            given(f, one, "one query of one sequence")
        }),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_EXPRESSION = Entry {
        code: "backward.deterministic-expression",
        cause: "The kernel that the library generates for a deterministic backward with an expression or dropout does \
                not compile.",
        affected: &[Versions::before(23, 0).on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a deterministic backward on compute capability 10.x before 9.23, no score expression, no predicate \
                 that is no band, and no dropout: the kernel that the library generates with them does not compile",
        fix: "use cuDNN 9.23 or newer, or sum gradients in any order (deterministic: no)",
        source: NAMED,
        applies: Applies::Rules(|f| {
            let what = match (&f.a.score_mod, &f.a.mask.mask_mod) {
                (Some(_), _) => "a score expression",
                (None, Some(_)) => "a predicate",
                (None, None) => "dropout",
            };
            given(f, f.a.score_mod.is_some() || f.a.mask.mask_mod.is_some() || f.dropout(), what)
        }),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_PHILOX = Entry {
        code: "backward.deterministic-philox",
        cause: "The kernel that the library generates for a deterministic backward with Philox does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "dropout",
        needed: "in a deterministic backward on compute capability 10.x, no dropout that is drawn by Philox: the \
                 kernel that the library generates with it does not compile",
        fix: "give the dropout mask as an operand, with cuDNN 9.23 or newer",
        source: NAMED,
        applies: Applies::Rules(|f| given(f, f.philox(), "dropout drawn by Philox")),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_TENSOR_GRADIENT = Entry {
        code: "backward.deterministic-tensor-gradient",
        cause: "The kernel that the library generates for a deterministic backward with the gradient of a tensor does \
                not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod",
        needed: "in a deterministic backward on compute capability 10.x, no gradient of a tensor of the score \
                 expression",
        fix: ANY_ORDER,
        source: NAMED,
        applies: Applies::Rules(|f| given(f, f.wants_tensor_gradient(), "the gradient of a bias")),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_QUERY_TENSOR = Entry {
        code: "backward.deterministic-query-tensor",
        cause: "The kernel that the library generates for a deterministic backward with a tensor of one number per \
                query does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a deterministic backward on compute capability 10.x, no tensor with one number per query or per \
                 sequence, but for head dims of 256; a dropout mask over one key is one too",
        fix: "say the tensor with all keys (extents [.., queries, keys]), what is computed of lengths too",
        source: NAMED,
        applies: Applies::Rules(|f| {
            let found = f.query_tensor().filter(|_| !wide(f))?;
            given(f, true, &found)
        }),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_VARLEN = Entry {
        code: "backward.deterministic-varlen",
        cause: "The kernel that the library generates for a deterministic varlen backward of head dims 256 does not \
                compile.",
        affected: &[Versions::before(25, 0).on(Gpus::BLACKWELL)],
        field: "q.storage",
        needed: "in a deterministic backward of head dims 256 on compute capability 10.x before 9.25, dense operands: \
                 the kernel that the library generates for varlen ones does not compile",
        fix: "use cuDNN 9.25 or newer, or dense operands with lengths",
        source: NAMED,
        applies: Applies::Rules(|f| given(f, wide(f) && f.varlen(), "varlen operands")),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_SINK = Entry {
        code: "backward.deterministic-sink",
        cause: "The gradient of a sink varies from run to run, in a deterministic backward too.",
        field: "d_sink",
        needed: "in a deterministic backward, no gradient of the sink: it varies from run to run",
        fix: "leave the sink's gradient out, or sum gradients in any order (deterministic: no)",
        source: FE_TESTS,
        evidence: "Two launches gave other bits in 12 of 12 such attentions on an H200 under 9.19 \
                   (docs/results/selftest.md); on other GPUs it is NVIDIA's own account.",
        applies: Applies::Rules(|f| {
            let both = f.gradients.is_some_and(|g| g.deterministic && g.d_sink);
            both.then(|| "the gradient of a sink, in a deterministic backward".to_owned())
        }),
        ..Entry::quirk(13)
    },
];
