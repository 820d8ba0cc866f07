//! Expressions, tensors that they read, and gradients that every tested form computes wrongly.

use super::{FUZZED, GPU};
use crate::expr::{Grad, TensorSpec};
use crate::lower::derivative_meets_lengths;
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};
use crate::row_of_a_constant;

/// The tensors of both expressions.
pub(super) fn tensors<'a>(f: &Facts<'a>) -> impl Iterator<Item = &'a TensorSpec> {
    [&f.a.score_mod, &f.a.mask.mask_mod].into_iter().flatten().flat_map(|e| e.tensors())
}

/// Whether a tensor has 16-bit elements and one number for each of several sequences.
fn is_narrow(spec: &&TensorSpec) -> bool {
    let [b, _, q, k] = spec.dims;
    spec.dtype.size() == 2 && b > 1 && (q, k) == (1, 1)
}

declare![
    BACKWARD_LENGTH_TAIL = Entry {
        code: "backward.length-tail",
        cause: "A tile reaches beyond the lengths, and the derivative of the expression is not finite for the scores \
                there.",
        field: "score_mod",
        needed: "lengths that fill whole tiles, or an expression whose derivative is finite at minus infinity and at \
                 zero",
        fix: "make the number of queries and of keys a multiple of 128 (the lengths tell how much of it is used)",
        source: GPU,
        evidence: "Under 9.19, dQ and dK contained NaN.",
        standing: Some(Standing::seen("an H200", "cuDNN 9.19", "qkvault-lab selftest --allow backward.length-tail")),
        applies: Applies::Lowering(|f| {
            derivative_meets_lengths(f.a, f.target).then(|| {
                "per-sequence lengths that are not multiples of a tile, with an expression whose derivative is not \
                 finite beyond the last row and key"
                    .to_owned()
            })
        }),
        ..Entry::quirk(0)
    },
    SCORE_MOD_ONE_QUERY_NARROW = Entry {
        code: "score-mod.one-query-narrow",
        cause: "The kernels for one query read a 16-bit tensor with one number per sequence at a misaligned address.",
        field: "score_mod",
        needed: "a tensor of 32-bit numbers: every form reads 16-bit numbers wrongly",
        fix: "give one number per sequence in f32",
        source: GPU,
        evidence: "Under 9.19, the launch ended with a misaligned address; f32 is right.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow score-mod.one-query-narrow --isolate 4"
        )),
        applies: Applies::Lowering(|f| {
            let narrow = if f.s_q == 1 { tensors(f).find(is_narrow) } else { None };
            narrow.map(|spec| {
                format!(
                    "one query, with a {} tensor of extents {:?}: a misaligned read ends the launch",
                    spec.dtype, spec.dims
                )
            })
        }),
        ..Entry::quirk(1)
    },
    SCORE_MOD_FAR_DIVIDEND = Entry {
        code: "score-mod.far-dividend",
        cause: "A floor division (`//`) is computed in float32, which is exact for dividends up to 2^24 by a power of \
                two and below 2^22 by another constant, and this dividend may be larger.",
        field: "score_mod",
        needed: "a dividend of at most 2^24 by a power of two, and below 2^22 by another constant",
        fix: "limit the dividend with min and max, as in `min(max(x, 0), 4194303) // 100`",
        source: "the rounding of float32 (proof: `floor_div_reach`)",
        applies: Applies::Lowering(|f| {
            let (least, most, divisor) = f.far_dividend()?;
            Some(format!("a dividend from {least} to {most}, by {divisor}"))
        }),
        ..Entry::not_built()
    },
    BACKWARD_SINGLE_ROW = Entry {
        code: "backward.single-row",
        cause: "cuDNN ends the process while it compiles a backward of one sequence, one head and one query.",
        affected: &[Versions::from(26, 0).on(Gpus::ALL)],
        field: "q",
        needed: "more than one row, or head dims over 128",
        fix: "use two heads or two queries, or cuDNN 9.25",
        source: FUZZED,
        evidence: "9.26.0 and 9.27.0 end in a segmentation fault for head dims of 64 and 128; 192 and 256 compile, and \
                   9.14.0 to 9.25.1 compile all.",
        standing: Some(Standing::seen(
            "no GPU, while it is compiled",
            "cuDNN 9.26.0 and 9.27.0",
            "qkvault-lab fuzz-rules"
        )),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/issues/1071"],
        applies: Applies::Lowering(|f| {
            let single = f.backward() && (f.a.batch(), f.a.q.heads(), f.s_q) == (1, 1, 1) && f.d_qk <= 128;
            single.then(|| {
                "a backward of one row (one sequence, one head, one query) with head dims of up to 128, for which \
                 cuDNN ends the process"
                    .to_owned()
            })
        }),
        ..Entry::quirk(2)
    },
    BACKWARD_TENSOR_GRADIENT = Entry {
        code: "backward.tensor-gradient",
        cause: "The gradient of a tensor that is broadcast over queries or keys is wrong, and dV is wrong with it.",
        field: "score_mod",
        needed: "a tensor with all queries and keys: every form computes smaller tensors wrongly",
        fix: "request the gradient of a tensor with all queries and keys (batch and heads may be 1), and sum it over \
              the axes that were broadcast",
        source: GPU,
        evidence: "Under 9.19, dV was off by 0.8 to 1.4, and the gradient by an arbitrary factor.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow backward.tensor-gradient"
        )),
        applies: Applies::Lowering(|f| {
            let score = f.a.score_mod.as_ref().filter(|_| f.backward())?;
            let partial = |spec: &&TensorSpec| {
                let [_, _, q, k] = spec.dims;
                spec.grad == Grad::Needed && (q, k) != (f.s_q, f.s_kv)
            };
            let (spec, s_q, s_kv) = (score.tensors().iter().find(partial)?, f.s_q, f.s_kv);
            Some(format!("the gradient of a tensor of extents {:?}, for {s_q} queries and {s_kv} keys", spec.dims))
        }),
        ..Entry::quirk(3)
    },
    BACKWARD_SINK_PHILOX = Entry {
        code: "backward.sink-philox",
        cause: "The gradient of a sink is wrong if cuDNN draws the dropout.",
        field: "d_sink",
        needed: "a dropout mask as an operand, or no gradient of the sink",
        fix: "give the dropout mask as an operand, or leave the sink's gradient out",
        source: GPU,
        evidence: "Under 9.19 it was off by exactly the dropout probability.",
        standing: Some(Standing::seen("an H200", "cuDNN 9.19", "qkvault-lab selftest --allow backward.sink-philox")),
        applies: Applies::Lowering(|f| {
            let wrong = f.gradients.is_some_and(|g| g.d_sink) && f.philox();
            wrong.then(|| "the gradient of a sink, with dropout drawn by Philox".to_owned())
        }),
        ..Entry::quirk(4)
    },
    BACKWARD_LOWEST_ROW = Entry {
        code: "backward.lowest-row",
        cause: "All scores of a row are a large negative constant. Its log-sum-exp in float32 cannot hold the logarithm \
                of the number of keys, from which a backward computes the probabilities.",
        field: "score_mod",
        needed: "in a backward, rows that see a key whose score is above -131072, or no key at all",
        fix: "hide keys with the mask of the attention (a mask_mod, lengths or a band) instead of a constant: a row \
              without keys has zeros",
        source: "the rounding of float32 (`crates/graph/src/lowest_rows.rs`); pytorch issue 109517",
        evidence: "On an H100 under cuDNN 9.19, dV of rows of -3e38 was 49 times too large: probabilities were 1.",
        standing: Some(Standing::seen(
            "an H100",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow backward.lowest-row --file CASES"
        )),
        applies: Applies::Rules(|f| row_of_a_constant(f.a)),
        ..Entry::quirk(42)
    },
];
