//! Recognises a predicate that is exactly a diagonal band, so that every causal or window mask has one encoding.

use super::node::{Axis, Node, NodeId, Side};
use super::ops::{Binary, Compare, Logic, Unary};
use super::program::{Program, ScoreExpr};
use crate::{Band, Corner};

/// Positions and lengths up to which a recognised predicate does not wrap around.
const REACH: i64 = 1 << 28;

impl ScoreExpr {
    /// The band that this predicate keeps, if it is one: a conjunction of bounds on `query - key`, or on `query - key +
    /// key_len - query_len`, in any form. `None` for any other predicate, and for one without a bound.
    ///
    /// It holds for sequences of fewer than 2^28 positions; beyond that, 32-bit integers might wrap in some forms.
    #[must_use]
    pub fn as_band(&self) -> Option<Band> {
        let (corner, left, right) = self.diagonal_bounds()?;
        let sound = left.is_none_or(|left| left >= 1) && right.is_none_or(|right| right >= 0);
        sound.then_some(Band { corner, left, right })
    }

    /// Like [`ScoreExpr::as_band`], for bounds that may leave out the diagonal, or every key: the corner, and the left
    /// and right bounds as in [`Band`], of any size.
    pub(crate) fn diagonal_bounds(&self) -> Option<(Corner, Option<i64>, Option<i64>)> {
        let program = self.program();
        let linear = linear_forms(program);
        let mut found = Bounds::default();
        let mut rest = vec![(program.root(), true)];
        while let Some((id, holds)) = rest.pop() {
            match (program.node(id), holds) {
                (Node::Bool(value), _) if value == holds => {}
                (Node::Not(a), _) => rest.push((a, !holds)),
                (Node::Logic(Logic::And, a, b), true) | (Node::Logic(Logic::Or, a, b), false) => {
                    rest.extend([(a, holds), (b, holds)]);
                }
                (Node::Compare(op, a, b), _) => {
                    let difference = linear[a.at()]?.minus(linear[b.at()]?)?;
                    let op = if holds { op } else { op.negated() };
                    for at_least_zero in inequalities(op, difference)? {
                        found.add(at_least_zero)?;
                    }
                }
                _ => return None,
            }
        }
        let Bounds { corner, left, right } = found;
        Some((corner?, left, right))
    }
}

/// `query * q + key * k + query_len * ql + key_len * kl + constant`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Linear {
    q: i64,
    k: i64,
    ql: i64,
    kl: i64,
    constant: i64,
}

impl Linear {
    const fn new(q: i64, k: i64, ql: i64, kl: i64, constant: i64) -> Self {
        Linear { q, k, ql, kl, constant }
    }

    fn scaled(self, by: i64) -> Option<Self> {
        let Linear { q, k, ql, kl, constant } = self;
        let times = |n: i64| n.checked_mul(by);
        Linear::new(times(q)?, times(k)?, times(ql)?, times(kl)?, times(constant)?).checked()
    }

    fn plus(self, o: Self) -> Option<Self> {
        // Every part is below 2^31, so the sums cannot overflow.
        Linear::new(self.q + o.q, self.k + o.k, self.ql + o.ql, self.kl + o.kl, self.constant + o.constant).checked()
    }

    fn minus(self, o: Self) -> Option<Self> {
        self.plus(o.scaled(-1)?)
    }

    /// This form, if no positions within [`REACH`] make it wrap.
    fn checked(self) -> Option<Self> {
        let Linear { q, k, ql, kl, constant } = self;
        let slopes = [q, k, ql, kl].iter().try_fold(0_i64, |sum, n| sum.checked_add(n.checked_abs()?))?;
        let largest = slopes.checked_mul(REACH)?.checked_add(constant.checked_abs()?)?;
        (largest <= i64::from(i32::MAX)).then_some(self)
    }
}

/// The linear form of every integer node that has one.
fn linear_forms(program: &Program) -> Vec<Option<Linear>> {
    let mut forms: Vec<Option<Linear>> = Vec::with_capacity(program.nodes().len());
    for &node in program.nodes() {
        let of = |id: NodeId| forms[id.at()];
        let constant = |id: NodeId| if let Node::Int(n) = program.node(id) { Some(i64::from(n)) } else { None };
        let form = match node {
            Node::Index(Axis::Query) => Some(Linear::new(1, 0, 0, 0, 0)),
            Node::Index(Axis::Key) => Some(Linear::new(0, 1, 0, 0, 0)),
            Node::Length(Side::Query) => Some(Linear::new(0, 0, 1, 0, 0)),
            Node::Length(Side::Key) => Some(Linear::new(0, 0, 0, 1, 0)),
            Node::Int(n) => Linear::new(0, 0, 0, 0, i64::from(n)).checked(),
            Node::Unary(Unary::Neg, a) => of(a).and_then(|a| a.scaled(-1)),
            Node::Binary(Binary::Add, a, b) => of(a).zip(of(b)).and_then(|(a, b)| a.plus(b)),
            Node::Binary(Binary::Sub, a, b) => of(a).zip(of(b)).and_then(|(a, b)| a.minus(b)),
            Node::Binary(Binary::Mul, a, b) => match (constant(a), constant(b)) {
                (_, Some(n)) => of(a).and_then(|a| a.scaled(n)),
                (Some(n), _) => of(b).and_then(|b| b.scaled(n)),
                (None, None) => None,
            },
            _ => None,
        };
        forms.push(form);
    }
    forms
}

/// The forms that are at least 0 exactly if the comparison of `difference` with 0 holds; `None` for `!=`.
fn inequalities(op: Compare, difference: Linear) -> Option<Vec<Linear>> {
    let one = Linear::new(0, 0, 0, 0, 1);
    let negative = difference.scaled(-1)?;
    Some(match op {
        Compare::Ge => vec![difference],
        Compare::Gt => vec![difference.minus(one)?],
        Compare::Le => vec![negative],
        Compare::Lt => vec![negative.minus(one)?],
        Compare::Eq => vec![difference, negative],
        Compare::Ne => return None,
    })
}

/// The bounds found so far. Both count from the diagonal of the same corner.
#[derive(Debug, Default)]
struct Bounds {
    corner: Option<Corner>,
    left: Option<i64>,
    right: Option<i64>,
}

impl Bounds {
    /// Adds `form >= 0`; `None` if it is not a bound of a band.
    fn add(&mut self, form: Linear) -> Option<()> {
        let Linear { q, k, ql, kl, constant } = form;
        if [q, k, ql, kl] == [0; 4] {
            // The form is constant; a mask that is false everywhere is not a band.
            return (constant >= 0).then_some(());
        }
        let corner = match (ql, kl) {
            (0, 0) => Corner::TopLeft,
            _ if ql == -q && kl == q => Corner::BottomRight,
            _ => return None,
        };
        if q == 0 || k != -q || *self.corner.get_or_insert(corner) != corner {
            return None;
        }
        // With x = query - key (+ key_len - query_len): q * x + constant >= 0.
        let steps = constant.div_euclid(q.abs());
        if q > 0 {
            self.right = Some(self.right.map_or(steps, |right| right.min(steps)));
        } else {
            self.left = Some(self.left.map_or(steps + 1, |left| left.min(steps + 1)));
        }
        Some(())
    }
}
