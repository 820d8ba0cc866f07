//! Positions in a sequence, in contrast to rows of a launch.
//!
//! A launch may have fewer queries than keys: one new token over a cache, or a piece of a prompt. Its queries then are
//! the last of their sequence, as in a bottom-right band, while [`query`] counts the rows of the launch from 0.

use super::arena::Arena;
use super::canon;
use super::error::ExprError;
use super::handle::{Expr, key_len, query, query_len};
use super::node::{Axis, Node, NodeId, Side, Ty};
use super::ops::Binary;
use super::program::{Program, ScoreExpr};

/// Position of the query in its sequence, with the last query at the last key: `query + (key_len - query_len)`, with
/// the lengths of this sequence if the attention has lengths. With as many queries as keys it equals [`query`].
///
/// Use it wherever an expression compares a query with a key, as every function of the [`library`](super::library)
/// does: it is right in training, for one query over a cache, and for a piece of a prompt. Use `query` for values that
/// belong to the rows of a launch: padding, and tensors with an entry for each row.
#[must_use]
pub fn position() -> Expr {
    query() + (key_len() - query_len())
}

impl ScoreExpr {
    /// Converts an expression for whole sequences, with as many queries as keys, to a launch of the last queries of
    /// each: `query` becomes [`position`], and the number of queries becomes that of keys. [`position`] itself stays
    /// unchanged.
    ///
    /// Tensors with an entry for each query are read by rows of the launch: give the entries of these rows.
    ///
    /// # Errors
    ///
    /// The result is larger or deeper than allowed.
    pub fn at_positions(&self) -> Result<ScoreExpr, ExprError> {
        self.replaced(|arena, node| match node {
            Node::Index(Axis::Query) => {
                let [row, keys, queries] =
                    [node, Node::Length(Side::Key), Node::Length(Side::Query)].map(|n| arena.add(n));
                let ahead = arena.add(Node::Binary(Binary::Sub, keys, queries));
                Some(Node::Binary(Binary::Add, row, ahead))
            }
            Node::Length(Side::Query) => Some(Node::Length(Side::Key)),
            _ => None,
        })
    }

    /// This expression for sequences that all have `ahead` more keys than queries: the difference of lengths becomes a
    /// number.
    pub(crate) fn with_keys_ahead(&self, ahead: i32) -> ScoreExpr {
        let of = |id: NodeId| self.node(id);
        let known = |node: Node| match node {
            Node::Binary(Binary::Sub, a, b) => match (of(a), of(b)) {
                (Node::Length(Side::Key), Node::Length(Side::Query)) => Some(ahead),
                (Node::Length(Side::Query), Node::Length(Side::Key)) => ahead.checked_neg(),
                _ => None,
            },
            _ => None,
        };
        if !self.nodes().iter().any(|&node| known(node).is_some()) {
            return self.clone();
        }
        // Nothing grows; if no canonical order is found, the lengths are read as before.
        self.replaced(|_, node| known(node).map(Node::Int)).unwrap_or_else(|_| self.clone())
    }

    /// This expression with some nodes replaced, and with sums of integers folded.
    fn replaced(&self, with: impl Fn(&mut Arena, Node) -> Option<Node>) -> Result<ScoreExpr, ExprError> {
        let mut arena = Arena::over(self.operands().clone());
        let mut ids: Vec<NodeId> = Vec::with_capacity(self.nodes().len());
        for &node in self.nodes() {
            let id = match with(&mut arena, node) {
                Some(other) => arena.add(other),
                None => folded(&mut arena, node.map_operands(|id| ids[id.at()])),
            };
            ids.push(id);
        }
        canon::closed(&arena, ids[self.root().at()])
    }
}

impl Program {
    /// Whether a node is the result of [`position`].
    pub(super) fn is_position(&self, node: Node) -> bool {
        let Node::Binary(Binary::Add, row, ahead) = node else { return false };
        let Node::Binary(Binary::Sub, keys, queries) = self.node(ahead) else { return false };
        let made = [row, keys, queries].map(|id| self.node(id));
        made == [Node::Index(Axis::Query), Node::Length(Side::Key), Node::Length(Side::Query)]
    }
}

/// A node, or its constant value if it is integer arithmetic. Truth values and selections stay, so that an expression
/// that reads the score still does.
fn folded(arena: &mut Arena, node: Node) -> NodeId {
    let int = |arena: &Arena, id: NodeId| if let Node::Int(n) = arena.node(id) { Some(n) } else { None };
    match node {
        Node::ToFloat(a) => arena.float_of(a),
        Node::Unary(op, a) => match int(arena, a).and_then(|a| op.apply_int(a)) {
            Some(value) => arena.add(Node::Int(value)),
            None => arena.add(node),
        },
        Node::Binary(op, a, b) if arena.ty(a) == Ty::Int => match (op, int(arena, a), int(arena, b)) {
            (_, Some(x), Some(y)) if op.apply_int(x, y).is_some() => {
                let value = op.apply_int(x, y).unwrap_or_default();
                arena.add(Node::Int(value))
            }
            (Binary::Add | Binary::Sub, _, Some(0)) => a,
            (Binary::Add, Some(0), _) => b,
            // A remainder by zero is zero for any dividend.
            (Binary::Rem | Binary::FloorRem, _, Some(0)) => b,
            (Binary::Sub, ..) if a == b => arena.add(Node::Int(0)),
            _ => arena.add(node),
        },
        _ => arena.add(node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::{key, library, parse_expr, scalar, score};

    fn read(text: &str) -> ScoreExpr {
        parse_expr(text).unwrap_or_else(|e| panic!("{text}: {e}"))
    }

    #[test]
    fn b9_expressions_for_whole_sequences_apply_to_the_last_queries() {
        for (whole, moved) in [
            ("score - float(query - key)", "score - float(position - key)"),
            ("score - float(position - key)", "score - float(position - key)"),
            ("query < query_len", "position < key_len"),
            ("score + float(key)", "score + float(key)"),
        ] {
            let found = read(whole).at_positions().expect("small");
            assert_eq!(found, read(moved), "{whole}");
            assert_eq!(found.at_positions().expect("small"), found, "{whole}: moved twice");
        }
    }

    #[test]
    fn b9_a_position_is_the_row_with_as_many_queries_as_keys() {
        let soft = library::soft_window(score(), 3, scalar("slope")).build_score_mod().expect("a score");
        assert_eq!(soft.with_keys_ahead(0), read("scalar $s: float; score - $s * float(max(abs(query - key) - 3, 0))"));
        assert_eq!(
            soft.with_keys_ahead(7),
            read("scalar $s: float; score - $s * float(max(abs(query + 7 - key) - 3, 0))")
        );
        let plain = (score() * 2.0 + key().to_float()).build_score_mod().expect("a score");
        assert_eq!(plain.with_keys_ahead(1), plain);
    }

    #[test]
    fn equal_lengths_as_a_divisor_of_zero_give_zero() {
        let e = read("score + float(key % (key_len - query_len))");
        assert_eq!(e.with_keys_ahead(0), read("score + 0.0"));
        assert_eq!(e.with_keys_ahead(3), read("score + float(key % 3)"));
    }
}
