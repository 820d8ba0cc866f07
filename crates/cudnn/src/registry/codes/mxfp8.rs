//! Attention in 8 bits with block scales (MXFP8): what crashes cuDNN, what it has no kernel for, and what it computes
//! wrongly.

use super::MXFP8_COMPILED;
use crate::DType;
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};

/// What was given, with block scales.
fn given(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (is && f.blocks()).then(|| format!("{what}, with block scales"))
}

/// GPUs before compute capability 10.0.
const BEFORE: Gpus = Gpus { from: 0, to: 99 };
/// GPUs after compute capability 10.3.
const BEHIND: Gpus = Gpus { from: 104, to: u32::MAX };

declare![
    MXFP8_GPU = Entry {
        code: "mxfp8.gpu",
        cause: "cuDNN has attention with block scales for compute capability 10.0 to 10.3 alone, and ends the process on \
                12.x.",
        affected: &[Versions::ALL.on(BEFORE), Versions::ALL.on(BEHIND)],
        field: "fp8",
        needed: "compute capability 10.0 to 10.3 for block scales",
        fix: "use one scale per tensor (`fp8: delayed`), or 16 bits on this GPU",
        source: MXFP8_COMPILED,
        evidence: "On 12.0 each of 9.21 to 9.27 ends the process (SIGSEGV) while heuristics are asked, with any shape. On \
                   9.0 heuristics offer an engine whose kernel does not compile (status 4001); 8.9 is refused. 10.7 was \
                   not tried with a real GPU's properties.",
        applies: Applies::Lowering(|f| given(f, true, "attention")),
        ..Entry::rule()
    },
    MXFP8_ONE_QUERY = Entry {
        code: "mxfp8.one-query",
        cause: "With block scales and one query, cuDNN ends the process.",
        field: "q.dims[2]",
        needed: "at least two queries of room with block scales",
        fix: "describe a decode as two queries with per-sequence lengths, and give a query length of 1",
        source: MXFP8_COMPILED,
        evidence: "9.21, 9.23, 9.24, 9.25, 9.26 and 9.27 end the process (SIGSEGV) while heuristics are asked, with any \
                   head dim and any heads.",
        applies: Applies::Lowering(|f| given(f, f.s_q == 1 && !f.backward(), "one query")),
        ..Entry::rule()
    },
    MXFP8_PAGED = Entry {
        code: "mxfp8.paged",
        cause: "No engine reads block scales through a page table.",
        field: "k.storage",
        needed: "dense keys and values with block scales",
        fix: "use dense keys and values, or one scale per tensor (`fp8: delayed`)",
        source: "cudnn-frontend 1.32, node/sdpa_support_surface.h",
        evidence: "NVIDIA's front end 1.32 refuses it: `No backend engine loads block-scale pools through a block table`; \
                   1.23 writes such a graph without the scales of K.",
        applies: Applies::Lowering(|f| given(f, f.a.k.is_paged(), "paged keys and values")),
        ..Entry::rule()
    },
    MXFP8_BACKWARD_EXTRAS = Entry {
        code: "mxfp8.backward-extras",
        cause: "With dropout, a score expression or a mask predicate, the engine of a backward with block scales has no \
                kernel that compiles.",
        field: "dropout, score_mod, mask.mask_mod",
        needed: "no dropout, score expression or mask predicate in a backward with block scales",
        fix: "compute the backward in 16 bits",
        source: MXFP8_COMPILED,
        evidence: "Status 4001 for dropout, a bias and a softcap.",
        applies: Applies::Lowering(|f| {
            let extra = f.dropout() || f.a.score_mod.is_some() || f.a.mask.mask_mod.is_some();
            given(f, f.backward() && extra, "dropout, an expression or a predicate in a backward")
        }),
        ..Entry::rule()
    },
    MXFP8_VERSION = Entry {
        code: "mxfp8.version",
        cause: "Engines of attention take block scales from cuDNN 9.21 on.",
        affected: &[Versions::before(21, 0).on(Gpus::ALL)],
        field: "fp8",
        fix: "use a newer cuDNN, or one scale per tensor (`fp8: delayed`)",
        source: MXFP8_COMPILED,
        evidence: "9.14 and 9.19 answer `Not supported node in flash fprop`.",
        applies: Applies::Rules(|f| given(f, true, "attention")),
        ..Entry::rule()
    },
    MXFP8_HEAD_DIM = Entry {
        code: "mxfp8.head-dim",
        cause: "Kernels for block scales have head dims of at most 128, or 192 and 128.",
        field: "q.dims[3], v.dims[3]",
        needed: "head dims of at most 128, or 192 and 128",
        fix: "use one scale per tensor (`fp8: delayed`), or 16 bits for these head dims",
        source: MXFP8_COMPILED,
        evidence: "Forwards of 144 to 512 columns of Q and K give status 4001; a backward answers `is not less than equal \
                   to 128`.",
        applies: Applies::Rules(|f| {
            let fits = (f.d_qk <= 128 && (f.d_v <= 128 || !f.backward())) || (f.d_qk, f.d_v) == (192, 128);
            given(f, !fits, &format!("head dims {} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::rule()
    },
    MXFP8_BACKWARD_TYPE = Entry {
        code: "mxfp8.backward-type",
        cause: "A backward with block scales reads Q, K and V in E4M3 alone.",
        field: "q.dtype",
        needed: "e4m3 for Q, K and V in a backward; dO may be e5m2",
        fix: "use e4m3",
        source: MXFP8_COMPILED,
        evidence: "cuDNN answers `Data type for Q tensor should be half / bf16 / e4m3 / e5m2`.",
        applies: Applies::Rules(|f| given(f, f.backward() && f.a.q.dtype == DType::E5M2, "e5m2 in a backward")),
        ..Entry::rule()
    },
    MXFP8_VARLEN = Entry {
        code: "mxfp8.varlen",
        cause: "With block scales, cuDNN compiles varlen operands and reads them as dense ones.",
        field: "q.storage",
        needed: "dense operands with lengths",
        fix: "use dense operands with lengths",
        source: MXFP8_COMPILED,
        evidence: "The workspace has no room for the tensor maps of each sequence, which 16-bit plans and plans with one \
                   scale per tensor need for Q, K and V; so their offsets are not read. NVIDIA's front end and \
                   Transformer Engine refuse it. This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/TransformerEngine/blob/main/transformer_engine/pytorch/attention/dot_product_attention/utils.py"
        ],
        applies: Applies::Rules(|f| given(f, f.varlen(), "varlen operands")),
        ..Entry::quirk(29)
    },
    MXFP8_NAN = Entry {
        code: "mxfp8.nan",
        cause: "cuDNN 9.23.0 and 9.23.1 give infinities and NaN with block scales.",
        affected: &[Versions::between((23, 0), (23, 2)).on(Gpus::ALL)],
        field: "fp8",
        needed: "cuDNN 9.23.2 or newer, or before 9.23",
        fix: "use another cuDNN",
        source: "Transformer Engine's pull request 3173",
        evidence: "It refuses these two versions. This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &["https://github.com/NVIDIA/TransformerEngine/pull/3173"],
        applies: Applies::Rules(|f| given(f, true, "attention")),
        ..Entry::quirk(30)
    },
    MXFP8_VALUE_HEAD_DIM = Entry {
        code: "mxfp8.value-head-dim",
        cause: "With block scales, cuDNN compiles any head dim of V above 128, also those that no kernel has.",
        field: "v.dims[3]",
        needed: "head dims of at most 128, or 192 and 128",
        fix: "use one scale per tensor (`fp8: delayed`), or 16 bits for these head dims",
        source: MXFP8_COMPILED,
        evidence: "9.27 compiles 144 to 528 columns of V under 16 to 128 of Q, and refuses 528 with one scale per tensor. \
                   This was not confirmed on a GPU.",
        standing: Some(Standing::seen("no GPU, while it is compiled", "cuDNN 9.27", "qkvault-lab fuzz-rules")),
        applies: Applies::Rules(|f| {
            let wide = f.d_qk <= 128 && f.d_v > 128 && !f.backward();
            given(f, wide, &format!("head dims {} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::quirk(36)
    },
];
