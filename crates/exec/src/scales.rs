//! Scales of 8-bit operands: which roles hold them, and which numbers they may be.
//!
//! Scales lie on the GPU, where a launch does not look at them. [`errors`] is the check for whoever has their bytes: a
//! debug check copies them back, and delayed scaling has them on the host.

use qkvault_compile::PlanFacts;
use qkvault_graph::{DType, Role};

use crate::bind_error::BindError;

/// The code of e8m0 that is no number.
const NOT_A_NUMBER: u8 = 0xff;

/// Whether a launch reads scales from this operand.
pub(crate) const fn is_scale(role: Role) -> bool {
    matches!(role, Role::Descale(_) | Role::ScaleOf(_) | Role::NarrowScale | Role::NarrowDescale)
}

/// The scales that a plan reads, with their element types and bytes.
pub(crate) fn read_by(facts: &PlanFacts) -> impl Iterator<Item = (Role, DType, u64)> {
    let read = facts.bindings.iter().filter(|b| !b.output && is_scale(b.role));
    read.map(|b| (b.role, b.dtype, b.bytes))
}

/// What is wrong with the bytes of a scale: it must be a positive finite number, and each of a block a number.
pub(crate) fn error(role: Role, dtype: DType, bytes: &[u8]) -> Option<BindError> {
    if dtype == DType::E8M0 {
        let wrong = bytes.iter().filter(|code| **code == NOT_A_NUMBER).count();
        let of = bytes.len();
        return (wrong > 0).then_some(BindError::BlockScales { role, wrong, of });
    }
    let (word, _) = bytes.split_first_chunk::<4>()?;
    let given = f32::from_ne_bytes(*word);
    (!(given.is_finite() && given > 0.0)).then(|| BindError::Scale { role, given: given.to_string() })
}

#[cfg(test)]
mod tests {
    use qkvault_cudnn::{CompileOptions, lower};
    use qkvault_graph::{Attention, CudnnVersion, Fp8, Scaled, validate};

    use super::*;
    use crate::common::{facts_of, h200};

    #[test]
    fn scales_are_positive_and_finite() {
        let role = Role::Descale(Scaled::Q);
        let judged = |x: f32| error(role, DType::F32, &x.to_ne_bytes());
        for good in [1.0, f32::MIN_POSITIVE, f32::MAX, 1e-40] {
            assert_eq!(judged(good), None, "{good}");
        }
        for (bad, shown) in [(0.0, "0"), (-0.5, "-0.5"), (f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-0.0, "-0")] {
            let error = judged(bad).expect("no scale");
            assert_eq!(error, BindError::Scale { role, given: shown.to_owned() });
            assert!(error.to_string().contains("positive"), "{error}");
        }
    }

    #[test]
    fn block_scales_are_numbers() {
        let role = Role::Descale(Scaled::K);
        assert_eq!(error(role, DType::E8M0, &[0, 127, 254]), None);
        let error = error(role, DType::E8M0, &[255, 127, 255, 1]).expect("two are none");
        assert_eq!(error, BindError::BlockScales { role, wrong: 2, of: 4 });
        assert!(error.to_string().contains("2 of 4"), "{error}");
    }

    #[test]
    fn a_forward_reads_six_scales_and_writes_its_largest_magnitudes() {
        let mut a = Attention::bshd(1, (2, 2), (64, 64), 128, DType::E4M3);
        a.fp8 = Some(Fp8::Delayed);
        let target = h200(CudnnVersion::v9(27, 0));
        let graph = lower(&validate(a).expect("sound"), &target, &CompileOptions::default()).expect("lowers");
        let facts = facts_of(&graph, &target);
        let all: Vec<(Role, DType)> = read_by(&facts).map(|(role, dtype, _)| (role, dtype)).collect();
        let scales = [Role::ScaleOf(Scaled::S), Role::ScaleOf(Scaled::O)];
        let descales = [Scaled::Q, Scaled::K, Scaled::V, Scaled::S].map(Role::Descale);
        assert!(all.iter().all(|(_, dtype)| *dtype == DType::F32) && all.len() == 6, "{all:?}");
        assert!(scales.iter().chain(&descales).all(|role| all.iter().any(|(other, _)| other == role)), "{all:?}");
    }
}
