//! A predicate of integers at neighbouring keys of one query at once.

use qkvault_graph::expr::{Axis, Binary, Logic, Node, NodeId, Program, Side, Unary};

/// Keys that are looked at together.
pub(super) const KEYS: usize = 32;

/// Values of a node at these keys; a truth is 0 or 1.
pub(super) type Lanes = [i32; KEYS];

/// The first of the keys: sequence, head, query and key, and the lengths of all.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) at: [i32; 4],
    pub(super) lengths: [i32; 2],
}

/// The predicate at as many keys from a place on, as [`super::intervals::bounds`] takes it. `values` is room for those
/// of its nodes.
pub(super) fn truths(program: &Program, place: Place, values: &mut Vec<Lanes>) -> Lanes {
    values.clear();
    for &node in program.nodes() {
        values.push(value(node, place, |id| &values[id.at()]));
    }
    values[program.root().at()]
}

fn value<'v>(node: Node, Place { at, lengths }: Place, of: impl Fn(NodeId) -> &'v Lanes) -> Lanes {
    let one = |a: NodeId, f: &dyn Fn(i32) -> i32| of(a).map(f);
    match node {
        Node::Index(Axis::Key) => std::array::from_fn(|n| at[3].wrapping_add(n as i32)),
        Node::Index(axis) => [at[axis.dim()]; KEYS],
        Node::Length(Side::Query) => [lengths[0]; KEYS],
        Node::Length(Side::Key) => [lengths[1]; KEYS],
        Node::Int(n) => [n; KEYS],
        Node::Bool(truth) => [truth.into(); KEYS],
        Node::Unary(op @ (Unary::Neg | Unary::Abs), a) => one(a, &|a| op.apply_int(a).unwrap_or(0)),
        Node::Binary(op, a, b) => arithmetic(op, of(a), of(b)),
        Node::Compare(op, a, b) => both(of(a), of(b), |a, b| op.apply(a, b).into()),
        Node::Not(a) => one(a, &|a| 1 - a),
        Node::Logic(Logic::And, a, b) => both(of(a), of(b), |a, b| a & b),
        Node::Logic(Logic::Or, a, b) => both(of(a), of(b), |a, b| a | b),
        Node::Select { keep, yes, no } => {
            let (keep, yes, no) = (of(keep), of(yes), of(no));
            std::array::from_fn(|n| if keep[n] == 1 { yes[n] } else { no[n] })
        }
        Node::Score | Node::Upstream | Node::Float(_) | Node::Scalar(_) | Node::Tensor(_) | Node::ToFloat(_) => {
            unreachable!("a predicate of integers that reads nothing")
        }
        Node::Unary(..) => unreachable!("operations on floats"),
    }
}

/// One loop for each of the usual operations, which compilers make vectors of.
fn arithmetic(op: Binary, a: &Lanes, b: &Lanes) -> Lanes {
    match op {
        Binary::Add => both(a, b, i32::wrapping_add),
        Binary::Sub => both(a, b, i32::wrapping_sub),
        Binary::Mul => both(a, b, i32::wrapping_mul),
        Binary::Min => both(a, b, i32::min),
        Binary::Max => both(a, b, i32::max),
        op => both(a, b, |a, b| op.apply_int(a, b).unwrap_or(0)),
    }
}

fn both(a: &Lanes, b: &Lanes, f: impl Fn(i32, i32) -> i32) -> Lanes {
    std::array::from_fn(|n| f(a[n], b[n]))
}
