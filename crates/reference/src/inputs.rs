//! Operands bound by role: what a launch is given, as host memory.

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
    /// Nothing bound yet.
    #[must_use]
    pub fn new() -> Inputs {
        Inputs::default()
    }

    /// Binds a buffer; gives back the one that it replaces.
    pub fn insert(&mut self, role: Role, buffer: Buffer) -> Option<Buffer> {
        self.buffers.insert(role, buffer)
    }

    /// Binds one f32, for scalars and scales.
    pub fn set_f32(&mut self, role: Role, value: f32) {
        self.insert(role, Buffer::of(DType::F32, [f64::from(value)]));
    }

    /// Binds a list of i32, for lengths and page tables.
    pub fn set_i32(&mut self, role: Role, values: &[i32]) {
        self.insert(role, Buffer::of(DType::I32, values.iter().map(|&n| f64::from(n))));
    }

    /// Takes a buffer out.
    pub fn remove(&mut self, role: Role) -> Option<Buffer> {
        self.buffers.remove(&role)
    }

    /// The buffer of a role, if there is one.
    #[must_use]
    pub fn get(&self, role: Role) -> Option<&Buffer> {
        self.buffers.get(&role)
    }

    /// The buffer of a role, to be changed.
    pub fn get_mut(&mut self, role: Role) -> Option<&mut Buffer> {
        self.buffers.get_mut(&role)
    }

    /// The buffer of a role.
    ///
    /// # Errors
    ///
    /// [`ReferenceError::Missing`].
    pub fn buffer(&self, role: Role) -> Result<&Buffer, ReferenceError> {
        self.get(role).ok_or(ReferenceError::Missing { role })
    }

    /// Everything bound, in the order of roles.
    pub fn iter(&self) -> impl Iterator<Item = (Role, &Buffer)> {
        self.buffers.iter().map(|(&role, buffer)| (role, buffer))
    }

    /// The same numbers with every float in f32, so that numbers between those of the operands' own types can be set: what a
    /// derivative is measured with. Such inputs are for the oracle alone; a device has no operand of that type.
    #[must_use]
    pub fn widened(&self) -> Inputs {
        let wide = |buffer: &Buffer| match buffer.dtype() {
            DType::F16 | DType::BF16 | DType::E4M3 | DType::E5M2 => {
                Buffer::of(DType::F32, (0..buffer.len()).map(|at| buffer.get(at)))
            }
            _ => buffer.clone(),
        };
        Inputs { buffers: self.iter().map(|(role, buffer)| (role, wide(buffer))).collect(), widened: true }
    }

    /// The buffer of a role, checked for its element type.
    pub(crate) fn typed(&self, role: Role, needed: DType) -> Result<&Buffer, ReferenceError> {
        let buffer = self.buffer(role)?;
        let given = buffer.dtype();
        let wide = self.widened && given == DType::F32 && needed.is_float();
        if given == needed || wide { Ok(buffer) } else { Err(ReferenceError::WrongType { role, given, needed }) }
    }

    /// The buffer of an operand, checked for element type and size.
    pub(crate) fn checked(&self, operand: &Operand) -> Result<&Buffer, ReferenceError> {
        let role = operand.role;
        let (buffer, needed) = (self.typed(role, operand.tensor.dtype)?, elements(operand)?);
        if buffer.len() < needed {
            return Err(ReferenceError::TooShort { role, given: buffer.len(), needed });
        }
        Ok(buffer)
    }
}

/// Elements that the buffer of an operand needs.
pub(crate) fn elements(operand: &Operand) -> Result<usize, ReferenceError> {
    operand.elements().ok_or(ReferenceError::TooLarge { role: operand.role })
}

impl FromIterator<(Role, Buffer)> for Inputs {
    fn from_iter<I: IntoIterator<Item = (Role, Buffer)>>(list: I) -> Inputs {
        Inputs { buffers: list.into_iter().collect(), widened: false }
    }
}
