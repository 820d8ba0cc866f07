//! What the engine takes that NVIDIA names for deterministic backwards on compute capability 10.x, and what it does not.
//!
//! Found without a GPU; the descriptions and versions are in `docs/results/forms.md`. The kernel for head dims of 256 is one of its own,
//! with bounds of its own.

use super::{FE_TESTS, NAMED};
use crate::{Facts, Kind, Rule, Versions};

/// The fix that always holds.
const ANY_ORDER: &str = "sum gradients in any order (deterministic: no)";

/// Whether the kernel is that for head dims of 256.
fn wide(f: &Facts<'_>) -> bool {
    (f.d_qk, f.d_v) == (256, 256)
}

fn given(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (is && f.names_engine()).then(|| format!("{what}, in a deterministic backward"))
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        code: "backward.deterministic-one-query",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "q.dims[2]",
        needed: "in a deterministic backward on compute capability 10.x, more than one query or sequence (or a single head, for head_dim \
                 sizes of 256): the kernel that the library generates for one does not compile",
        fix: "pad to two queries, with lengths that say one, or sum gradients in any order (deterministic: no)",
        source: NAMED,
        given: |f| {
            let one = f.s_q == 1 && f.a.batch() == 1 && !(wide(f) && f.a.q.heads() == 1);
            given(f, one, "one query of one sequence")
        },
    },
    Rule {
        code: "backward.deterministic-expression",
        kind: Kind::Unsupported,
        versions: Versions::before(23, 0),
        field: "score, mask.mask_mod, dropout",
        needed: "in a deterministic backward on compute capability 10.x before 9.23, no score expression, no predicate that is no band, \
                 and no dropout: the kernel that the library generates with them does not compile",
        fix: "use cuDNN 9.23 or newer, or sum gradients in any order (deterministic: no)",
        source: NAMED,
        given: |f| {
            let what = match (&f.a.score_mod, &f.a.mask.mask_mod) {
                (Some(_), _) => "a score expression",
                (None, Some(_)) => "a predicate",
                (None, None) => "dropout",
            };
            given(f, f.a.score_mod.is_some() || f.a.mask.mask_mod.is_some() || f.dropout(), what)
        },
    },
    Rule {
        code: "backward.deterministic-philox",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "dropout",
        needed: "in a deterministic backward on compute capability 10.x, no dropout that is drawn by Philox: the kernel that the library \
                 generates with it does not compile",
        fix: "give the dropout mask as an operand, with cuDNN 9.23 or newer",
        source: NAMED,
        given: |f| given(f, f.philox(), "dropout drawn by Philox"),
    },
    Rule {
        code: "backward.deterministic-tensor-gradient",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score_mod",
        needed: "in a deterministic backward on compute capability 10.x, no gradient of a tensor of the score expression",
        fix: ANY_ORDER,
        source: NAMED,
        given: |f| given(f, f.wants_tensor_gradient(), "the gradient of a bias"),
    },
    Rule {
        code: "backward.deterministic-query-tensor",
        kind: Kind::Unsupported,
        versions: Versions::ALL,
        field: "score, mask.mask_mod, dropout",
        needed: "in a deterministic backward on compute capability 10.x, no tensor with one number per query or per sequence, but for \
                 head dims of 256; a dropout mask over one key is one too",
        fix: "say the tensor with all keys (extents [.., queries, keys]), what is computed of lengths too",
        source: NAMED,
        given: |f| {
            let found = f.query_tensor().filter(|_| !wide(f))?;
            given(f, true, &found)
        },
    },
    Rule {
        code: "backward.deterministic-varlen",
        kind: Kind::Unsupported,
        versions: Versions::before(25, 0),
        field: "q.storage",
        needed: "in a deterministic backward of head dims 256 on compute capability 10.x before 9.25, dense operands: the kernel that the \
                 library generates for varlen ones does not compile",
        fix: "use cuDNN 9.25 or newer, or dense operands with lengths",
        source: NAMED,
        given: |f| given(f, wide(f) && f.varlen(), "varlen operands"),
    },
    Rule {
        code: "backward.deterministic-sink",
        kind: Kind::Wrong,
        versions: Versions::ALL,
        field: "d_sink",
        needed: "in a deterministic backward, no gradient of the sink: it varies from run to run, on an H200 in 12 of 12 such attentions \
                 (9.19), elsewhere by NVIDIA's own account",
        fix: "leave the sink's gradient out, or sum gradients in any order (deterministic: no)",
        source: FE_TESTS,
        given: |f| {
            let both = f.gradients.is_some_and(|g| g.deterministic && g.d_sink);
            both.then(|| "the gradient of a sink, in a deterministic backward".to_owned())
        },
    },
];
