//! Memory that a launch needs beside its operands: cuDNN's workspace first, then the buffers that qkvault itself provides.

use qkvault_graph::Role;

use crate::plan::{Binding, PlanFacts};

/// Alignment of every part, and of the whole: what `cuMemAlloc` gives.
pub const SCRATCH_ALIGNMENT: u64 = 256;

/// The scratch memory of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Bytes of all parts together.
    pub bytes: u64,
    /// Buffers after cuDNN's workspace: role, offset, bytes.
    pub buffers: Vec<(Role, u64, u64)>,
}

impl Scratch {
    /// Divides scratch memory. Sizes saturate: a plan that needs more than there is of u64 fits no budget.
    pub(crate) fn of(workspace: u64, bindings: &[Binding]) -> Scratch {
        let mut bytes = workspace;
        let mut buffers = Vec::new();
        for binding in bindings.iter().filter(|b| b.role.is_internal()) {
            let offset = bytes.checked_next_multiple_of(SCRATCH_ALIGNMENT).unwrap_or(u64::MAX);
            buffers.push((binding.role, offset, binding.bytes));
            bytes = offset.saturating_add(binding.bytes);
        }
        Scratch { bytes, buffers }
    }
}

impl PlanFacts {
    /// All scratch memory that a launch needs: cuDNN's workspace (the field `workspace`) and, after it, the buffers that are neither
    /// inputs nor outputs.
    #[must_use]
    pub fn scratch(&self) -> Scratch {
        Scratch::of(self.workspace, &self.bindings)
    }

    /// Whether cuDNN keeps a gradient of every score in its workspace, which grows with queries times keys: a backward whose dQ is not
    /// summed in a buffer of its own, as one that is deterministic or gives a bias its gradient, before Blackwell.
    #[must_use]
    pub fn keeps_scores(&self) -> bool {
        keeps_scores(&self.bindings, self.sm)
    }
}

pub(crate) fn keeps_scores(bindings: &[Binding], sm: u32) -> bool {
    let has = |role| bindings.iter().any(|b| b.role == role);
    sm < 100 && has(Role::DQ) && !has(Role::DqAccum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use qkvault_graph::DType;

    fn buffers(list: &[(Role, u64)]) -> Vec<Binding> {
        let binding =
            |&(role, bytes)| Binding { role, dtype: DType::F32, slot: false, output: true, bytes, alignment: 16 };
        list.iter().map(binding).collect()
    }

    #[test]
    fn buffers_follow_the_workspace_each_aligned() {
        let list = buffers(&[(Role::DQ, 999), (Role::SoftmaxSum, 10), (Role::DqAccum, 300)]);
        let scratch = Scratch::of(1000, &list);
        assert_eq!(scratch.buffers, [(Role::SoftmaxSum, 1024, 10), (Role::DqAccum, 1280, 300)]);
        assert_eq!(scratch.bytes, 1580);
        assert!(!keeps_scores(&list, 90) && keeps_scores(&list[..2], 90) && !keeps_scores(&list[1..], 90));
        assert!(!keeps_scores(&list[..2], 100));
        assert_eq!(Scratch::of(u64::MAX, &list).bytes, u64::MAX);
    }
}
