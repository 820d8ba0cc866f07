//! The results of a computation: exact numbers in the memory order of each output, and the buffers a device would hold.

use qkvault_graph::{Attention, Operand, PaddedRows, Role, Storage, operand};

use crate::inputs::elements;
use crate::view::SeqLens;
use crate::{Buffer, Inputs, ReferenceError, View};

/// The state of one element of an output's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defined {
    /// The element holds the computed number.
    Value,
    /// The element belongs to a row that the description leaves undefined; it may hold any value.
    Undefined,
    /// The element belongs to no element of the tensor (a gap between strides) and must not be written.
    Outside,
}

/// One output: an exact number for every element of its buffer, in memory order.
#[derive(Clone, Debug)]
pub struct ExactOutput {
    operand: Operand,
    view: View,
    /// Number of rows of each sequence; the dim if the rows of the output are not those of a sequence.
    rows: Vec<usize>,
    pub(crate) values: Vec<f64>,
    pub(crate) defined: Vec<Defined>,
}

impl ExactOutput {
    /// An output without results. Rows beyond the lengths are in the state that the description requires.
    pub(crate) fn new(
        a: &Attention,
        role: Role,
        inputs: &Inputs,
        lens: &SeqLens,
    ) -> Result<ExactOutput, ReferenceError> {
        let operand = operand(a, role).ok_or(ReferenceError::Missing { role })?;
        let view = View::for_operand(&operand, inputs, lens)?;
        let len = elements(&operand)?;
        let rows = match operand.tensor.storage {
            Storage::Varlen { .. } => lens.side(role).to_vec(),
            Storage::Dense | Storage::Paged { .. } => vec![view.dims[2]; view.dims[0]],
        };
        let mut out = ExactOutput { operand, view, rows, values: vec![0.0; len], defined: vec![Defined::Outside; len] };
        out.pad(a.padded_rows);
        Ok(out)
    }

    /// Marks every row as padding, including rows that belong to no sequence. [`ExactOutput::put`] makes rows within
    /// lengths values.
    fn pad(&mut self, padded: PaddedRows) {
        let role = self.operand.role;
        let by_rows = matches!(role, Role::O | Role::Stats | Role::Max | Role::SumExp | Role::DQ | Role::DK | Role::DV);
        let (fill, state) = match (padded, role) {
            (PaddedRows::Undefined, _) if by_rows => (0.0, Defined::Undefined),
            (PaddedRows::Zero, Role::Stats | Role::Max) => (f64::NEG_INFINITY, Defined::Value),
            // Other outputs have no padding, and their sums begin at zero.
            _ => (0.0, Defined::Value),
        };
        let ([batch, heads, seq, d], tensor) = (self.view.dims, self.operand.tensor);
        let [sb, sh, ss, _] = tensor.strides.map(|n| n as usize);
        let (batch, seq) = match tensor.storage {
            Storage::Varlen { tokens } => (1, tokens as usize),
            Storage::Dense | Storage::Paged { .. } => (batch, seq),
        };
        for b in 0..batch {
            for h in 0..heads {
                for s in 0..seq {
                    let start = b * sb + h * sh + s * ss;
                    self.values[start..start + d].fill(fill);
                    self.defined[start..start + d].fill(state);
                }
            }
        }
    }

    pub(crate) fn put(&mut self, b: usize, h: usize, s: usize, row: impl IntoIterator<Item = f64>) {
        let start = self.view.row(b, h, s);
        for (at, x) in (start..).zip(row) {
            self.values[at] = x;
            self.defined[at] = Defined::Value;
        }
    }

    /// Adds to the number at an address; sums begin at zero.
    pub(crate) fn add(&mut self, at: usize, x: f64) {
        self.values[at] += x;
    }

    /// The role of the output.
    #[must_use]
    pub const fn role(&self) -> Role {
        self.operand.role
    }

    /// The operand: its dims, strides, element type and storage.
    #[must_use]
    pub const fn operand(&self) -> &Operand {
        &self.operand
    }

    /// The exact number at (batch, head, sequence, head dim); NaN where the output is undefined.
    ///
    /// # Panics
    ///
    /// If the index is out of range.
    #[must_use]
    pub fn at(&self, b: usize, h: usize, s: usize, d: usize) -> f64 {
        let at = self.view.at(b, h, s, d);
        if self.defined[at] == Defined::Value { self.values[at] } else { f64::NAN }
    }

    /// The exact numbers in memory order. [`ExactOutput::defined`] tells which of them are valid.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The state of each element, in memory order.
    #[must_use]
    pub fn defined(&self) -> &[Defined] {
        &self.defined
    }

    /// The address of the element at (batch, head, sequence, head dim).
    #[cfg(test)]
    pub(crate) fn view_at(&self, [b, h, s, d]: [usize; 4]) -> usize {
        self.view.at(b, h, s, d)
    }

    /// Calls `of` with the (batch, head, sequence) and the addresses of each row.
    pub(crate) fn each_row(&self, mut of: impl FnMut([usize; 3], std::ops::Range<usize>)) {
        let [_, heads, _, head_dim] = self.view.dims;
        for (b, &rows) in self.rows.iter().enumerate() {
            for (h, s) in (0..heads).flat_map(|h| (0..rows).map(move |s| (h, s))) {
                let start = self.view.row(b, h, s);
                of([b, h, s], start..start + head_dim);
            }
        }
    }

    /// The buffer a device would hold: each number rounded once, all other elements poisoned.
    #[must_use]
    pub fn buffer(&self) -> Buffer {
        let mut buffer = Buffer::poisoned(self.operand.tensor.dtype, self.values.len());
        for (at, (&x, &defined)) in self.values.iter().zip(&self.defined).enumerate() {
            if defined == Defined::Value {
                buffer.set(at, x);
            }
        }
        buffer
    }

    /// The (batch, head, sequence, head dim) of the element at an address of the buffer, if there is one.
    #[must_use]
    pub fn index_of(&self, at: usize) -> Option<[usize; 4]> {
        let [_, heads, _, head_dim] = self.view.dims;
        let rows = self.rows.iter().enumerate();
        let rows = rows.flat_map(|(b, &seq)| (0..heads).flat_map(move |h| (0..seq).map(move |s| (b, h, s))));
        rows.map(|(b, h, s)| (b, h, s, self.view.row(b, h, s)))
            .find(|&(_, _, _, start)| (start..start + head_dim).contains(&at))
            .map(|(b, h, s, start)| [b, h, s, at - start])
    }
}

/// Every output of a computation.
#[derive(Clone, Debug, Default)]
pub struct ExactOutputs(pub(crate) Vec<ExactOutput>);

impl ExactOutputs {
    /// The output of a role, if the computation has it.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<&ExactOutput> {
        self.0.iter().find(|o| o.role() == role)
    }

    /// The buffer a device would hold for a role, if the computation has it.
    #[must_use]
    pub fn buffer(&self, role: Role) -> Option<Buffer> {
        self.get(role).map(ExactOutput::buffer)
    }

    /// Every output.
    pub fn iter(&self) -> impl Iterator<Item = &ExactOutput> {
        self.0.iter()
    }
}
