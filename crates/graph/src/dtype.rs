//! Element types of the tensors of an attention and of an op graph.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Element type of a tensor.
///
/// Numbers in the doc comments are `cudnnDataType_t` values (graph header of cuDNN 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE half precision (2).
    F16,
    /// bfloat16 (9).
    BF16,
    /// IEEE single precision (0).
    F32,
    /// FP8 with 4 exponent and 3 mantissa bits (12).
    E4M3,
    /// FP8 with 5 exponent and 2 mantissa bits (13).
    E5M2,
    /// Power-of-two block scale of MXFP8 (15).
    E8M0,
    /// 32-bit signed integer (4).
    I32,
    /// 64-bit signed integer (10).
    I64,
    /// Unsigned byte, which holds 8 bits of a block mask (6).
    U8,
    /// Boolean, in virtual tensors only (11).
    Bool,
}

impl DType {
    /// Every element type, in declaration order.
    pub const ALL: [DType; 10] = [
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::E4M3,
        DType::E5M2,
        DType::E8M0,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::Bool,
    ];

    /// Size of one element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 | DType::I32 => 4,
            DType::I64 => 8,
            DType::E4M3 | DType::E5M2 | DType::E8M0 | DType::U8 | DType::Bool => 1,
        }
    }

    /// The number of this type in canonical bytes. It never changes and is never reused.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            DType::F16 => 1,
            DType::BF16 => 2,
            DType::F32 => 3,
            DType::E4M3 => 4,
            DType::E5M2 => 5,
            DType::E8M0 => 6,
            DType::I32 => 7,
            DType::I64 => 8,
            DType::U8 => 9,
            DType::Bool => 10,
        }
    }

    /// Whether this is one of the 16-bit formats.
    #[must_use]
    pub const fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }

    /// Whether this is one of the 8-bit float formats of Q, K, V and O.
    #[must_use]
    pub const fn is_fp8(self) -> bool {
        matches!(self, DType::E4M3 | DType::E5M2)
    }

    /// The largest finite number of a float format of Q, K, V and O in 8 bits; `None` of other types.
    #[must_use]
    pub const fn largest_fp8(self) -> Option<f32> {
        match self {
            DType::E4M3 => Some(448.0),
            DType::E5M2 => Some(57_344.0),
            _ => None,
        }
    }

    /// Whether values are real numbers, not integers or booleans.
    #[must_use]
    pub const fn is_float(self) -> bool {
        !matches!(self, DType::I32 | DType::I64 | DType::U8 | DType::Bool)
    }

    /// The name used in text forms: `bf16`, `f16`, `f32`, `e4m3`, ...
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::E4M3 => "e4m3",
            DType::E5M2 => "e5m2",
            DType::E8M0 => "e8m0",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
            DType::Bool => "bool",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The error for a text that is not an element type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not an element type; use one of f16, bf16, f32, e4m3, e5m2, e8m0, i32, i64, u8, bool")]
pub struct UnknownDType {
    /// The text.
    pub given: String,
}

impl FromStr for DType {
    type Err = UnknownDType;

    /// Reads the names of [`DType::name`] and the spellings of Hugging Face configs (`bfloat16`, `float16`, ...).
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let alias = match s {
            "bfloat16" => Some(DType::BF16),
            "float16" | "half" => Some(DType::F16),
            "float32" | "float" => Some(DType::F32),
            "float8_e4m3fn" => Some(DType::E4M3),
            "float8_e5m2" => Some(DType::E5M2),
            _ => None,
        };
        alias.or_else(|| DType::ALL.into_iter().find(|d| d.name() == s)).ok_or_else(|| UnknownDType { given: s.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_round_trips_display_and_from_str() {
        for d in DType::ALL {
            assert_eq!(d.to_string().parse::<DType>(), Ok(d));
        }
        assert!("f17".parse::<DType>().is_err());
    }

    #[test]
    fn codes_are_distinct() {
        let mut codes: Vec<u8> = DType::ALL.iter().map(|d| d.code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), DType::ALL.len());
    }
}
