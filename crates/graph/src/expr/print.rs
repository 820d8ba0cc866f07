//! The text form: infix, with shared parts in `let`s, scalars with `$` and tensors with `@`.
//!
//! For example `scalar $softcap: float; tanh(score / $softcap) * $softcap`. `{:#}` prints each statement on its own
//! line.

use std::fmt::{self, Write as _};

use super::node::{Node, NodeId};
use super::operand::{Grad, ScalarSpec, TensorSpec};
use super::ops::{Binary, Logic, Unary};
use super::program::{Derived, Program, ScoreExpr};

/// Nesting depth of operations at which a `let` is made anyway, which limits the nesting for the parser.
const INLINE_DEPTH: u32 = 24;

/// The precedence of a piece of text; a piece of lower precedence needs parentheses inside one of higher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Tightness {
    Or,
    And,
    Compare,
    Sum,
    Product,
    Prefix,
    Atom,
}

struct Piece {
    text: String,
    tightness: Tightness,
    depth: u32,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let separator = if f.alternate() { ";\n" } else { "; " };
        for (id, &ScalarSpec { ty }) in (0..).map(super::ScalarId).zip(self.scalars()) {
            if self.contains(Node::Scalar(id)) {
                write!(f, "scalar ${}: {}{separator}", self.scalar_name(id), ty.ty())?;
            }
        }
        for (id, &TensorSpec { dims: [b, h, q, k], dtype, grad, alibi }) in
            (0..).map(super::TensorId).zip(self.tensors())
        {
            if self.contains(Node::Tensor(id)) {
                let grad = match grad {
                    Grad::None => "",
                    Grad::Needed => " grad",
                };
                write!(f, "tensor @{}: {dtype}[{b}, {h}, {q}, {k}]{grad}", self.tensor_name(id))?;
                if let Some(slopes) = alibi {
                    write!(f, " {slopes}")?;
                }
                f.write_str(separator)?;
            }
        }
        let mut lets = 0;
        let mut pieces: Vec<Piece> = Vec::with_capacity(self.nodes().len());
        let uses = uses(self);
        for (at, &node) in self.nodes().iter().enumerate() {
            let piece = self.piece(node, &pieces)?;
            let named = uses[at] > 1 || piece.depth >= INLINE_DEPTH;
            if at == self.root().at() {
                f.write_str(&piece.text)?;
            } else if named && piece.depth > 0 {
                write!(f, "let t{lets} = {}{separator}", piece.text)?;
                pieces.push(atom(format!("t{lets}")));
                lets += 1;
                continue;
            }
            pieces.push(piece);
        }
        Ok(())
    }
}

impl fmt::Display for ScoreExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program().fmt(f)
    }
}

impl fmt::Display for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.program().fmt(f)
    }
}

fn uses(program: &Program) -> Vec<u32> {
    let mut uses = vec![0; program.nodes().len()];
    for node in program.nodes() {
        for operand in node.operands() {
            uses[operand.at()] += 1;
        }
    }
    uses
}

fn atom(text: String) -> Piece {
    Piece { text, tightness: Tightness::Atom, depth: 0 }
}

impl Program {
    fn piece(&self, node: Node, pieces: &[Piece]) -> Result<Piece, fmt::Error> {
        if self.is_position(node) {
            return Ok(atom("position".to_owned()));
        }
        let depth = node.operands().map(|id| pieces[id.at()].depth + 1).max().unwrap_or(0);
        let call = |name: &str| -> Result<(String, Tightness), fmt::Error> {
            let mut text = format!("{name}(");
            for (i, id) in node.operands().enumerate() {
                let separator = if i == 0 { "" } else { ", " };
                write!(text, "{separator}{}", pieces[id.at()].text)?;
            }
            text.push(')');
            Ok((text, Tightness::Atom))
        };
        // Operations of the same precedence associate to the left; comparisons do not associate.
        let infix = |op: &str, tightness: Tightness, a: NodeId, b: NodeId| {
            let left = if tightness == Tightness::Compare { Tightness::Sum } else { tightness };
            let right = next(tightness);
            Ok((format!("{} {op} {}", held(&pieces[a.at()], left), held(&pieces[b.at()], right)), tightness))
        };
        let (text, tightness) = match node {
            Node::Score => ("score".to_owned(), Tightness::Atom),
            Node::Upstream => ("upstream".to_owned(), Tightness::Atom),
            Node::Index(axis) => (axis.name().to_owned(), Tightness::Atom),
            Node::Length(side) => (side.name().to_owned(), Tightness::Atom),
            Node::Float(value) => (format!("{value:?}"), Tightness::Atom),
            Node::Int(value) => (value.to_string(), Tightness::Atom),
            Node::Bool(value) => (value.to_string(), Tightness::Atom),
            Node::Scalar(id) => (format!("${}", self.scalar_name(id)), Tightness::Atom),
            Node::Tensor(id) => (format!("@{}", self.tensor_name(id)), Tightness::Atom),
            Node::ToFloat(_) => call("float")?,
            // Parentheses distinguish the negation of a number from a negative number.
            Node::Unary(Unary::Neg, a) if matches!(self.node(a), Node::Float(_) | Node::Int(_)) => {
                (format!("-({})", pieces[a.at()].text), Tightness::Prefix)
            }
            Node::Unary(Unary::Neg, a) => (format!("-{}", held(&pieces[a.at()], Tightness::Prefix)), Tightness::Prefix),
            Node::Unary(op, _) => call(op.name())?,
            Node::Binary(op, a, b) => match op {
                Binary::Add => infix("+", Tightness::Sum, a, b)?,
                Binary::Sub => infix("-", Tightness::Sum, a, b)?,
                Binary::Mul => infix("*", Tightness::Product, a, b)?,
                Binary::Div => infix("/", Tightness::Product, a, b)?,
                Binary::Rem => infix("%", Tightness::Product, a, b)?,
                Binary::FloorDiv => infix("//", Tightness::Product, a, b)?,
                Binary::Min | Binary::Max | Binary::Pow | Binary::FloorRem | Binary::Atan2 => call(op.name())?,
            },
            Node::Compare(op, a, b) => infix(op.name(), Tightness::Compare, a, b)?,
            Node::Not(a) => (format!("!{}", held(&pieces[a.at()], Tightness::Prefix)), Tightness::Prefix),
            Node::Logic(Logic::And, a, b) => infix("&", Tightness::And, a, b)?,
            Node::Logic(Logic::Or, a, b) => infix("|", Tightness::Or, a, b)?,
            Node::Select { .. } => call("select")?,
        };
        Ok(Piece { text, tightness, depth })
    }
}

fn next(tightness: Tightness) -> Tightness {
    match tightness {
        Tightness::Or => Tightness::And,
        Tightness::And => Tightness::Compare,
        Tightness::Compare => Tightness::Sum,
        Tightness::Sum => Tightness::Product,
        Tightness::Product => Tightness::Prefix,
        Tightness::Prefix | Tightness::Atom => Tightness::Atom,
    }
}

/// The text of a piece, in parentheses if its precedence is lower than needed.
fn held(piece: &Piece, needed: Tightness) -> String {
    if piece.tightness >= needed { piece.text.clone() } else { format!("({})", piece.text) }
}
