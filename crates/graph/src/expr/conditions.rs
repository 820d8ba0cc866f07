//! Simplifies comparisons, logic and selections.

use super::node::{Node, NodeId, Ty};
use super::ops::{Compare, Logic};
use super::simplify::Simplifier;

impl Simplifier {
    pub(super) fn compare(&mut self, op: Compare, a: NodeId, b: NodeId) -> NodeId {
        let known = match (self.arena.node(a), self.arena.node(b)) {
            (Node::Int(a), Node::Int(b)) => Some(op.apply(a, b)),
            (Node::Float(a), Node::Float(b)) => Some(op.apply(a.value(), b.value())),
            _ if a == b && self.finite(a) => Some(op.apply(0, 0)),
            _ => None,
        };
        self.raw(known.map_or(Node::Compare(op, a, b), Node::Bool))
    }

    pub(super) fn not(&mut self, a: NodeId) -> NodeId {
        match self.arena.node(a) {
            Node::Bool(value) => self.raw(Node::Bool(!value)),
            Node::Not(x) => x,
            Node::Compare(op, x, y) if self.arena.ty(x) == Ty::Int => self.compare(op.negated(), x, y),
            _ => self.raw(Node::Not(a)),
        }
    }

    /// The value of a condition if another one is true, if they are equal or opposite.
    fn decided(&self, condition: NodeId, known: NodeId) -> Option<bool> {
        match (self.arena.node(condition), self.arena.node(known)) {
            _ if condition == known => Some(true),
            (Node::Not(a), _) if a == known => Some(false),
            (_, Node::Not(b)) if b == condition => Some(false),
            (Node::Compare(p, a, b), Node::Compare(q, c, d)) => {
                let q = match (a, b) {
                    straight if straight == (c, d) => q,
                    turned if turned == (d, c) => q.flipped(),
                    _ => return None,
                };
                // Floats are neither below nor above NaN, so only integers have opposite comparisons.
                let opposite = p == q.negated() && self.arena.ty(a) == Ty::Int;
                if p == q { Some(true) } else { opposite.then_some(false) }
            }
            _ => None,
        }
    }

    pub(super) fn logic(&mut self, op: Logic, a: NodeId, b: NodeId) -> NodeId {
        let neutral = op == Logic::And;
        for (x, other) in [(a, b), (b, a)] {
            match self.arena.node(x) {
                Node::Bool(value) if value == neutral => return other,
                Node::Bool(_) => return x,
                _ => {}
            }
        }
        match self.decided(a, b) {
            Some(true) => a,
            Some(false) => self.raw(Node::Bool(!neutral)),
            None => self.raw(Node::Logic(op, a, b)),
        }
    }

    pub(super) fn select(&mut self, keep: NodeId, yes: NodeId, no: NodeId) -> NodeId {
        match self.arena.node(keep) {
            Node::Bool(true) => return yes,
            Node::Bool(false) => return no,
            Node::Not(other) => return self.select(other, no, yes),
            _ => {}
        }
        // Inside an arm, the same condition is already decided.
        if let Node::Select { keep: inner, yes: a, no: b } = self.arena.node(yes)
            && let Some(same) = self.decided(inner, keep)
        {
            return self.select(keep, if same { a } else { b }, no);
        }
        if let Node::Select { keep: inner, yes: a, no: b } = self.arena.node(no)
            && let Some(same) = self.decided(inner, keep)
        {
            return self.select(keep, yes, if same { b } else { a });
        }
        if yes == no { yes } else { self.raw(Node::Select { keep, yes, no }) }
    }
}
