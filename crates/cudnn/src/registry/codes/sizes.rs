//! Head dims and lengths.

use super::{FE_BACKWARD, FE_FORWARD, FUZZED, GPU};
use crate::CudnnVersion;
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};

/// The head dims of Q and K, and of V and O, as a reason gives them.
fn head_dim(f: &Facts<'_>) -> String {
    format!("{} and {} on compute capability {}.{}", f.d_qk, f.d_v, f.sm() / 10, f.sm() % 10)
}

/// The head dims, if one exceeds a limit.
fn over(f: &Facts<'_>, limit: i64) -> Option<String> {
    (f.d_qk.max(f.d_v) > limit).then(|| head_dim(f))
}

declare![
    HEAD_DIM_MULTIPLE_OF_8 = Entry {
        code: "head-dim.multiple-of-8",
        cause: "A head dim is not a multiple of 8: the kernels move rows in units of 16 bytes.",
        field: "q.dims[3], v.dims[3]",
        needed: "head dims that are multiples of 8",
        fix: "pad the rows with zeros to the next multiple of 8",
        source: FUZZED,
        evidence: "All three versions answer `d_qk % 8 != 0` or `d_v % 8 != 0`.",
        applies: Applies::Rules(|f| {
            (f.d_qk % 8 != 0 || f.d_v % 8 != 0).then(|| format!("{} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::rule()
    },
    HEAD_DIM_FORWARD_OLD = Entry {
        code: "head-dim.forward-old",
        cause: "A head dim of a forward is larger than these versions support.",
        affected: &[
            Versions::before(9, 1).on(Gpus { from: 0, to: 99 }),
            Versions::before(9, 0).on(Gpus::BLACKWELL),
            Versions::before(9, 1).on(Gpus { from: 110, to: u32::MAX })
        ],
        field: "q.dims[3], v.dims[3]",
        needed: "head dims of up to 256 on compute capability 9.0, up to 128 on others",
        fix: "use cuDNN 9.10.2 or newer",
        source: FE_FORWARD,
        applies: Applies::Rules(|f| {
            if f.backward() { None } else { over(f, if f.is_hopper() { 256 } else { 128 }) }
        }),
        ..Entry::rule()
    },
    HEAD_DIM_RUBIN_OLD = Entry {
        code: "head-dim.rubin-old",
        cause: "PyTorch gives these versions no head dims above 128 on compute capability 10.7, except 192 and 128.",
        affected: &[Versions::before(25, 1).on(Gpus { from: 107, to: 107 })],
        field: "q.dims[3], v.dims[3]",
        fix: "use cuDNN 9.25.1 or newer",
        source: "PyTorch, `check_cudnn_tensor_shapes` in aten/src/ATen/native/transformers/cuda/sdp_utils.cpp",
        applies: Applies::Rules(|f| if (f.d_qk, f.d_v) == (192, 128) { None } else { over(f, 128) }),
        ..Entry::rule()
    },
    HEAD_DIM_BACKWARD = Entry {
        code: "head-dim.backward",
        cause: "A head dim of a backward is larger than any kernel for this GPU supports.",
        field: "q.dims[3], v.dims[3]",
        needed: "in a backward, head dims of up to 128; on compute capability 9.0, up to 256; on 10.x also 192 with \
                 128 since 9.11, and 256 with 256 since 9.23 if the backward is deterministic",
        fix: "run the backward on a Hopper GPU, set `deterministic: yes` for 256 with 256 on 10.x, or split the head \
              dim of V and O, which is exact",
        source: FUZZED,
        evidence: "cuDNN refuses head dims above 128, and on compute capability 9.0 above 256.",
        applies: Applies::Rules(|f| {
            let limit = if f.is_hopper() { 256 } else { 128 };
            let latent = f.is_blackwell() && (f.d_qk, f.d_v) == (192, 128) && f.version() >= CudnnVersion::v9(11, 0);
            let named = f.names_engine() && (f.d_qk, f.d_v) == (256, 256) && f.version() >= CudnnVersion::v9(23, 0);
            if f.backward() && !latent && !named { over(f, limit) } else { None }
        }),
        ..Entry::rule()
    },
    HEAD_DIM_BACKWARD_LATENT = Entry {
        code: "head-dim.backward-latent",
        cause: "For head dims between 128 and 192 of Q and between 64 and 128 of V, these versions support a backward \
                only for some pairs.",
        affected: &[Versions::between((11, 0), (13, 0)).on(Gpus::HOPPER)],
        field: "q.dims[3], v.dims[3]",
        needed: "for head dims between 128 and 192 of Q and between 64 and 128 of V, either 192 for Q or 128 for V",
        fix: "use cuDNN 9.13 or newer",
        source: FE_BACKWARD,
        applies: Applies::Rules(|f| {
            let between = (129..=192).contains(&f.d_qk) && (65..=128).contains(&f.d_v);
            (f.backward() && between && f.d_qk != 192 && f.d_v != 128).then(|| head_dim(f))
        }),
        ..Entry::rule()
    },
    HEAD_DIM_BACKWARD_LATENT_ONE_QUERY = Entry {
        code: "head-dim.backward-latent-one-query",
        cause: "For a backward with head dims 192 and 128 and one query, cuDNN generates a kernel that does not \
                compile.",
        affected: &[Versions::from(11, 0).on(Gpus::BLACKWELL)],
        field: "q.dims[2]",
        needed: "in a backward with head dims 192 and 128 on compute capability 10.x, more than one query or sequence, \
                 or a single head: for one query, cuDNN generates a kernel that does not compile",
        fix: "pad to two queries and give lengths of 1, or run the backward on a Hopper GPU",
        source: FUZZED,
        evidence: "cuDNN answers `compilationResult != NVRTC_SUCCESS`; with a single head the kernel compiles.",
        applies: Applies::Rules(|f| {
            let latent = f.backward() && (f.d_qk, f.d_v) == (192, 128);
            (latent && f.one_query_of_several_heads())
                .then(|| format!("one query of one sequence and {} heads", f.a.q.heads()))
        }),
        ..Entry::rule()
    },
    HEAD_DIM_PHILOX = Entry {
        code: "head-dim.philox",
        cause: "For Philox dropout and rows of V that are shorter than those of K, cuDNN generates a kernel that does \
                not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[3], v.dims[3]",
        needed: "in a forward with Philox dropout on compute capability 10.x, head dims of V and O other than 128 if \
                 those of Q and K are over 128 (192 is supported for nine queries or more): otherwise cuDNN generates \
                 a kernel that does not compile",
        fix: "pad V and O to the head dim of Q, give the dropout mask as an operand, or use a Hopper GPU",
        source: FUZZED,
        evidence: "cuDNN answers `compilationResult != NVRTC_SUCCESS`: in 233 descriptions, counted together with \
                   `head-dim.philox-one-query`.",
        applies: Applies::Rules(|f| {
            let drawn = !f.backward() && f.philox();
            let refused = drawn && f.d_v == 128 && f.d_qk > 128 && (f.d_qk != 192 || f.s_q <= 8);
            refused.then(|| format!("{}, {} queries", head_dim(f), f.s_q))
        }),
        ..Entry::rule()
    },
    HEAD_DIM_PHILOX_ONE_QUERY = Entry {
        code: "head-dim.philox-one-query",
        cause: "For Philox dropout, one query and a head dim over 128, cuDNN generates a kernel that does not compile.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[2]",
        needed: "more than one query in a forward with Philox dropout and head dims over 128 on compute capability \
                 10.x; 256 for both is supported since 9.23",
        fix: "pad to two queries and give lengths of 1, give the dropout mask as an operand, or use a Hopper GPU",
        source: FUZZED,
        evidence: "cuDNN answers `compilationResult != NVRTC_SUCCESS`: in 233 descriptions, counted together with \
                   `head-dim.philox`.",
        applies: Applies::Rules(|f| {
            let drawn = !f.backward() && f.philox() && f.s_q == 1;
            let taken = (f.d_qk, f.d_v) == (256, 256) && f.version() >= CudnnVersion::v9(23, 0);
            (drawn && !taken && f.d_qk.max(f.d_v) > 128).then(|| format!("one query, head dims {}", head_dim(f)))
        }),
        ..Entry::rule()
    },
    DROPOUT_MASK_ODD = Entry {
        code: "dropout.mask-odd",
        cause: "The kernel reads two elements of the dropout mask at a time. With an odd number of keys, it multiplies \
                values by what follows the mask in memory.",
        field: "k.dims[2]",
        needed: "for a dropout mask of one query, one head and one sequence, an even number of keys: the kernel reads \
                 two elements of the mask at a time, and multiplies the values by what follows the last",
        fix: "pad to an even number of keys, with a mask, lengths or a predicate that hides the last, or let cuDNN \
              draw the dropout",
        source: GPU,
        evidence: "With NaN behind the mask, 51 of 51 such forwards gave NaN.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.14, 9.19 and 9.27",
            "qkvault-lab selftest --allow dropout.mask-odd"
        )),
        applies: Applies::Rules(|f| {
            let by_mask = !f.backward() && f.dropout() && !f.philox();
            let one_row = f.a.batch() * f.a.q.heads() * f.s_q == 1;
            (by_mask && one_row && f.s_kv >= 3 && f.s_kv % 2 == 1)
                .then(|| format!("a dropout mask of one row of {} keys", f.s_kv))
        }),
        ..Entry::quirk(19)
    },
    DROPOUT_PHILOX_OLD = Entry {
        code: "dropout.philox-old",
        cause: "Heuristics of these versions give no engine for some attentions with dropout, or one that fails, so \
                PyTorch gives them none with dropout.",
        affected: &[Versions::between((11, 0), (14, 0)).on(Gpus::ALL)],
        field: "dropout",
        needed: "cuDNN 9.14 or newer, or 9.10 or older, for dropout that cuDNN draws: PyTorch turned it off for the \
                 versions between",
        fix: "use cuDNN 9.14 or newer, or give the dropout mask as an operand",
        source: "PyTorch pull request 163903",
        evidence: "The pull request names crashes of heuristics, not wrong numbers. Self-tests ran under 9.14, 9.19 and \
                   9.27 only.",
        standing: Some(Standing::Reported),
        reports: &["https://github.com/pytorch/pytorch/pull/163903"],
        applies: Applies::Rules(|f| f.philox().then(|| format!("dropout that cuDNN {} draws", f.version()))),
        ..Entry::quirk(38)
    },
    SIZE_GRID = Entry {
        code: "size.grid",
        cause: "In a backward, and with one query, sequences and heads are dims of the launch grid, which a driver \
                limits to 65,535.",
        field: "q.dims",
        needed: "in a backward, or with one query, at most 65,535 sequences and at most 65,535 heads",
        fix: "split the batch, or the heads, into several launches",
        source: "CUDA programming guide, compute capabilities; pytorch issues 181235 and 180718",
        evidence: "On an H100 under cuDNN 9.19 plans of 65,536 and 70,000 sequences or heads compile, and launches of \
                   backwards and of one query fail; forwards of more queries are right.",
        standing: Some(Standing::seen("an H100", "cuDNN 9.19", "qkvault-lab selftest --allow size.grid --file CASES")),
        reports: &[
            "https://github.com/pytorch/pytorch/issues/181235",
            "https://github.com/pytorch/pytorch/issues/180718"
        ],
        applies: Applies::Rules(|f| {
            const MOST: i64 = 65_535;
            let (batch, heads) = (f.a.batch(), f.a.q.heads());
            let beyond = (f.backward() || f.s_q == 1) && (batch > MOST || heads > MOST);
            beyond.then(|| format!("{batch} sequences and {heads} heads"))
        }),
        ..Entry::quirk(39)
    },
];
