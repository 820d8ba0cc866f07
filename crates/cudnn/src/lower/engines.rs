//! Engines that qkvault names because the heuristics choose others: those that give the same bits in every run, and
//! those of 8-bit backwards.
//!
//! On compute capability 10.x, NVIDIA's front end names an engine and its knobs for a deterministic backward instead of
//! asking heuristics. Numerical notes of engines do not tell which are deterministic (`docs/results/forms.md`). That
//! these engines are is NVIDIA's claim; it was not tested, because no such GPU was available. The front end names the
//! same engine for every 8-bit backward there, so nobody at NVIDIA tests the engines of heuristics.

use std::ops::RangeInclusive;

use crate::op::{Knob, NamedEngine};
use crate::{Attention, CudnnVersion, Pass, Target};

/// An engine for deterministic backwards.
struct Row {
    /// Compute capabilities.
    sm: RangeInclusive<u32>,
    /// The first version.
    from: CudnnVersion,
    /// Head dims of Q and V; `None` for all others.
    head_dim: Option<(i64, i64)>,
    /// Its number.
    index: i64,
    /// Its knobs, in the order of NVIDIA's front end.
    knobs: &'static [(Knob, i64)],
}

/// The first version for which NVIDIA's front end supports such a backward; 9.14 answers `Engine 5 is not enabled for
/// SDPA_BWD`.
pub(crate) const FIRST_NAMED: CudnnVersion = CudnnVersion::v9(18, 0);
/// The first version with separate knobs for tiles.
const TILES: CudnnVersion = CudnnVersion::v9(23, 0);

/// The rows, of which the first that matches counts.
///
/// Source: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`, `override_heuristics_query`; the first
/// version is from its checks before that. The row for 256 is from 1.32, which has another number of stages there. For
/// compute capabilities beyond 10.3, for which no GPU exists, they name engine 17.
const DETERMINISTIC: [Row; 3] = [
    Row { sm: 100..=103, from: TILES, head_dim: Some((256, 256)), index: 5, knobs: &tiled(3) },
    Row { sm: 100..=103, from: TILES, head_dim: None, index: 5, knobs: &tiled(2) },
    Row {
        sm: 100..=103,
        from: FIRST_NAMED,
        head_dim: None,
        index: 5,
        knobs: &[(Knob::KernelCfg, 31), (Knob::Stages, 2)],
    },
];

const fn tiled(stages: i64) -> [(Knob, i64); 6] {
    [
        (Knob::TileM, 3),
        (Knob::TileN, 2),
        (Knob::KernelCfg, 2),
        (Knob::StreamK, 0),
        (Knob::TileCgaM, 0),
        (Knob::Stages, stages),
    ]
}

/// The first version for which it supports an 8-bit backward. 9.18.1 ends the process.
const FIRST_8_BIT: CudnnVersion = CudnnVersion::v9(19, 0);

/// Engines of 8-bit backwards, with one scale per tensor or block scales.
///
/// Source: cudnn-frontend 1.23, `node/sdpa_fp8_bwd.h`, `override_heuristics_query` and the checks before it.
const EIGHT_BITS: [Row; 2] = [
    Row { sm: 100..=103, from: TILES, head_dim: None, index: 5, knobs: &tiled(2) },
    Row {
        sm: 100..=103,
        from: FIRST_8_BIT,
        head_dim: None,
        index: 5,
        knobs: &[(Knob::KernelCfg, 31), (Knob::Stages, 2)],
    },
];

/// Whether this is a deterministic 16-bit backward on a GPU for which NVIDIA names the engine.
fn needed(a: &Attention, target: &Target) -> bool {
    let Pass::Backward(gradients) = &a.pass else { return false };
    gradients.deterministic && a.fp8.is_none() && target.sm() / 10 == 10
}

/// Whether this is an 8-bit backward on such a GPU.
fn needed_in_8_bits(a: &Attention, target: &Target) -> bool {
    a.is_backward() && a.fp8.is_some() && target.sm() / 10 == 10
}

/// Whether the engine of 8-bit backwards has a kernel for these head dims.
fn has_8_bit_kernel((d_qk, d_v): (i64, i64)) -> bool {
    (d_qk <= 128 && d_v <= 128) || (d_qk, d_v) == (192, 128)
}

/// The engine for an attention on a target, if it must be named.
pub(super) fn named(a: &Attention, target: &Target) -> Option<NamedEngine> {
    let rows = if needed(a, target) {
        &DETERMINISTIC[..]
    } else if needed_in_8_bits(a, target) && has_8_bit_kernel(a.head_dims()) {
        &EIGHT_BITS[..]
    } else {
        return None;
    };
    let holds = |row: &&Row| {
        let Row { sm, from, head_dim, index: _, knobs: _ } = row;
        sm.contains(&target.sm()) && target.cudnn >= *from && head_dim.is_none_or(|head_dim| head_dim == a.head_dims())
    };
    let row = rows.iter().find(holds)?;
    Some(NamedEngine { index: row.index, knobs: row.knobs.to_vec() })
}

/// Whether an engine must be named for an attention on a target, and none is known.
pub(crate) fn lacks_engine(a: &Attention, target: &Target) -> bool {
    needed(a, target) && named(a, target).is_none()
}

/// Whether an engine must be named for an 8-bit backward on a target, and none is known.
pub(crate) fn lacks_8_bit_engine(a: &Attention, target: &Target) -> bool {
    needed_in_8_bits(a, target) && named(a, target).is_none()
}
