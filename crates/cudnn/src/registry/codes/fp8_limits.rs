//! Limits of the engines of 8-bit attention: what they refuse, or have no kernel for. Those of block scales alone are
//! in `mxfp8`.

use super::{FE_FP8_BACKWARD, FP8_COMPILED};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Versions};
use crate::{CudnnVersion, Fp8};

/// What was given, in 8 bits with one scale per tensor.
pub(super) fn given(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    of_either(f, is && f.per_tensor(), what)
}

/// What was given, in 8 bits with any scales.
pub(super) fn of_either(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (is && f.eight_bits()).then(|| format!("{what}, in 8 bits"))
}

/// The expression or predicate that was given, in 8 bits with any scales.
pub(super) fn expression(f: &Facts<'_>) -> Option<String> {
    of_either(f, f.a.score_mod.is_some() || f.a.mask.mask_mod.is_some(), "a score expression or predicate")
}

/// The head dims, in 8 bits.
fn head_dims(f: &Facts<'_>, is: bool) -> Option<String> {
    given(f, is, &format!("head dims {} and {}", f.d_qk, f.d_v))
}

declare![
    FP8_GPU = Entry {
        code: "fp8.gpu",
        cause: "cuDNN has no 8-bit attention for GPUs before compute capability 9.0, and for 12.x only in newer \
                versions.",
        affected: &[Versions::ALL.on(Gpus::BEFORE_HOPPER), Versions::before(19, 0).on(Gpus::CONSUMER_BLACKWELL)],
        field: "fp8",
        needed: "compute capability 9.0 or newer for 8-bit attention, and cuDNN 9.19 or newer on 12.x",
        fix: "use 16 bits on this GPU",
        source: FP8_COMPILED,
        evidence: "On 12.x, 9.14 refuses it and 9.19 compiles it; versions between were not tried.",
        applies: Applies::Rules(|f| given(f, true, "attention")),
        ..Entry::rule()
    },
    FP8_OUTPUT = Entry {
        code: "fp8.output",
        cause: "Only kernels of compute capability 10.x write 16-bit outputs of 8-bit attention.",
        affected: &[Versions::ALL.on(Gpus::HOPPER), Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "fp8",
        needed: "delayed scaling, whose outputs are 8-bit: 16-bit outputs need compute capability 10.x",
        fix: "use delayed scaling and 8-bit outputs on this GPU",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `FP8 input with F16 output is only supported on Blackwell`.",
        applies: Applies::Rules(|f| given(f, f.a.fp8 == Some(Fp8::Current), "16-bit outputs")),
        ..Entry::rule()
    },
    FP8_HEAD_DIM_MULTIPLE = Entry {
        code: "fp8.head-dim-multiple",
        cause: "Head dims of 8-bit attention are multiples of 16.",
        field: "q.dims[3], v.dims[3]",
        needed: "head dims that are multiples of 16",
        fix: "pad the head dim with zeros to the next multiple of 16, and keep the softmax scale",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `Embedding dim per head for q and k is not a multiple of 16`.",
        applies: Applies::Rules(|f| {
            let odd = f.d_qk % 16 != 0 || f.d_v % 16 != 0;
            of_either(f, odd, &format!("head dims {} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::rule()
    },
    FP8_HEAD_DIM = Entry {
        code: "fp8.head-dim",
        cause: "No kernel of 8-bit attention has so large a head dim on this GPU.",
        affected: &[
            Versions::ALL.on(Gpus::HOPPER),
            Versions::ALL.on(Gpus::BLACKWELL),
            Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)
        ],
        field: "q.dims[3], v.dims[3]",
        needed: "head dims of at most 256 on compute capability 9.0, 512 on 10.x and 128 on 12.x",
        fix: "use 16 bits for this head dim",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `is not less than equal to 256`.",
        applies: Applies::Rules(|f| {
            let most = if f.is_hopper() {
                256
            } else if f.is_blackwell() {
                512
            } else {
                128
            };
            head_dims(f, !f.backward() && (f.d_qk > most || f.d_v > most))
        }),
        ..Entry::rule()
    },
    FP8_FEW_QUERIES = Entry {
        code: "fp8.few-queries",
        cause: "For up to 8 queries of head dims 192 and 128, cuDNN generates an 8-bit kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[2]",
        needed: "on compute capability 10.x, at least 9 queries of room with head dims 192 and 128; with cuDNN 9.14, \
                 two",
        fix: "describe 9 queries or more with per-sequence lengths, and give the real length",
        source: FP8_COMPILED,
        evidence: "9.19 and 9.27 give status 4001 for 2 to 8 queries, with one scale per tensor and (9.27) with block \
                   scales, and compile 9; 9.14 compiles 2. One query is refused by each. Versions between were not \
                   tried.",
        applies: Applies::Rules(|f| {
            let few = f.s_q == 1 || (f.s_q <= 8 && f.version() >= CudnnVersion::v9(15, 0));
            let is = !f.backward() && few && (f.d_qk, f.d_v) == (192, 128);
            of_either(f, is, "few queries of head dims 192 and 128")
        }),
        ..Entry::rule()
    },
    FP8_SINK = Entry {
        code: "fp8.sink",
        cause: "With a sink, cuDNN generates an 8-bit kernel that does not compile on compute capability 9.0.",
        affected: &[Versions::from(15, 0).on(Gpus::HOPPER)],
        field: "sink",
        needed: "on compute capability 9.0, no sink in an 8-bit forward",
        fix: "add the sink to the output afterwards with Stats: multiply O by exp(Stats) / (exp(Stats) + exp(sink))",
        source: FP8_COMPILED,
        evidence: "9.16 to 9.27 give status 4001; 9.14 compiles it.",
        applies: Applies::Rules(|f| given(f, f.a.sink && !f.backward(), "a sink")),
        ..Entry::rule()
    },
    FP8_PAGED = Entry {
        code: "fp8.paged",
        cause: "8-bit kernels of compute capability 9.0 read no pages in these versions.",
        affected: &[Versions::before(16, 0).on(Gpus::HOPPER)],
        field: "k.storage",
        fix: "use a newer cuDNN, or dense keys and values",
        source: FP8_COMPILED,
        evidence: "9.14 answers `Paged Attention supported with only the SM80/SM100 instruction set kernel`; 9.16 \
                   compiles it, and 9.15 was not tried.",
        applies: Applies::Rules(|f| given(f, f.a.k.is_paged(), "paged keys and values")),
        ..Entry::rule()
    },
    FP8_DROPOUT = Entry {
        code: "fp8.dropout",
        cause: "No 8-bit kernel of this GPU drops probabilities.",
        affected: &[Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "dropout",
        needed: "compute capability 9.0 or 10.x for dropout in 8 bits",
        fix: "use 16 bits for dropout on this GPU",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `Dropout is not supported with sm120 prefill backend`.",
        applies: Applies::Rules(|f| given(f, f.dropout(), "dropout")),
        ..Entry::rule()
    },
    FP8_BACKWARD_GPU = Entry {
        code: "fp8.backward-gpu",
        cause: "cuDNN has no 8-bit backward for compute capability 12.x.",
        affected: &[Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "pass",
        needed: "compute capability 9.0 or 10.x for an 8-bit backward",
        fix: "compute the backward in 16 bits",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `No knob was found for this mode for fused attention in SM120`.",
        applies: Applies::Rules(|f| given(f, f.backward(), "a backward")),
        ..Entry::rule()
    },
    FP8_BACKWARD_HEAD_DIM = Entry {
        code: "fp8.backward-head-dim",
        cause: "On compute capability 9.0 there is one kernel for 8-bit backwards, for head dims of 128.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "q.dims[3], v.dims[3]",
        needed: "head dims of 128 in an 8-bit backward on compute capability 9.0",
        fix: "pad head dims with zeros to 128, or compute the backward in 16 bits",
        source: FP8_COMPILED,
        evidence: "cuDNN answers `Only D=128 for BPROP fp8 FMHA`.",
        applies: Applies::Rules(|f| head_dims(f, f.backward() && (f.d_qk, f.d_v) != (128, 128))),
        ..Entry::rule()
    },
    FP8_BACKWARD_ONE_QUERY = Entry {
        code: "fp8.backward-one-query",
        cause: "For a backward of one query of one sequence, cuDNN generates an 8-bit kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::HOPPER), Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[2]",
        needed: "more than one query or sequence in an 8-bit backward",
        fix: "pad to two queries and give lengths of 1",
        source: FP8_COMPILED,
        evidence: "9.19 and 9.27 give status 4001 with one head and with several, and compile two sequences.",
        applies: Applies::Rules(|f| {
            of_either(f, f.backward() && f.s_q == 1 && f.a.batch() == 1, "one query of one sequence in a backward")
        }),
        ..Entry::rule()
    },
    FP8_BACKWARD_HEADS = Entry {
        code: "fp8.backward-heads",
        cause: "If query heads share value heads and not key heads, or on 10.x the reverse, cuDNN generates an 8-bit \
                backward that does not compile.",
        affected: &[Versions::ALL.on(Gpus::HOPPER), Versions::ALL.on(Gpus::BLACKWELL)],
        field: "k.dims[1], v.dims[1]",
        needed: "in an 8-bit backward, key and value heads that are both fewer than query heads, or both as many; on \
                 compute capability 9.0 fewer key heads are enough",
        fix: "repeat the shared heads, or compute the backward in 16 bits",
        source: FP8_COMPILED,
        evidence: "9.19 and 9.27 give status 4001 for 16 query heads over 2 and 16, and compile 4 and 2. On compute \
                   capability 9.0 they do so if value heads alone are shared, and compile shared key heads.",
        applies: Applies::Rules(|f| {
            let as_many = |heads: i64| heads == f.a.q.heads();
            let (k, v) = (f.a.k.heads(), f.a.v.heads());
            let apart = if f.is_hopper() { as_many(k) && !as_many(v) } else { as_many(k) != as_many(v) };
            of_either(f, f.backward() && apart, &format!("{k} key and {v} value heads in a backward"))
        }),
        ..Entry::rule()
    },
    FP8_BACKWARD_VARLEN = Entry {
        code: "fp8.backward-varlen",
        cause: "For varlen operands of as many key heads as query heads, cuDNN generates an 8-bit backward that does \
                not compile on compute capability 9.0.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "q.storage",
        needed: "dense operands with lengths in an 8-bit backward on compute capability 9.0",
        fix: "use dense operands with lengths",
        source: FP8_COMPILED,
        applies: Applies::Rules(|f| {
            let single = f.a.q.heads() == f.a.k.heads() && f.a.q.heads() == f.a.v.heads();
            given(f, f.backward() && f.varlen() && single, "varlen operands in a backward")
        }),
        ..Entry::rule()
    },
    FP8_BACKWARD_EXTRAS = Entry {
        code: "fp8.backward-extras",
        cause: "With dropout, a score expression or a mask predicate, cuDNN generates an 8-bit backward that does not \
                compile on compute capability 10.x.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "score_mod, mask.mask_mod, dropout",
        needed: "in an 8-bit backward on compute capability 10.x, no dropout, no score expression, and no mask \
                 predicate other than a band",
        fix: "compute the backward in 16 bits",
        source: FE_FP8_BACKWARD,
        evidence: "9.19 and 9.27 give status 4001.",
        applies: Applies::Rules(|f| {
            let what = match (&f.a.score_mod, &f.a.mask.mask_mod) {
                (Some(_), _) => "a score expression in a backward",
                (None, Some(_)) => "a predicate in a backward",
                (None, None) => "dropout in a backward",
            };
            let any = f.a.score_mod.is_some() || f.a.mask.mask_mod.is_some() || f.dropout();
            given(f, f.backward() && any, what)
        }),
        ..Entry::rule()
    },
    FP8_EXPRESSION_SINK = Entry {
        code: "fp8.expression-sink",
        cause: "For a sink together with a score expression or a mask predicate, cuDNN generates an 8-bit forward that \
                does not compile on compute capability 10.x.",
        affected: &[Versions::from(20, 0).on(Gpus::BLACKWELL)],
        field: "sink",
        needed: "in an 8-bit forward on compute capability 10.x, no sink with a score expression or predicate, or \
                 cuDNN 9.19 or older",
        fix: "leave the expression out, or compute this attention in 16 bits",
        source: FP8_COMPILED,
        evidence: "9.27 gives status 4001 for 26 forwards of 1 to 512 queries, dense and varlen; 9.14 and 9.19 compile \
                   them. Versions between were not tried.",
        applies: Applies::Rules(|f| {
            let expression = f.a.score_mod.is_some() || f.a.mask.mask_mod.is_some();
            given(f, f.a.sink && expression && !f.backward(), "a sink with an expression")
        }),
        ..Entry::rule()
    },
];
