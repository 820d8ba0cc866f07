//! The Rust types of operands' elements.

use half::{bf16, f16};
use qkvault_graph::DType;

/// A Rust type of operands' elements.
pub trait Element: Send + Sync + 'static {
    /// The element type; `None` for bytes, which a launch accepts for any element type.
    const DTYPE: Option<DType>;
}

macro_rules! elements {
    ($($rust:ty => $dtype:expr),+ $(,)?) => {$(
        impl Element for $rust {
            const DTYPE: Option<DType> = $dtype;
        }
    )+};
}

elements!(
    f16 => Some(DType::F16),
    bf16 => Some(DType::BF16),
    f32 => Some(DType::F32),
    i32 => Some(DType::I32),
    i64 => Some(DType::I64),
    u8 => None,
);
