//! The limits of the engine that NVIDIA names for deterministic backwards on compute capability 10.x.
//!
//! They were found without a GPU; the descriptions and versions are in `docs/results/forms.md`. The kernel for head
//! dims of 256 is another one, with other limits.

use super::{FE_TESTS, NAMED};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};

/// The fix for every one of these refusals.
const ANY_ORDER: &str = "sum gradients in any order (deterministic: no)";

/// Whether the kernel for head dims of 256 computes it.
fn wide(f: &Facts<'_>) -> bool {
    (f.d_qk, f.d_v) == (256, 256)
}

fn given(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (is && f.names_engine()).then(|| format!("{what}, in a deterministic backward"))
}

declare![
    BACKWARD_DETERMINISTIC_ONE_QUERY = Entry {
        code: "backward.deterministic-one-query",
        cause: "For a deterministic backward with one query, cuDNN generates a kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[2]",
        needed: "in a deterministic backward on compute capability 10.x, more than one query or sequence (or a single \
                 head, if the head dims are 256): for one query, cuDNN generates a kernel that does not compile",
        fix: "pad to two queries and give lengths of 1, or sum gradients in any order (deterministic: no)",
        source: NAMED,
        applies: Applies::Rules(|f| {
            let one = f.s_q == 1 && f.a.batch() == 1 && !(wide(f) && f.a.q.heads() == 1);
            given(f, one, "one query of one sequence")
        }),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_EXPRESSION = Entry {
        code: "backward.deterministic-expression",
        cause: "For a deterministic backward with an expression or dropout, cuDNN generates a kernel that does not \
                compile.",
        affected: &[Versions::before(23, 0).on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a deterministic backward on compute capability 10.x before 9.23, no score expression, no mask \
                 predicate other than a band, and no dropout: with them, cuDNN generates a kernel that does not \
                 compile",
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
        cause: "For a deterministic backward with Philox dropout, cuDNN generates a kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "dropout",
        needed: "in a deterministic backward on compute capability 10.x, no Philox dropout: with it, cuDNN generates a \
                 kernel that does not compile",
        fix: "give the dropout mask as an operand, with cuDNN 9.23 or newer",
        source: NAMED,
        applies: Applies::Rules(|f| given(f, f.philox(), "dropout drawn by Philox")),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_TENSOR_GRADIENT = Entry {
        code: "backward.deterministic-tensor-gradient",
        cause: "For a deterministic backward with the gradient of a tensor, cuDNN generates a kernel that does not \
                compile.",
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
        cause: "For a deterministic backward with a tensor of one number per query, cuDNN generates a kernel that does \
                not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in a deterministic backward on compute capability 10.x, no tensor with one number per query or per \
                 sequence, except with head dims of 256; a dropout mask over one key is such a tensor",
        fix: "expand the tensor to all keys (extents [.., queries, keys]), also what is computed from lengths",
        source: NAMED,
        applies: Applies::Rules(|f| {
            let found = f.query_tensor().filter(|_| !wide(f))?;
            given(f, true, &found)
        }),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_VARLEN = Entry {
        code: "backward.deterministic-varlen",
        cause: "For a deterministic varlen backward with head dims of 256, cuDNN generates a kernel that does not \
                compile.",
        affected: &[Versions::before(25, 0).on(Gpus::BLACKWELL)],
        field: "q.storage",
        needed: "in a deterministic backward with head dims of 256 on compute capability 10.x before 9.25, dense \
                 operands: for varlen operands, cuDNN generates a kernel that does not compile",
        fix: "use cuDNN 9.25 or newer, or dense operands with lengths",
        source: NAMED,
        applies: Applies::Rules(|f| given(f, wide(f) && f.varlen(), "varlen operands")),
        ..Entry::rule()
    },
    BACKWARD_DETERMINISTIC_SINK = Entry {
        code: "backward.deterministic-sink",
        cause: "The gradient of a sink varies from run to run, even in a deterministic backward.",
        field: "d_sink",
        needed: "in a deterministic backward, no gradient of the sink: it varies from run to run",
        fix: "leave the sink's gradient out, or sum gradients in any order (deterministic: no)",
        source: FE_TESTS,
        evidence: "On an H200 under 9.19, two launches gave different bits in 12 of 12 such attentions \
                   (docs/results/selftest.md); for other GPUs, NVIDIA's tests are the only evidence.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow backward.deterministic-sink --repeat 1"
        )),
        reports: &[
            "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/attention/dot_product_attention/utils.py"
        ],
        applies: Applies::Rules(|f| {
            let both = f.gradients.is_some_and(|g| g.deterministic && g.d_sink);
            both.then(|| "the gradient of a sink, in a deterministic backward".to_owned())
        }),
        ..Entry::quirk(13)
    },
];
