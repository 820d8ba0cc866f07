//! An expression over a part of the scores: what it reads by position is replaced, everything else stays.

use super::build::rooted_like;
use super::error::ExprErrors;
use super::handle::{Expr, Op, batch, head, key, query, score};
use super::node::{Axis, Node, NodeId, Side};
use super::operand::TensorSpec;
use super::program::{Program, ScoreExpr};

/// Something that an expression reads and that depends on which part of the scores a launch computes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Place<'a> {
    /// A coordinate of the score.
    Index(Axis),
    /// The length of a sequence.
    Length(Side),
    /// A tensor, by its name and its extents.
    Tensor(&'a str, TensorSpec),
}

impl ScoreExpr {
    /// The expression with another expression in each place for which `replace` gives one.
    ///
    /// Several GPUs compute one attention with this: each of them has a part of the scores, whose coordinates begin at
    /// 0, so `query` becomes `query` and the number of the part's first query.
    ///
    /// ```
    /// use qkvault_graph::expr::{Axis, Place, int_scalar, parse_expr, query};
    ///
    /// let alibi = parse_expr("scalar $slope: float; score + $slope * float(key - query)")?;
    /// let part = alibi.with_places(|place| match place {
    ///     Place::Index(Axis::Query) => Some(query() + int_scalar("first")),
    ///     _ => None,
    /// })?;
    /// assert_eq!(part.scalar_names(), ["first", "slope"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Every problem of the new expression: a name that stands for two operands, too many nodes or operands.
    pub fn with_places(&self, mut replace: impl FnMut(Place<'_>) -> Option<Expr>) -> Result<ScoreExpr, ExprErrors> {
        rooted_like(&handle(self, &mut replace), self.root_ty())
    }

    /// The predicate that holds where both hold. Operands of one name are the same.
    ///
    /// # Errors
    ///
    /// Every problem of the new expression; both must be predicates.
    pub fn and(&self, other: &ScoreExpr) -> Result<ScoreExpr, ExprErrors> {
        let both = handle(self, &mut |_| None) & handle(other, &mut |_| None);
        both.build_mask_mod()
    }
}

fn handle(program: &Program, replace: &mut impl FnMut(Place<'_>) -> Option<Expr>) -> Expr {
    let mut made: Vec<Expr> = Vec::with_capacity(program.nodes().len());
    for &node in program.nodes() {
        let expr = written(program, node, &made, replace);
        made.push(expr);
    }
    made.pop().unwrap_or_else(score)
}

fn written(program: &Program, node: Node, made: &[Expr], replace: &mut impl FnMut(Place<'_>) -> Option<Expr>) -> Expr {
    let of = |id: NodeId| made[id.at()].clone();
    match node {
        Node::Score | Node::Upstream => score(),
        Node::Index(axis) => replace(Place::Index(axis)).unwrap_or_else(|| match axis {
            Axis::Batch => batch(),
            Axis::Head => head(),
            Axis::Query => query(),
            Axis::Key => key(),
        }),
        Node::Length(side) => replace(Place::Length(side)).unwrap_or_else(|| Expr::leaf(Op::Length(side))),
        Node::Float(value) => value.value().into(),
        Node::Int(value) => value.into(),
        Node::Bool(value) => value.into(),
        Node::Scalar(id) => Expr::leaf(Op::Scalar(program.scalar_name(id).into(), program.scalars()[id.at()].ty)),
        Node::Tensor(id) => {
            let (name, spec) = (program.tensor_name(id), program.tensors()[id.at()]);
            replace(Place::Tensor(name, spec)).unwrap_or_else(|| Expr::leaf(Op::Tensor(name.into(), spec)))
        }
        Node::ToFloat(a) => of(a).to_float(),
        Node::Unary(op, a) => of(a).unary(op),
        Node::Binary(op, a, b) => Expr::binary(op, of(a), of(b)),
        Node::Compare(op, a, b) => of(a).compare(op, of(b)),
        Node::Not(a) => of(a).negated_truth(),
        Node::Logic(op, a, b) => Expr::logic(op, of(a), of(b)),
        Node::Select { keep, yes, no } => of(keep).select(of(yes), of(no)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arbitrary;
    use crate::expr::{int_scalar, parse_expr, tensor};
    use proptest::prelude::*;

    #[test]
    fn places_are_replaced_and_everything_else_stays() {
        let text = "scalar $c: float; tensor @b: bf16[1, 4, 8, 1]; select(query >= key, score * $c + float(head), @b)";
        let expr = parse_expr(text).expect("parses");
        let moved = expr.with_places(|place| match place {
            Place::Index(Axis::Query) => Some(query() + int_scalar("first")),
            Place::Tensor(name, spec) => Some(tensor(name, TensorSpec { dims: [1, 4, 2, 1], ..spec })),
            Place::Index(_) | Place::Length(_) => None,
        });
        let expected = "scalar $c: float; scalar $first: int; tensor @b: bf16[1, 4, 2, 1]; \
                        select(query + $first >= key, score * $c + float(head), @b)";
        assert_eq!(moved.expect("well typed"), parse_expr(expected).expect("parses"));
        // A name that the expression has already, for something else.
        let taken = expr.with_places(|place| matches!(place, Place::Index(Axis::Key)).then(|| key() + int_scalar("c")));
        assert!(taken.is_err_and(|e| e.to_string().contains('c')));
        let both = parse_expr("key < 3").expect("parses").and(&parse_expr("query > key").expect("parses"));
        assert_eq!(both.expect("predicates"), parse_expr("key < 3 & query > key").expect("parses"));
    }

    proptest! {
        #[test]
        fn an_expression_without_replacements_stays_equal(a in arbitrary::attention(arbitrary::Space::SMALL)) {
            let a = crate::validate(a).expect("valid");
            for expr in a.score_mod.iter().chain(&a.mask.mask_mod) {
                prop_assert_eq!(&expr.with_places(|_| None).expect("well typed"), expr);
            }
        }
    }
}
