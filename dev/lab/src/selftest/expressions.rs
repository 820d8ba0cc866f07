//! Score expressions and predicates for the self-test, in their text form: common ones, every function of the language,
//! tensors of every broadcast shape, and random compositions.

use std::fmt::Write as _;

use qkvault_graph::DType;

use super::cases::Draw;

/// Full extents of tensors: batch, heads, queries, keys.
pub(super) type TensorExtents = [i64; 4];

/// An expression's declarations, and the numbers of its operands.
#[derive(Default)]
struct Text {
    declared: String,
    tensors: usize,
    scalars: usize,
}

impl Text {
    fn with(self, body: &str) -> String {
        format!("{}{body}", self.declared)
    }

    /// Declares a scalar and returns its name with the `$`.
    fn scalar(&mut self) -> String {
        self.scalars += 1;
        let name = format!("$s{}", self.scalars);
        let _ = write!(self.declared, "scalar {name}: float; ");
        name
    }

    /// Declares a tensor and returns its name with the `@`. Each extent is full or one.
    fn tensor(&mut self, draw: &mut Draw, full: TensorExtents, dtype: &str, grad: bool) -> String {
        self.tensors += 1;
        let name = format!("@t{}", self.tensors);
        let [b, h, q, k] = full.map(|n| if draw.chance(50) { n } else { 1 });
        let grad = if grad { " grad" } else { "" };
        let _ = write!(self.declared, "tensor {name}: {dtype}[{b}, {h}, {q}, {k}]{grad}; ");
        name
    }
}

/// A score expression.
pub(super) fn score(draw: &mut Draw, full: TensorExtents, dtype: DType) -> String {
    const FUNCTIONS: [&str; 14] = [
        "sin",
        "cos",
        "gelu",
        "gelu_tanh",
        "relu",
        "abs",
        "sigmoid",
        "softplus",
        "tanh",
        "erf",
        "swish",
        "elu",
        "floor",
        "ceil",
    ];
    let io = if dtype == DType::F16 { "f16" } else { "bf16" };
    let mut text = Text::default();
    match draw.within(0, 9) {
        0 => {
            let cap = text.scalar();
            text.with(&format!("tanh(score / {cap}) * {cap}"))
        }
        1 => {
            let function = draw.one_of(&FUNCTIONS);
            // Rounding has no gradient, so add the score.
            let plus = if matches!(function, "floor" | "ceil") || draw.chance(30) { " * 0.5 + score" } else { "" };
            text.with(&format!("{function}(score){plus}"))
        }
        2 => {
            let curve = text.scalar();
            text.with(&format!("score * score * {curve} + score"))
        }
        3 => {
            let kind = draw.one_of(&["f32", io]);
            let t = text.tensor(draw, full, kind, false);
            text.with(&format!("score + {t}"))
        }
        4 => {
            let kind = if draw.chance(10) { "f32" } else { io };
            let t = text.tensor(draw, full, kind, true);
            text.with(&format!("score + {t}"))
        }
        5 => {
            let t = text.tensor(draw, full, "f32", false);
            text.with(&format!("score * (1.0 + {t} * 0.25)"))
        }
        6 => {
            let t = text.tensor(draw, full, "i32", false);
            text.with(&format!("score + float({t} - query) * 0.01"))
        }
        7 => text.with("select(score > 0.0, score, score * 0.25)"),
        _ => {
            let depth = draw.within(1, 4);
            let inner = composed(draw, &mut text, full, depth);
            // Bounded by tanh, so that the softmax stays well conditioned.
            text.with(&format!("score + tanh({inner} + score * 0.5)"))
        }
    }
}

/// A random float expression.
fn composed(draw: &mut Draw, text: &mut Text, full: TensorExtents, depth: i64) -> String {
    if depth == 0 || draw.chance(10) {
        return match draw.within(0, 7) {
            0 | 1 => "score".to_owned(),
            2 => text.scalar(),
            3 => text.tensor(draw, full, "f32", false),
            4 => format!(
                "float({} - {}) * 0.02",
                draw.one_of(&["query", "key"]),
                draw.one_of(&["key", "query", "head", "batch"])
            ),
            5 => draw.one_of(&["0.5", "1.0", "-2.0", "0.125"]).to_owned(),
            6 => format!("float({} % 5)", draw.one_of(&["query", "key", "head"])),
            // By powers of two and by others, of what is negative too.
            _ => format!(
                "float({} // {}) * 0.05",
                draw.one_of(&["query", "key", "(query - key)", "head", "(key - query + 100)"]),
                draw.one_of(&["128", "7", "-16", "10", "3"])
            ),
        };
    }
    let a = composed(draw, text, full, depth - 1);
    match draw.within(0, 8) {
        0 => format!("({a} + {})", composed(draw, text, full, depth - 1)),
        1 => format!("({a} - {})", composed(draw, text, full, depth - 1)),
        2 => format!("({a} * {})", composed(draw, text, full, depth - 1)),
        3 => format!("min({a}, {})", composed(draw, text, full, depth - 1)),
        4 => format!("max({a}, {})", composed(draw, text, full, depth - 1)),
        5 => format!("{}({a})", draw.one_of(&["tanh", "sin", "sigmoid", "relu", "abs", "cos"])),
        6 => format!("select({}, {a}, {})", condition(draw), composed(draw, text, full, depth - 1)),
        7 => format!("({a} / 3.0)"),
        _ => format!("-{a}"),
    }
}

/// A condition that does not read the score: with a jump in the score, rounding would make any two computations differ.
fn condition(draw: &mut Draw) -> String {
    draw.one_of(&["key > query", "query % 3 == 1", "key < 40 | query < 5", "!(key == query)"]).to_owned()
}

/// A mask predicate. Each one keeps the key with the query's own index, so that no row is empty if there are as many
/// keys as queries.
pub(super) fn keep(draw: &mut Draw, full: TensorExtents) -> String {
    let mut text = Text::default();
    match draw.within(0, 9) {
        0 => {
            let [b, ..] = full;
            text.with(&format!("tensor @prefix: i32[{b}, 1, 1, 1]; key < @prefix | key <= query"))
        }
        1 => "let t0 = query - key; query >= key & t0 < 128 & t0 % 2 == 0".to_owned(),
        2 => {
            let [b, _, q, k] = full;
            format!(
                "tensor @q_ids: i32[{b}, 1, {q}, 1]; tensor @k_ids: i32[{b}, 1, 1, {k}]; @q_ids == @k_ids | key == query"
            )
        }
        3 => {
            let t = text.tensor(draw, full, "i32", false);
            text.with(&format!("key < {t} | key <= query"))
        }
        4 => {
            let t = text.tensor(draw, full, "f32", false);
            text.with(&format!("{t} > 0.0 | key == query | key < 3"))
        }
        5 => "!(key % 3 == 1) | key == query".to_owned(),
        6 => {
            let block = draw.one_of(&["128", "16", "100", "7"]);
            format!("query // {block} == key // {block}")
        }
        7 => {
            let [b, _, q, k] = full;
            let b = draw.one_of(&[1, b]);
            format!("tensor @each: i32[{b}, 1, {q}, {k}]; key < @each | key == query")
        }
        8 => "query // 64 >= key // 64 & (query - key) // 10 < 3".to_owned(),
        _ => "key % 4 < 2 | query - key < 9 & key <= query".to_owned(),
    }
}
