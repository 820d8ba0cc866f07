//! Derivatives as products: the chain rule multiplies, and equal factors cancel if they are kept apart.
//!
//! Softcap is `tanh(s / c) * c`; its derivative `(1 - t^2) / c * c` becomes `1 - t^2`. Such cancelling is exact over
//! the real numbers, though not bit for bit.

use super::node::{Node, NodeId};
use super::ops::Unary;
use super::simplify::Simplifier;

/// `factor * product of over / product of under` if all guards hold, otherwise 0.
///
/// Constants are folded in float64 and rounded to float32 once, when the product is written. Guards are written around
/// the product, so that an infinite factor and a derivative of 0 give 0, not NaN.
#[derive(Clone, Debug)]
pub(super) struct Term {
    factor: f64,
    over: Vec<NodeId>,
    under: Vec<NodeId>,
    /// Conditions, and whether they must be true or false.
    guards: Vec<(NodeId, bool)>,
}

/// Sums of constants below this part of the larger one are rounding noise: the constants cancel.
const NOISE: f64 = 1e-12;

impl Term {
    pub(super) const fn one() -> Self {
        Term { factor: 1.0, over: Vec::new(), under: Vec::new(), guards: Vec::new() }
    }

    fn is_number(&self) -> bool {
        self.over.is_empty() && self.under.is_empty() && self.guards.is_empty()
    }

    pub(super) fn is_zero(&self) -> bool {
        self.factor == 0.0
    }

    /// This product times a number.
    #[must_use]
    pub(super) fn scaled(self, by: f64) -> Self {
        Term { factor: self.factor * by, ..self }
    }

    /// This product and one more factor.
    #[must_use]
    pub(super) fn times(mut self, node: NodeId, s: &Simplifier) -> Self {
        match s.arena.node(node) {
            Node::Unary(Unary::Neg, x) => return self.scaled(-1.0).times(x, s),
            Node::Unary(Unary::Reciprocal, x) => return self.divided(x, s),
            Node::Float(value) if folds(self.factor * f64::from(value.value())) || value.value() == 0.0 => {
                return self.scaled(f64::from(value.value()));
            }
            _ => {}
        }
        match self.under.iter().position(|&other| other == node) {
            Some(at) => drop(self.under.remove(at)),
            None => self.over.push(node),
        }
        self
    }

    /// This product divided by a node.
    #[must_use]
    pub(super) fn divided(mut self, node: NodeId, s: &Simplifier) -> Self {
        match s.arena.node(node) {
            Node::Unary(Unary::Neg, x) => return self.scaled(-1.0).divided(x, s),
            Node::Unary(Unary::Reciprocal, x) => return self.times(x, s),
            Node::Float(value) if folds(self.factor / f64::from(value.value())) => {
                let factor = self.factor / f64::from(value.value());
                return Term { factor, ..self };
            }
            _ => {}
        }
        match self.over.iter().position(|&other| other == node) {
            Some(at) => drop(self.over.remove(at)),
            None => self.under.push(node),
        }
        self
    }

    /// This product if a condition has this value, otherwise 0.
    #[must_use]
    pub(super) fn guarded(mut self, condition: NodeId, value: bool) -> Self {
        if !self.guards.contains(&(condition, value)) {
            self.guards.push((condition, value));
        }
        self
    }

    /// This product as nodes. The first operand of every operation varies over the scores, if one of them does.
    pub(super) fn write(&self, s: &mut Simplifier) -> NodeId {
        let zero = s.literal(0.0);
        let product = self.product(s);
        self.guards.iter().fold(product, |inner, &(condition, value)| match value {
            true => s.select(condition, inner, zero),
            false => s.select(condition, zero, inner),
        })
    }

    fn product(&self, s: &mut Simplifier) -> NodeId {
        let Term { factor, over, under, guards: _ } = self;
        let (mut over, mut under) = (over.clone(), under.clone());
        over.sort_by_key(|&node| !s.varies(node));
        under.sort_by_key(|&node| !s.varies(node));
        let mut rest = over.into_iter();
        let mut divisors = under.into_iter();
        let first = rest.next().or_else(|| divisors.next().map(|first| s.unary(Unary::Reciprocal, first)));
        let Some(mut product) = first else {
            let parts = float32_parts(*factor);
            let ids: Vec<NodeId> = parts.into_iter().map(|part| s.literal(part)).collect();
            return ids[1..].iter().fold(ids[0], |product, &id| s.mul(product, id));
        };
        for next in rest {
            product = s.mul(product, next);
        }
        for divisor in divisors {
            product = s.div(product, divisor);
        }
        for part in float32_parts(*factor) {
            let part = s.literal(part);
            product = s.mul(product, part);
        }
        product
    }

    /// Whether a condition must hold for this not to be 0.
    pub(super) fn is_guarded(&self) -> bool {
        !self.guards.is_empty()
    }

    /// Takes out the guards that both products have.
    pub(super) fn split_guards(mut self, mut other: Self) -> (Term, Term, Term) {
        let guards = shared(&mut self.guards, &mut other.guards);
        (Term { guards, ..Term::one() }, self, other)
    }

    /// Takes out the factors that both products have: shared, rest of the first, rest of the second.
    ///
    /// If a guard fails, an infinite factor must still give 0, so at least one of the two products must have no guards.
    pub(super) fn split_factors(mut self, mut other: Self) -> (Term, Term, Term) {
        let over = shared(&mut self.over, &mut other.over);
        let under = shared(&mut self.under, &mut other.under);
        let mut factor = 1.0;
        if self.factor == other.factor {
            factor = self.factor;
            (self.factor, other.factor) = (1.0, 1.0);
        }
        (Term { factor, over, under, guards: Vec::new() }, self, other)
    }

    fn guarded_by(mut self, guards: Vec<(NodeId, bool)>) -> Self {
        self.guards = guards;
        self
    }

    /// The sum of two products; `None` if they cancel.
    pub(super) fn plus(self, other: Term, s: &mut Simplifier) -> Option<Term> {
        let (guards, a, b) = self.split_guards(other);
        // If one of the two always counts, its factors can precede the sum.
        let (shared, a, b) = if a.is_guarded() && b.is_guarded() { (Term::one(), a, b) } else { a.split_factors(b) };
        let shared = shared.guarded_by(guards.guards);
        if a.is_number() && b.is_number() {
            let sum = a.factor + b.factor;
            let noise = NOISE * a.factor.abs().max(b.factor.abs());
            return (sum.abs() > noise).then(|| shared.scaled(sum));
        }
        let (a, b) = (a.write(s), b.write(s));
        let sum = s.add(a, b);
        Some(shared.times(sum, s))
    }
}

/// Removes the common entries of both lists and returns them.
fn shared<T: PartialEq>(a: &mut Vec<T>, b: &mut Vec<T>) -> Vec<T> {
    let mut both = Vec::new();
    a.retain(|node| match b.iter().position(|x| x == node) {
        Some(at) => {
            both.push(b.remove(at));
            false
        }
        None => true,
    });
    both
}

/// Whether float64 holds a folded constant with full precision.
fn folds(factor: f64) -> bool {
    factor.is_normal()
}

/// One float32 number, or several with this product if it is too large or too small for one.
fn float32_parts(mut factor: f64) -> Vec<f64> {
    let (large, small) = (2_f64.powi(120), 2_f64.powi(-120));
    let mut parts = Vec::new();
    while factor.abs() > f64::from(f32::MAX) {
        parts.push(large);
        factor /= large;
    }
    while factor != 0.0 && factor.abs() < f64::from(f32::MIN_POSITIVE) {
        parts.push(small);
        factor /= small;
    }
    parts.push(factor);
    parts
}
