//! Families of data, as `qkvault-lab selftest` has them: random numbers are normal, so faults of rows that are
//! constant, far below zero or of one key stay hidden.

use candle_core::{DType, Result, Tensor};

/// What is special about the numbers of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Family {
    Normal,
    /// All scores are near -120.
    Below,
    /// All scores are near 120.
    Above,
    /// All keys are the same.
    Constant,
    /// The first key has nearly all of each row's weight.
    Dominant,
    Zero,
    Tiny,
    /// Large values.
    Large,
}

/// An operand that a family changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Q,
    K,
    V,
}

/// How small the other dims are where one dim decides the scores.
const REST: f32 = 0.125;

impl Family {
    pub(crate) const ALL: [Family; 8] = [
        Family::Normal,
        Family::Below,
        Family::Above,
        Family::Constant,
        Family::Dominant,
        Family::Zero,
        Family::Tiny,
        Family::Large,
    ];

    /// Whether a row's gradients of scores, whose sum is zero, are multiplied by keys that are alike and large.
    pub(crate) const fn cancels(self) -> bool {
        matches!(self, Family::Below | Family::Above | Family::Constant | Family::Dominant)
    }

    /// An operand of the family, from random numbers in the order (…, sequence, head, head dim) and for a softmax scale
    /// of one over the root of the head dim: numbers that the type has exactly.
    pub(crate) fn shaped(self, operand: Operand, random: &Tensor, dtype: DType) -> Result<Tensor> {
        let dims = random.dims();
        let (rows, row, d) = (dims[dims.len() - 3], dims[dims.len() - 2] * dims[dims.len() - 1], dims[dims.len() - 1]);
        let mut numbers = random.flatten_all()?.to_vec1::<f32>()?;
        for sequence in numbers.chunks_exact_mut(rows * row) {
            let first = sequence[..row].to_vec();
            for (at, x) in sequence.iter_mut().enumerate() {
                *x = self.number(operand, *x, first[at % row], (at / row, at % d), (d as f32).sqrt());
            }
        }
        Tensor::from_vec(numbers, dims, random.device())?.to_dtype(dtype)?.to_dtype(DType::F32)
    }

    /// An element at a row and a place in the head dim; `first` is that of the first row.
    fn number(self, operand: Operand, x: f32, first: f32, (row, at): (usize, usize), root: f32) -> f32 {
        let level = match self {
            Family::Below => -120.0,
            Family::Above => 120.0,
            Family::Dominant => 40.0,
            Family::Constant if operand == Operand::K => return first,
            Family::Zero if operand != Operand::V => return 0.0,
            Family::Tiny if operand != Operand::V => return 1e-7 * x,
            Family::Large if operand == Operand::V => return 1024.0 * x,
            _ => return x,
        };
        match (operand, at) {
            (Operand::V, _) => x,
            (Operand::Q, 0) => 1.0,
            (Operand::K, _) if self == Family::Dominant && row > 0 => 0.0,
            (Operand::K, 0) => level * root,
            _ => REST * x,
        }
    }
}
