//! Attention in 8 bits with one scale per tensor: what lowering does not write.

use super::FE_FP8_BACKWARD;
use crate::DropoutSource;
use crate::lower::lacks_8_bit_engine;
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Versions};

declare![
    FP8_TENSOR_GRADIENT = Entry {
        code: "fp8.tensor-gradient",
        cause: "No 8-bit backward computes the gradient of a tensor of the score expression.",
        field: "score_mod",
        needed: "in 8 bits, no gradient of a tensor of the score expression",
        fix: "request no gradient of the tensor, or compute the backward in 16 bits",
        source: FE_FP8_BACKWARD,
        applies: Applies::Lowering(|f| {
            (f.per_tensor() && f.wants_tensor_gradient()).then(|| "the gradient of a bias, in 8 bits".to_owned())
        }),
        ..Entry::rule()
    },
    FP8_DROPOUT_MASK = Entry {
        code: "fp8.dropout-mask",
        cause: "With the caller's dropout mask in 8 bits, cuDNN ends the process.",
        field: "dropout",
        needed: "in 8 bits, dropout by Philox",
        fix: "use dropout by Philox, or 16 bits",
        source: "answers of cuDNN 9.14, 9.19 and 9.27 for compute capabilities 9.0 and 10.0",
        evidence: "Each throws a C++ exception that nobody can catch (SIGABRT), in forwards of any shape.",
        applies: Applies::Lowering(|f| {
            let by_caller = f.a.dropout.is_some_and(|d| d.source == DropoutSource::Mask);
            (f.eight_bits() && by_caller).then(|| "dropout by the caller's mask, in 8 bits".to_owned())
        }),
        ..Entry::rule()
    },
    FP8_BACKWARD_DETERMINISTIC = Entry {
        code: "fp8.backward-deterministic",
        cause: "On compute capability 9.0 the engine of 8-bit backwards sums dQ in any order, and refuses the knob for \
                a fixed one.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "pass.deterministic",
        needed: "on compute capability 9.0, no deterministic 8-bit backward",
        fix: "sum gradients in any order (deterministic: no), or compute the backward in 16 bits",
        source: super::FP8_COMPILED,
        evidence: "cuDNN answers `Deterministic ordered dQ (STAGES = 4) is not supported with fp8/mxfp8`. NVIDIA's \
                   front end takes the flag and ignores it.",
        applies: Applies::Lowering(|f| {
            let ordered = f.per_tensor() && f.gradients.is_some_and(|g| g.deterministic);
            ordered.then(|| "a deterministic backward, in 8 bits".to_owned())
        }),
        ..Entry::rule()
    },
    FP8_BACKWARD_ENGINE = Entry {
        code: "fp8.backward-engine",
        cause: "On 10.x, NVIDIA's front end names the engine of an 8-bit backward, and it names none for this version \
                and these head dims.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "pass",
        needed: "on compute capability 10.0 to 10.3, cuDNN 9.19.0 or newer, and head dims of at most 128, or 192 and \
                 128",
        fix: "use a newer cuDNN, or compute the backward in 16 bits",
        source: FE_FP8_BACKWARD,
        evidence: "9.18.1 ends the process (SIGSEGV) when the engine's configuration is finalized; 9.16 answers \
                   `NOT_SUPPORTED: !isValidSetting(name, c)`. The engines of heuristics are tested by nobody at \
                   NVIDIA.",
        applies: Applies::Lowering(|f| {
            lacks_8_bit_engine(f.a, f.target).then(|| {
                format!("an 8-bit backward with head dims {} and {}, for cuDNN {}", f.d_qk, f.d_v, f.version())
            })
        }),
        ..Entry::rule()
    },
];
