//! Converts enumerations to cuDNN's.

use qkvault_cudnn::op::{Pointwise, Reduce};
use qkvault_cudnn::{CompilerEnv, HostArch, NvrtcVersion, Toolchain};
use qkvault_graph::DType;
use qkvault_sys as sys;

/// The discriminants of [`Pointwise`] are cuDNN's numbers.
pub(crate) const fn pointwise(mode: Pointwise) -> sys::PointwiseMode {
    sys::PointwiseMode(mode as u32)
}

pub(crate) const fn reduce(op: Reduce) -> sys::ReduceTensorOp {
    sys::ReduceTensorOp(op as u32)
}

pub(crate) const fn dtype(dtype: DType) -> sys::DataType {
    match dtype {
        DType::F16 => sys::DataType::HALF,
        DType::BF16 => sys::DataType::BFLOAT16,
        DType::F32 => sys::DataType::FLOAT,
        DType::E4M3 => sys::DataType::FP8_E4M3,
        DType::E5M2 => sys::DataType::FP8_E5M2,
        DType::E8M0 => sys::DataType::FP8_E8M0,
        DType::I32 => sys::DataType::INT32,
        DType::I64 => sys::DataType::INT64,
        DType::U8 => sys::DataType::UINT8,
        DType::Bool => sys::DataType::BOOLEAN,
    }
}

/// The toolchain of a loaded library: its CUDA build, the NVRTC that it uses, this host, and the variables that were
/// set when it was opened.
#[must_use]
pub fn library_toolchain(library: &sys::Library) -> Toolchain {
    let small = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    let nvrtc = library.nvrtc().map(|nvrtc| {
        let (major, minor) = nvrtc.version;
        NvrtcVersion::new(small(major as usize), small(minor as usize))
    });
    Toolchain {
        cuda: small(library.cuda_major()),
        nvrtc,
        host: HostArch::THIS,
        environment: CompilerEnv::from_variables(library.environment().iter().cloned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every mode by name: a wrong discriminant would compile another operation without an error.
    #[test]
    fn pointwise_numbers_are_those_of_the_header() {
        use Pointwise as P;
        use sys::PointwiseMode as M;
        let pairs = [
            (P::Add, M::ADD),
            (P::Mul, M::MUL),
            (P::Min, M::MIN),
            (P::Max, M::MAX),
            (P::Sqrt, M::SQRT),
            (P::Div, M::DIV),
            (P::Mod, M::MOD),
            (P::Pow, M::POW),
            (P::Sub, M::SUB),
            (P::Abs, M::ABS),
            (P::Ceil, M::CEIL),
            (P::Cos, M::COS),
            (P::Exp, M::EXP),
            (P::Floor, M::FLOOR),
            (P::Log, M::LOG),
            (P::Neg, M::NEG),
            (P::Rsqrt, M::RSQRT),
            (P::Sin, M::SIN),
            (P::Tan, M::TAN),
            (P::Erf, M::ERF),
            (P::Identity, M::IDENTITY),
            (P::Reciprocal, M::RECIPROCAL),
            (P::Atan2, M::ATAN2),
            (P::Relu, M::RELU_FWD),
            (P::Tanh, M::TANH_FWD),
            (P::Sigmoid, M::SIGMOID_FWD),
            (P::Elu, M::ELU_FWD),
            (P::Gelu, M::GELU_FWD),
            (P::Softplus, M::SOFTPLUS_FWD),
            (P::Swish, M::SWISH_FWD),
            (P::GeluTanh, M::GELU_APPROX_TANH_FWD),
            (P::CmpEq, M::CMP_EQ),
            (P::CmpNeq, M::CMP_NEQ),
            (P::CmpGt, M::CMP_GT),
            (P::CmpGe, M::CMP_GE),
            (P::CmpLt, M::CMP_LT),
            (P::CmpLe, M::CMP_LE),
            (P::And, M::LOGICAL_AND),
            (P::Or, M::LOGICAL_OR),
            (P::Not, M::LOGICAL_NOT),
            (P::GenIndex, M::GEN_INDEX),
            (P::Select, M::BINARY_SELECT),
        ];
        for (ours, theirs) in pairs {
            assert_eq!(pointwise(ours), theirs, "{ours:?}");
        }
        assert_eq!(reduce(Reduce::Add), sys::ReduceTensorOp::ADD);
        assert_eq!(reduce(Reduce::Max), sys::ReduceTensorOp::MAX);
        assert_eq!(reduce(Reduce::Amax), sys::ReduceTensorOp::AMAX);
    }
}
