//! What rules look at: a valid description and a target, with the questions that several rules ask answered once.

use qkvault_graph::expr::Grad;
use qkvault_graph::op::{Constant, Op, OpTensor, Pointwise, TensorId, TensorKind};
use qkvault_graph::{
    Attention, Band, Corner, CudnnVersion, Gradients, Lengths, OpGraph, Pass, Role, Storage, Target, Valid,
};

/// A description on a target, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    pub(super) a: &'a Attention,
    target: &'a Target,
    graph: Option<&'a OpGraph>,
    pub(super) gradients: Option<&'a Gradients>,
    pub(super) s_q: i64,
    pub(super) s_kv: i64,
    pub(super) d_qk: i64,
    pub(super) d_v: i64,
}

impl<'a> Facts<'a> {
    /// The facts of a description on a target, with the op graph it lowers to, if it does.
    #[must_use]
    pub fn of(attention: &'a Valid, target: &'a Target, graph: Option<&'a OpGraph>) -> Facts<'a> {
        let a = attention.get();
        let gradients = match &a.pass {
            Pass::Forward => None,
            Pass::Backward(gradients) => Some(gradients),
        };
        let ((s_q, s_kv), (d_qk, d_v)) = (a.seq(), a.hidden());
        Facts { a, target, graph, gradients, s_q, s_kv, d_qk, d_v }
    }

    /// The cuDNN version.
    #[must_use]
    pub const fn version(&self) -> CudnnVersion {
        self.target.cudnn
    }

    /// The compute capability, 90 for an H200.
    #[must_use]
    pub const fn sm(&self) -> u32 {
        self.target.sm()
    }

    pub(super) const fn backward(&self) -> bool {
        self.gradients.is_some()
    }

    /// Whether any operand is packed.
    pub(super) fn packed(&self) -> bool {
        let Attention { q, k, v, o, .. } = self.a;
        [q, k, v, o].into_iter().any(|t| matches!(t.storage, Storage::Packed { .. }))
    }

    pub(super) const fn paged(&self) -> bool {
        matches!(self.a.k.storage, Storage::Paged { .. })
    }

    pub(super) fn lengths(&self) -> bool {
        self.a.mask.lengths == Lengths::PerSequence
    }

    /// The window, if the band looks back only so far.
    pub(super) fn window(&self) -> Option<i64> {
        self.a.mask.band.and_then(|band| band.left)
    }

    /// Whether the band is bottom-right and bounded on the right: what NVIDIA's front end calls bottom-right causal.
    pub(super) fn causal_bottom_right(&self) -> bool {
        self.a.mask.band.is_some_and(|Band { corner, left: _, right }| corner == Corner::BottomRight && right.is_some())
    }

    pub(super) fn dropout(&self) -> bool {
        self.a.dropout.is_some()
    }

    /// Whether a gradient of a tensor of the score expression is wanted.
    pub(super) fn bias_gradient(&self) -> bool {
        let wanted = |e: &qkvault_graph::ScoreExpr| e.tensors().iter().any(|t| t.grad == Grad::Needed);
        self.backward() && self.a.score.as_ref().is_some_and(wanted)
    }

    /// Tensors of the op graph that pointwise operations read, with the operation's mode and whether it comes first.
    pub(super) fn pointwise_inputs(&self) -> impl Iterator<Item = (Pointwise, &'a OpTensor, bool)> {
        let ops = self.graph.into_iter().flat_map(|graph| graph.ops.iter().map(move |op| (graph, op)));
        ops.flat_map(|(graph, op)| {
            let list: [Option<(Pointwise, TensorId, bool)>; 3] = match op {
                Op::Pointwise { mode, x, b, t, y: _, axis: _, compute: _ } => {
                    let first = (*mode != Pointwise::GenIndex).then_some((*mode, *x, true));
                    [first, b.map(|b| (*mode, b, false)), t.map(|t| (*mode, t, false))]
                }
                _ => [None; 3],
            };
            list.into_iter().flatten().map(move |(mode, id, first)| (mode, graph.tensor(id), first))
        })
    }

    /// The role of an operand that is not virtual.
    pub(super) const fn role(t: &OpTensor) -> Option<Role> {
        match t.kind {
            TensorKind::Operand(role) | TensorKind::Slot(role) => Some(role),
            TensorKind::Virtual | TensorKind::Constant(Constant::F32(_) | Constant::I32(_)) => None,
        }
    }
}
