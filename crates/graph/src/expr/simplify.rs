//! Simplification: the constructors of nodes remove parts that provably change nothing.
//!
//! Every rule is exact in float32 and in float64, except for the sign of a zero; `0 * x` and `x - x` become 0 only if
//! `x` is known to be finite. In differences, the first operand reads the score or an index (`-(t * t) + 1`, not `1 - t
//! * t`), because cuDNN refuses the other form in a backward graph.

use super::arena::{Arena, exact_float};
use super::fold::exact;
use super::node::{FloatConst, Node, NodeId, Ty};
use super::ops::{Binary, Unary};

/// An arena that simplifies the nodes that are added, and knows some properties of each node.
#[derive(Debug, Default)]
pub(super) struct Simplifier {
    pub(super) arena: Arena,
    facts: Vec<Facts>,
}

#[derive(Clone, Copy, Debug)]
struct Facts {
    /// Never NaN and never infinite.
    finite: bool,
    /// Reads the score, the upstream gradient or an index: a virtual tensor on a device, not an input.
    varies: bool,
}

impl Simplifier {
    pub(super) fn over(arena: Arena) -> Self {
        let mut own = Simplifier { arena, facts: Vec::new() };
        own.note();
        own
    }

    fn note(&mut self) {
        while let Some(&node) = self.arena.nodes().get(self.facts.len()) {
            let all = |fact: fn(&Facts) -> bool| node.operands().all(|id| fact(&self.facts[id.at()]));
            let finite = match node {
                Node::Float(_) | Node::Index(_) | Node::Length(_) | Node::Int(_) | Node::ToFloat(_) => true,
                Node::Unary(
                    Unary::Neg
                    | Unary::Abs
                    | Unary::Floor
                    | Unary::Ceil
                    | Unary::Relu
                    | Unary::Sin
                    | Unary::Cos
                    | Unary::Tanh
                    | Unary::Sigmoid
                    | Unary::Erf,
                    _,
                )
                | Node::Binary(Binary::Min | Binary::Max, ..) => all(|f| f.finite),
                Node::Select { yes, no, .. } => [yes, no].iter().all(|id| self.facts[id.at()].finite),
                _ => self.arena.ty(NodeId(self.facts.len() as u32)) == Ty::Int,
            };
            let varies = matches!(node, Node::Score | Node::Upstream | Node::Index(_))
                || node.operands().any(|id| self.facts[id.at()].varies);
            self.facts.push(Facts { finite, varies });
        }
    }

    pub(super) fn varies(&self, id: NodeId) -> bool {
        self.facts[id.at()].varies
    }

    pub(super) fn finite(&self, id: NodeId) -> bool {
        self.facts[id.at()].finite
    }

    /// Adds a node unchanged.
    pub(super) fn raw(&mut self, node: Node) -> NodeId {
        let id = self.arena.add(node);
        self.note();
        id
    }

    /// Adds a node in its simplest form.
    pub(super) fn node(&mut self, node: Node) -> NodeId {
        match node {
            Node::ToFloat(a) => {
                let id = self.arena.float_of(a);
                self.note();
                id
            }
            Node::Unary(op, a) => self.unary(op, a),
            Node::Binary(op, a, b) => self.binary(op, a, b),
            Node::Compare(op, a, b) => self.compare(op, a, b),
            Node::Not(a) => self.not(a),
            Node::Logic(op, a, b) => self.logic(op, a, b),
            Node::Select { keep, yes, no } => self.select(keep, yes, no),
            leaf => self.raw(leaf),
        }
    }

    pub(super) fn float(&mut self, value: FloatConst) -> NodeId {
        self.raw(Node::Float(value))
    }

    /// A constant that is a literal in this module, rounded to float32.
    pub(super) fn literal(&mut self, value: f64) -> NodeId {
        self.float(FloatConst::new(value as f32).expect("literals of this module are finite float32 numbers"))
    }

    pub(super) fn constant(&self, id: NodeId) -> Option<FloatConst> {
        if let Node::Float(value) = self.arena.node(id) { Some(value) } else { None }
    }

    /// The constant as a float, also of an integer, for rules that hold for both.
    fn number(&self, id: NodeId) -> Option<FloatConst> {
        match self.arena.node(id) {
            Node::Float(value) => Some(value),
            Node::Int(value) => exact_float(value),
            _ => None,
        }
    }

    fn is(&self, id: NodeId, value: f32) -> bool {
        self.number(id).is_some_and(|c| c.value() == value)
    }

    fn negated(&self, id: NodeId) -> Option<NodeId> {
        if let Node::Unary(Unary::Neg, a) = self.arena.node(id) { Some(a) } else { None }
    }

    pub(super) fn unary(&mut self, op: Unary, a: NodeId) -> NodeId {
        match (op, self.arena.node(a)) {
            (_, Node::Int(n)) if op.takes_int() => self.raw(Node::Int(op.apply_int(n).expect("it takes integers"))),
            (Unary::Neg | Unary::Abs | Unary::Floor | Unary::Ceil | Unary::Relu, Node::Float(x)) => {
                let value = op.apply(f64::from(x.value()));
                self.literal(value)
            }
            (Unary::Neg, Node::Unary(Unary::Neg, x)) => x,
            (Unary::Abs, Node::Unary(Unary::Neg | Unary::Abs, x)) => self.raw(Node::Unary(Unary::Abs, x)),
            _ => self.raw(Node::Unary(op, a)),
        }
    }

    pub(super) fn neg(&mut self, a: NodeId) -> NodeId {
        self.unary(Unary::Neg, a)
    }

    pub(super) fn binary(&mut self, op: Binary, a: NodeId, b: NodeId) -> NodeId {
        if let Some(value) = self.folded(op, a, b) {
            return self.raw(value);
        }
        match op {
            Binary::Add => self.add(a, b),
            Binary::Sub => self.sub(a, b),
            Binary::Mul => self.mul(a, b),
            Binary::Div => self.div(a, b),
            Binary::Min | Binary::Max if a == b => a,
            Binary::Pow if self.is(b, 1.0) => a,
            Binary::Min
            | Binary::Max
            | Binary::Pow
            | Binary::Rem
            | Binary::FloorRem
            | Binary::Atan2
            | Binary::FloorDiv => self.raw(Node::Binary(op, a, b)),
        }
    }

    /// The value of an operation on two constants, if it is exact.
    fn folded(&self, op: Binary, a: NodeId, b: NodeId) -> Option<Node> {
        match (self.arena.node(a), self.arena.node(b)) {
            (Node::Int(_), Node::Int(0)) if matches!(op, Binary::Rem | Binary::FloorRem) => None,
            (Node::Int(a), Node::Int(b)) => op.apply_int(a, b).map(Node::Int),
            (Node::Float(a), Node::Float(b)) => exact(op, a, b).map(Node::Float),
            _ => None,
        }
    }

    pub(super) fn add(&mut self, a: NodeId, b: NodeId) -> NodeId {
        match (self.negated(a), self.negated(b)) {
            _ if self.is(b, 0.0) => a,
            _ if self.is(a, 0.0) => b,
            (_, Some(b)) if self.varies(a) => self.sub(a, b),
            (Some(a), _) if self.varies(b) => self.sub(b, a),
            _ => self.raw(Node::Binary(Binary::Add, a, b)),
        }
    }

    pub(super) fn sub(&mut self, a: NodeId, b: NodeId) -> NodeId {
        if self.is(b, 0.0) {
            a
        } else if self.is(a, 0.0) {
            self.neg(b)
        } else if a == b && self.finite(a) {
            self.zero(self.arena.ty(a))
        } else if let Some(b) = self.negated(b) {
            self.add(a, b)
        } else if !self.varies(a) && self.varies(b) {
            let b = self.neg(b);
            self.raw(Node::Binary(Binary::Add, b, a))
        } else {
            self.raw(Node::Binary(Binary::Sub, a, b))
        }
    }

    fn zero(&mut self, ty: Ty) -> NodeId {
        self.raw(if ty == Ty::Int { Node::Int(0) } else { Node::Float(FloatConst::ZERO) })
    }

    pub(super) fn mul(&mut self, a: NodeId, b: NodeId) -> NodeId {
        for (x, c) in [(a, b), (b, a)] {
            if self.is(c, 1.0) {
                return x;
            }
            if self.is(c, -1.0) {
                return self.neg(x);
            }
            if self.is(c, 0.0) && self.finite(x) {
                return c;
            }
            if let (Some(x), Some(value)) = (self.negated(x), self.constant(c)) {
                let c = self.literal(-f64::from(value.value()));
                return self.mul(x, c);
            }
        }
        match (self.negated(a), self.negated(b)) {
            (Some(a), Some(b)) => self.mul(a, b),
            (Some(inner), None) => {
                let product = self.mul(inner, b);
                self.neg(product)
            }
            (None, Some(inner)) => {
                let product = self.mul(a, inner);
                self.neg(product)
            }
            (None, None) => self.raw(Node::Binary(Binary::Mul, a, b)),
        }
    }

    pub(super) fn div(&mut self, a: NodeId, b: NodeId) -> NodeId {
        if self.is(b, 1.0) {
            return a;
        }
        if self.is(b, -1.0) {
            return self.neg(a);
        }
        // A negated divisor stays: if it is 0, it decides the sign of the infinity.
        if let Some(inner) = self.negated(a) {
            let quotient = self.div(inner, b);
            return self.neg(quotient);
        }
        self.raw(Node::Binary(Binary::Div, a, b))
    }
}
