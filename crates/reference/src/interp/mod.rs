//! An interpreter of op graphs: it computes each operation by its documented meaning, one after another, in float64.
//!
//! The interpreter does not use the definition of attention, and the oracle does not use lowering. A test that compares
//! the two therefore finds a mistake in either.
//!
//! The interpreter fixes the behaviour that the library leaves open:
//!
//! * Rows and columns of a matrix product beyond their lengths are zero in intermediates and not written in operands
//!   ([`Grid`] holds NaN there).
//! * A row of a softmax operation that sees no key is zeros. The same row computed by separate maximum, difference and
//!   exponential operations is NaN, as those operations define it.
//! * Random numbers are the mask bound as [`Role::DropoutMask`].
//! * The sum written to [`Role::DSink`] is negated, because the library negates it (NVIDIA's frontend leaves the sign
//!   of that gradient to the library).

mod error;
mod gather;
mod grid;
mod matmul;
mod pointwise;
mod rows;
mod scales;

use std::collections::BTreeMap;

use qkvault_cudnn::OpGraph;
use qkvault_cudnn::op::{Op, TensorId, TensorKind, check};
use qkvault_graph::{DType, Role};

pub use self::error::InterpretError;
pub use self::grid::Grid;
use crate::{Inputs, round};

/// How results are rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// Only 8-bit intermediates are rounded: the mathematical meaning of the graph.
    #[default]
    Exact,
    /// Every result is rounded to the element type that the graph declares for it.
    Rounded,
}

/// Runs an op graph and returns every operand that it writes, by role.
///
/// # Errors
///
/// Any fault of the graph or its operands. No graph causes a panic.
pub fn interpret(
    graph: &OpGraph,
    inputs: &Inputs,
    precision: Precision,
) -> Result<BTreeMap<Role, Grid>, InterpretError> {
    check(graph)?;
    let mut machine = Interpreter { graph, inputs, precision, values: vec![None; graph.tensors.len()] };
    let written: std::collections::BTreeSet<TensorId> = graph.ops.iter().flat_map(Op::outputs).collect();
    let read: std::collections::BTreeSet<TensorId> = graph.ops.iter().flat_map(Op::inputs).collect();
    for &id in read.difference(&written) {
        machine.values[id.0 as usize] = Some(machine.load(id)?);
    }
    let mut last_use = vec![usize::MAX; graph.tensors.len()];
    for (at, op) in graph.ops.iter().enumerate() {
        op.inputs().into_iter().chain(op.outputs()).for_each(|id| last_use[id.0 as usize] = at);
    }
    for (at, op) in graph.ops.iter().enumerate() {
        machine.run(at, op)?;
        machine.forget(|id| last_use[id] == at);
    }
    let role = |id: &TensorId| match graph.tensor(*id).kind {
        TensorKind::Operand(role) => Some(role),
        TensorKind::Virtual | TensorKind::Scalar(_) | TensorKind::Constant(_) => None,
    };
    let mut results = BTreeMap::new();
    for id in &written {
        if let (Some(role), Some(mut grid)) = (role(id), machine.values[id.0 as usize].take()) {
            if role == Role::DSink {
                grid.values_mut().iter_mut().for_each(|x| *x = -*x);
            }
            results.insert(role, grid);
        }
    }
    Ok(results)
}

struct Interpreter<'a> {
    graph: &'a OpGraph,
    inputs: &'a Inputs,
    precision: Precision,
    values: Vec<Option<Grid>>,
}

impl Interpreter<'_> {
    /// A value that an earlier step computed. [`check`] and the order of the steps guarantee that it exists.
    fn get(&self, id: TensorId) -> Result<&Grid, InterpretError> {
        self.values[id.0 as usize].as_ref().ok_or(InterpretError::NoValue { id })
    }

    fn maybe(&self, id: Option<TensorId>) -> Result<Option<&Grid>, InterpretError> {
        id.map(|id| self.get(id)).transpose()
    }

    fn dims(&self, id: TensorId) -> Result<[usize; 4], InterpretError> {
        Grid::dims_of(id, self.graph.tensor(id))
    }

    /// Drops intermediates that no later operation reads, because scores are large.
    fn forget(&mut self, done: impl Fn(usize) -> bool) {
        for (id, tensor) in self.graph.tensors.iter().enumerate() {
            if tensor.kind == TensorKind::Virtual && done(id) {
                self.values[id] = None;
            }
        }
    }

    /// The value of rows and columns that an operation leaves out.
    fn left_out(&self, id: TensorId) -> f64 {
        match self.graph.tensor(id).kind {
            TensorKind::Virtual => 0.0,
            TensorKind::Operand(_) | TensorKind::Scalar(_) | TensorKind::Constant(_) => f64::NAN,
        }
    }

    /// Stores a result, rounded as its element type and the precision require.
    fn put(&mut self, id: TensorId, mut grid: Grid) {
        let tensor = self.graph.tensor(id);
        let dtype = tensor.dtype;
        // Integers and booleans are the same in every mode. The roundings of 8-bit intermediates are part of the
        // definition of 8-bit attention. Only other real numbers can be more exact than a device's.
        let defined = !dtype.is_float() || (dtype.is_fp8() && tensor.kind == TensorKind::Virtual);
        if self.precision == Precision::Rounded || defined {
            for x in grid.values_mut().iter_mut().filter(|x| !x.is_nan() || dtype != DType::Bool) {
                *x = round(dtype, *x);
            }
        }
        self.values[id.0 as usize] = Some(grid);
    }

    fn run(&mut self, at: usize, op: &Op) -> Result<(), InterpretError> {
        match *op {
            Op::Matmul { a, b, c, m, n, k } => {
                let lengths = [self.maybe(m)?, self.maybe(n)?, self.maybe(k)?];
                let product =
                    matmul::matmul(at, [self.get(a)?, self.get(b)?], self.dims(c)?, lengths, self.left_out(c))?;
                self.put(c, product);
            }
            Op::Pointwise { mode, x, b, t, y, axis, compute } => {
                let operands = [Some(self.get(x)?), self.maybe(b)?, self.maybe(t)?];
                let y_grid = pointwise::pointwise(at, (mode, axis, compute), operands, self.dims(y)?)?;
                self.put(y, y_grid);
            }
            Op::Reduction { op, x, y } => {
                let reduced = rows::reduce(at, op, self.get(x)?, self.dims(y)?)?;
                self.put(y, reduced);
            }
            Op::Rng { keep: _, seed: _, offset: _, y } => {
                let mask = gather::mask(at, self.inputs, self.dims(y)?)?;
                self.put(y, mask);
            }
            Op::Reshape { x, y } => {
                let seen = gather::reshape(at, self.graph, [x, y], self.get(x)?, self.dims(y)?)?;
                self.put(y, seen);
            }
            Op::Dequantize { x, scale, y } => {
                let strides = self.graph.tensor(x).strides;
                let real = scales::dequantize(at, (self.get(x)?, strides), self.get(scale)?, self.dims(y)?)?;
                self.put(y, real);
            }
            Op::PagedLoad { container, table, lengths, y } => {
                let parts = [self.get(container)?, self.get(table)?, self.get(lengths)?];
                let swapped = gather::is_swapped(self.graph.tensor(y), parts[0]);
                let rows = gather::paged(at, parts, swapped, self.dims(y)?)?;
                self.put(y, rows);
            }
            Op::BandMask { x, fill, seq_q, seq_kv, left, shift_right, y, compare } => {
                let lengths = [self.maybe(seq_q)?, self.maybe(seq_kv)?];
                let bounds = [self.maybe(left)?, self.maybe(shift_right)?];
                let masked = rows::band(at, compare, [self.get(x)?, self.get(fill)?], lengths, bounds, self.dims(y)?)?;
                self.put(y, masked);
            }
            Op::Softmax { x, y, stats, max, sum_exp, sink } => {
                let [p, by_row @ ..] = rows::softmax(at, self.get(x)?, self.maybe(sink)?, self.dims(y)?)?;
                for (id, grid) in [stats, max, sum_exp].into_iter().zip(by_row) {
                    if let Some(id) = id {
                        rows::same_dims(at, grid.dims(), self.dims(id)?)?;
                        self.put(id, grid);
                    }
                }
                self.put(y, p);
            }
        }
        Ok(())
    }
}
