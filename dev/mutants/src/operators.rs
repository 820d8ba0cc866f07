//! Mutants of expressions and statements.

use syn::parse::{Parse as _, ParseStream};
use syn::punctuated::Punctuated;
use syn::{BinOp, Expr, ExprBinary, ExprMatch, ExprMethodCall, Lit, Macro, Pat, Stmt, Token, UnOp};

use super::rewrite::{Rewriter, range};

/// Methods that return a `bool`.
const ASKS: [&str; 8] =
    ["is_some_and", "is_none_or", "is_some", "is_none", "is_empty", "contains", "starts_with", "is_multiple_of"];

/// Methods that take a condition as a closure.
const TAKES_CONDITION: [&str; 9] =
    ["filter", "any", "all", "find", "position", "retain", "is_some_and", "is_none_or", "partition"];

/// Methods, each with another one of the same signature.
const METHODS: [(&str, &str); 13] = [
    ("min", "max"),
    ("max", "min"),
    ("any", "all"),
    ("all", "any"),
    ("is_some_and", "is_none_or"),
    ("is_none_or", "is_some_and"),
    ("saturating_add", "saturating_sub"),
    ("saturating_sub", "saturating_add"),
    ("saturating_mul", "saturating_add"),
    ("checked_add", "checked_sub"),
    ("checked_sub", "checked_add"),
    ("checked_mul", "checked_add"),
    ("first", "last"),
];

/// Enum values, each with another value of the same enum.
const VALUES: [(&str, &str); 31] = [
    ("Pointwise::Add", "Sub"),
    ("Pointwise::Sub", "Add"),
    ("Pointwise::Mul", "Add"),
    ("Pointwise::Div", "Mul"),
    ("Pointwise::CmpLt", "CmpLe"),
    ("Pointwise::CmpLe", "CmpLt"),
    ("Pointwise::CmpGt", "CmpGe"),
    ("Pointwise::CmpGe", "CmpGt"),
    ("Pointwise::CmpEq", "CmpNeq"),
    ("Pointwise::CmpNeq", "CmpEq"),
    ("Pointwise::And", "Or"),
    ("Pointwise::Or", "And"),
    ("Pointwise::Not", "Identity"),
    ("Pointwise::Neg", "Identity"),
    ("Pointwise::Exp", "Identity"),
    ("Pointwise::Log", "Identity"),
    ("Pointwise::Identity", "Neg"),
    ("Reduce::Add", "Max"),
    ("Reduce::Max", "Add"),
    ("DType::F32", "F16"),
    ("DType::I32", "I64"),
    ("DType::I64", "I32"),
    ("DType::Bool", "I32"),
    ("Order::Bhsd", "Bshd"),
    ("Corner::TopLeft", "BottomRight"),
    ("Corner::BottomRight", "TopLeft"),
    ("Lengths::Full", "PerSequence"),
    ("Lengths::PerSequence", "Full"),
    ("Origin::Rule", "Quirk"),
    ("Origin::Quirk", "Rule"),
    ("Origin::NotBuilt", "Rule"),
];

/// Adds the mutants of an expression. Its parts were visited before.
pub(super) fn mutate(r: &mut Rewriter<'_>, e: &Expr) {
    match e {
        Expr::Binary(b) => binary(r, b),
        Expr::Unary(u) => match u.op {
            UnOp::Not(_) => r.negate(range(e)),
            UnOp::Neg(_) => {
                let operand = r.text(range(&*u.expr));
                either(r, e, r.written(&range(&*u.expr)), &operand);
            }
            _ => {}
        },
        Expr::Lit(l) => literal(r, e, &l.lit),
        Expr::Macro(m) if m.mac.path.is_ident("matches") => r.negate(range(e)),
        Expr::MethodCall(call) => method(r, e, call),
        Expr::If(i) => condition(r, &i.cond),
        Expr::While(w) => condition(r, &w.cond),
        Expr::Match(m) => arms(r, m),
        Expr::Path(path) => {
            let name = r.written(&range(path));
            if let Some((before, other)) = value(name) {
                let (at, other) = (range(e), format!("{before}::{other}"));
                if let Some(on) = r.mutant_in_line(&at, &other) {
                    r.replace(at, format!("(if {on} {{ {other} }} else {{ {name} }})"));
                }
            } else if let Some(get) = r.constants.getter(r.file(), name) {
                r.replace(range(e), format!("(*{get}())"));
            }
        }
        _ => {}
    }
}

/// For a path such as `op::Pointwise::Add`: the part before the value, and another value.
fn value(path: &str) -> Option<(&str, &'static str)> {
    let (before, _) = path.rsplit_once("::")?;
    let (_, other) = VALUES.iter().find(|(name, _)| path == *name || path.ends_with(&format!("::{name}")))?;
    Some((before, other))
}

/// Adds a mutant that replaces an expression: `shown` for display, `other` for the compiler.
fn either(r: &mut Rewriter<'_>, e: &Expr, shown: &str, other: &str) {
    let at = range(e);
    if let Some(on) = r.mutant(&at, shown) {
        let text = r.text(at.clone());
        r.replace(at, format!("(if {on} {{ {other} }} else {{ {text} }})"));
    }
}

fn binary(r: &mut Rewriter<'_>, b: &ExprBinary) {
    use BinOp as B;
    let (left, right, at) = (range(&*b.left), range(&*b.right), range(b));
    let op = r.written(&range(&b.op));
    let other = match b.op {
        B::And(_) | B::Or(_) => {
            for side in [&*b.left, &*b.right] {
                let same = matches!(side, Expr::Binary(inner) if r.written(&range(&inner.op)) == op);
                if !same && !has_let(side) {
                    operand(r, side, matches!(b.op, B::And(_)));
                }
            }
            return;
        }
        B::Eq(_) | B::Ne(_) => return r.negate(at),
        B::Lt(_) => "<=",
        B::Le(_) => "<",
        B::Gt(_) => ">=",
        B::Ge(_) => ">",
        B::Add(_) | B::Div(_) | B::Rem(_) if op != "+" => "*",
        B::Add(_) => "-",
        B::Sub(_) | B::Mul(_) => "+",
        B::BitAnd(_) => "|",
        B::BitOr(_) => "&",
        B::Shl(_) => ">>",
        B::Shr(_) => "<<",
        B::AddAssign(_) => "-=",
        B::SubAssign(_) => "+=",
        B::BitOrAssign(_) => "&=",
        B::BitAndAssign(_) => "|=",
        _ => return,
    };
    let to = format!("{} {other} {}", r.written(&left), r.written(&right));
    let compares = matches!(b.op, B::Lt(_) | B::Le(_) | B::Gt(_) | B::Ge(_));
    let assigns = op.ends_with('=') && !compares;
    if let Some(on) = r.mutant(&at, &to) {
        let (a, b) = (r.text(left), r.text(right));
        let text = if assigns {
            format!("(if {on} {{ {a} {other} {b} }} else {{ {a} {op} {b} }})")
        } else {
            let (a, b) = if compares { (format!("&({a})"), format!("&({b})")) } else { (a, b) };
            format!("(match ({a}, {b}) {{ (l, r) => if {on} {{ l {other} r }} else {{ l {op} r }} }})")
        };
        r.replace(at.clone(), text);
    }
    if compares {
        r.negate(at);
    }
}

/// Adds the mutant that ignores one operand of `&&` or `||`.
fn operand(r: &mut Rewriter<'_>, e: &Expr, is_and: bool) {
    let at = range(e);
    if let Some(on) = r.mutant(&at, if is_and { "true" } else { "false" }) {
        let text = r.text(at.clone());
        r.replace(at, if is_and { format!("(({text}) || {on})") } else { format!("(({text}) && !{on})") });
    }
}

fn literal(r: &mut Rewriter<'_>, e: &Expr, literal: &Lit) {
    let at = range(e);
    let to = match literal {
        Lit::Bool(b) => (!b.value).to_string(),
        Lit::Int(_) | Lit::Float(_) => format!("{} + 1", r.written(&at)),
        _ => return,
    };
    if let Some(on) = r.mutant_in_line(&at, &to) {
        let text = r.written(&at);
        let is_bool = matches!(literal, Lit::Bool(_));
        r.replace(
            at,
            if is_bool { format!("({text} ^ {on})") } else { format!("crate::mutant_switch::next({text}, {on})") },
        );
    }
}

fn method(r: &mut Rewriter<'_>, e: &Expr, call: &ExprMethodCall) {
    let name = call.method.to_string();
    if TAKES_CONDITION.contains(&name.as_str())
        && let Some(Expr::Closure(closure)) = call.args.first()
    {
        truth(r, last(&closure.body));
    }
    if matches!(name.as_str(), "then" | "then_some") {
        truth(r, &call.receiver);
    }
    // A row of the registry has its ranges beside it, and asks its entry where they change.
    if name == "affected_by" {
        r.replace(range(e), "self.entry.affects(version, sm)".to_owned());
    }
    if name == "iter" && r.written(&range(&*call.receiver)) == "self.affected" {
        r.replace(range(&*call.receiver), "crate::mutant_switch::affected(self.code, self.affected)".to_owned());
    }
    if let Some((_, other)) = METHODS.iter().find(|(one, _)| *one == name) {
        let (at, place) = (range(e), range(&call.method));
        let (before, after) = (place.start, place.end);
        let to = format!("{}{other}{}", r.written(&(at.start..before)), r.written(&(after..at.end)));
        let text = format!("{}{other}{}", r.text(at.start..before), r.text(after..at.end));
        either(r, e, &to, &text);
    }
    if ASKS.contains(&name.as_str()) {
        r.negate(range(e));
    }
}

/// The last expression of a block, or the expression itself.
fn last(e: &Expr) -> &Expr {
    match e {
        Expr::Block(b) => match b.block.stmts.last() {
            Some(Stmt::Expr(e, None)) => e,
            _ => e,
        },
        _ => e,
    }
}

/// Negates a condition, unless another mutant does so already.
fn truth(r: &mut Rewriter<'_>, e: &Expr) {
    let done = match e {
        Expr::Paren(inner) => return truth(r, &inner.expr),
        Expr::Path(_) | Expr::Call(_) | Expr::Field(_) => false,
        Expr::MethodCall(call) => ASKS.contains(&call.method.to_string().as_str()),
        _ => true,
    };
    if !done {
        r.negate(range(e));
    }
}

fn has_let(e: &Expr) -> bool {
    match e {
        Expr::Let(_) => true,
        Expr::Binary(b) => has_let(&b.left) || has_let(&b.right),
        _ => false,
    }
}

/// Adds the mutants of the condition of an `if` or a `while`.
fn condition(r: &mut Rewriter<'_>, e: &Expr) {
    if has_let(e) {
        let at = range(e);
        if let Some(on) = r.mutant(&at, "false") {
            r.insert(at.end, format!(" && !{on}"));
        }
    } else {
        truth(r, e);
    }
}

/// Adds the mutants of a guard: always true, and always false.
pub(super) fn guard(r: &mut Rewriter<'_>, e: &Expr) {
    if has_let(e) {
        return;
    }
    let at = range(e);
    let text = r.text(at.clone());
    let (always, never) = (r.mutant(&at, "true"), r.mutant(&at, "false"));
    let always = always.map(|on| format!(" || {on}")).unwrap_or_default();
    let never = never.map(|on| format!(" && !{on}")).unwrap_or_default();
    r.replace(at, format!("(({text}){always}){never}"));
}

/// Adds mutants that remove an arm, if the last arm matches everything.
fn arms(r: &mut Rewriter<'_>, m: &ExprMatch) {
    let Some((end, others)) = m.arms.split_last() else { return };
    let takes_all = match &end.pat {
        Pat::Wild(_) => true,
        Pat::Ident(name) => name.subpat.is_none() && name.ident.to_string().starts_with(char::is_lowercase),
        _ => false,
    };
    for arm in others.iter().filter(|arm| takes_all && !matches!(arm.pat, Pat::Guard(_))) {
        let at = range(&arm.pat);
        if let Some(on) = r.mutant(&at, "no such arm") {
            r.insert(at.end, format!(" if !{on}"));
        }
    }
}

/// Adds the mutant that removes a statement without a value.
pub(super) fn statement(r: &mut Rewriter<'_>, s: &Stmt) {
    let Stmt::Expr(e, Some(_)) = s else { return };
    let acts = match e {
        Expr::MethodCall(_) | Expr::Call(_) | Expr::Assign(_) => true,
        Expr::Try(t) => matches!(&*t.expr, Expr::MethodCall(_) | Expr::Call(_)),
        Expr::Binary(b) => r.written(&range(&b.op)).ends_with('='),
        _ => false,
    };
    let at = range(s);
    if acts && let Some(on) = r.mutant(&at, "nothing") {
        let text = r.text(at.clone());
        r.replace(at, format!("if !{on} {{ {text} }}"));
    }
}

/// The argument expressions of a known macro; empty for other macros.
pub(super) fn arguments(m: &Macro) -> Vec<Expr> {
    if m.path.is_ident("matches") {
        let parsed = m.parse_body_with(|input: ParseStream<'_>| {
            let e = Expr::parse(input)?;
            input.parse::<Token![,]>()?;
            Pat::parse_multi_with_leading_vert(input)?;
            let mut list = vec![e];
            if input.parse::<Option<Token![if]>>()?.is_some() {
                list.push(Expr::parse(input)?);
            }
            input.parse::<Option<Token![,]>>()?;
            Ok(list)
        });
        return parsed.unwrap_or_default();
    }
    if m.path.is_ident("vec") || m.path.is_ident("entries") {
        let parsed = m.parse_body_with(Punctuated::<Expr, Token![,]>::parse_terminated);
        return parsed.map(|list| list.into_iter().collect()).unwrap_or_default();
    }
    Vec::new()
}
