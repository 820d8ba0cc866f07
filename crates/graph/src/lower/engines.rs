//! Engines that qkvault names because the heuristics choose others: those that give the same bits in every run.
//!
//! On compute capability 10.x, NVIDIA's front end names an engine and its knobs for a deterministic backward instead of
//! asking heuristics. Numerical notes of engines do not tell which are deterministic (`docs/results/forms.md`). That
//! these engines are is NVIDIA's claim; it was not tested, because no such GPU was available.

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

/// Whether this is a deterministic backward on a GPU for which NVIDIA names the engine.
fn needed(a: &Attention, target: &Target) -> bool {
    let Pass::Backward(gradients) = &a.pass else { return false };
    gradients.deterministic && target.sm() / 10 == 10
}

/// The engine for an attention on a target, if it must be named.
pub(super) fn named(a: &Attention, target: &Target) -> Option<NamedEngine> {
    if !needed(a, target) {
        return None;
    }
    let holds = |row: &&Row| {
        let Row { sm, from, head_dim, index: _, knobs: _ } = row;
        sm.contains(&target.sm()) && target.cudnn >= *from && head_dim.is_none_or(|head_dim| head_dim == a.head_dims())
    };
    let row = DETERMINISTIC.iter().find(holds)?;
    Some(NamedEngine { index: row.index, knobs: row.knobs.to_vec() })
}

/// Whether an engine must be named for an attention on a target, and none is known.
pub(crate) fn lacks_engine(a: &Attention, target: &Target) -> bool {
    needed(a, target) && named(a, target).is_none()
}
