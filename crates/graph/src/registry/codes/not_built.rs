//! What is described and checked, and not lowered to cuDNN yet.

use crate::registry::entry::entries;
use crate::registry::{Applies, Entry};
use crate::{Outputs, PaddedRows};

const NEEDED: &str = "this is described and checked, but not yet lowered to cuDNN";
const FIX: &str = "the CPU reference computes it";
const SOURCE: &str = "lowering, which does not write it";

fn given(is: bool, what: &str) -> Option<String> {
    is.then(|| what.to_owned())
}

entries![
    NOT_BUILT_BLOCK_MASK = Entry {
        code: "not-built.block-mask",
        cause: "Block masks are not lowered.",
        field: "block_mask",
        needed: NEEDED,
        fix: FIX,
        source: SOURCE,
        evidence: "A block mask skips blocks on compute capability 10.0 only, in the unified operation; no operation \
                   of a backward takes one (docs/results/forms.md).",
        applies: Applies::Lowering(|f| given(f.a.block_mask, "a block mask")),
        ..Entry::not_built()
    },
    NOT_BUILT_OUTPUTS = Entry {
        code: "not-built.outputs",
        cause: "With a sink, cuDNN's maximum and sum count the sink too, and these outputs are described without it.",
        field: "outputs",
        needed: NEEDED,
        fix: FIX,
        source: SOURCE,
        applies: Applies::Lowering(|f| {
            let Outputs { stats: _, max, sum_exp } = f.a.outputs;
            given((max || sum_exp) && f.a.sink, "Max or Sum_exp of an attention with a sink")
        }),
        ..Entry::not_built()
    },
    NOT_BUILT_PADDED_ROWS = Entry {
        code: "not-built.padded-rows",
        cause: "cuDNN leaves rows beyond a sequence's length as they were.",
        field: "padded_rows",
        needed: NEEDED,
        fix: FIX,
        source: SOURCE,
        applies: Applies::Lowering(|f| {
            // The canonical form wants zeros only where there are such rows.
            given(f.a.padded_rows == PaddedRows::Zero, "padded rows written as zeros")
        }),
        ..Entry::not_built()
    },
    NOT_BUILT_FP8 = Entry {
        code: "not-built.fp8",
        cause: "8-bit formats are not lowered.",
        field: "fp8",
        needed: NEEDED,
        fix: FIX,
        source: SOURCE,
        applies: Applies::Lowering(|f| given(f.a.fp8.is_some(), "8-bit formats")),
        ..Entry::not_built()
    },
];
