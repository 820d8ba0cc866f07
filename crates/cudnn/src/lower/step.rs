//! The operations of score expressions: equal ones are shared, and each gets the form that cuDNN accepts.

use std::collections::BTreeMap;

use super::builder::Builder;
use super::variants::Variant;
use crate::op::{Constant, OfOrigins, Pointwise, TensorId};
use crate::{CudnnVersion, DType};

/// The first version that treats an addition as a bias, whose keys must be contiguous (9.25.0 accepts any, 9.26.0 does
/// not).
const BIAS_ROWS: CudnnVersion = CudnnVersion::v9(26, 0);

/// The operations that are written already, so that an expression and its derivative share them.
///
/// Masks do not share operations: cuDNN skips hidden blocks only if a mask's index and comparison are next to its
/// select (a factor of two on an H200 with cuDNN 9.19).
#[derive(Default)]
pub(super) struct Memo {
    known: BTreeMap<Step, TensorId>,
    /// Whether it is a score expression of a backward; predicates and forwards need no other form.
    differentiated: bool,
}

/// An operation before it is written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    /// An f32, by its bits.
    Float(u32),
    /// An i32.
    Int(i32),
    /// The index along an axis.
    Index(u8),
    /// A number that each launch computes from its origins.
    OfOrigins(OfOrigins),
    /// A mode of one operand, and the type of its result.
    Unary(Pointwise, TensorId, DType),
    /// A mode of two operands, the type of the computation, and the type of its result.
    Binary(Pointwise, TensorId, TensorId, DType, DType),
    /// `keep ? yes : no`, in a type.
    Select(TensorId, TensorId, TensorId, DType),
}

impl Memo {
    /// The memo of a score expression and its derivative.
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
            Step::OfOrigins(number) => g.of_origins(number),
            Step::Unary(mode, x, out) => g.unary_as(mode, x, out, out),
            Step::Binary(mode, x, b, compute, out) => g.binary_as(mode, x, b, compute, out),
            Step::Select(keep, yes, no, out) => g.select_as(keep, yes, no, out),
        };
        self.known.insert(step, written);
        written
    }

    /// The same result with a computed tensor first, if exactly one of two operands is computed. The canonical
    /// expression and its derivative already have this order for comparisons and for operations that commute.
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

    /// The same result, with a computed zero added to a first operand that is not computed.
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

    /// The same result, with a subtraction of the negative in place of an addition, if the second operand is constant
    /// along the keys; and with a single f32 subtracted after a computed zero is added.
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

    /// `x` as a computed tensor: a computed zero plus `x`.
    fn lift(&mut self, g: &mut Builder, score: TensorId, x: TensorId) -> TensorId {
        let out = if g.dtype(x) == DType::I32 { DType::I32 } else { DType::F32 };
        let zero = self.zero(g, score, out);
        self.write(g, score, Step::Binary(Pointwise::Add, zero, x, out, out))
    }

    /// Zero as a computed tensor, i32 or f32: the index of the query minus itself.
    fn zero(&mut self, g: &mut Builder, score: TensorId, out: DType) -> TensorId {
        let index = self.write(g, score, Step::Index(2));
        let zero = self.write(g, score, Step::Binary(Pointwise::Sub, index, index, DType::I32, DType::I32));
        if out == DType::I32 { zero } else { self.write(g, score, Step::Unary(Pointwise::Identity, zero, out)) }
    }
}
