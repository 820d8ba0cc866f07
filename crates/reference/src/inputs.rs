//! The inputs of a launch as host memory, by role.

use std::collections::BTreeMap;

use qkvault_graph::{DType, Role};

use crate::Operand;
use crate::{Buffer, ReferenceError};

/// Buffers by role. Scalars are buffers of one element.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    buffers: BTreeMap<Role, Buffer>,
    widened: bool,
}

impl Inputs {
    /// An empty set of inputs.
    #[must_use]
    pub fn new() -> Inputs {
        Inputs::default()
    }

    /// Binds a buffer; returns the buffer that it replaces.
    pub fn insert(&mut self, role: Role, buffer: Buffer) -> Option<Buffer> {
        self.buffers.insert(role, buffer)
    }

    /// Binds one f32, for a scalar or a scale.
    pub fn set_f32(&mut self, role: Role, value: f32) {
        self.insert(role, Buffer::from_values(DType::F32, [f64::from(value)]));
    }

    /// Binds a list of i32, for lengths and page tables.
    pub fn set_i32(&mut self, role: Role, values: &[i32]) {
        self.insert(role, Buffer::from_values(DType::I32, values.iter().map(|&n| f64::from(n))));
    }

    /// Removes a buffer and returns it.
    pub fn remove(&mut self, role: Role) -> Option<Buffer> {
        self.buffers.remove(&role)
    }

    /// The buffer of a role, if there is one.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<&Buffer> {
        self.buffers.get(&role)
    }

    /// The buffer of a role, mutably, if there is one.
    pub fn get_mut(&mut self, role: Role) -> Option<&mut Buffer> {
        self.buffers.get_mut(&role)
    }

    /// The buffer of a role.
    ///
    /// # Errors
    ///
    /// [`ReferenceError::Missing`] if no buffer is bound.
    pub fn buffer(&self, role: Role) -> Result<&Buffer, ReferenceError> {
        self.get(role).ok_or(ReferenceError::Missing { role })
    }

    /// All buffers, ordered by role.
    pub fn iter(&self) -> impl Iterator<Item = (Role, &Buffer)> {
        self.buffers.iter().map(|(&role, buffer)| (role, buffer))
    }

    /// Converts every float to f32, so that a gradient check can set numbers between those of the operands' own types.
    /// Only the oracle accepts such inputs; a device has no operands of that type.
    ///
    /// From such inputs the oracle computes 8-bit attention exactly: probabilities and gradients of scores are not
    /// rounded between products. The difference to the result of the inputs themselves is what the formats cost.
    #[must_use]
    pub fn widened(&self) -> Inputs {
        let wide = |buffer: &Buffer| match buffer.dtype() {
            DType::F16 | DType::BF16 | DType::E4M3 | DType::E5M2 => {
                Buffer::from_values(DType::F32, (0..buffer.len()).map(|at| buffer.get(at)))
            }
            _ => buffer.clone(),
        };
        Inputs { buffers: self.iter().map(|(role, buffer)| (role, wide(buffer))).collect(), widened: true }
    }

    /// The same buffers, of which the oracle computes 8-bit attention without rounding between products, as of
    /// [widened](Inputs::widened) ones. It copies nothing.
    #[must_use]
    pub fn unrounded(self) -> Inputs {
        Inputs { widened: true, ..self }
    }

    pub(crate) const fn is_widened(&self) -> bool {
        self.widened
    }

    /// The buffer of a role, if it has this element type.
    pub(crate) fn typed(&self, role: Role, needed: DType) -> Result<&Buffer, ReferenceError> {
        let buffer = self.buffer(role)?;
        let given = buffer.dtype();
        let wide = self.widened && given == DType::F32 && needed.is_float();
        if given == needed || wide { Ok(buffer) } else { Err(ReferenceError::WrongType { role, given, needed }) }
    }

    /// The buffer of an operand, if it has the right element type and size.
    pub(crate) fn checked(&self, operand: &Operand) -> Result<&Buffer, ReferenceError> {
        let role = operand.role;
        let (buffer, needed) = (self.typed(role, operand.tensor.dtype)?, elements(operand)?);
        if buffer.len() < needed {
            return Err(ReferenceError::TooShort { role, given: buffer.len(), needed });
        }
        Ok(buffer)
    }
}

/// Number of elements that the buffer of an operand needs.
pub(crate) fn elements(operand: &Operand) -> Result<usize, ReferenceError> {
    operand.elements().ok_or(ReferenceError::TooLarge { role: operand.role })
}

impl FromIterator<(Role, Buffer)> for Inputs {
    fn from_iter<I: IntoIterator<Item = (Role, Buffer)>>(list: I) -> Inputs {
        Inputs { buffers: list.into_iter().collect(), widened: false }
    }
}
