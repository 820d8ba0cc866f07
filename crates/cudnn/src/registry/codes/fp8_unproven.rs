//! 8-bit attention that compiles, and that NVIDIA refuses, blocks in its own tests or never tests.
//! Each is refused until a GPU has judged it, and can be allowed by its code.

use super::fp8_limits::{expression, given, of_either};
use super::{FE_FP8, FE_FP8_BACKWARD};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};
use crate::{Band, Corner};

const JUDGE: &str = "allow this code after `qkvault-lab selftest --fp8` was right on such a GPU";

/// Queries of the smallest tile of Hopper's kernel.
const TILE: i64 = 64;

/// Whether a whole tile of queries may see no key: lengths with a left bound, or a band that begins or ends outside the
/// keys.
fn may_have_an_empty_tile(f: &Facts<'_>) -> bool {
    let Some(Band { corner, left, right }) = f.a.mask.band else { return false };
    if f.lengths() {
        return left.is_some();
    }
    let shift = if corner == Corner::BottomRight { f.s_kv - f.s_q } else { 0 };
    let before = right.map_or(0, |right| -(shift + right));
    let behind = left.map_or(0, |left| f.s_q + shift - left + 1 - f.s_kv);
    before.max(behind) >= TILE
}

declare![
    FP8_HOPPER_VARLEN = Entry {
        code: "fp8.hopper-varlen",
        cause: "NVIDIA's front end refuses varlen 8-bit backwards on compute capability 9.0.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "q.storage",
        needed: "dense operands with lengths in a backward, or compute capability 10.x",
        fix: JUDGE,
        source: FE_FP8_BACKWARD,
        evidence: "Its tests name bug 5732676, an illegal instruction, for varlen forwards too; 28 random ones were \
                   right on an H200 under 9.19. Backwards, which compile with shared heads alone, were not run.",
        standing: Some(Standing::Reported),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_fp8_bwd.h"],
        applies: Applies::Rules(|f| given(f, f.backward() && f.varlen(), "varlen operands in a backward")),
        ..Entry::quirk(20)
    },
    FP8_HOPPER_GROUPED_BACKWARD = Entry {
        code: "fp8.hopper-grouped-backward",
        cause: "NVIDIA blocks its own tests of 8-bit backwards with shared heads on compute capability 9.0, for \
                accuracy.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "k.dims[1], v.dims[1]",
        needed: "as many key and value heads as query heads in an 8-bit backward, or compute capability 10.x",
        fix: JUDGE,
        source: FE_FP8,
        evidence: "On an H200 under 9.19, dK was wrong in one of 22 random backwards that nothing else refuses (24 \
                   query heads over 3 key heads, 513 queries, lengths).",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --fp8 --about fp8.hopper-grouped-backward"
        )),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/tree/main/test/python/sdpa"],
        applies: Applies::Rules(|f| {
            let grouped = f.a.q.heads() != f.a.k.heads() || f.a.q.heads() != f.a.v.heads();
            given(f, f.backward() && grouped, "shared heads in a backward")
        }),
        ..Entry::quirk(21)
    },
    FP8_HOPPER_EMPTY_TILE = Entry {
        code: "fp8.hopper-empty-tile",
        cause: "The 8-bit forward of compute capability 9.0 never ends if a whole tile of queries sees no key.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "mask",
        needed: "on compute capability 9.0, no left bound together with lengths, and no band that leaves 64 queries \
                 without keys. A sequence without keys hangs too: give every sequence at least one",
        fix: "use 16 bits, or another mask",
        source: "cudnn-frontend's threads 1069 and 1009, which name 9.25.0.21 and 9.27.0.28",
        evidence: "This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/issues/1069",
            "https://github.com/NVIDIA/cudnn-frontend/issues/1009"
        ],
        applies: Applies::Rules(|f| {
            given(f, !f.backward() && may_have_an_empty_tile(f), "a mask with which a tile of queries may see no key")
        }),
        ..Entry::quirk(22)
    },
    FP8_HOPPER_BOTTOM_RIGHT = Entry {
        code: "fp8.hopper-bottom-right",
        cause: "NVIDIA's front end refuses a diagonal that ends bottom right in 8 bits before compute capability 10.0, \
                and nobody tests it.",
        affected: &[Versions::ALL.on(Gpus::HOPPER)],
        field: "mask.band",
        needed: "with varlen operands, a diagonal that starts top left, or compute capability 10.x",
        fix: JUDGE,
        source: FE_FP8,
        evidence: "It compiles in both directions. Over dense and paged operands 18 random attentions of both \
                   directions were right on an H200 under 9.19; with varlen operands it was not run.",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h"
        ],
        applies: Applies::Rules(|f| {
            given(f, f.causal_bottom_right() && f.varlen(), "a diagonal that ends bottom right, over varlen operands")
        }),
        ..Entry::quirk(23)
    },
    FP8_EXPRESSION = Entry {
        code: "fp8.expression",
        cause: "NVIDIA's front end refuses a bias in 8 bits, and tests no other expression in 8 bits.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL), Versions::ALL.on(Gpus::CONSUMER_BLACKWELL)],
        field: "score_mod, mask.mask_mod",
        needed: "in 8 bits, no score expression, and no mask predicate other than a band",
        fix: JUDGE,
        source: FE_FP8,
        evidence: "Biases, softcaps and ALiBi compile. Kernels of compute capability 9.0 leave the expression out \
                   (`fp8.hopper-expression`); these were not run.",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h"
        ],
        applies: Applies::Rules(expression),
        ..Entry::quirk(24)
    },
    FP8_DROPOUT_FORM = Entry {
        code: "fp8.dropout-form",
        cause: "In an 8-bit backward NVIDIA's front end leaves the dropout mask out of the gradient of P, which is \
                wrong; qkvault writes it, and nobody tests that.",
        field: "dropout",
        needed: "in 8 bits, dropout in a forward only",
        fix: JUDGE,
        source: FE_FP8_BACKWARD,
        evidence: "Both forms compile on compute capability 9.0. This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_fp8_bwd.h"],
        applies: Applies::Rules(|f| given(f, f.dropout() && f.backward(), "dropout in a backward")),
        ..Entry::quirk(25)
    },
    FP8_HEAD_DIM_WIDE = Entry {
        code: "fp8.head-dim-wide",
        cause: "NVIDIA's front end refuses 8-bit head dims above 128 on compute capability 10.x, except 192 and 128.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "q.dims[3], v.dims[3]",
        needed: "head dims of at most 128, or 192 and 128",
        fix: JUDGE,
        source: FE_FP8,
        evidence: "Head dims up to 512 compile, but none above 128 for one query, and most pairs with one above 128 \
                   and one of at most 128 do not: status 4001. This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/issues/981",
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h"
        ],
        applies: Applies::Rules(|f| {
            let wide = (f.d_qk > 128 || f.d_v > 128) && (f.d_qk, f.d_v) != (192, 128);
            given(f, !f.backward() && wide, &format!("head dims {} and {}", f.d_qk, f.d_v))
        }),
        ..Entry::quirk(26)
    },
    FP8_BACKWARD_BAND = Entry {
        code: "fp8.backward-band",
        cause: "NVIDIA's front end refuses these bands in an 8-bit backward.",
        affected: &[Versions::ALL.on(Gpus::BLACKWELL)],
        field: "mask.band",
        needed: "in an 8-bit backward, a diagonal that ends bottom right only over at least as many keys as queries, \
                 both multiples of 64, and a left bound only over at least as many keys as queries, or with lengths",
        fix: JUDGE,
        source: FE_FP8_BACKWARD,
        evidence: "They compile. This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_fp8_bwd.h"],
        applies: Applies::Rules(|f| {
            let tiles = f.s_q % 64 == 0 && f.s_kv % 64 == 0;
            let corner = f.causal_bottom_right() && (f.s_q > f.s_kv || !tiles);
            let left = f.window().is_some() && f.s_q > f.s_kv && !f.lengths();
            of_either(f, f.backward() && (corner || left), "a band")
        }),
        ..Entry::quirk(27)
    },
    FP8_SPLIT_ZEROS = Entry {
        code: "fp8.split-zeros",
        cause: "For few queries over many keys, cuDNN 9.24 splits the keys and writes zeros to a 16-bit O.",
        affected: &[Versions::between((24, 0), (25, 0)).on(Gpus::BLACKWELL)],
        field: "fp8",
        needed: "cuDNN 9.25 or newer for 16-bit outputs over 4096 keys or more without a band",
        fix: "use another cuDNN, or delayed scaling",
        source: "cudnn-frontend's thread 414",
        evidence: "This was not confirmed on a GPU.",
        standing: Some(Standing::Reported),
        reports: &["https://github.com/NVIDIA/cudnn-frontend/pull/414"],
        applies: Applies::Rules(|f| {
            let plain = f.a.mask.band.is_none() && !f.backward() && f.s_q > 1 && f.s_kv >= 4096;
            of_either(f, plain && f.a.o.dtype.is_half(), "16-bit outputs over many keys without a band")
        }),
        ..Entry::quirk(28)
    },
];
