//! Features that qkvault describes and checks, but does not lower to cuDNN yet.

use crate::registry::declare;
use crate::registry::{Applies, Entry};
use crate::{DropoutSource, Fp8, Outputs, PaddedRows};

const NEEDED: &str = "an attention without it: qkvault describes and checks it, but does not lower it to cuDNN yet";
const FIX: &str = "use the CPU reference, which computes it";
/// What own kernels alone compute.
const NEEDED_OWN: &str = "qkvault's kernels on compute capability 9.0, or an attention without it";
const SOURCE: &str = "qkvault's lowering, which does not write it";

fn given(is: bool, what: &str) -> Option<String> {
    is.then(|| what.to_owned())
}

declare![
    NOT_BUILT_BLOCK_MASK = Entry {
        code: "not-built.block-mask",
        cause: "qkvault writes no block mask for cuDNN; FlashAttention-4 takes one.",
        field: "block_mask",
        needed: "FlashAttention-4 on compute capability 9.0, or an attention without a block mask",
        fix: "take FlashAttention-4 (engine: fa4), write the mask as an expression, or use the CPU reference",
        source: SOURCE,
        evidence: "A block mask skips blocks only on compute capability 10.0, in the unified operation; no backward \
                   operation supports one (docs/results/forms.md).",
        applies: Applies::Lowering(|f| given(f.a.block_mask, "a block mask")),
        ..Entry::not_built()
    },
    NOT_BUILT_DROPOUT_PLACES = Entry {
        code: "not-built.dropout-places",
        cause: "No plan draws a dropout mask by places; a schedule's kernel does.",
        field: "dropout.source",
        needed: "a schedule, which may have one rank",
        fix: "make a schedule (`--ranks 1`), or use DropoutSource::Philox in both directions",
        source: SOURCE,
        applies: Applies::Lowering(|f| {
            let places = f.a.dropout.is_some_and(|d| d.source == DropoutSource::Places);
            given(places, "dropout by places")
        }),
        ..Entry::not_built()
    },
    NOT_BUILT_INVARIANT = Entry {
        code: "not-built.invariant",
        cause: "cuDNN divides its work by what is in the batch and by its own choice of engines.",
        field: "invariant",
        needed: NEEDED_OWN,
        fix: "take qkvault's kernels (engine: kernels), or leave invariant out",
        source: SOURCE,
        applies: Applies::Lowering(|f| given(f.a.invariant, "the same bits in any batch")),
        ..Entry::not_built()
    },
    NOT_BUILT_DRAFT_TREE = Entry {
        code: "not-built.draft-tree",
        cause: "cuDNN's attention reads no bits for each query.",
        field: "draft_tree",
        needed: NEEDED_OWN,
        fix: "take qkvault's kernels (engine: kernels), or give the mask as a bias",
        source: SOURCE,
        applies: Applies::Lowering(|f| given(f.a.draft_tree, "a tree of drafts")),
        ..Entry::not_built()
    },
    NOT_BUILT_CACHE = Entry {
        code: "not-built.cache",
        cause: "cuDNN's attention has Q, K and V in one element type.",
        field: "fp8",
        needed: NEEDED_OWN,
        fix: "take qkvault's kernels (engine: kernels), or queries in 8 bits too (fp8: delayed)",
        source: SOURCE,
        applies: Applies::Lowering(|f| given(f.a.fp8 == Some(Fp8::Cache), "a cache in 8 bits beside 16-bit queries")),
        ..Entry::not_built()
    },
    NOT_BUILT_OUTPUTS = Entry {
        code: "not-built.outputs",
        cause: "With a sink, cuDNN includes the sink in Max and Sum_exp; these outputs are defined without it.",
        field: "outputs",
        needed: NEEDED,
        fix: FIX,
        source: SOURCE,
        applies: Applies::Lowering(|f| {
            let Outputs { max, sum_exp, .. } = f.a.outputs;
            given((max || sum_exp) && f.a.sink, "Max or Sum_exp of an attention with a sink")
        }),
        ..Entry::not_built()
    },
    NOT_BUILT_PADDED_ROWS = Entry {
        code: "not-built.padded-rows",
        cause: "cuDNN does not write output rows beyond a sequence's length.",
        field: "padded_rows",
        needed: NEEDED,
        fix: FIX,
        source: SOURCE,
        applies: Applies::Lowering(|f| {
            // The canonical form has `Zero` only if there are such rows.
            given(f.a.padded_rows == PaddedRows::Zero, "padded rows written as zeros")
        }),
        ..Entry::not_built()
    },
];
