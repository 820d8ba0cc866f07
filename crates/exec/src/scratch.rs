//! How the scratch memory of a launch is divided: cuDNN's workspace first, then the buffers that qkvault itself provides.

use qkvault_graph::{CudnnVersion, Role};
use qkvault_probe::PlanFacts;

/// Alignment of every part, and of the whole: what `cuMemAlloc` gives.
pub const SCRATCH_ALIGNMENT: u64 = 256;

/// The first version that clears the f32 sums of dQ by itself; before it the launcher would have to (cuDNN front end, SDPA backward).
const CLEARS_DQ_ACCUM: CudnnVersion = CudnnVersion::v9(6, 0);

/// The scratch memory of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Scratch {
    /// Bytes of all parts together.
    pub(crate) bytes: u64,
    /// Buffers after the workspace, with their offsets.
    pub(crate) buffers: Vec<(Role, u64)>,
}

impl Scratch {
    /// Divides the scratch memory of a plan. Sizes saturate: a plan that needs more than there is of u64 fits no budget.
    pub(crate) fn of(facts: &PlanFacts) -> Scratch {
        let mut bytes = facts.workspace;
        let mut buffers = Vec::new();
        for binding in facts.bindings.iter().filter(|b| b.role.is_internal()) {
            let offset = bytes.checked_next_multiple_of(SCRATCH_ALIGNMENT).unwrap_or(u64::MAX);
            buffers.push((binding.role, offset));
            bytes = offset.saturating_add(binding.bytes);
        }
        Scratch { bytes, buffers }
    }
}

/// The buffer of a plan that would have to be cleared before each launch, which is not done here.
pub(crate) fn needs_clearing(facts: &PlanFacts) -> Option<Role> {
    let buffer = facts.bindings.iter().map(|b| b.role).find(|r| *r == Role::DqAccum);
    buffer.filter(|_| facts.cudnn < CLEARS_DQ_ACCUM)
}
