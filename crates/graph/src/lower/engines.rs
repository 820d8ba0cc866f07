//! Engines that are named because heuristics choose another: those that give the same bits twice, as a table.
//!
//! On compute capability 10.x NVIDIA's front end names an engine and its knobs for a deterministic backward instead of
//! asking heuristics, and what engines say of themselves does not tell which are (`docs/results/forms.md`). That they
//! give the same bits twice is NVIDIA's claim: no such GPU was at hand.

use std::ops::RangeInclusive;

use crate::op::{Knob, NamedEngine};
use crate::{Attention, CudnnVersion, Pass, Target};

/// An engine for deterministic backwards.
struct Row {
    /// Compute capabilities.
    sm: RangeInclusive<u32>,
    /// The first version.
    from: CudnnVersion,
    /// Head dims of Q and of V that it is for; all others where there are none.
    head_dim: Option<(i64, i64)>,
    /// Its number.
    index: i64,
    /// Its knobs, in the order of NVIDIA's front end.
    knobs: &'static [(Knob, i64)],
}

/// The first version that NVIDIA's front end asks for such a backward; 9.14 answers `Engine 5 is not enabled for
/// SDPA_BWD`.
pub(crate) const FIRST_NAMED: CudnnVersion = CudnnVersion::v9(18, 0);
/// From here on tiles are knobs of their own.
const TILES: CudnnVersion = CudnnVersion::v9(23, 0);

/// The rows: the first that holds is taken.
///
/// Source: cudnn-frontend 1.23, `node/scaled_dot_product_flash_attention.h`, `override_heuristics_query`; the first
/// version from its checks before that. The row for 256 is of 1.32 alone, which has another number of stages there. For
/// compute capabilities beyond 10.3, where there is no GPU, they name engine 17.
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

/// Whether a deterministic backward is wanted on a GPU where NVIDIA names the engine.
fn needed(a: &Attention, target: &Target) -> bool {
    let Pass::Backward(gradients) = &a.pass else { return false };
    gradients.deterministic && target.sm() / 10 == 10
}

/// The engine that computes an attention on a target, where it has to be named.
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

/// Whether an engine has to be named for an attention on a target, and there is none.
pub(crate) fn lacks_engine(a: &Attention, target: &Target) -> bool {
    needed(a, target) && named(a, target).is_none()
}
