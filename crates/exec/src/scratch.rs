//! The parts of a plan's scratch memory that must hold zeros when a launch begins.

use qkvault_compile::PlanFacts;
use qkvault_cudnn::op::Scratch;
use qkvault_graph::{CudnnVersion, Role};

/// The first version that clears the f32 sums of dQ itself. Before it the launcher must (cuDNN front end, SDPA
/// backward).
const CLEARS_DQ_ACCUM: CudnnVersion = CudnnVersion::v9(6, 0);

/// Offset and bytes of each part that a launch must clear on the stream first.
pub(crate) fn to_clear(facts: &PlanFacts, scratch: &Scratch) -> Vec<(u64, u64)> {
    let wanted = |role| role == Role::DqAccum && facts.cudnn().is_some_and(|own| own.cudnn < CLEARS_DQ_ACCUM);
    scratch.buffers.iter().filter(|(role, _, _)| wanted(*role)).map(|&(_, offset, bytes)| (offset, bytes)).collect()
}
