//! Bounds of a predicate of integers over a whole tile of scores: what `cuda/bounds.cu` computes at a launch, for lists
//! that are made with a plan. A truth is 0 or 1.

use qkvault_graph::expr::{Axis, Binary, Compare, Logic, Node, NodeId, Program, Side, Unary};

/// A value lies between these, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interval {
    pub(super) least: i64,
    pub(super) most: i64,
}

/// A tile of scores: one sequence and head, queries and keys, and the lengths of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile {
    pub(super) batch: i64,
    pub(super) head: i64,
    pub(super) queries: Interval,
    pub(super) keys: Interval,
    pub(super) lengths: (i64, i64),
}

impl Interval {
    /// Any integer.
    const ANY: Interval = Interval { least: i32::MIN as i64, most: i32::MAX as i64 };

    pub(super) const fn exactly(n: i64) -> Interval {
        Interval { least: n, most: n }
    }

    /// The numbers of the interval.
    pub(super) const fn count(self) -> i64 {
        self.most - self.least + 1
    }

    pub(super) const fn is_one(self) -> bool {
        self.least == self.most
    }

    /// Integers wrap: bounds of what may leave 32 bits are those of every integer.
    fn spanning(ends: &[i64]) -> Interval {
        let (least, most) = ends.iter().fold((i64::MAX, i64::MIN), |(least, most), &n| (least.min(n), most.max(n)));
        let fits = Interval::ANY.least <= least && most <= Interval::ANY.most;
        if fits { Interval { least, most } } else { Interval::ANY }
    }

    /// An operation whose extremes are at the ends of its operands.
    fn at_ends(self, other: Interval, f: impl Fn(i64, i64) -> i64) -> Interval {
        let (a, b) = (self, other);
        Interval::spanning(&[f(a.least, b.least), f(a.least, b.most), f(a.most, b.least), f(a.most, b.most)])
    }

    pub(super) const fn not(self) -> Interval {
        Interval { least: 1 - self.most, most: 1 - self.least }
    }

    pub(super) fn and(self, other: Interval) -> Interval {
        Interval { least: self.least.min(other.least), most: self.most.min(other.most) }
    }

    fn or(self, other: Interval) -> Interval {
        Interval { least: self.least.max(other.least), most: self.most.max(other.most) }
    }

    pub(super) fn below(self, other: Interval) -> Interval {
        Interval { least: (self.most < other.least).into(), most: (self.least < other.most).into() }
    }

    fn equals(self, other: Interval) -> Interval {
        let meet = self.least <= other.most && other.least <= self.most;
        Interval { least: (self.is_one() && self == other).into(), most: meet.into() }
    }

    /// The remainder of floored division by a positive constant.
    fn floor_rem(self, by: Interval) -> Interval {
        let n = by.least;
        if !by.is_one() || n <= 0 {
            return Interval::ANY;
        }
        if self.least.div_euclid(n) != self.most.div_euclid(n) {
            return Interval { least: 0, most: n - 1 };
        }
        Interval { least: self.least.rem_euclid(n), most: self.most.rem_euclid(n) }
    }
}

/// The bounds of a predicate whose nodes are integers and truths, and read neither scalars nor tensors. `values` is
/// room for those of its nodes.
pub(super) fn bounds(program: &Program, tile: &Tile, values: &mut Vec<Interval>) -> Interval {
    values.clear();
    for &node in program.nodes() {
        values.push(value(node, tile, |id| values[id.at()]));
    }
    values[program.root().at()]
}

fn value(node: Node, tile: &Tile, of: impl Fn(NodeId) -> Interval) -> Interval {
    match node {
        Node::Index(Axis::Batch) => Interval::exactly(tile.batch),
        Node::Index(Axis::Head) => Interval::exactly(tile.head),
        Node::Index(Axis::Query) => tile.queries,
        Node::Index(Axis::Key) => tile.keys,
        Node::Length(Side::Query) => Interval::exactly(tile.lengths.0),
        Node::Length(Side::Key) => Interval::exactly(tile.lengths.1),
        Node::Int(n) => Interval::exactly(n.into()),
        Node::Bool(truth) => Interval::exactly(truth.into()),
        Node::Unary(Unary::Neg, a) => Interval::exactly(0).at_ends(of(a), |zero, a| zero - a),
        Node::Unary(Unary::Abs, a) => {
            let Interval { least, most } = of(a);
            let nearest = if least > 0 { least } else { (-most).max(0) };
            Interval::spanning(&[nearest, most.max(-least)])
        }
        Node::Binary(op, a, b) => arithmetic(op, of(a), of(b)),
        Node::Compare(op, a, b) => {
            let (a, b) = (of(a), of(b));
            match op {
                Compare::Lt => a.below(b),
                Compare::Gt => b.below(a),
                Compare::Le => b.below(a).not(),
                Compare::Ge => a.below(b).not(),
                Compare::Eq => a.equals(b),
                Compare::Ne => a.equals(b).not(),
            }
        }
        Node::Not(a) => of(a).not(),
        Node::Logic(Logic::And, a, b) => of(a).and(of(b)),
        Node::Logic(Logic::Or, a, b) => of(a).or(of(b)),
        Node::Select { keep, yes, no } => match of(keep) {
            Interval { least: 1, .. } => of(yes),
            Interval { most: 0, .. } => of(no),
            _ => Interval { least: of(yes).least.min(of(no).least), most: of(yes).most.max(of(no).most) },
        },
        // Such nodes are looked at score by score, or not there at all.
        Node::Score | Node::Upstream | Node::Float(_) | Node::Scalar(_) | Node::Tensor(_) => Interval::ANY,
        Node::ToFloat(_) | Node::Unary(..) => Interval::ANY,
    }
}

fn arithmetic(op: Binary, a: Interval, b: Interval) -> Interval {
    match op {
        Binary::Add => a.at_ends(b, |a, b| a + b),
        Binary::Sub => a.at_ends(b, |a, b| a - b),
        Binary::Mul => a.at_ends(b, |a, b| a * b),
        Binary::Min => a.at_ends(b, i64::min),
        Binary::Max => a.at_ends(b, i64::max),
        // Quotients by what is positive rise with the dividend, and with the divisor rise or fall throughout.
        Binary::FloorDiv if b.least > 0 => a.at_ends(b, i64::div_euclid),
        Binary::FloorRem => a.floor_rem(b),
        Binary::Rem if a.least >= 0 => a.floor_rem(b),
        Binary::FloorDiv | Binary::Rem | Binary::Div | Binary::Pow | Binary::Atan2 => Interval::ANY,
    }
}
