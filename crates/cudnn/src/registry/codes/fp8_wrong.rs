//! What an H200 computes wrongly, or does not survive, of 8-bit attention that cuDNN compiles.

use super::fp8_limits::{expression, given};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Gpus, Standing, Versions};

/// The record of random 8-bit attentions on an H200.
const SELFTEST: &str = "`qkvault-lab selftest --fp8` on an H200 under cuDNN 9.19 (docs/results/fp8.md)";

/// Query rows that the conversion of dQ to 8 bits takes at once.
const ROWS: i64 = 16;
/// Fewest keys with which no amax of a backward was too large.
const KEYS: i64 = 16;
/// Keys that a backward takes at once.
const TILE: i64 = 128;

declare![
    FP8_HOPPER_DROPOUT = Entry {
        code: "fp8.hopper-dropout",
        cause: "On compute capability 9.0 an 8-bit forward with dropout reads memory that is not its own, or writes \
                wrong numbers.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "dropout",
        needed: "on compute capability 9.0, no dropout in 8 bits",
        fix: "use 16 bits with dropout",
        source: SELFTEST,
        evidence: "Of 41 random forwards with dropout by Philox, 31 ended in an illegal address and 10 gave a wrong O. \
                   Other versions were not run.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --about fp8.hopper-dropout"
        )),
        applies: Applies::Rules(|f| given(f, f.dropout(), "dropout")),
        ..Entry::quirk(31)
    },
    FP8_HOPPER_D_SINK = Entry {
        code: "fp8.hopper-d-sink",
        cause: "On compute capability 9.0 an 8-bit backward that computes the gradient of a sink reads memory that is \
                not its own.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "pass.d_sink",
        needed: "on compute capability 9.0, no gradient of the sink in 8 bits",
        fix: "compute the gradient of the sink from Stats, dO and O, or the backward in 16 bits",
        source: SELFTEST,
        evidence: "All of 65 random backwards ended in an illegal address; 30 of 33 with a sink and without its \
                   gradient were right, and the others wrong for `fp8.hopper-queries`. Other versions were not run.",
        standing: Some(Standing::seen("an H200", "cuDNN 9.19", "qkvault-lab selftest --fp8 --about fp8.hopper-d-sink")),
        applies: Applies::Rules(|f| {
            given(f, f.gradients.is_some_and(|gradients| gradients.d_sink), "the gradient of a sink")
        }),
        ..Entry::quirk(32)
    },
    FP8_HOPPER_QUERIES = Entry {
        code: "fp8.hopper-queries",
        cause: "On compute capability 9.0 an 8-bit backward writes half of the columns of some of the last rows of dQ \
                wrongly if the number of queries is not a multiple of 16.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "q.dims[2]",
        needed: "on compute capability 9.0, a number of queries that is a multiple of 16 in an 8-bit backward",
        fix: "pad the queries to the next multiple of 16 and give lengths",
        source: SELFTEST,
        evidence: "dQ was wrong in 27 of 32 backwards of 2 queries, 17 of 28 of 17, 11 of 38 of 200 and some of 63, 65 \
                   and 300, by what a half of at most 8 rows is of the whole, and in none of 180 of 64, 96, 128, 192 \
                   or 256, with lengths of any size too. Other versions were not run.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --about fp8.hopper-queries"
        )),
        applies: Applies::Rules(|f| {
            given(f, f.backward() && f.s_q % ROWS != 0, &format!("{} queries in a backward", f.s_q))
        }),
        ..Entry::quirk(33)
    },
    FP8_HOPPER_FEW_KEYS = Entry {
        code: "fp8.hopper-few-keys",
        cause: "On compute capability 9.0 an 8-bit backward without lengths counts keys behind the last one in its \
                amaxes, which matters over a few keys.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "k.dims[2], outputs.amax",
        needed: "on compute capability 9.0, at least 16 keys, or lengths, or no amaxes in an 8-bit backward",
        fix: "pad the keys and give lengths, or leave the amaxes out (outputs: no_amax)",
        source: SELFTEST,
        evidence: "The amaxes of dP, dK and dV were too large in 6 of 8 backwards of 2 keys without a mask; gradients \
                   were right. Other versions were not run.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --about fp8.hopper-few-keys"
        )),
        applies: Applies::Rules(|f| {
            let counted = f.a.outputs.amax && !f.lengths();
            given(
                f,
                f.backward() && f.s_kv < KEYS && counted,
                &format!("the amaxes of a backward over {} keys", f.s_kv),
            )
        }),
        ..Entry::quirk(34)
    },
    FP8_HOPPER_KEYS_TAIL = Entry {
        code: "fp8.hopper-keys-tail",
        cause: "On compute capability 9.0 an 8-bit backward without a band and lengths gives NaN where a log-sum-exp is \
                below about -88 and the keys fill no whole tile: probabilities of keys behind the last one overflow.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "k.dims[2]",
        needed: "on compute capability 9.0, a multiple of 128 keys, a band, or lengths in an 8-bit backward",
        fix: "give lengths (lengths: per-sequence); they may equal the extents",
        source: "`qkvault-lab selftest --fp8 --family below` on an H100 under cuDNN 9.19",
        evidence: "NaN in gradients and amaxes in 8 of 8 backwards over 64, 192, 320 and 513 keys with scores near -120 \
                   and -360; right in all of 48 with lengths equal to the extents, with a causal mask, or over 128, \
                   256 and 512 keys. Other versions were not run.",
        standing: Some(Standing::seen(
            "an H100",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --family below --allow fp8.hopper-keys-tail --file CASES"
        )),
        applies: Applies::Rules(|f| {
            let tail = f.s_kv % TILE != 0 && f.a.mask.band.is_none() && !f.lengths();
            given(f, f.backward() && tail, &format!("a backward over {} keys", f.s_kv))
        }),
        ..Entry::quirk(43)
    },
    FP8_HOPPER_PADDED_AMAX = Entry {
        code: "fp8.hopper-padded-amax",
        cause: "On compute capability 9.0 the amaxes of an 8-bit forward count rows of zeros behind the last one, up \
                to a tile of 128 queries.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "mask.lengths, outputs.amax",
        needed: "on compute capability 9.0, in an 8-bit forward, full lengths and a multiple of 128 queries, or no \
                 amaxes",
        fix: "leave the amaxes out (outputs: no_amax), or allow this code: an amax that is too large costs a part of \
              the range of O, and O is right",
        source: SELFTEST,
        evidence: "Where all probabilities are small (equal keys, zeros), an amax was too large in 17 of 323 forwards \
                   with lengths, by up to 2.5 times, and in 1 of 480 others: 63 queries, bottom right; in 2,000 random \
                   ones in 1 without lengths: 2 queries, 2 keys. Other versions were not run.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --about fp8.hopper-padded-amax"
        )),
        applies: Applies::Rules(|f| {
            let padded = f.lengths() || f.s_q % TILE != 0;
            given(f, !f.backward() && f.a.outputs.amax && padded, &format!("the amaxes of {} padded queries", f.s_q))
        }),
        ..Entry::quirk(35)
    },
    FP8_HOPPER_EXPRESSION = Entry {
        code: "fp8.hopper-expression",
        cause: "On compute capability 9.0 kernels in 8 bits leave score expressions and mask predicates out.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "score_mod, mask.mask_mod",
        needed: "on compute capability 9.0 in 8 bits, no score expression, and no mask predicate other than a band",
        fix: "compute this attention in 16 bits",
        source: SELFTEST,
        evidence: "Biases, softcaps and ALiBi compile. 19 of 21 random attentions of both directions were wrong, and \
                   NaN in some. Other versions were not run.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --about fp8.hopper-expression"
        )),
        applies: Applies::Rules(expression),
        ..Entry::quirk(37)
    },
];
