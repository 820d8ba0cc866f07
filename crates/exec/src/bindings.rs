//! Bindings of a plan's roles as data: addresses of operands and values of scalars.

use std::fmt;

use qkvault_graph::{DType, Role};
use smallvec::SmallVec;

use crate::raw::DeviceBuffer;

/// The value of a scalar: one number on the host, which cuDNN reads at launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A 32-bit float, such as the softmax scale.
    F32(f32),
    /// A 32-bit integer, such as the width of a window.
    I32(i32),
    /// A 64-bit integer, such as a seed.
    I64(i64),
}

impl Number {
    /// Its element type.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Number::F32(_) => DType::F32,
            Number::I32(_) => DType::I32,
            Number::I64(_) => DType::I64,
        }
    }

    /// The i32 at the start of eight bytes.
    pub(crate) fn of_cell(cell: u64) -> Number {
        let [a, b, c, d, ..] = cell.to_ne_bytes();
        Number::I32(i32::from_ne_bytes([a, b, c, d]))
    }

    /// Its bytes at the start of eight bytes, in host order, as cuDNN reads them.
    pub(crate) fn cell(self) -> u64 {
        let mut cell = [0; 8];
        match self {
            Number::F32(value) => cell[..4].copy_from_slice(&value.to_ne_bytes()),
            Number::I32(value) => cell[..4].copy_from_slice(&value.to_ne_bytes()),
            Number::I64(value) => cell = value.to_ne_bytes(),
        }
        u64::from_ne_bytes(cell)
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number::F32(value) => write!(f, "{value}"),
            Number::I32(value) => write!(f, "{value}"),
            Number::I64(value) => write!(f, "{value}"),
        }
    }
}

macro_rules! number {
    ($($rust:ty => $name:ident),+) => {$(
        impl From<$rust> for Number {
            fn from(value: $rust) -> Number {
                Number::$name(value)
            }
        }
    )+};
}

number!(f32 => F32, i32 => I32, i64 => I64);

/// The binding of one operand: its address and size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawOperand {
    /// The role of the operand.
    pub role: Role,
    /// Its address on the GPU.
    pub address: u64,
    /// Bytes of the buffer from the address on.
    pub bytes: u64,
    /// Its element type, if the caller knows it; binding then compares it with the plan's.
    pub dtype: Option<DType>,
    /// Whether a launch may write to it.
    pub writable: bool,
}

/// Operands and scalars of a launch, by role, in any order.
///
/// Binding a role twice is an error that [`RawPlan::bind`](crate::raw::RawPlan::bind) reports.
///
/// ```
/// use qkvault_exec::raw::RawBindings;
/// use qkvault_graph::Role;
///
/// // Addresses of device memory, from any allocator.
/// let (q, k, v, o) = (0x7f00_0000_0000, 0x7f00_0010_0000, 0x7f00_0020_0000, 0x7f00_0030_0000);
/// let bytes = 1 << 20;
/// let bindings = RawBindings::new()
///     .tensor(Role::Q, q, bytes)
///     .tensor(Role::K, k, bytes)
///     .tensor(Role::V, v, bytes)
///     .tensor(Role::O, o, bytes)
///     .scalar(Role::Scale, 0.125_f32);
/// # let _ = bindings;
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawBindings {
    pub(crate) operands: Short<RawOperand>,
    pub(crate) scalars: RoleNumbers,
    pub(crate) interleaved: SmallVec<[(Role, Role); 3]>,
}

/// As many as the operands of most launches, on the stack.
pub(crate) type Short<T> = SmallVec<[T; 12]>;

/// Scalars of a launch, by role.
pub(crate) type RoleNumbers = SmallVec<[(Role, Number); 6]>;

/// Scalars of a launch, in a plan's order.
pub(crate) type Values = SmallVec<[Number; 6]>;

impl RawBindings {
    /// Bindings of no role.
    #[must_use]
    pub fn new() -> RawBindings {
        RawBindings::default()
    }

    /// Binds an operand to a writable buffer on the GPU with this address and size in bytes.
    #[must_use]
    pub fn tensor(self, role: Role, address: u64, bytes: u64) -> RawBindings {
        self.operand(RawOperand { role, address, bytes, dtype: None, writable: true })
    }

    /// Binds an operand.
    #[must_use]
    pub fn operand(mut self, operand: RawOperand) -> RawBindings {
        self.operands.push(operand);
        self
    }

    /// Sets the value of a scalar: an [`f32`], [`i32`] or [`i64`].
    #[must_use]
    pub fn scalar(mut self, role: Role, value: impl Into<Number>) -> RawBindings {
        self.scalars.push((role, value.into()));
        self
    }

    /// Address and bytes of an operand.
    #[must_use]
    pub fn place(&self, role: Role) -> Option<(u64, u64)> {
        self.operands.iter().find(|operand| operand.role == role).map(|operand| (operand.address, operand.bytes))
    }

    /// The buffer of a tensor. Checked bindings have every tensor.
    pub(crate) fn buffer(&self, role: Role) -> DeviceBuffer {
        let (address, bytes) = self.place(role).unwrap_or_default();
        DeviceBuffer { address, bytes }
    }

    /// The value of a scalar.
    pub(crate) fn number(&self, role: Role) -> Option<Number> {
        self.scalars.iter().find(|(other, _)| *other == role).map(|(_, value)| *value)
    }

    /// Declares that two operands lie interleaved in one buffer, as the gradients of an interleaved QKV do: their
    /// ranges overlap, their elements do not.
    ///
    /// Binding compares ranges of addresses, and refuses an output that overlaps another operand without this.
    #[must_use]
    pub fn interleaved(mut self, a: Role, b: Role) -> RawBindings {
        self.interleaved.push((a, b));
        self
    }
}
