//! Evaluation of score expressions over rows: one node at a time over a run of keys, in float64, with a reverse sweep
//! for gradients.
//!
//! The reverse sweep differentiates node by node and does not use the derivative that `qkvault_graph` derives, so that
//! tests can compare the two.

mod adjoint;
pub(crate) mod scalar;
#[cfg(test)]
mod tests;

use qkvault_graph::expr::{Axis, Grad, Node, NodeId, Program, Side, TensorId, Ty};
use qkvault_graph::{Role, score_tensor};

use crate::{Buffer, Inputs, Operand, ReferenceError};

/// Number of keys in a run: the values of a few dozen nodes for this many keys fit into the L1 cache.
pub(crate) const LANES: usize = 128;

/// An expression with its scalars and tensors.
pub(crate) struct BoundScore<'a> {
    program: &'a Program,
    scalars: Vec<f64>,
    tensors: Vec<(&'a Buffer, [usize; 4])>,
    /// The attention's number of the expression's first tensor.
    first_tensor: u16,
}

/// The position of a row of scores.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowAt {
    pub(crate) batch: usize,
    pub(crate) head: usize,
    pub(crate) query: usize,
    /// Lengths of the queries and keys of this sequence.
    pub(crate) lens: [usize; 2],
    /// Positions of the first query and the first key.
    pub(crate) origins: [usize; 2],
}

/// The values (or gradients) of every node over one run of keys.
#[derive(Default)]
pub(crate) struct Registers(Vec<f64>);

impl Registers {
    fn lanes(&self, id: NodeId, n: usize) -> &[f64] {
        &self.0[id.at() * LANES..][..n]
    }

    fn resize(&mut self, nodes: usize) {
        self.0.clear();
        self.0.resize(nodes * LANES, 0.0);
    }
}

impl<'a> BoundScore<'a> {
    /// Binds scalars and tensors, numbered from `first_scalar` and `first_tensor` on.
    pub(crate) fn new(
        program: &'a Program,
        first_scalar: u16,
        first_tensor: u16,
        inputs: &'a Inputs,
    ) -> Result<BoundScore<'a>, ReferenceError> {
        let mut scalars = Vec::with_capacity(program.scalars().len());
        for (number, spec) in (first_scalar..).zip(program.scalars()) {
            let tensor = qkvault_graph::Tensor::bhsd(1, 1, 1, 1, spec.ty.dtype());
            scalars.push(inputs.checked(&Operand { role: Role::Scalar(number), tensor, output: false })?.get(0));
        }
        let mut tensors = Vec::with_capacity(program.tensors().len());
        for (number, spec) in (first_tensor..).zip(program.tensors()) {
            let tensor = score_tensor(spec);
            let buffer = inputs.checked(&Operand { role: Role::ScoreTensor(number), tensor, output: false })?;
            tensors.push((buffer, spec.dims.map(|n| n as usize)));
        }
        Ok(BoundScore { program, scalars, tensors, first_tensor })
    }

    /// Binds a program whose operands have the names of another program's operands, which are numbered from 0.
    pub(crate) fn by_name(
        program: &'a Program,
        of: &Program,
        inputs: &'a Inputs,
    ) -> Result<BoundScore<'a>, ReferenceError> {
        let place =
            |name: &String, names: &[String]| names.iter().position(|n| n == name).unwrap_or(names.len()) as u16;
        let mut scalars = Vec::new();
        for (name, spec) in program.scalar_names().iter().zip(program.scalars()) {
            let role = Role::Scalar(place(name, of.scalar_names()));
            let tensor = qkvault_graph::Tensor::bhsd(1, 1, 1, 1, spec.ty.dtype());
            scalars.push(inputs.checked(&Operand { role, tensor, output: false })?.get(0));
        }
        let mut tensors = Vec::new();
        for (name, spec) in program.tensor_names().iter().zip(program.tensors()) {
            let role = Role::ScoreTensor(place(name, of.tensor_names()));
            let buffer = inputs.checked(&Operand { role, tensor: score_tensor(spec), output: false })?;
            tensors.push((buffer, spec.dims.map(|n| n as usize)));
        }
        Ok(BoundScore { program, scalars, tensors, first_tensor: 0 })
    }

    /// The tensors whose gradient is requested: the attention's number, the expression's id, and the dims.
    pub(crate) fn differentiated(&self) -> impl Iterator<Item = (u16, TensorId, [usize; 4])> + '_ {
        let tensors = (self.first_tensor..).zip(self.program.tensors()).zip(0..);
        tensors
            .filter(|((_, spec), _)| spec.grad == Grad::Needed)
            .map(|((number, spec), id)| (number, TensorId(id), spec.dims.map(|n| n as usize)))
    }

    /// The values of the root for the keys from `first` on, with these scaled scores; at most [`LANES`] keys.
    pub(crate) fn run<'r>(&self, at: RowAt, first: usize, scores: &[f64], values: &'r mut Registers) -> &'r [f64] {
        let n = scores.len();
        values.resize(self.program.nodes().len());
        for (id, &node) in self.program.nodes().iter().enumerate() {
            let (before, rest) = values.0.split_at_mut(id * LANES);
            self.node(node, at, first, scores, before, &mut rest[..n]);
        }
        values.lanes(self.program.root(), n)
    }

    fn node(&self, node: Node, at: RowAt, first: usize, scores: &[f64], before: &[f64], out: &mut [f64]) {
        let n = out.len();
        let of = |id: NodeId| &before[id.at() * LANES..][..n];
        match node {
            Node::Score => out.copy_from_slice(scores),
            Node::Upstream => unreachable!("a score expression has no upstream"),
            Node::Index(Axis::Batch) => out.fill(at.batch as f64),
            Node::Index(Axis::Head) => out.fill(at.head as f64),
            Node::Index(Axis::Query) => out.fill((at.query + at.origins[0]) as f64),
            Node::Index(Axis::Key) => {
                out.iter_mut().zip(first + at.origins[1]..).for_each(|(y, key)| *y = key as f64);
            }
            Node::Length(Side::Query) => out.fill(at.lens[0] as f64),
            Node::Length(Side::Key) => out.fill(at.lens[1] as f64),
            Node::Float(value) => out.fill(f64::from(value.value())),
            Node::Int(value) => out.fill(f64::from(value)),
            Node::Bool(value) => out.fill(f64::from(u8::from(value))),
            Node::Scalar(id) => out.fill(self.scalars[id.at()]),
            Node::Tensor(id) => {
                let (buffer, dims) = self.tensors[id.at()];
                let start = element(dims, at, first);
                if dims[Axis::Key.dim()] == 1 { out.fill(buffer.get(start)) } else { buffer.read(start, out) }
            }
            Node::ToFloat(a) => out.copy_from_slice(of(a)),
            Node::Unary(op, a) => match self.program.ty(a) {
                Ty::Int => map(out, of(a), |x| scalar::unary_int(op, x)),
                Ty::Float | Ty::Bool => map(out, of(a), |x| scalar::unary(op, x)),
            },
            Node::Binary(op, a, b) => match self.program.ty(a) {
                Ty::Int => zip(out, of(a), of(b), |a, b| scalar::binary_int(op, a, b)),
                Ty::Float | Ty::Bool => zip(out, of(a), of(b), |a, b| scalar::binary(op, a, b)),
            },
            Node::Compare(op, a, b) => zip(out, of(a), of(b), |a, b| truth(scalar::compare(op, a, b))),
            Node::Not(a) => map(out, of(a), |x| truth(x == 0.0)),
            Node::Logic(op, a, b) => zip(out, of(a), of(b), |a, b| truth(scalar::logic(op, a, b))),
            Node::Select { keep, yes, no } => {
                for (i, y) in out.iter_mut().enumerate() {
                    *y = if of(keep)[i] != 0.0 { of(yes)[i] } else { of(no)[i] };
                }
            }
        }
    }
}

/// Index of the element for this row and key in a row-major tensor that broadcasts over extents of 1.
pub(crate) fn element(dims: [usize; 4], at: RowAt, key: usize) -> usize {
    let indices = [at.batch, at.head, at.query, key];
    dims.iter().zip(indices).fold(0, |place, (&n, i)| place * n + if n == 1 { 0 } else { i })
}

fn truth(t: bool) -> f64 {
    f64::from(u8::from(t))
}

fn map(out: &mut [f64], a: &[f64], f: impl Fn(f64) -> f64) {
    for (y, &a) in out.iter_mut().zip(a) {
        *y = f(a);
    }
}

fn zip(out: &mut [f64], a: &[f64], b: &[f64], f: impl Fn(f64, f64) -> f64) {
    for ((y, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *y = f(a, b);
    }
}
