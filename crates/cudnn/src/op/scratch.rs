//! Memory of a launch besides its operands: first cuDNN's workspace, then the buffers that qkvault provides.

use super::{OpGraph, TensorKind};
use crate::{Attention, Role};
use crate::{Binding, SCRATCH_ALIGNMENT};

/// The scratch memory of one plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scratch {
    /// Bytes of all parts together.
    pub bytes: u64,
    /// Buffers after cuDNN's workspace: role, offset, bytes.
    pub buffers: Vec<(Role, u64, u64)>,
}

impl Scratch {
    /// The scratch memory of a plan, from its workspace and operands. Sizes saturate: a plan that needs more than a u64
    /// can count fits no budget.
    #[must_use]
    pub fn new(workspace: u64, operands: &[Binding]) -> Scratch {
        Scratch::divided(workspace, operands.iter().map(|b| (b.role, b.bytes)))
    }

    fn divided(workspace: u64, operands: impl Iterator<Item = (Role, u64)>) -> Scratch {
        let mut bytes = workspace;
        let mut buffers = Vec::new();
        for (role, length) in operands.filter(|(role, _)| role.is_internal()) {
            let offset = bytes.checked_next_multiple_of(SCRATCH_ALIGNMENT).unwrap_or(u64::MAX);
            buffers.push((role, offset, length));
            bytes = offset.saturating_add(length);
        }
        Scratch { bytes, buffers }
    }

    /// The scratch memory that the plan of an op graph will need; sizes are those of [`OpGraph::bindings`].
    #[must_use]
    pub fn of_graph(workspace: u64, graph: &OpGraph, attention: Option<&Attention>) -> Scratch {
        Scratch::new(workspace, &graph.bindings(attention))
    }
}

impl OpGraph {
    /// Whether cuDNN keeps a gradient of every score in its workspace, which then grows with queries times keys: see
    /// [`keeps_scores`].
    #[must_use]
    pub fn keeps_scores(&self, sm: u32) -> bool {
        keeps_scores(operands(self), sm)
    }

    /// Whether it is a backward that sums dQ without a separate buffer, as a deterministic one does.
    #[must_use]
    pub fn sums_d_q_directly(&self) -> bool {
        direct(operands(self))
    }
}

/// An 8-bit backward has no buffer of sums either, but sums in any order.
fn direct(roles: impl Iterator<Item = Role> + Clone) -> bool {
    let has = |role| roles.clone().any(|r| r == role);
    let eight_bits = roles.clone().any(|r| matches!(r, Role::Descale(_)));
    has(Role::DQ) && !has(Role::DqAccum) && !eight_bits
}

/// Whether cuDNN keeps a gradient of every score in the workspace of a plan with these operands: it does in a backward
/// that sums dQ without a separate buffer, because it is deterministic or computes the gradient of a bias. The engine
/// that is named for deterministic ones on compute capability 10.x does not.
#[must_use]
pub fn keeps_scores(roles: impl Iterator<Item = Role> + Clone, sm: u32) -> bool {
    let bias = roles.clone().any(|r| matches!(r, Role::DScoreTensor(_)));
    direct(roles) && (sm / 10 != 10 || bias)
}

fn operands(graph: &OpGraph) -> impl Iterator<Item = Role> + Clone {
    graph.tensors.iter().filter_map(|t| match t.kind {
        TensorKind::Operand(role) => Some(role),
        TensorKind::Scalar(_) | TensorKind::Virtual | TensorKind::Constant(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackwardOptions, CompileOptions, CudnnVersion, DType, LibrarySet, Profile, lower, validate};

    #[test]
    fn buffers_follow_the_workspace_each_aligned() {
        let list = [(Role::DQ, 999), (Role::SoftmaxSum, 10), (Role::DqAccum, 300)];
        let scratch = Scratch::divided(1000, list.into_iter());
        assert_eq!(scratch.buffers, [(Role::SoftmaxSum, 1024, 10), (Role::DqAccum, 1280, 300)]);
        assert_eq!(scratch.bytes, 1580);
        assert_eq!(Scratch::divided(u64::MAX, list.into_iter()).bytes, u64::MAX);
    }

    #[test]
    fn an_op_graph_gives_the_scratch_memory_of_its_plan() {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim);
        let graph = |deterministic| {
            let options = BackwardOptions { deterministic, ..BackwardOptions::default() };
            let attention = Attention::bshd(2, (4, 4), (128, 128), 64, DType::BF16).with_stats().backward(options);
            lower(&validate(attention).expect("valid"), &target, &CompileOptions::default()).expect("lowers")
        };
        let (summed, direct) = (graph(false), graph(true));
        assert!(!summed.keeps_scores(90) && direct.keeps_scores(90));
        assert!(!direct.keeps_scores(100) && direct.keeps_scores(120));
        let scratch = Scratch::of_graph(0, &direct, None);
        assert_eq!(scratch.buffers, [(Role::SoftmaxSum, 0, 2 * 4 * 128 * 4)]);
        assert_eq!(Scratch::of_graph(256, &summed, None).bytes, 256 + 4096 + 2 * 4 * 128 * 64 * 4);
    }
}
