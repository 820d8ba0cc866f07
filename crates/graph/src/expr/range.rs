//! Ranges of the integers that nodes can have, from the sizes of the scores, for operations that are exact only within
//! bounds.

use super::node::{Axis, Node, NodeId, Side};
use super::ops::{Binary, Unary};
use super::program::Program;
use crate::MAX_ORIGIN;

/// The largest magnitude of a dividend of [`Binary::FloorDiv`] by this constant that float32 divides exactly.
///
/// By a power of two: every integer up to 2^24 is a float32, and so is its product with the reciprocal. By any other
/// constant `c`, the quotient `(a + 0.5) / c` is at least `0.5 / c` away from a whole number, and the reciprocal and
/// the product round by less than that if `|a + 0.5|` is below 2^22 - 1/8.
#[must_use]
pub const fn floor_div_reach(divisor: i32) -> i64 {
    if divisor.unsigned_abs().is_power_of_two() { 1 << 24 } else { (1 << 22) - 1 }
}

/// The sizes that bound indices and lengths.
#[derive(Clone, Copy, Debug)]
pub struct Extents {
    /// Extents of the scores: batch, heads, queries, keys.
    pub scores: [i64; 4],
    /// Whether a launch gets lengths for each sequence, of up to these queries and keys.
    pub lengths: bool,
    /// Whether a launch says where positions of queries and keys begin.
    pub origins: bool,
}

/// The least and the greatest integer of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    least: i64,
    most: i64,
}

impl Range {
    /// Any integer: for values that a launch gets, and for values that wrap.
    const ALL: Range = Range { least: i32::MIN as i64, most: i32::MAX as i64 };

    /// The smallest range that contains these integers; every integer if one of them wraps.
    fn spanning(all: &[i64]) -> Range {
        let (least, most) = all.iter().fold((i64::MAX, i64::MIN), |(least, most), &n| (least.min(n), most.max(n)));
        let fits = Range::ALL.least <= least && most <= Range::ALL.most;
        if fits { Range { least, most } } else { Range::ALL }
    }

    /// The range of an operation that has its extremes at the ends of its operands.
    fn at_ends(a: Range, b: Range, f: impl Fn(i64, i64) -> i64) -> Range {
        Range::spanning(&[f(a.least, b.least), f(a.least, b.most), f(a.most, b.least), f(a.most, b.most)])
    }

    /// The greatest distance from 0.
    fn magnitude(self) -> i64 {
        self.least.abs().max(self.most.abs())
    }
}

impl Program {
    /// A dividend of [`Binary::FloorDiv`] that may be too large for an exact division, with its least and greatest
    /// value and the divisor.
    #[must_use]
    pub fn far_dividend(&self, extents: &Extents) -> Option<(i64, i64, i32)> {
        if !self.nodes().iter().any(|node| matches!(node, Node::Binary(Binary::FloorDiv, ..))) {
            return None;
        }
        let ranges = self.ranges(extents);
        self.nodes().iter().find_map(|&node| {
            let Node::Binary(Binary::FloorDiv, a, b) = node else { return None };
            let (Range { least, most }, Node::Int(divisor)) = (ranges[a.at()], self.node(b)) else { return None };
            (ranges[a.at()].magnitude() > floor_div_reach(divisor)).then_some((least, most, divisor))
        })
    }

    /// The range of each node; any integer for nodes of other types.
    fn ranges(&self, extents: &Extents) -> Vec<Range> {
        let mut ranges: Vec<Range> = Vec::with_capacity(self.nodes().len());
        for &node in self.nodes() {
            let range = range(node, extents, |id| ranges[id.at()]);
            ranges.push(range);
        }
        ranges
    }
}

fn range(node: Node, extents: &Extents, of: impl Fn(NodeId) -> Range) -> Range {
    match node {
        Node::Int(n) => Range::spanning(&[i64::from(n)]),
        Node::Index(axis) => {
            let origin = if extents.origins && matches!(axis, Axis::Query | Axis::Key) { MAX_ORIGIN.into() } else { 0 };
            Range::spanning(&[0, origin + extents.scores[axis.dim()] - 1])
        }
        Node::Length(side) => {
            let axis = match side {
                Side::Query => Axis::Query,
                Side::Key => Axis::Key,
            };
            let whole = extents.scores[axis.dim()];
            if extents.lengths { Range::spanning(&[0, whole]) } else { Range::spanning(&[whole]) }
        }
        Node::Unary(Unary::Neg, a) => Range::spanning(&[-of(a).least, -of(a).most]),
        Node::Unary(Unary::Abs, a) => {
            let Range { least, most } = of(a);
            Range::spanning(&[
                if least <= 0 && most >= 0 { 0 } else { least.abs().min(most.abs()) },
                least.abs().max(most.abs()),
            ])
        }
        Node::Binary(op, a, b) => arithmetic(op, of(a), of(b)),
        Node::Select { keep: _, yes, no } => {
            let (yes, no) = (of(yes), of(no));
            Range::spanning(&[yes.least, yes.most, no.least, no.most])
        }
        Node::Score
        | Node::Upstream
        | Node::Float(_)
        | Node::Bool(_)
        | Node::Scalar(_)
        | Node::Tensor(_)
        | Node::ToFloat(_)
        | Node::Unary(..)
        | Node::Compare(..)
        | Node::Not(_)
        | Node::Logic(..) => Range::ALL,
    }
}

fn arithmetic(op: Binary, a: Range, b: Range) -> Range {
    match op {
        Binary::Add => Range::at_ends(a, b, |a, b| a + b),
        Binary::Sub => Range::at_ends(a, b, |a, b| a - b),
        Binary::Mul => Range::at_ends(a, b, |a, b| a * b),
        Binary::Min => Range::at_ends(a, b, i64::min),
        Binary::Max => Range::at_ends(a, b, i64::max),
        // It has the sign of `a`, is not greater than `a`, and is below the divisor; by 0 it is 0.
        Binary::Rem => {
            let below = (b.magnitude() - 1).max(0);
            Range::spanning(&[a.least.clamp(-below, 0), a.most.clamp(0, below)])
        }
        // It has the sign of `b`, and is below it.
        Binary::FloorRem => Range::spanning(&[(b.least + 1).min(0), (b.most - 1).max(0)]),
        // By a constant.
        Binary::FloorDiv if b.least == b.most && b.least != 0 => {
            let floor = |a: i64| a.div_euclid(b.least) - i64::from(b.least < 0 && a.rem_euclid(b.least) != 0);
            Range::spanning(&[floor(a.least), floor(a.most)])
        }
        Binary::FloorDiv | Binary::Div | Binary::Pow | Binary::Atan2 => Range::ALL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::parse_expr;

    const LARGE: Extents = Extents { scores: [4, 8, 5_000_000, 6_000_000], lengths: false, origins: false };

    fn far(text: &str, extents: &Extents) -> Option<(i64, i64, i32)> {
        parse_expr(text).expect("reads").far_dividend(extents)
    }

    #[test]
    fn a_dividend_within_reach_is_recognised() {
        for text in [
            "query // 128 == key // 128",
            "head // 3 == batch // 5",
            "(query + key) // -64 == 3",
            "scalar $n: int; min(max($n, 0), 4194303) // 3 == 0",
            "tensor @ids: i32[1, 1, 1, 1]; @ids % 1000 // 3 == 0",
            "tensor @ids: i32[1, 1, 1, 1]; floor_rem(@ids, 1000) // 3 == 0",
            "query // 2 // 7 == 0",
            "abs(query - key) // 4 == 0",
            "select(query < 5, 7, head) // 3 == 0",
        ] {
            assert_eq!(far(text, &LARGE), None, "{text}");
        }
    }

    #[test]
    fn a_dividend_that_may_be_beyond_reach_is_found_with_its_bounds() {
        let all = (i64::from(i32::MIN), i64::from(i32::MAX));
        for (text, (least, most), divisor) in [
            ("query // 3 == 0", (0, 4_999_999), 3),
            ("(key - query) // -7 == 0", (-4_999_999, 5_999_999), -7),
            ("query * key // 4 == 0", all, 4),
            ("key * 3 // 4 == 0", (0, 17_999_997), 4),
            ("scalar $n: int; $n // 4 == 0", all, 4),
            ("tensor @ids: i32[1, 1, 1, 1]; (@ids + 1) // 4 == 0", all, 4),
            ("key_len // 3 == 0", (6_000_000, 6_000_000), 3),
        ] {
            assert_eq!(far(text, &LARGE), Some((least, most, divisor)), "{text}");
        }
        let lengths = Extents { lengths: true, ..LARGE };
        assert_eq!(far("key_len // 3 == 0", &lengths), Some((0, 6_000_000, 3)));
        // From both sides of each bound.
        let keys = |n| Extents { scores: [1, 1, 1, n], lengths: false, origins: false };
        assert_eq!(far("key // 3 == 0", &keys(1 << 22)), None);
        assert_eq!(far("key // 3 == 0", &keys((1 << 22) + 1)), Some((0, 1 << 22, 3)));
        assert_eq!(far("key // 4 == 0", &keys((1 << 24) + 1)), None);
        assert_eq!(far("key // 4 == 0", &keys((1 << 24) + 2)), Some((0, (1 << 24) + 1, 4)));
    }
}
