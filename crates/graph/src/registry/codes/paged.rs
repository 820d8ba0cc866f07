//! Paged keys and values.

use super::{FE_STORAGE, GPU};
use crate::registry::entry::entries;
use crate::registry::{Applies, Entry, Facts, Gpus, Versions};
use crate::{Storage, Tensor};

/// Keys of a tile of the kernels for several queries: they look up the pages of whole tiles, past the end of a
/// sequence's row of the table where it is no multiple of them.
const TILE: i64 = 128;

/// What was given, where an attention is paged, with the version.
fn paged(f: &Facts<'_>, is: bool, what: &str) -> Option<String> {
    (f.a.k.is_paged() && is).then(|| format!("{what}, for cuDNN {}", f.version()))
}

/// The page table of a tensor that ends within a tile.
fn broken_tile(name: &str, t: &Tensor) -> Option<String> {
    let (Some(width), Storage::Paged { page_size, .. }) = (t.pages_per_sequence(), t.storage) else { return None };
    let whole = width.saturating_mul(page_size) % TILE == 0;
    (!whole).then(|| format!("up to {} keys of {name} in {width} pages of {page_size}", t.seq()))
}

entries![
    STORAGE_PAGED_OLD = Entry {
        code: "storage.paged-old",
        cause: "These versions have no paged keys and values.",
        affected: &[Versions::before(5, 0).on(Gpus::ALL)],
        field: "k.storage",
        fix: "gather the pages first",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| paged(f, true, "paged keys and values")),
        ..Entry::rule()
    },
    STORAGE_PAGED_HEAD_DIM = Entry {
        code: "storage.paged-head-dim",
        cause: "These versions take paged rows of up to 128 elements.",
        affected: &[Versions::before(9, 1).on(Gpus::ALL)],
        field: "k.dims[3]",
        fix: "gather the pages first",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| paged(f, f.d_qk.max(f.d_v) > 128, "paged rows longer than 128")),
        ..Entry::rule()
    },
    STORAGE_PAGED_TILE = Entry {
        code: "storage.paged-tile",
        cause: "The kernels for several queries look up the pages of whole tiles of 128 keys, past the end of the page \
                table's row.",
        field: "k.dims[2], v.dims[2]",
        needed: "whole tiles of 128 keys: cuDNN reads the table up to the end of the last one",
        fix: "round the longest sequence up to a multiple of 128; lengths say how much of it there is",
        source: GPU,
        evidence: "NaN of other pages came out under 9.19.",
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
        cause: "One query per sequence over paged keys with a sink comes out wrong.",
        field: "sink",
        needed: "room for two queries per sequence, or no sink",
        fix: "use varlen queries with room for two per sequence: a sequence may still have one",
        source: GPU,
        evidence: "O was off by 0.01 to 0.5 in 12 of 12 under 9.19; NVIDIA's front end refuses it for every version.",
        applies: Applies::Lowering(|f| {
            let wrong = f.a.k.is_paged() && f.s_q == 1 && f.a.sink;
            wrong.then(|| "a sink, with one query per sequence over paged keys".to_owned())
        }),
        ..Entry::quirk(6)
    },
    STORAGE_PAGED_VARLEN = Entry {
        code: "storage.paged-varlen",
        cause: "These versions do not take varlen queries over paged keys.",
        affected: &[Versions::before(7, 0).on(Gpus::ALL)],
        field: "q.storage",
        fix: "use dense queries",
        source: FE_STORAGE,
        applies: Applies::Lowering(|f| paged(f, f.varlen(), "varlen queries over pages")),
        ..Entry::rule()
    },
];
