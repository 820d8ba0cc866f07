//! Operations of score expressions as they are written: known ones are shared, and each is put into the form that cuDNN accepts.

use std::collections::BTreeMap;

use super::builder::Builder;
use super::variants::Variant;
use crate::op::{Constant, Pointwise, TensorId};
use crate::{CudnnVersion, DType};

/// From here on an addition is taken for a bias, whose keys must lie side by side (9.25.0 takes any, 9.26.0 does not).
const BIAS_ROWS: CudnnVersion = CudnnVersion::v9(26, 0);

/// What was written already, so that an expression and its derivative share their common parts.
///
/// Masks keep operations of their own: cuDNN skips hidden blocks only where a mask's index and comparison stand next to its
/// select (a factor of two on an H200 with cuDNN 9.19).
#[derive(Default)]
pub(super) struct Memo {
    known: BTreeMap<Step, TensorId>,
    /// Whether it is an expression of scores in a backward; predicates and forwards are taken as they are.
    differentiated: bool,
}

/// One operation, before it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// An f32, by its bits.
    Float(u32),
    /// An i32.
    Int(i32),
    /// The index along an axis.
    Index(u8),
    /// A mode of one operand, and the type of its result.
    Unary(Pointwise, TensorId, DType),
    /// A mode of two operands, the type it is computed in, and that of its result.
    Binary(Pointwise, TensorId, TensorId, DType, DType),
    /// `keep ? yes : no`, of a type.
    Select(TensorId, TensorId, TensorId, DType),
}

impl Memo {
    /// Of a score expression and its derivative.
    pub(super) fn differentiated() -> Memo {
        Memo { differentiated: true, ..Memo::default() }
    }

    /// Writes an operation, over indices of the shape of `score`.
    pub(super) fn write(&mut self, g: &mut Builder, score: TensorId, step: Step) -> TensorId {
        let known = self.known.get(&step).copied();
        if let Some(known) = known.filter(|_| g.follows(Variant::ShareSteps)) {
            return known;
        }
        let accepted = if g.follows(Variant::ComputedFirst) { self.computed_first(g, score, step) } else { step };
        let accepted = if g.follows(Variant::LiftOperands) { self.lifted(g, score, accepted) } else { accepted };
        let accepted = self.subtracted(g, score, accepted);
        let written = match accepted {
            Step::Float(bits) => g.constant(Constant::F32(bits)),
            Step::Int(value) => g.constant(Constant::I32(value)),
            Step::Index(axis) => g.index(score, axis, DType::I32),
            Step::Unary(mode, x, out) => g.unary_as(mode, x, out, out),
            Step::Binary(mode, x, b, compute, out) => g.binary_as(mode, x, b, compute, out),
            Step::Select(keep, yes, no, out) => g.select_as(keep, yes, no, out),
        };
        self.known.insert(step, written);
        written
    }

    /// The same result with a computed tensor first, where one of two operands is computed and the other is not. Operands of operations
    /// that commute, and of comparisons, stand in that order in the canonical expression and its derivative already.
    fn computed_first(&mut self, g: &mut Builder, score: TensorId, step: Step) -> Step {
        match step {
            Step::Binary(Pointwise::Sub, x, b, compute, out) if !g.is_virtual(x) && g.is_virtual(b) => {
                let negated = self.write(g, score, Step::Unary(Pointwise::Neg, b, out));
                Step::Binary(Pointwise::Add, negated, x, compute, out)
            }
            Step::Select(keep, yes, no, out) if !g.is_virtual(yes) && g.is_virtual(no) => {
                let truth = g.dtype(keep);
                let kept = self.write(g, score, Step::Unary(Pointwise::Not, keep, truth));
                Step::Select(kept, no, yes, out)
            }
            step => step,
        }
    }

    /// The same result with a computed zero added to a first operand that is not computed.
    fn lifted(&mut self, g: &mut Builder, score: TensorId, step: Step) -> Step {
        match step {
            Step::Unary(mode, x, out) if !g.is_virtual(x) => Step::Unary(mode, self.lift(g, score, x), out),
            Step::Binary(mode, x, b, compute, out) if !g.is_virtual(x) => {
                Step::Binary(mode, self.lift(g, score, x), b, compute, out)
            }
            Step::Select(keep, yes, no, out) if !g.is_virtual(yes) => {
                Step::Select(keep, self.lift(g, score, yes), no, out)
            }
            step => step,
        }
    }

    /// The same result with a second operand that stands still along the keys subtracted negated, where it would be added; and with one
    /// f32 subtracted behind a computed zero.
    fn subtracted(&mut self, g: &mut Builder, score: TensorId, step: Step) -> Step {
        match step {
            Step::Binary(Pointwise::Add, x, b, compute, out)
                if g.cudnn() >= BIAS_ROWS && g.follows(Variant::SubtractNegated) && g.stands_still(b) =>
            {
                let zero = self.zero(g, score, out);
                let negated = self.write(g, score, Step::Binary(Pointwise::Sub, zero, b, compute, out));
                Step::Binary(Pointwise::Sub, x, negated, compute, out)
            }
            Step::Binary(Pointwise::Sub, x, b, compute, out)
                if g.cudnn() >= BIAS_ROWS
                    && g.follows(Variant::LiftSubtracted)
                    && self.differentiated
                    && g.is_one_float(b) =>
            {
                Step::Binary(Pointwise::Sub, x, self.lift(g, score, b), compute, out)
            }
            step => step,
        }
    }

    /// `x` as a computed tensor: a computed zero, plus `x`.
    fn lift(&mut self, g: &mut Builder, score: TensorId, x: TensorId) -> TensorId {
        let out = if g.dtype(x) == DType::I32 { DType::I32 } else { DType::F32 };
        let zero = self.zero(g, score, out);
        self.write(g, score, Step::Binary(Pointwise::Add, zero, x, out, out))
    }

    /// Zero as a computed tensor, i32 or f32: the index of the query less itself.
    fn zero(&mut self, g: &mut Builder, score: TensorId, out: DType) -> TensorId {
        let index = self.write(g, score, Step::Index(2));
        let zero = self.write(g, score, Step::Binary(Pointwise::Sub, index, index, DType::I32, DType::I32));
        if out == DType::I32 { zero } else { self.write(g, score, Step::Unary(Pointwise::Identity, zero, out)) }
    }
}
