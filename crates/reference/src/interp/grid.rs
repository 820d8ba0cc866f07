//! The values of a tensor: one float64 per element, row-major over its logical dims, whatever its strides.

use qkvault_cudnn::op::{Op, OpTensor, TensorId, TensorKind};
use qkvault_graph::{DType, Order, Role};
use rayon::prelude::*;

use super::{InterpretError, Interpreter};
use crate::{Buffer, ReferenceError};

/// Maximum number of elements of one tensor; larger graphs take too long for a test.
const MOST: usize = 1 << 28;

/// The values of a tensor; NaN where nothing was written. Integers and booleans (0 and 1) are exact.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    dims: [usize; 4],
    values: Vec<f64>,
}

impl Grid {
    pub(super) fn new(dims: [usize; 4], fill: f64) -> Grid {
        Grid { dims, values: vec![fill; dims.iter().product()] }
    }

    pub(super) fn dims_of(id: TensorId, tensor: &OpTensor) -> Result<[usize; 4], InterpretError> {
        let dims = tensor.dims.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
        let elements = dims.iter().try_fold(1_usize, |n, &d| n.checked_mul(d)).filter(|&n| n <= MOST);
        elements.map(|_| dims).ok_or(InterpretError::TooLarge { id, dims: tensor.dims })
    }

    /// Logical dims, as the graph declares them.
    #[must_use]
    pub const fn dims(&self) -> [usize; 4] {
        self.dims
    }

    /// The value at an index.
    ///
    /// # Panics
    ///
    /// If `index` is out of range.
    #[must_use]
    pub fn at(&self, index: [usize; 4]) -> f64 {
        assert!(index.iter().zip(self.dims).all(|(&i, n)| i < n), "no element {index:?} in dims {:?}", self.dims);
        self.values[self.place(index)]
    }

    fn place(&self, [a, b, c, d]: [usize; 4]) -> usize {
        let [_, nb, nc, nd] = self.dims;
        ((a * nb + b) * nc + c) * nd + d
    }

    /// One row, broadcast to the dims `over`: extents of 1 repeat, and groups of heads share one head.
    pub(super) fn row(&self, index: [usize; 3], over: [usize; 4]) -> Line<'_> {
        let place = std::array::from_fn::<usize, 3, _>(|axis| match (self.dims[axis], over[axis]) {
            (1, _) => 0,
            (own, all) if own == all => index[axis],
            (own, all) => index[axis] / (all / own),
        });
        let start = self.place([place[0], place[1], place[2], 0]);
        match self.dims[3] {
            1 => Line::One(self.values[start]),
            n => Line::Each(&self.values[start..start + n]),
        }
    }

    /// The number of a scalar, or the number for one sequence.
    pub(super) fn number(&self, sequence: usize) -> f64 {
        self.values[if self.dims[0] == 1 { 0 } else { sequence }]
    }

    /// Fills all rows, on several threads.
    pub(super) fn fill_rows(&mut self, fill: impl Fn([usize; 3], &mut [f64]) + Sync) {
        let [_, heads, rows, n] = self.dims;
        self.values.par_chunks_mut(n).enumerate().for_each(|(at, row)| {
            fill([at / (heads * rows), at / rows % heads, at % rows], row);
        });
    }

    pub(super) fn set(&mut self, index: [usize; 4], x: f64) {
        let place = self.place(index);
        self.values[place] = x;
    }

    /// Every value, row-major.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    pub(super) fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// Computes every element from its index.
    pub(super) fn fill_with(&mut self, value: impl Fn([usize; 4]) -> f64 + Sync) {
        self.fill_rows(|[i, j, k], row| row.iter_mut().enumerate().for_each(|(l, x)| *x = value([i, j, k, l])));
    }
}

/// A row of values: one number for the whole row, or one for each element.
#[derive(Clone, Copy)]
pub(super) enum Line<'g> {
    One(f64),
    Each(&'g [f64]),
}

impl Line<'_> {
    pub(super) fn at(self, i: usize) -> f64 {
        match self {
            Line::One(x) => x,
            Line::Each(row) => row[i],
        }
    }
}

/// Every index within these dims, last axis fastest.
pub(super) fn indices([a, b, c, d]: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).flat_map(move |k| (0..d).map(move |l| [i, j, k, l]))))
}

/// Address of an element by strides.
pub(super) fn address(index: [usize; 4], strides: [i64; 4]) -> usize {
    index.iter().zip(strides).fold(0_usize, |sum, (&i, s)| sum.saturating_add(i.saturating_mul(s as usize)))
}

/// The pool of pages that an operation reads.
fn pool(op: &Op) -> Option<TensorId> {
    match *op {
        Op::PagedLoad { container: pool, .. } => Some(pool),
        _ => None,
    }
}

impl Interpreter<'_> {
    /// The values of an operand, scalar or constant.
    pub(super) fn load(&self, id: TensorId) -> Result<Grid, InterpretError> {
        let tensor = self.graph.tensor(id);
        let mut dims = Grid::dims_of(id, tensor)?;
        match tensor.kind {
            TensorKind::Constant(constant) => {
                let value = Buffer::new(constant.dtype(), constant.bytes(self.origins()?).to_vec())?.get(0);
                Ok(Grid::new(dims, value))
            }
            TensorKind::Scalar(role) => {
                let buffer = self.inputs.typed(role, tensor.dtype)?;
                if buffer.is_empty() {
                    return Err(InterpretError::NoNumber { role });
                }
                Ok(Grid::new(dims, buffer.get(0)))
            }
            TensorKind::Virtual => Err(InterpretError::NoValue { id }),
            TensorKind::Operand(role) => {
                let role = role.memory();
                let buffer = self.inputs.typed(role, tensor.dtype)?;
                let starts = tensor.offsets.map(|offsets| self.starts(offsets, dims[0])).transpose()?;
                let mut strides = tensor.strides;
                // Strides of scales say nothing about their memory: the values are kept in its order.
                if tensor.dtype == DType::E8M0 {
                    strides = Order::Bhsd.checked_strides(tensor.dims).unwrap_or(strides);
                }
                if starts.is_some() {
                    strides[0] = 0;
                }
                // A pool may have fewer pages than the graph declares; load those that exist.
                if self.graph.ops.iter().any(|op| pool(op) == Some(id)) {
                    let one = address([0, dims[1] - 1, dims[2] - 1, dims[3] - 1], strides);
                    let more = buffer.len().saturating_sub(one + 1) / (strides[0].unsigned_abs() as usize).max(1);
                    dims[0] = dims[0].min(more + 1);
                }
                // Elements of a varlen operand beyond its buffer belong to no sequence and stay NaN.
                if starts.is_none() {
                    let last = address(dims.map(|n| n - 1), strides);
                    if last >= buffer.len() {
                        let needed = last.saturating_add(1);
                        return Err(ReferenceError::TooShort { role, given: buffer.len(), needed }.into());
                    }
                }
                let mut grid = Grid::new(dims, f64::NAN);
                grid.fill_with(|index| {
                    let start = starts.as_ref().map_or(0, |starts| starts[index[0]]);
                    let at = start.saturating_add(address(index, strides));
                    if at < buffer.len() { buffer.get(at) } else { f64::NAN }
                });
                Ok(grid)
            }
        }
    }

    /// The origins of the launch; zero if they are not bound, as for graphs that read none.
    fn origins(&self) -> Result<[i32; 2], InterpretError> {
        let side = |role| match self.inputs.get(role) {
            None => Ok(0),
            Some(_) => self.inputs.typed(role, DType::I32).map(|buffer| buffer.get(0) as i32),
        };
        Ok([side(Role::QueryOrigin)?, side(Role::KeyOrigin)?])
    }

    /// The first element of each sequence of a varlen operand.
    fn starts(&self, offsets: TensorId, batch: usize) -> Result<Vec<usize>, InterpretError> {
        let TensorKind::Operand(role) = self.graph.tensor(offsets).kind else {
            return Err(InterpretError::NoValue { id: offsets });
        };
        let buffer = self.inputs.buffer(role)?;
        if buffer.len() < batch + 1 {
            return Err(ReferenceError::TooShort { role, given: buffer.len(), needed: batch + 1 }.into());
        }
        let start = |sequence| {
            let given = buffer.int(sequence);
            let falls = ReferenceError::Offset { role, sequence, given, end: given, room: i64::MAX };
            usize::try_from(given).map_err(|_| falls.into())
        };
        (0..batch).map(start).collect()
    }
}
