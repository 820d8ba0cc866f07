//! What a caller binds to a plan's roles: addresses of operands and values of scalars, as data.

use std::fmt;

use qkvault_graph::{DType, Role};

/// The value of a scalar: one number on the host, read at launch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A float, such as the softmax scale.
    F32(f32),
    /// An integer, such as a window's width.
    I32(i32),
    /// A wide integer, such as a seed.
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

    /// Its bytes at the start of eight, in host order, as cuDNN reads them.
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

/// One operand: where it lies and how much of it is the caller's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Which operand it is.
    pub role: Role,
    /// Its address on the GPU.
    pub address: u64,
    /// Bytes from the address on that belong to it.
    pub bytes: u64,
    /// Its element type, where the caller's own types tell.
    pub dtype: Option<DType>,
    /// Whether a launch may write to it.
    pub writable: bool,
}

/// Operands and scalars of a launch, by role, in any order.
///
/// A list, not a map: what is given twice is an error that binding reports, never dropped in silence.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RawBindings {
    pub(crate) operands: Vec<Operand>,
    pub(crate) scalars: Vec<(Role, Number)>,
    pub(crate) interleaved: Vec<(Role, Role)>,
}

impl RawBindings {
    /// Nothing bound yet.
    #[must_use]
    pub fn new() -> RawBindings {
        RawBindings::default()
    }

    /// Binds an operand to an address on the GPU, of which `bytes` belong to it.
    #[must_use]
    pub fn tensor(self, role: Role, address: u64, bytes: u64) -> RawBindings {
        self.operand(Operand { role, address, bytes, dtype: None, writable: true })
    }

    /// Binds an operand.
    #[must_use]
    pub fn operand(mut self, operand: Operand) -> RawBindings {
        self.operands.push(operand);
        self
    }

    /// Gives a scalar its value; [`f32`], [`i32`] and [`i64`] convert by themselves.
    #[must_use]
    pub fn scalar(mut self, role: Role, value: impl Into<Number>) -> RawBindings {
        self.scalars.push((role, value.into()));
        self
    }

    /// Says that two operands lie interleaved in one buffer, as the gradients of a interleaved QKV do: their ranges overlap, their elements do not.
    ///
    /// Binding knows ranges only, and otherwise refuses an output that overlaps another operand.
    #[must_use]
    pub fn interleaved(mut self, a: Role, b: Role) -> RawBindings {
        self.interleaved.push((a, b));
        self
    }
}
