//! Whether an expression depends on absolute positions: whether its value changes if query and key move by the same
//! distance. If each document of a sequence counts its positions from its own beginning, they do.

use super::node::{Axis, Node, NodeId, TensorId, Ty};
use super::ops::{Binary, Compare, Logic, Unary};
use super::program::{Program, ScoreExpr};
use super::{arena::Arena, canon};

/// An input of an expression that a document alone does not determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absolute {
    /// A position, except in a difference of two.
    Position,
    /// The index of the sequence.
    Batch,
    /// The length of a sequence.
    Length,
    /// A tensor with several numbers over sequences, queries or keys.
    Tensor(TensorId),
}

/// The change of a value if query and key both move by `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shift {
    /// By `n` times this.
    By(i64),
    /// An unknown change.
    Unknown,
}

const SAME: Shift = Shift::By(0);

impl Shift {
    fn both(self, other: Shift, join: impl Fn(i64, i64) -> Option<i64>) -> Shift {
        match (self, other) {
            (Shift::By(a), Shift::By(b)) => join(a, b).map_or(Shift::Unknown, Shift::By),
            _ => Shift::Unknown,
        }
    }

    fn equal(self, other: Shift) -> Shift {
        self.both(other, |a, b| (a == b).then_some(a))
    }

    /// The change of a value that depends on several, which must not change.
    fn of_unchanged(all: &[Shift]) -> Shift {
        if all.iter().all(|shift| *shift == SAME) { SAME } else { Shift::Unknown }
    }
}

impl Program {
    /// Every input other than the score, the head, scalars, and distances between query and key.
    pub(crate) fn absolutes(&self) -> Vec<Absolute> {
        let mut found = Vec::new();
        let mut shifts: Vec<Shift> = Vec::with_capacity(self.nodes().len());
        for (at, &node) in self.nodes().iter().enumerate() {
            match node {
                Node::Index(Axis::Batch) => found.push(Absolute::Batch),
                Node::Length(_) if !found.contains(&Absolute::Length) => found.push(Absolute::Length),
                Node::Tensor(id) => {
                    let [b, _, q, k] = self.tensors()[id.at()].dims;
                    if [b, q, k] != [1; 3] {
                        found.push(Absolute::Tensor(id));
                    }
                }
                _ => {}
            }
            shifts.push(self.shift(&shifts, NodeId(at as u32), node));
        }
        if shifts.last().is_some_and(|root| *root != SAME) {
            found.push(Absolute::Position);
        }
        found
    }

    /// Whether its value is the same if query and key move by the same distance, whatever else it reads.
    #[must_use]
    pub fn counts_distances(&self) -> bool {
        !self.absolutes().contains(&Absolute::Position)
    }

    fn shift(&self, known: &[Shift], id: NodeId, node: Node) -> Shift {
        let of = |id: NodeId| known[id.at()];
        let int = self.ty(id) == Ty::Int;
        match node {
            Node::Index(Axis::Query | Axis::Key) => Shift::By(1),
            Node::Score
            | Node::Upstream
            | Node::Index(Axis::Batch | Axis::Head)
            | Node::Length(_)
            | Node::Float(_)
            | Node::Int(_)
            | Node::Bool(_)
            | Node::Scalar(_)
            | Node::Tensor(_) => SAME,
            // Integers up to 2^24 are exact as floats, and so are their differences.
            Node::ToFloat(a) => of(a),
            Node::Binary(Binary::Sub, a, b) => of(a).both(of(b), i64::checked_sub),
            Node::Unary(Unary::Neg, a) => of(a).both(SAME, |a, _| a.checked_neg()),
            Node::Binary(Binary::Min | Binary::Max, a, b) => of(a).equal(of(b)),
            // Sums and products of floats round differently at each place.
            Node::Binary(Binary::Add, a, b) if int => of(a).both(of(b), i64::checked_add),
            Node::Binary(Binary::Mul, a, b) if int => match (self.node(a), self.node(b)) {
                (Node::Int(n), _) => of(b).both(SAME, |by, _| by.checked_mul(n.into())),
                (_, Node::Int(n)) => of(a).both(SAME, |by, _| by.checked_mul(n.into())),
                _ => Shift::of_unchanged(&[of(a), of(b)]),
            },
            Node::Compare(_, a, b) if of(a).equal(of(b)) != Shift::Unknown => SAME,
            Node::Select { keep, yes, no } if of(keep) == SAME => of(yes).equal(of(no)),
            Node::Unary(..)
            | Node::Not(_)
            | Node::Binary(..)
            | Node::Compare(..)
            | Node::Logic(..)
            | Node::Select { .. } => Shift::of_unchanged(&node.operands().map(of).collect::<Vec<_>>()),
        }
    }
}

impl ScoreExpr {
    /// This predicate without its comparisons of documents: conditions, joined to the others by `&`, that two integer
    /// tensors are equal, one read by the query's position and one by the key's. Returns whether there is one, and the
    /// remaining predicate, if there is one.
    pub(crate) fn without_documents(&self) -> (bool, Option<ScoreExpr>) {
        let (mut documents, mut others, mut rest) = (false, Vec::new(), vec![self.root()]);
        while let Some(id) = rest.pop() {
            match self.node(id) {
                Node::Logic(Logic::And, a, b) => rest.extend([a, b]),
                Node::Compare(Compare::Eq, a, b) if self.are_documents(a, b) => documents = true,
                _ => others.push(id),
            }
        }
        let mut arena = Arena::over(self.operands().clone());
        // A program stores equal nodes once, so its ids stay.
        self.nodes().iter().for_each(|&node| {
            arena.add(node);
        });
        let joined = others.into_iter().reduce(|a, b| arena.add(Node::Logic(Logic::And, a, b)));
        (documents, joined.and_then(|root| canon::closed(&arena, root).ok()))
    }

    fn are_documents(&self, a: NodeId, b: NodeId) -> bool {
        // Whether an integer tensor is read by the position of the query, and by that of the key.
        let read = |id: NodeId| match self.node(id) {
            Node::Tensor(tensor) => {
                let spec = self.tensors()[tensor.at()];
                let [_, h, q, k] = spec.dims;
                (!spec.dtype.is_float() && h == 1 && (q == 1 || k == 1)).then_some((q > 1, k > 1))
            }
            _ => None,
        };
        matches!(
            (read(a), read(b)),
            (Some((true, false)), Some((false, true))) | (Some((false, true)), Some((true, false)))
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expr::parse_expr;

    fn absolutes(text: &str) -> Vec<Absolute> {
        parse_expr(text).unwrap_or_else(|e| panic!("{text}: {e}")).absolutes()
    }

    #[test]
    fn differences_of_positions_are_not_positions() {
        for text in [
            "scalar $cap: float; tanh(score / $cap) * $cap",
            "tensor @slopes: f32[1, 4, 1, 1]; score + @slopes * float(key - query)",
            "score + float(key) - float(query) + float(head)",
            "score - abs(float(3 * query + 3 - (key + query + key)))",
            "score + float(max(query, key) - key)",
            "select(query >= key, score, score * 0.5)",
            "query - key < 100 & !(query == key)",
            "select(query > key, query, key + 1) - query < 7",
        ] {
            // A sum of floats at a position rounds, so this expression counts as reading it.
            let expected: &[Absolute] =
                if text.starts_with("score + float(key) -") { &[Absolute::Position] } else { &[] };
            assert_eq!(absolutes(text), expected, "{text}");
        }
    }

    #[test]
    fn positions_lengths_and_tensors_by_position_are_found() {
        for (text, expected) in [
            ("score + float(key)", Absolute::Position),
            ("score * float(query + key)", Absolute::Position),
            ("query % 3 == 0", Absolute::Position),
            ("key < 16", Absolute::Position),
            ("score + float(query * query - key * key)", Absolute::Position),
            ("select(query > 5, score, 0.0 * score)", Absolute::Position),
            ("score + float(batch)", Absolute::Batch),
            ("key < key_len | query == key", Absolute::Length),
            ("tensor @bias: f32[1, 1, 8, 8]; score + @bias", Absolute::Tensor(TensorId(0))),
            ("tensor @bias: f32[2, 1, 1, 1]; score + @bias", Absolute::Tensor(TensorId(0))),
        ] {
            assert!(absolutes(text).contains(&expected), "{text}: {:?}", absolutes(text));
        }
    }

    #[test]
    fn the_predicate_without_documents_keeps_its_meaning() {
        let ids = "tensor @q: i32[2, 1, 8, 1]; tensor @k: i32[2, 1, 1, 8]";
        let without = |text: &str| {
            let (documents, rest) = parse_expr(text).unwrap_or_else(|e| panic!("{text}: {e}")).without_documents();
            (documents, rest.map(|e| e.to_string()))
        };
        assert_eq!(without(&format!("{ids}; @q == @k")), (true, None));
        let rest = without(&format!("{ids}; scalar $n: int; @k == @q & key < query + $n & !(query == key)"));
        assert!(rest.0);
        assert_eq!(rest.1, Some(parse_expr("scalar $n: int; key < query + $n & !(query == key)").unwrap().to_string()));
        // Alternatives, and comparisons with anything else, are not document masks.
        assert!(!without(&format!("{ids}; @q == @k | query == key")).0);
        assert!(!without("tensor @q: i32[2, 1, 8, 1]; @q == 3").0);
        assert!(!without("tensor @q: i32[2, 4, 8, 1]; tensor @k: i32[2, 4, 1, 8]; @q == @k").0);
    }
}
