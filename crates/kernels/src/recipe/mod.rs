//! Launch recipes: what the driver is asked to do for one attention, as data.
//!
//! A plan of this engine is a recipe and what it names: machine code (cubins), perhaps constant data behind it. Whoever
//! launches it needs the driver alone: no cuDNN, no compiler, no look-up. A recipe says for each step which kernel runs
//! with which grid, and for each kernel parameter its bytes and what is written over them: an address, a number, a
//! tensor map.
//!
//! A recipe from a disk is untrusted. It is read by [`qkvault_graph::codec`], strictly and without a panic, and
//! [`LaunchRecipe::check`] then compares every offset, size and count with what it refers to; only a [`Checked`] recipe
//! is launched. [`LaunchRecipe::check_code`] compares it with what the cubins tell of their kernels. What a kernel does
//! with its parameters is in the machine code, and numbers among them (steps, counts) are the recipe's: both are as
//! trusted as cuDNN's plans are.

mod check;
mod cubin;
mod key;
mod print;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::ops::Deref;

use qkvault_graph::{DType, Role};
use serde::{Deserialize, Serialize};

pub use check::{BadRecipe, Limits};
pub use cubin::{BadCubin, CubinKernel};
pub use key::{CodeOrigin, architecture, bindings};

/// The format of recipes. Readers refuse every other one.
pub const RECIPE_FORMAT: u32 = 3;

/// Bytes of a tensor map in a kernel's parameters (`CUtensorMap` of `cuda.h`).
pub const TENSOR_MAP_BYTES: usize = 128;

/// What a launch does, step by step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchRecipe {
    /// [`RECIPE_FORMAT`].
    pub format: u32,
    /// Compute capability of the GPUs that run the code, as major * 10 + minor.
    pub sm: u32,
    /// The oldest CUDA version of a driver that loads the code, as major * 1000 + minor * 10.
    pub driver: u32,
    /// Bytes of scratch memory that a launch needs, aligned to
    /// [`SCRATCH_ALIGNMENT`](qkvault_graph::SCRATCH_ALIGNMENT).
    pub scratch: u64,
    /// The cubins, one after the other in the plan's bytes: the length of each.
    pub modules: Vec<u64>,
    /// Bytes of constant data behind the cubins. They are on the GPU as long as the plan is loaded.
    pub constants: u64,
    /// What is queued, in order.
    pub steps: Vec<RecipeStep>,
}

/// One thing that a launch queues on its stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum RecipeStep {
    /// Sets bytes of the scratch memory.
    Clear {
        /// Offset of the first byte.
        at: u64,
        /// Number of bytes.
        bytes: u64,
        /// The value of each byte.
        value: u8,
    },
    /// Launches a kernel.
    Launch(Launch),
}

/// A kernel launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// The cubin, by its place in [`LaunchRecipe::modules`].
    pub module: u32,
    /// The name of the kernel in the cubin.
    pub function: String,
    /// Blocks along x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y and z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory of a block.
    pub shared: u32,
    /// Blocks of a cluster along x, y and z, if the kernel is launched in clusters.
    pub cluster: Option<[u32; 3]>,
    /// Whether the kernel may begin before the one before it has ended. It then waits itself before it reads what that
    /// one writes (programmatic stream serialization).
    pub overlap: bool,
    /// The kernel's parameters, in order.
    pub params: Vec<Param>,
}

/// One parameter of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Param {
    /// Its bytes, with zeros where a launch writes.
    pub bytes: Vec<u8>,
    /// What a launch writes over them.
    pub patches: Vec<Patch>,
}

/// Bytes of a parameter that follow from a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Patch {
    /// Offset of the first byte.
    pub at: u32,
    /// The value.
    pub value: LaunchValue,
}

/// A value that follows from a launch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum LaunchValue {
    /// The address of an operand: 8 bytes.
    Address(Role),
    /// An address in the scratch memory: 8 bytes.
    Scratch(u64),
    /// A number on the host, as many bytes as its type has.
    Number(Role),
    /// A tensor map over an operand: [`TENSOR_MAP_BYTES`] bytes, at a multiple of 64.
    Map(TensorMap),
    /// A number on the host in f32 times a constant, whose bits these are: 4 bytes.
    Product(Role, u32),
    /// An address in the plan's constant data: 8 bytes.
    Constant(u64),
    /// The last extent of an open map over an operand ([`TensorMap::fitting`]), for a kernel that reads the operand by
    /// its address, as far as the map reaches: 4 bytes, at most 2^31 - 1.
    Fitting(TensorMap),
}

impl LaunchValue {
    /// A number on the host times a constant.
    #[must_use]
    pub fn product(number: Role, by: f32) -> LaunchValue {
        LaunchValue::Product(number, by.to_bits())
    }
}

impl LaunchRecipe {
    /// Bytes of the plan: cubins and constant data. `None` beyond 64 bits.
    #[must_use]
    pub fn bytes(&self) -> Option<u64> {
        self.modules.iter().try_fold(self.constants, |sum, &bytes| sum.checked_add(bytes))
    }
}

/// A tensor map over an operand, as `cuTensorMapEncodeTiled` takes it: the fastest dim first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorMap {
    /// The operand.
    pub role: Role,
    /// Element type.
    pub dtype: DType,
    /// Extents, 1 to 5 of them. A last one of 0, behind another, is as large as the operand of a launch allows
    /// ([`TensorMap::fitting`]): the pages of a pool.
    pub dims: Vec<u64>,
    /// Bytes between neighbours along each dim but the first, whose elements lie one after the other.
    pub strides: Vec<u64>,
    /// Extents of the box that one copy brings.
    pub tile: Vec<u32>,
    /// Bytes within which 16-byte parts change places by the row's number: 0 (none), 32, 64 or 128.
    pub swizzle: u32,
}

/// Rows of a map over rows that a launch finds by their number.
pub const RAGGED_ROWS: u64 = 1 << 30;

/// The other two dims of such a map.
const RAGGED_MOST: u64 = (1 << 31) - 1;

/// What the steps of a row back and forth come to in bytes: [`RAGGED_ROWS`] of these are a multiple of 2^64.
const RAGGED_STEP: u64 = 1 << 35;

/// A recipe whose every offset and size was compared with what it refers to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked(LaunchRecipe);

impl Deref for Checked {
    type Target = LaunchRecipe;

    fn deref(&self) -> &LaunchRecipe {
        &self.0
    }
}

impl Checked {
    /// The recipe itself.
    #[must_use]
    pub fn into_inner(self) -> LaunchRecipe {
        self.0
    }

    /// The place of each cubin in the plan's bytes: offset and length.
    pub fn modules(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.modules.iter().scan(0, |at, &bytes| {
            let begin = *at;
            *at += bytes;
            Some((begin, bytes))
        })
    }

    /// The place of the constant data in the plan's bytes: offset and length.
    #[must_use]
    pub fn constants(&self) -> (u64, u64) {
        (self.0.modules.iter().sum(), self.0.constants)
    }
}

impl TensorMap {
    /// Whether the last extent follows from the operand of a launch.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.dims.len() > 1 && self.dims.last() == Some(&0)
    }

    /// A map over rows that a launch finds by their number: it has as many rows as coordinates reach, and two dims more
    /// by which a copy begins at any row and ends behind any number of them. `row` and `head` are steps in bytes.
    ///
    /// The second last dim steps back by what the rows step beyond 64 bits of an address, so the coordinates
    /// `(column, RAGGED_ROWS - length + i, head, RAGGED_ROWS, first + length)` are row `first + i`, and a copy of rows
    /// from `length` on finds none (the way of Triton's `ragged_tma.py`).
    #[must_use]
    pub fn ragged_dims(columns: u64, heads: u64, [row, head]: [u64; 2]) -> ([u64; 5], [u64; 4]) {
        let dims = [columns, RAGGED_ROWS, heads, RAGGED_MOST, RAGGED_MOST];
        (dims, [row, head, (RAGGED_STEP).wrapping_sub(row), row])
    }

    /// The dim of the rows, if the map has the form of [`TensorMap::ragged_dims`]: 1, or 2 where heads are in front of
    /// the rows. Which rows are copied follows from numbers of the launch alone.
    #[must_use]
    pub fn ragged(&self) -> Option<usize> {
        let (&[columns, one, two, ..], &[first, second, ..]) = (self.dims.as_slice(), self.strides.as_slice()) else {
            return None;
        };
        let heads_first = two == RAGGED_ROWS;
        let [heads, row, head] = if heads_first { [one, second, first] } else { [two, first, second] };
        let (mut dims, mut strides) = TensorMap::ragged_dims(columns, heads, [row, head]);
        if heads_first {
            dims.swap(1, 2);
            strides.swap(0, 1);
        }
        let same = self.dims == dims && self.strides == strides && row < RAGGED_STEP;
        same.then_some(if heads_first { 2 } else { 1 })
    }

    /// The last extent of an open map over an operand of so many bytes; `None` where not one fits.
    #[must_use]
    pub fn fitting(&self, bytes: u64) -> Option<u64> {
        let (one, step) = (self.reach()?, *self.strides.last()?);
        let more = bytes.checked_sub(one)?.checked_div(step)?;
        Some(more.saturating_add(1).min(Limits::MAP_DIM))
    }

    /// What a launch writes for [`LaunchValue::Fitting`] over an operand of so many bytes; `None` where not one fits.
    #[must_use]
    pub fn fitting_count(&self, bytes: u64) -> Option<i32> {
        Some(i32::try_from(self.fitting(bytes)?).unwrap_or(i32::MAX))
    }

    /// Bytes from the operand's address to the end of the last element that the map reaches, of an open map with a last
    /// extent of 1; of a ragged one to the end of its first row. `None` beyond 64 bits.
    #[must_use]
    pub fn reach(&self) -> Option<u64> {
        let element = self.dtype.size() as u64;
        let steps = std::iter::once(element).chain(self.strides.iter().copied());
        let mut last = 0_u64;
        let (open, rows) = (self.is_open().then(|| self.dims.len() - 1), self.ragged());
        for (at, (&n, step)) in self.dims.iter().zip(steps).enumerate() {
            let n = if open == Some(at) || rows.is_some_and(|rows| [rows, 3, 4].contains(&at)) { 1 } else { n };
            last = last.checked_add(n.checked_sub(1)?.checked_mul(step)?)?;
        }
        last.checked_add(element)
    }
}
