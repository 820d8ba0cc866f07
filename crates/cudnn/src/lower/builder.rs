//! Writes op graphs: one method per kind of tensor and operation, so that lowering reads like the formula.

use std::collections::BTreeMap;

use super::variants::{Variant, VariantSet};
use crate::op::{Constant, OfOrigins, Op, OpGraph, OpTensor, Pointwise, Reduce, TensorId, TensorKind};
use crate::{CudnnVersion, DType, Order, Role, Tensor};

/// An op graph being written.
pub(super) struct Builder {
    graph: OpGraph,
    known: BTreeMap<Role, TensorId>,
    without: VariantSet,
    cudnn: CudnnVersion,
}

impl Builder {
    /// An empty graph for a version, which is written without some variants.
    pub(super) fn new(cudnn: CudnnVersion, without: VariantSet) -> Builder {
        Builder { graph: OpGraph::default(), known: BTreeMap::new(), without, cudnn }
    }

    /// The version of cuDNN.
    pub(super) const fn cudnn(&self) -> CudnnVersion {
        self.cudnn
    }

    /// Whether a tensor in memory has one number for all keys. It is declared with a stride of zero, unlike computed
    /// tensors.
    pub(super) fn stands_still(&self, id: TensorId) -> bool {
        self.graph.tensor(id).strides[3] == 0
    }

    /// Whether a tensor in memory is a single f32, as the log-sum-exp of one row is.
    pub(super) fn is_one_float(&self, id: TensorId) -> bool {
        let t = self.graph.tensor(id);
        matches!(t.kind, TensorKind::Operand(_)) && (t.dims, t.dtype) == ([1; 4], DType::F32)
    }

    /// Whether a variant is on.
    pub(super) const fn follows(&self, rule: Variant) -> bool {
        !self.without.contains(rule)
    }

    pub(super) fn finish(self) -> OpGraph {
        self.graph
    }

    fn push(&mut self, tensor: OpTensor) -> TensorId {
        let id = TensorId(self.graph.tensors.len() as u32);
        self.graph.tensors.push(tensor);
        id
    }

    /// An operand in device memory; the same role gives the same tensor again. A varlen one has its offsets.
    pub(super) fn operand(&mut self, role: Role, t: &Tensor) -> TensorId {
        let id = self.operand_as(role, t.dims, t.strides, t.dtype);
        self.with_offsets(id, role, t)
    }

    fn with_offsets(&mut self, id: TensorId, role: Role, t: &Tensor) -> TensorId {
        let offsets = super::ragged::offsets(self, role, t);
        self.set_offsets(id, offsets);
        id
    }

    /// The offsets of a varlen tensor.
    pub(super) fn offsets(&self, id: TensorId) -> Option<TensorId> {
        self.graph.tensor(id).offsets
    }

    pub(super) fn set_offsets(&mut self, id: TensorId, offsets: Option<TensorId>) {
        self.graph.tensors[id.0 as usize].offsets = offsets;
    }

    pub(super) fn operand_as(&mut self, role: Role, dims: [i64; 4], strides: [i64; 4], dtype: DType) -> TensorId {
        if let Some(&id) = self.known.get(&role) {
            return id;
        }
        let kind = if role.is_scalar() { TensorKind::Scalar(role) } else { TensorKind::Operand(role) };
        let id = self.push(OpTensor { dims, strides, dtype, kind, offsets: None });
        self.known.insert(role, id);
        id
    }

    /// An operand with its last two dims swapped: the same memory as a transposed matrix.
    pub(super) fn transposed(&mut self, role: Role, t: &Tensor) -> TensorId {
        let ([b, h, s, d], [sb, sh, ss, sd]) = (t.dims, t.strides);
        let id = self.operand_as(role, [b, h, d, s], [sb, sh, sd, ss], t.dtype);
        self.with_offsets(id, role, t)
    }

    /// A number that a launch gets.
    pub(super) fn scalar(&mut self, role: Role, dtype: DType) -> TensorId {
        self.operand_as(role, [1; 4], [1; 4], dtype)
    }

    /// A constant of the graph. Each use gets a new tensor, as in NVIDIA's front end.
    pub(super) fn constant(&mut self, value: Constant) -> TensorId {
        let dtype = value.dtype();
        self.push(OpTensor { dims: [1; 4], strides: [1; 4], dtype, kind: TensorKind::Constant(value), offsets: None })
    }

    /// A number that each launch computes: `start` plus `sign` times the queries' origin less the keys'.
    pub(super) fn origins_apart(&mut self, dtype: DType, start: i64, sign: i8, least: Option<i64>) -> TensorId {
        self.of_origins(OfOrigins {
            dtype,
            start: start as i32,
            query: sign,
            key: -sign,
            least: least.map(|n| n as i32),
        })
    }

    /// A number that each launch computes from its origins. Each use gets a new tensor, as for constants.
    pub(super) fn of_origins(&mut self, number: OfOrigins) -> TensorId {
        self.constant(Constant::OfOrigins(number))
    }

    /// A row-major result that is never in memory.
    pub(super) fn virtual_(&mut self, dims: [i64; 4], dtype: DType) -> TensorId {
        let strides = Order::Bhsd.strides(dims);
        self.push(OpTensor { dims, strides, dtype, kind: TensorKind::Virtual, offsets: None })
    }

    /// A result that is never in memory, with these strides.
    pub(super) fn virtual_strided(&mut self, dims: [i64; 4], strides: [i64; 4], dtype: DType) -> TensorId {
        self.push(OpTensor { dims, strides, dtype, kind: TensorKind::Virtual, offsets: None })
    }

    /// 8-bit numbers times the powers of two of their blocks, in f32.
    pub(super) fn dequantized(&mut self, x: TensorId, scale: TensorId) -> TensorId {
        let OpTensor { dims, strides, .. } = *self.graph.tensor(x);
        let y = self.virtual_strided(dims, strides, DType::F32);
        self.graph.ops.push(Op::Dequantize { x, scale, y });
        y
    }

    /// Random numbers: one with probability `keep`, otherwise zero, by Philox from the seed and offset operands.
    pub(super) fn rng(&mut self, keep: f64, dims: [i64; 4]) -> TensorId {
        let number = Tensor::dense(Order::Bhsd, [1; 4], DType::I64);
        let (seed, offset) = (self.operand(Role::DropoutSeed, &number), self.operand(Role::DropoutOffset, &number));
        let y = self.virtual_(dims, DType::F32);
        self.graph.ops.push(Op::Rng { keep: keep.to_bits(), seed, offset, y });
        y
    }

    /// Whether a tensor is computed, and never in memory.
    pub(super) fn is_virtual(&self, id: TensorId) -> bool {
        self.graph.tensor(id).kind == TensorKind::Virtual
    }

    pub(super) fn dtype(&self, id: TensorId) -> DType {
        self.graph.tensor(id).dtype
    }

    /// Excludes engines from computing this graph.
    pub(super) fn exclude_engines(&mut self, engines: &[i64]) {
        self.graph.excluded_engines.extend(engines);
    }

    pub(super) fn dims(&self, id: TensorId) -> [i64; 4] {
        self.graph.tensor(id).dims
    }

    /// Changes the element type of a result: cuDNN rounds the probabilities at the place of that declaration.
    pub(super) fn set_dtype(&mut self, id: TensorId, dtype: DType) {
        self.graph.tensors[id.0 as usize].dtype = dtype;
    }

    pub(super) fn matmul(&mut self, [a, b, c]: [TensorId; 3], [m, n, k]: [Option<TensorId>; 3]) {
        self.graph.ops.push(Op::Matmul { a, b, c, m, n, k });
    }

    fn broadcast(&self, list: &[TensorId]) -> [i64; 4] {
        let mut dims = [1; 4];
        for &id in list {
            for (d, n) in dims.iter_mut().zip(self.dims(id)) {
                *d = n.max(*d);
            }
        }
        dims
    }

    /// `mode(x)` in f32.
    pub(super) fn unary(&mut self, mode: Pointwise, x: TensorId) -> TensorId {
        self.unary_as(mode, x, DType::F32, DType::F32)
    }

    /// `mode(x)` computed in `compute`, with a result in `out`.
    pub(super) fn unary_as(&mut self, mode: Pointwise, x: TensorId, compute: DType, out: DType) -> TensorId {
        let y = self.virtual_(self.dims(x), out);
        self.graph.ops.push(Op::Pointwise { mode, x, b: None, t: None, y, axis: None, compute });
        y
    }

    /// `mode(x)` in f32, into a given tensor.
    pub(super) fn unary_into(&mut self, mode: Pointwise, x: TensorId, y: TensorId) {
        let compute = DType::F32;
        self.graph.ops.push(Op::Pointwise { mode, x, b: None, t: None, y, axis: None, compute });
    }

    /// `mode(x, b)` computed in `compute`, with a result in `out`; sizes broadcast.
    pub(super) fn binary_as(
        &mut self,
        mode: Pointwise,
        x: TensorId,
        b: TensorId,
        compute: DType,
        out: DType,
    ) -> TensorId {
        let y = self.virtual_(self.broadcast(&[x, b]), out);
        self.binary_into(mode, x, b, compute, y);
        y
    }

    /// `mode(x, b)` in f32.
    pub(super) fn binary(&mut self, mode: Pointwise, x: TensorId, b: TensorId) -> TensorId {
        self.binary_as(mode, x, b, DType::F32, DType::F32)
    }

    pub(super) fn binary_into(&mut self, mode: Pointwise, x: TensorId, b: TensorId, compute: DType, y: TensorId) {
        self.graph.ops.push(Op::Pointwise { mode, x, b: Some(b), t: None, y, axis: None, compute });
    }

    /// Index of each element of `like` along an axis, i32.
    pub(super) fn index(&mut self, like: TensorId, axis: u8, compute: DType) -> TensorId {
        let y = self.virtual_(self.dims(like), DType::I32);
        let (mode, axis) = (Pointwise::GenIndex, Some(axis));
        self.graph.ops.push(Op::Pointwise { mode, x: like, b: None, t: None, y, axis, compute });
        y
    }

    /// `keep ? x : fill`, f32.
    pub(super) fn select(&mut self, keep: TensorId, x: TensorId, fill: TensorId) -> TensorId {
        self.select_as(keep, x, fill, DType::F32)
    }

    /// `keep ? x : fill`, in an element type.
    pub(super) fn select_as(&mut self, keep: TensorId, x: TensorId, fill: TensorId, out: DType) -> TensorId {
        let y = self.virtual_(self.broadcast(&[keep, x, fill]), out);
        let mode = Pointwise::Select;
        self.graph.ops.push(Op::Pointwise { mode, x, b: Some(fill), t: Some(keep), y, axis: None, compute: out });
        y
    }

    /// Reduces `x` over its last dim, into a given tensor.
    pub(super) fn reduce_into(&mut self, op: Reduce, x: TensorId, y: TensorId) {
        self.graph.ops.push(Op::Reduction { op, x, y });
    }

    pub(super) fn push_op(&mut self, op: Op) {
        self.graph.ops.push(op);
    }
}
