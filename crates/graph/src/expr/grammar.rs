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

/// Words and signs of other languages, and what is written here.
const OTHERS: &[(&str, &str)] = &[
    ("softcap", "`tanh(score / $cap) * $cap`"),
    ("alibi", "`score + @slopes * float(key - position)` with `tensor @slopes: f32[1, 32, 1, 1] alibi 32;`"),
    ("causal", "the field `mask: causal`, or `key <= position`"),
    ("sliding_window", "the field `mask: causal window 128`, or `position - key < 128`"),
    ("where", "`select(condition, a, b)`"),
    ("if", "`select(condition, a, b)`"),
    ("?", "`select(condition, a, b)`"),
    ("**", "`pow(a, b)`"),
    ("^", "`pow(a, b)`"),
    ("&&", "one `&`"),
    ("||", "one `|`"),
    ("maximum", "`max(a, b)`"),
    ("minimum", "`min(a, b)`"),
    ("clamp", "`min(max(x, a), b)`"),
    ("clip", "`min(max(x, a), b)`"),
    ("and", "`&`"),
    ("or", "`|`"),
    ("not", "`!`"),
    ("q_idx", "`query`, or `position` among the keys"),
    ("kv_idx", "`key`"),
    ("b", "`batch`"),
    ("h", "`head`"),
    ("int", "an integer as it is; `floor(x)` rounds a float"),
];

/// What is written here for a word or a sign of another language.
pub(super) fn here(other: &str) -> Option<&'static str> {
    OTHERS.iter().find(|(word, _)| *word == other).map(|(_, here)| *here)
}

/// What is expected in the place of a name that nothing defines: how it is declared, or which words there are. `call`:
/// a parenthesis follows.
pub(super) fn undefined((kind, name): (char, &str), call: bool) -> String {
    match kind {
        '$' => format!("its declaration before: begin with `scalar ${name}: float;` (or int)"),
        '@' => format!(
            "its declaration before: begin with `tensor @{name}: f32[1, 1, 1, 512];`, extents over batch, head, query, \
             key, 1 where it is the same for all"
        ),
        _ => match here(name) {
            Some(here) => here.to_owned(),
            None if call => format!("an operation: {}", calls().join(", ")),
            None => format!(
                "score, {}, position, {}, an operation, or a name that `let {name} = ..;` defines before",
                Axis::ALL.map(Axis::name).join(", "),
                Side::ALL.map(Side::name).join(", ")
            ),
        },
    }
}

/// The operations that are written as calls.
fn calls() -> Vec<&'static str> {
    let (of_one, of_two) = (Unary::ALL.iter().map(|op| op.name()), Binary::ALL.iter().map(|op| op.name()));
    of_one.chain(of_two).chain(["float", "select"]).collect()
}
