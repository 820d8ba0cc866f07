//! Score modifications as CUDA C: caps and quotients are written for speed (`cuda/capped.cu`).

use std::ops::Range;

use qkvault_graph::expr::{Binary, Node, NodeId, Program, Ty, Unary};

use crate::expression::{element, statements_with, value};

/// What score modifications call beside [`crate::expression::FUNCTIONS`].
pub(crate) const CAPPED: &str = include_str!("cuda/capped.cu");

/// What hyperbolic tangents are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tangents {
    /// Any numbers.
    Any,
    /// Near zero, which the variable `furthest` tells afterwards.
    Near,
}

/// The functions of a score modification: `modified`, and `modified_near` where that is defined (HAS_NEAR) and as right
/// as long as `furthest` is up to `near_limit`. They take what queries and keys multiply to.
pub(crate) fn functions(program: &Program, origins: bool, invariant: bool) -> String {
    // Its polynomial has other bits than the same tangent of what is far.
    let capped = if invariant { None } else { capped(program) };
    let mut text = String::new();
    if let Some(cap) = capped {
        let cap = match program.nodes()[cap.at()] {
            Node::Scalar(id) => format!("p.scalar{}", id.at()),
            node => value(program, node, &|_| unreachable!("one number")),
        };
        text = format!(
            "__device__ __forceinline__ Cap cap_of_scores(const Params& p) {{ return cap_of({cap}, p.scale); }}\n\n"
        );
    }
    let function = |name: &str, more: &str, tangents: Tangents| {
        let instead =
            |program: &Program, id: NodeId, name: &dyn Fn(NodeId) -> String| fast(program, id, name, tangents, capped);
        let (body, root) = statements_with(program, 0, 0, "s", origins, element, &instead);
        format!(
            "__device__ __forceinline__ float {name}(const Params& p, const Point& point, float product{more}) {{\n  \
               const float score = product * p.scale;\n{body}  return {root};\n}}\n\n"
        )
    };
    text.push_str(&function("modified", "", Tangents::Any));
    if has_near(program, invariant) {
        text.push_str(&function("modified_near", ", float& furthest", Tangents::Near));
        let limit = if capped.is_some() { "cap_of_scores(p).limit" } else { "NEAR" };
        text.push_str("#define HAS_NEAR 1\n__device__ __forceinline__ float near_limit(const Params& p) { return ");
        text.push_str(limit);
        text.push_str("; }\n\n");
    }
    text
}

/// Whether a score modification has hyperbolic tangents, which are faster near zero. Of an invariant attention both
/// ways must have the same bits: so it adds nothing, for a compiler fuses a product with a sum where it likes.
fn has_near(program: &Program, invariant: bool) -> bool {
    let nodes = program.nodes();
    let multiplies = |node: &Node| match node {
        Node::Unary(op, _) => matches!(op, Unary::Tanh | Unary::Neg | Unary::Abs),
        Node::Binary(op, ..) => matches!(op, Binary::Mul | Binary::Div | Binary::Min | Binary::Max),
        _ => true,
    };
    nodes.iter().any(|node| matches!(node, Node::Unary(Unary::Tanh, _))) && (!invariant || nodes.iter().all(multiplies))
}

/// Tangents, caps and quotients of scores. A quotient by one number is a product with its reciprocal, which is found
/// once.
fn fast(
    program: &Program,
    id: NodeId,
    name: &dyn Fn(NodeId) -> String,
    tangents: Tangents,
    capped: Option<NodeId>,
) -> Option<String> {
    match (program.nodes()[id.at()], tangents) {
        // What a cap multiplies is no result of its own, and is not computed.
        (Node::Unary(Unary::Tanh, x), Tangents::Near) if capped.is_none() => {
            Some(format!("near_tanh({}, furthest)", name(x)))
        }
        (Node::Unary(Unary::Tanh, x), _) => Some(format!("any_tanh({})", name(x))),
        (Node::Binary(Binary::Mul, a, b), Tangents::Near) if capped.is_some() && softcap(program, a, b) == capped => {
            Some("near_capped(cap_of_scores(p), product, furthest)".to_owned())
        }
        (Node::Binary(Binary::Div, a, b), _) if program.ty(id) == Ty::Float && is_one_number(program, b) => {
            Some(format!("{} * (1.f / {})", name(a), name(b)))
        }
        _ => None,
    }
}

/// The cap of the score itself, if nothing else has or is a tangent.
fn capped(program: &Program) -> Option<NodeId> {
    let nodes = program.nodes();
    let uses = |of: NodeId| nodes.iter().flat_map(|node| node.operands()).filter(|&operand| operand == of).count();
    let mut tangents =
        (0..nodes.len() as u32).map(NodeId).filter(|id| matches!(nodes[id.at()], Node::Unary(Unary::Tanh, _)));
    let tangent = tangents.next()?;
    if tangents.next().is_some() || uses(tangent) != 1 || program.root() == tangent {
        return None;
    }
    nodes.iter().find_map(|node| match *node {
        Node::Binary(Binary::Mul, a, b) => softcap(program, a, b),
        _ => None,
    })
}

/// The cap of `tanh(score / cap) * cap`, in either order.
fn softcap(program: &Program, a: NodeId, b: NodeId) -> Option<NodeId> {
    let of = |tangent: NodeId, cap: NodeId| {
        let Node::Unary(Unary::Tanh, x) = program.nodes()[tangent.at()] else { return None };
        let Node::Binary(Binary::Div, score, by) = program.nodes()[x.at()] else { return None };
        (program.nodes()[score.at()] == Node::Score && by == cap && is_one_number(program, cap)).then_some(cap)
    };
    of(a, b).or_else(|| of(b, a))
}

/// Literals whose reciprocals are as exact as they are.
const REGULAR: Range<f64> = 1e-30..1e30;

/// Whether a node is a number of the launch, or a literal of a usual size.
fn is_one_number(program: &Program, id: NodeId) -> bool {
    match program.nodes()[id.at()] {
        Node::Scalar(_) => true,
        Node::Float(x) => REGULAR.contains(&f64::from(x.value()).abs()),
        _ => false,
    }
}
