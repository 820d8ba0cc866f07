//! The words and signs of the text form, and the precedence of infix operators.

use super::handle::{self, Expr, Op};
use super::node::{Axis, Side};
use super::ops::{Binary, Compare, Logic, Unary};
use super::position::position;

pub(super) const COMPARE: u8 = 3;
pub(super) const PREFIX: u8 = 6;

/// The precedence of an infix operator, and its operation.
pub(super) fn infix(sign: &str) -> Option<(u8, Op)> {
    Some(match sign {
        "|" => (1, Op::Logic(Logic::Or)),
        "&" => (2, Op::Logic(Logic::And)),
        "+" => (4, Op::Binary(Binary::Add)),
        "-" => (4, Op::Binary(Binary::Sub)),
        "*" => (5, Op::Binary(Binary::Mul)),
        "/" => (5, Op::Binary(Binary::Div)),
        "//" => (5, Op::Binary(Binary::FloorDiv)),
        "%" => (5, Op::Binary(Binary::Rem)),
        _ => (COMPARE, Op::Compare(Compare::from_name(sign)?)),
    })
}

pub(super) fn leaf(word: &str) -> Option<Expr> {
    Some(match word {
        "score" => handle::score(),
        "position" => position(),
        "true" => Expr::from(true),
        "false" => Expr::from(false),
        _ => match (Axis::ALL.iter().find(|a| a.name() == word), Side::ALL.iter().find(|s| s.name() == word)) {
            (Some(axis), _) => Expr::leaf(Op::Index(*axis)),
            (_, Some(side)) => Expr::leaf(Op::Length(*side)),
            (None, None) => return None,
        },
    })
}

pub(super) fn is_call(word: &str) -> bool {
    matches!(word, "float" | "select") || Unary::from_name(word).is_some() || Binary::from_name(word).is_some()
}
