//! Values of a tensor: one float64 per element, row-major over its logical dims, whatever its strides.

use qkvault_graph::op::{OpTensor, TensorId, TensorKind};

use super::{InterpretError, Machine};
use crate::{Buffer, ReferenceError};

/// Most elements of one tensor: interpreting is for graphs that a test can afford.
const MOST: usize = 1 << 28;

/// Values of a tensor, NaN where nothing was written. Integers and truth values (0 and 1) are held exactly.
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
    /// When there is no such element.
    #[must_use]
    pub fn at(&self, index: [usize; 4]) -> f64 {
        assert!(index.iter().zip(self.dims).all(|(&i, n)| i < n), "no element {index:?} in dims {:?}", self.dims);
        self.values[self.place(index)]
    }

    fn place(&self, [a, b, c, d]: [usize; 4]) -> usize {
        let [_, nb, nc, nd] = self.dims;
        ((a * nb + b) * nc + c) * nd + d
    }

    /// The value at an index, where extents of 1 are broadcast and heads are shared by groups.
    pub(super) fn shared(&self, index: [usize; 4], over: [usize; 4]) -> f64 {
        let place = std::array::from_fn(|axis| match (self.dims[axis], over[axis]) {
            (1, _) => 0,
            (own, all) if own == all => index[axis],
            (own, all) => index[axis] / (all / own),
        });
        self.values[self.place(place)]
    }

    pub(super) fn set(&mut self, index: [usize; 4], x: f64) {
        let place = self.place(index);
        self.values[place] = x;
    }

    pub(super) fn values_mut(&mut self) -> &mut [f64] {
        &mut self.values
    }

    /// Fills every element from its index.
    pub(super) fn fill_with(&mut self, mut value: impl FnMut([usize; 4]) -> f64) {
        for index in indices(self.dims) {
            let x = value(index);
            self.set(index, x);
        }
    }
}

/// Every index of these dims, last axis fastest.
pub(super) fn indices([a, b, c, d]: [usize; 4]) -> impl Iterator<Item = [usize; 4]> {
    (0..a).flat_map(move |i| (0..b).flat_map(move |j| (0..c).flat_map(move |k| (0..d).map(move |l| [i, j, k, l]))))
}

/// Address of an element by strides.
pub(super) fn address(index: [usize; 4], strides: [i64; 4]) -> usize {
    index.iter().zip(strides).fold(0_usize, |sum, (&i, s)| sum.saturating_add(i.saturating_mul(s as usize)))
}

impl Machine<'_> {
    /// The value of an operand, slot or constant.
    pub(super) fn load(&self, id: TensorId) -> Result<Grid, InterpretError> {
        let tensor = self.graph.tensor(id);
        let dims = Grid::dims_of(id, tensor)?;
        match tensor.kind {
            TensorKind::Constant(constant) => {
                let value = Buffer::new(constant.dtype(), constant.bytes().to_vec())?.get(0);
                Ok(Grid::new(dims, value))
            }
            TensorKind::Slot(role) => {
                let buffer = self.inputs.buffer(role)?;
                let given = buffer.dtype();
                if given != tensor.dtype {
                    return Err(ReferenceError::WrongType { role, given, needed: tensor.dtype }.into());
                }
                if buffer.is_empty() {
                    return Err(InterpretError::NoNumber { role });
                }
                Ok(Grid::new(dims, buffer.get(0)))
            }
            TensorKind::Virtual => Err(InterpretError::NoValue { id }),
            TensorKind::Operand(role) => {
                let buffer = self.inputs.buffer(role)?;
                let given = buffer.dtype();
                if given != tensor.dtype {
                    return Err(ReferenceError::WrongType { role, given, needed: tensor.dtype }.into());
                }
                let starts = tensor.offsets.map(|offsets| self.starts(offsets, dims[0])).transpose()?;
                let mut strides = tensor.strides;
                if starts.is_some() {
                    strides[0] = 0;
                }
                // Elements of a packed operand beyond its buffer belong to no sequence; they read as not written.
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

    /// Where each sequence of a packed operand begins.
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
