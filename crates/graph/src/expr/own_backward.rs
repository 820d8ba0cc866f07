//! A user's own backward, which is compared with central differences of the forward before it is accepted.

use super::arena::Arena;
use super::canon;
use super::eval::{EvalError, PointContext, Value};
use super::node::{Node, NodeId, ScalarId, TensorId, Ty};
use super::operand::ScalarTy;
use super::program::{Derived, Program, ScoreExpr};
use qkvault_base::random::Rng;

/// The tolerance of the comparison of a derivative with a difference: `|own - difference| <= abs + rel * |difference|`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Absolute part.
    pub abs: f64,
    /// Part relative to the difference.
    pub rel: f64,
}

impl Default for Tolerance {
    /// 1e-5 for both: well above the error of the differences and of float32 constants, far below any mistake in a
    /// formula.
    fn default() -> Self {
        Tolerance { abs: 1e-5, rel: 1e-5 }
    }
}

/// Why a user's own backward is not accepted.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum OverrideError {
    /// One of the two expressions is not a float.
    #[error("the {which} is {given}; both the forward and its derivative must be floats")]
    NotAFloat {
        /// `forward` or `own backward`.
        which: &'static str,
        /// Type of the expression.
        given: Ty,
    },
    /// The backward reads a scalar or tensor that the forward does not have, or has with another specification.
    #[error(
        "the backward reads '{name}', which the forward does not read in this form; use only the operands of the forward"
    )]
    ForeignOperand {
        /// Display name; operands of the two expressions are matched by name.
        name: String,
    },
    /// The backward is wrong.
    #[error(
        "the backward gives {own}, but the forward changes by {difference} per unit of score \
         (score {score}, batch, head, query, key {at:?}, scalars and tensors {operands:?}); leave it out to get the derived one"
    )]
    Disagrees {
        /// The value of the backward.
        own: f64,
        /// Central difference of the forward.
        difference: f64,
        /// Score of the point.
        score: f64,
        /// Batch, head, query and key of the point.
        at: [i32; 4],
        /// Values of the operands at the point: names and numbers.
        operands: Vec<(String, f64)>,
    },
    /// The forward is smooth at too few of the sample points for a verdict.
    #[error(
        "the forward is too rough for a check of the backward: only {compared} of {tried} points could be compared, and {needed} are needed"
    )]
    Undecided {
        /// Number of points that were compared.
        compared: usize,
        /// Number of points that were tried.
        tried: usize,
        /// Number of points that are needed.
        needed: usize,
    },
}

const TRIED: usize = 512;
const NEEDED: usize = 32;

/// Accepts `own` as the derivative of `forward` with respect to the score, if it agrees with central differences
/// wherever the forward is smooth.
///
/// Operands are matched by display name. The result reads the forward's scalars and tensors by the forward's ids. The
/// points are the same in every run: scores from -30 to 30, many of them small; scalars and tensors from -3 to 3 and,
/// in half of the points, positive; positions within lengths of up to 64. Kinks and jumps are skipped, so values there
/// are not checked.
///
/// # Errors
/// If the two do not fit together, disagree, or could be compared at too few points.
pub fn check_override(forward: &ScoreExpr, own: &ScoreExpr, tolerance: Tolerance) -> Result<Derived, OverrideError> {
    for (which, expr) in [("forward", forward), ("own backward", own)] {
        if expr.root_ty() != Ty::Float {
            return Err(OverrideError::NotAFloat { which, given: expr.root_ty() });
        }
    }
    let own = over_operands_of(forward, own)?;
    let mut random = Rng::new(0);
    let mut compared = 0;
    for _ in 0..TRIED {
        let point = Sample::random(forward, &mut random);
        let Some(difference) = point.difference(forward) else { continue };
        let found = float(own.eval(&point.at_score(point.score)));
        let allowed = tolerance.abs + tolerance.rel * difference.abs();
        match found {
            Some(found) if (found - difference).abs() <= allowed => compared += 1,
            _ => return Err(point.disagreement(forward, found.unwrap_or(f64::NAN), difference)),
        }
    }
    if compared < NEEDED {
        return Err(OverrideError::Undecided { compared, tried: TRIED, needed: NEEDED });
    }
    Ok(own)
}

/// The nodes of `own` over the operands of `forward`.
pub(crate) fn over_operands_of(forward: &ScoreExpr, own: &ScoreExpr) -> Result<Derived, OverrideError> {
    let foreign = |name: &str| OverrideError::ForeignOperand { name: name.to_owned() };
    let mut scalars = Vec::new();
    for (spec, name) in own.scalars().iter().zip(own.scalar_names()) {
        let same = forward.scalar_named(name).filter(|id| forward.scalars()[id.at()] == *spec);
        scalars.push(same.ok_or_else(|| foreign(name))?);
    }
    let mut tensors = Vec::new();
    for (spec, name) in own.tensors().iter().zip(own.tensor_names()) {
        // Only the forward decides whether a gradient is computed.
        let fits = |id: &TensorId| {
            let other = forward.tensors()[id.at()];
            (other.dims, other.dtype) == (spec.dims, spec.dtype)
        };
        tensors.push(forward.tensor_named(name).filter(fits).ok_or_else(|| foreign(name))?);
    }
    let mut arena = Arena::over(forward.operands().clone());
    let mut ids: Vec<NodeId> = Vec::new();
    for &node in own.nodes() {
        ids.push(arena.add(match node {
            Node::Scalar(ScalarId(id)) => Node::Scalar(scalars[id as usize]),
            Node::Tensor(TensorId(id)) => Node::Tensor(tensors[id as usize]),
            other => other.map_operands(|id| ids[id.at()]),
        }));
    }
    let nodes = canon::ordered(&arena, ids[own.root().at()]);
    Ok(Derived::from_program(Program::from_parts(nodes, forward.operands().clone())))
}

fn float(value: Result<Value, EvalError>) -> Option<f64> {
    value.ok().and_then(Value::float).filter(|x| x.is_finite())
}

/// A point with values for everything that the forward reads.
struct Sample {
    score: f64,
    at: [i32; 4],
    lengths: [i32; 2],
    scalars: Vec<Value>,
    tensors: Vec<Value>,
}

impl Sample {
    fn random(forward: &ScoreExpr, random: &mut Rng) -> Self {
        let positive = random.unit() < 0.5;
        let mut value = |integer: bool| match (integer, random.unit() * 6.0 - 3.0) {
            (true, x) => Value::Int((x * 3.0) as i32),
            (false, x) => Value::Float(if positive { x.abs() + 0.1 } else { x }),
        };
        let scalars = forward.scalars().iter().map(|scalar| value(scalar.ty == ScalarTy::Int)).collect();
        let tensors = forward.tensors().iter().map(|tensor| value(tensor.ty() == Some(Ty::Int))).collect();
        let mut below = |n: i32| random.within(0, n as usize - 1) as i32;
        let reach = [0.5, 5.0, 30.0][below(3) as usize];
        let lengths = [1 + below(64), 1 + below(64)];
        let at = [below(4), below(16), below(lengths[0]), below(lengths[1])];
        Sample { score: (random.unit() * 2.0 - 1.0) * reach, at, lengths, scalars, tensors }
    }

    fn at_score(&self, score: f64) -> PointContext<'_> {
        let Sample { score: _, at, lengths, scalars, tensors } = self;
        PointContext { score, upstream: 1.0, at: *at, lengths: *lengths, scalars, tensors }
    }

    /// Central difference with respect to the score, if steps of several sizes agree.
    fn difference(&self, forward: &ScoreExpr) -> Option<f64> {
        let value = |score: f64| float(forward.eval(&self.at_score(score)));
        let slope = |h: f64| Some((value(self.score + h)? - value(self.score - h)?) / (2.0 * h));
        let (wide, near, close) = (slope(2e-4)?, slope(1e-4)?, slope(1e-5)?);
        let best = near + (near - wide) / 3.0;
        // Near a kink, the differences of both sides differ, however small the step is.
        let here = value(self.score)?;
        let (right, left) = ((value(self.score + 1e-5)? - here) / 1e-5, (here - value(self.score - 1e-5)?) / 1e-5);
        let scale = 1.0 + best.abs();
        let smooth = (best - close).abs() < 1e-6 * scale
            && (near - wide).abs() < 1e-3 * scale
            && (right - left).abs() < 1e-2 * scale;
        smooth.then_some(best)
    }

    fn disagreement(&self, forward: &ScoreExpr, own: f64, difference: f64) -> OverrideError {
        let names = forward.scalar_names().iter().chain(forward.tensor_names());
        let values = self.scalars.iter().chain(&self.tensors);
        let number = |value: &Value| value.float().or(value.int().map(f64::from)).unwrap_or(f64::NAN);
        let operands = names.zip(values).map(|(name, value)| (name.clone(), number(value))).collect();
        OverrideError::Disagrees { own, difference, score: self.score, at: self.at, operands }
    }
}
