//! Paged keys and values.

use super::scores::tensors;
use super::{FE_STORAGE, GPU};
use crate::registry::declare;
use crate::registry::{Applies, Entry, Facts, Gpus, Standing, Versions};
use crate::{Storage, Tensor};

/// Keys in a tile of the kernels for several queries. They look up the pages of whole tiles, so they read past a
/// sequence's row of the page table if the row does not hold a multiple of this many keys.
const TILE: i64 = 128;

/// What was given, with the version, if the attention is paged and `is` holds.
fn paged(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (f.a.k.is_paged() && is).then(|| format!("{what}, for cuDNN {}", f.version()))
}

/// Describes the page table of a tensor, if it ends within a tile.
fn broken_tile(name: &str, t: &Tensor) -> Option<String> {
    let (Some(width), Storage::Paged { page_size, .. }) = (t.pages_per_sequence(), t.storage) else { return None };
    let whole = width.saturating_mul(page_size) % TILE == 0;
    (!whole).then(|| format!("up to {} keys of {name} in {width} pages of {page_size}", t.seq()))
}

declare![
    STORAGE_PAGED_OLD = Entry {
        code: "storage.paged-old",
        cause: "These versions do not support paged keys and values.",
        affected: &[Versions::before(5, 0).on(Gpus::ALL)],
        field: "k.storage",
        fix: "gather the pages first",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| paged(f, true, "paged keys and values")),
        ..Entry::rule()
    },
    STORAGE_PAGED_HEAD_DIM = Entry {
        code: "storage.paged-head-dim",
        cause: "These versions support paged rows of up to 128 elements.",
        affected: &[Versions::before(9, 1).on(Gpus::ALL)],
        field: "k.dims[3]",
        fix: "gather the pages first",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| paged(f, f.d_qk.max(f.d_v) > 128, "paged rows longer than 128")),
        ..Entry::rule()
    },
    STORAGE_PAGED_TILE = Entry {
        code: "storage.paged-tile",
        cause: "With several queries, the kernels look up the pages of whole tiles of 128 keys, past the end of the \
                page table's row.",
        field: "k.dims[2], v.dims[2]",
        needed: "whole tiles of 128 keys: cuDNN reads the page table up to the end of the last tile",
        fix: "round the longest sequence up to a multiple of 128; lengths tell how much of it is used",
        source: GPU,
        evidence: "Under 9.19, the output contained NaN from other pages.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --serving --allow storage.paged-tile"
        )),
        applies: Applies::Lowering(|f| {
            if f.s_q == 1 {
                return None;
            }
            let broken: Vec<String> =
                [("K", &f.a.k), ("V", &f.a.v)].iter().filter_map(|(name, t)| broken_tile(name, t)).collect();
            (!broken.is_empty()).then(|| format!("{}, for several queries", broken.join(" and ")))
        }),
        ..Entry::quirk(5)
    },
    STORAGE_PAGED_ONE_QUERY_SINK = Entry {
        code: "storage.paged-one-query-sink",
        cause: "One query per sequence over paged keys gives wrong results with a sink.",
        field: "sink",
        needed: "room for two queries per sequence, or no sink",
        fix: "use varlen queries with room for two per sequence: a sequence may still have only one",
        source: GPU,
        evidence: "Under 9.19, O was off by 0.01 to 0.5 in 12 of 12; NVIDIA's front end refuses it for every version.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --serving --allow storage.paged-one-query-sink"
        )),
        reports: &[
            "https://github.com/NVIDIA/cudnn-frontend/blob/main/include/cudnn_frontend/node/sdpa_support_surface.h"
        ],
        applies: Applies::Lowering(|f| {
            let wrong = f.a.k.is_paged() && f.s_q == 1 && f.a.sink;
            wrong.then(|| "a sink, with one query per sequence over paged keys".to_owned())
        }),
        ..Entry::quirk(6)
    },
    STORAGE_PAGED_ONE_QUERY_HEADS = Entry {
        code: "storage.paged-one-query-heads",
        cause: "One query over paged keys reads expressions' tensors by query head wrongly where heads share keys.",
        field: "score_mod, mask.mask_mod",
        needed: "room for two queries per sequence, or as many key heads, or no such tensor",
        fix: "take qkvault's own kernels (engine: auto)",
        source: GPU,
        evidence: "All of 126 launches of 7 attentions, 4 query heads over 1, were wrong; right with 4 key heads, \
                   without pages, with numbers for each key alone, and in own kernels. Other versions were not run.",
        standing: Some(Standing::seen(
            "an H200",
            "cuDNN 9.19",
            "qkvault-lab selftest --allow storage.paged-one-query-heads --file CASES"
        )),
        applies: Applies::Lowering(|f| {
            let (h_q, h_k, _) = f.a.heads();
            // The slopes of ALiBi are right: its cases are in the serving self-test.
            let by_heads = tensors(f).find(|spec| spec.dims[1] > 1 && spec.alibi.is_none());
            let wrong = by_heads.filter(|_| f.a.k.is_paged() && f.s_q == 1 && h_q > h_k);
            wrong.map(|spec| format!("a tensor of extents {:?}, {h_q} query heads over {h_k} paged", spec.dims))
        }),
        ..Entry::quirk(47)
    },
    STORAGE_PAGED_VARLEN = Entry {
        code: "storage.paged-varlen",
        cause: "These versions do not support varlen queries over paged keys.",
        affected: &[Versions::before(7, 0).on(Gpus::ALL)],
        field: "q.storage",
        fix: "use dense queries",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| paged(f, f.varlen(), "varlen queries over pages")),
        ..Entry::rule()
    },
];
