//! Modes of pointwise operations and reductions, by cuDNN's numbers.

use serde::{Deserialize, Serialize};

/// Pointwise operations, with the numbers of `cudnnPointwiseMode_t` (graph header of cuDNN 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
#[allow(missing_docs, reason = "named like cuDNN's modes; Gelu is the erf form, GeluTanh its approximation")]
pub enum Pointwise {
    Add = 0,
    Mul = 1,
    Min = 2,
    Max = 3,
    Sqrt = 4,
    Div = 6,
    Mod = 7,
    Pow = 8,
    Sub = 9,
    Abs = 10,
    Ceil = 11,
    Cos = 12,
    Exp = 13,
    Floor = 14,
    Log = 15,
    Neg = 16,
    Rsqrt = 17,
    Sin = 18,
    Tan = 19,
    Erf = 20,
    Identity = 21,
    Reciprocal = 22,
    Atan2 = 23,
    Relu = 100,
    Tanh = 101,
    Sigmoid = 102,
    Elu = 103,
    Gelu = 104,
    Softplus = 105,
    Swish = 106,
    GeluTanh = 107,
    CmpEq = 300,
    CmpNeq = 301,
    CmpGt = 302,
    CmpGe = 303,
    CmpLt = 304,
    CmpLe = 305,
    And = 400,
    Or = 401,
    Not = 402,
    GenIndex = 501,
    Select = 601,
}

/// How a reduction combines elements, with the numbers of `cudnnReduceTensorOp_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u32)]
#[allow(missing_docs, reason = "named like cuDNN's operators")]
pub enum Reduce {
    Add = 0,
    Max = 3,
    Amax = 4,
}
