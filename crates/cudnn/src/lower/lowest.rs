//! Modified scores of a forward that may be as low as the lowest float.
//!
//! cuDNN computes exponentials in base 2, so it multiplies scores by `log2(e)`. Of a row whose scores are all the
//! lowest float it made infinities, and O was 0 instead of the mean of V (H100, 9.19; pytorch issue 109517).

use super::builder::Builder;
use super::score::{self, Context};
use super::step::{Memo, Step};
use super::variants::Variant;
use crate::DType;
use crate::expr::{Lowest, Program};
use crate::op::{Pointwise, TensorId};

/// Writes a score modification of a forward. What it gives near the lowest float is compressed ([`Lowest`]), if it can
/// give that.
///
/// A backward needs no such form: the scores of these rows are far below their log-sum-exp, so that their probabilities
/// are 0.
pub(super) fn modified(g: &mut Builder, program: &Program, context: &Context) -> TensorId {
    let mut memo = Memo::default();
    let score = score::expression_with(g, program, context, &mut memo);
    if !g.follows(Variant::CompressLowest) || !program.meets_lowest() {
        return score;
    }
    let mut by = |mode: Pointwise, x: TensorId, number: f32| {
        let number = memo.write(g, context.score, Step::Float(number.to_bits()));
        memo.write(g, context.score, Step::Binary(mode, x, number, DType::F32, DType::F32))
    };
    let product = by(Pointwise::Mul, score, Lowest::FACTOR);
    let higher = by(Pointwise::Add, product, Lowest::SHIFT);
    memo.write(g, context.score, Step::Binary(Pointwise::Max, higher, score, DType::F32, DType::F32))
}
