//! The input of conditions: a valid description and a target, with the properties that several conditions read.

use std::cell::OnceCell;

use crate::expr::{Extents, Grad, Node, TensorSpec};
use crate::lower::chosen_form;
use crate::op::{Op, OpGraph, Pointwise, TensorId, TensorKind};
use crate::{
    Attention, Band, CompileOptions, Corner, CudnnVersion, DType, DropoutSource, Form, Fp8, Gradients, Lengths, Pass,
    Role, ScoreExpr, Storage, Target, Valid, lower, validate,
};

/// A description on a target, as conditions read it.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    valid: &'a Valid,
    pub(super) a: &'a Attention,
    pub(super) target: &'a Target,
    /// The form that lowering writes.
    pub(super) form: Form,
    pub(super) gradients: Option<&'a Gradients>,
    pub(super) s_q: i64,
    pub(super) s_kv: i64,
    pub(super) d_qk: i64,
    pub(super) d_v: i64,
    /// The result of [`Facts::query_reads`], which takes longer than all rules together.
    query_reads: OnceCell<Option<(usize, usize)>>,
}

impl<'a> Facts<'a> {
    /// The facts of a description on a target, with these options.
    #[must_use]
    pub fn new(attention: &'a Valid, target: &'a Target, options: &CompileOptions) -> Facts<'a> {
        let a = attention.get();
        let gradients = match &a.pass {
            Pass::Forward => None,
            Pass::Backward(gradients) => Some(gradients),
        };
        let ((s_q, s_kv), (d_qk, d_v)) = (a.seq(), a.head_dims());
        let form = chosen_form(a, options);
        Facts { valid: attention, a, target, form, gradients, s_q, s_kv, d_qk, d_v, query_reads: OnceCell::new() }
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

    /// Whether any operand is varlen.
    pub(super) fn varlen(&self) -> bool {
        [self.a.q, self.a.k, self.a.v].iter().any(|t| matches!(t.storage, Storage::Varlen { .. }))
    }

    /// Describes a tensor with one number per query or sequence and an extent of 1 over keys, as lowering declares it,
    /// if the score expression, the predicate or dropout reads one. For expressions, the lengths of several sequences
    /// are such tensors.
    pub(super) fn query_tensor(&self) -> Option<String> {
        let tensors = self.expressions().flat_map(|e| e.tensors().iter().map(|t| t.dims));
        let [b, h, s_q, s_kv] = [self.a.batch(), self.a.q.heads(), self.s_q, self.s_kv];
        let by_mask = self.dropout() && !self.philox();
        let mask = by_mask.then_some([b, h, s_q, s_kv]);
        // Lowering declares a number per sequence with all queries, or with all keys if there is one query.
        let per_query = |&[b, _, q, k]: &[i64; 4]| k == 1 && (q > 1 || (b > 1 && (s_q > 1 || s_kv == 1)));
        let found = tensors.chain(mask).find(per_query).map(|dims| format!("a tensor of extents {dims:?}"));
        found.or_else(|| {
            self.reads_lengths().then(|| format!("the lengths of {b} sequences, which an expression reads"))
        })
    }

    fn expressions(&self) -> impl Iterator<Item = &ScoreExpr> {
        let own = self.a.score_mod_bprop.as_ref().map(|own| &own.derivative);
        [&self.a.score_mod, &self.a.mask.mask_mod].into_iter().flatten().chain(own)
    }

    /// A dividend of a floor division that may be too large for an exact result: its least and greatest value,
    /// and the divisor.
    pub(super) fn far_dividend(&self) -> Option<(i64, i64, i32)> {
        let scores = [self.a.batch(), self.a.q.heads(), self.s_q, self.s_kv];
        let extents = Extents { scores, lengths: self.lengths(), origins: self.a.origins.is_some() };
        self.expressions().find_map(|e| e.far_dividend(&extents))
    }

    /// Whether an expression reads the lengths of several sequences.
    fn reads_lengths(&self) -> bool {
        let is_length = |node: &Node| matches!(node, Node::Length(_));
        self.lengths() && self.a.batch() > 1 && self.expressions().any(|e| e.nodes().iter().any(is_length))
    }

    /// Describes the requested gradients of tensors of the score expression that differ from the score's own gradient.
    pub(super) fn gradient_apart(&self) -> Option<String> {
        // The cheap check comes first: a derivative takes microseconds.
        let score = self.a.score_mod.as_ref().filter(|_| self.wants_tensor_gradient())?;
        let vjp = self.a.score_mod_vjp()?.ok()?;
        let (several, other) = (vjp.d_tensors.len() > 1, vjp.d_tensors.iter().find(|t| t.factor != vjp.d_score));
        match (several, other) {
            (true, _) => Some(format!("gradients of {} tensors", vjp.d_tensors.len())),
            (false, Some(t)) => Some(format!("the gradient of @{}: {score}", score.tensor_name(t.tensor))),
            (false, None) => None,
        }
    }

    /// Describes a tensor of the score expression whose gradient would have more than 16 bits.
    pub(super) fn gradient_wide(&self) -> Option<String> {
        let score = self.a.score_mod.as_ref().filter(|_| self.wants_tensor_gradient())?;
        let wide = |t: &TensorSpec| t.grad == Grad::Needed && !matches!(t.dtype, DType::F16 | DType::BF16);
        let (t, name) = score.tensors().iter().zip(score.tensor_names()).find(|(t, _)| wide(t))?;
        Some(format!("the gradient of @{name} in {}", t.dtype))
    }

    /// How often the operations of a lowered backward read tensors with one number per query or sequence, and how many
    /// of those operations subtract one. Both an expression and its derivative may read them. `None` if there is no
    /// such tensor.
    pub(super) fn query_reads(&self) -> Option<(usize, usize)> {
        *self.query_reads.get_or_init(|| self.count_query_reads())
    }

    fn count_query_reads(&self) -> Option<(usize, usize)> {
        // Lowering takes longer than all other rules together, so it comes last.
        self.gradients?;
        self.query_tensor()?;
        let graph = lower(self.valid, self.target, &CompileOptions::default()).ok()?;
        let is_read = |id: &TensorId| {
            let t = graph.tensor(*id);
            let counts = matches!(t.kind, TensorKind::Operand(Role::ScoreTensor(_) | Role::DropoutMask));
            counts && t.dims[3] == 1 && (t.dims[2] > 1 || t.dims[0] > 1)
        };
        let reads = |op: &Op| match *op {
            Op::Pointwise { x, b, t, .. } => [Some(x), b, t].iter().flatten().filter(|id| is_read(id)).count(),
            _ => 0,
        };
        let subtracts = |op: &&Op| matches!(op, Op::Pointwise { mode: Pointwise::Sub, b: Some(b), .. } if is_read(b));
        let tensors: usize = graph.ops.iter().map(reads).sum();
        Some((tensors + self.length_reads(&graph)?, graph.ops.iter().filter(subtracts).count()))
    }

    /// How many operations read lengths, without those of masks, which also exist without expressions.
    fn length_reads(&self, graph: &OpGraph) -> Option<usize> {
        if !self.reads_lengths() {
            return Some(0);
        }
        let mut plain = self.a.clone();
        (plain.score_mod, plain.score_mod_bprop, plain.mask.mask_mod) = (None, None, None);
        let plain = lower(&validate(plain).ok()?, self.target, &CompileOptions::default()).ok()?;
        reads_of_lengths(graph).checked_sub(reads_of_lengths(&plain))
    }

    /// Whether lowering names the engine of a deterministic 16-bit backward, on compute capability 10.x.
    pub(super) fn names_engine(&self) -> bool {
        self.is_blackwell() && self.a.fp8.is_none() && self.gradients.is_some_and(|g| g.deterministic)
    }

    /// Whether it is an 8-bit attention with one scale per tensor.
    pub(super) const fn per_tensor(&self) -> bool {
        matches!(self.a.fp8, Some(Fp8::Delayed | Fp8::Current))
    }

    /// Whether it is an 8-bit attention with block scales (MXFP8).
    pub(super) fn blocks(&self) -> bool {
        self.a.fp8 == Some(Fp8::Block)
    }

    /// Whether it is an 8-bit attention. A cache in 8 bits is one of cuDNN's nowhere.
    pub(super) fn eight_bits(&self) -> bool {
        self.a.has_narrow_products()
    }

    /// Whether a backward computes the gradient of a tensor of the score expression.
    pub(super) fn wants_tensor_gradient(&self) -> bool {
        let score = self.a.score_mod.as_ref().filter(|_| self.backward());
        score.is_some_and(|e| e.tensors().iter().any(|t| t.grad == Grad::Needed))
    }

    /// Whether there is one query of one sequence with several heads. Some generated kernels of compute capability 10.x
    /// do not compile for it.
    pub(super) fn one_query_of_several_heads(&self) -> bool {
        self.s_q == 1 && self.a.batch() == 1 && self.a.q.heads() > 1
    }

    pub(super) const fn is_hopper(&self) -> bool {
        self.sm() == 90
    }

    /// Whether the compute capability is 10.x (B200, B300), not the 12.x of consumer GPUs.
    pub(super) const fn is_blackwell(&self) -> bool {
        self.sm() / 10 == 10
    }

    pub(super) fn lengths(&self) -> bool {
        self.a.mask.lengths == Lengths::PerSequence
    }

    /// The left bound of the band, if it has one.
    pub(super) fn window(&self) -> Option<i64> {
        self.a.mask.band.and_then(|band| band.left)
    }

    /// Whether the band is bottom-right with a right bound, which NVIDIA's front end calls bottom-right causal.
    pub(super) fn causal_bottom_right(&self) -> bool {
        self.a.mask.band.is_some_and(|Band { corner, left: _, right }| corner == Corner::BottomRight && right.is_some())
    }

    pub(super) fn dropout(&self) -> bool {
        self.a.dropout.is_some()
    }

    /// Whether cuDNN draws the dropout.
    pub(super) fn philox(&self) -> bool {
        self.a.dropout.is_some_and(|d| d.source == DropoutSource::Philox)
    }
}

/// How often operations read the length operands.
fn reads_of_lengths(graph: &OpGraph) -> usize {
    let is_length =
        |id: &TensorId| matches!(graph.tensor(*id).kind, TensorKind::Operand(Role::SeqLenQ | Role::SeqLenKv));
    graph.ops.iter().flat_map(Op::inputs).filter(is_length).count()
}
