//! Expressions of score modifications and masks as straight-line functions of Python, in the words of `words.py`.
//!
//! A function has two parameters: `w`, the words, and `p`, the point of a score with the numbers of the launch. Nothing
//! in it branches, so the compiler sees one expression for each score. A quotient by a number of the launch becomes a
//! product with its reciprocal, which is one for all scores: a division for each score costs more than the score.

use std::fmt::Write as _;

use qkvault_graph::expr::{
    Axis, Binary, Compare, Logic, Node, NodeId, Program, ScoreExpr, Side, TensorSpec, Ty, Unary,
};
use qkvault_graph::{Band, Corner, DType, Role, TILE, Valid};

use crate::args::Arg;

/// What the expressions of an attention become, and what a launch gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// The score modification: the modified score.
    pub(crate) score_mod: Option<String>,
    /// Its backward: the gradient of the score, from that of the modified one.
    pub(crate) score_mod_bwd: Option<String>,
    /// The predicate of the mask with its band: whether a key is seen.
    pub(crate) mask_mod: Option<String>,
    /// Types of the numbers of a launch, in the order of [`arguments`].
    pub(crate) scalars: Vec<&'static str>,
}

/// Where the numbers of an expression begin among those of a launch.
#[derive(Clone, Copy, Debug)]
struct Slots {
    scalar: usize,
    tensor: usize,
}

/// The expressions of an attention.
pub(crate) fn written(a: &Valid) -> Written {
    let slots = Slots { scalar: 0, tensor: a.scalars().count() };
    let scalars = arguments(a).into_iter().map(|arg| match arg {
        Arg::Number(_, DType::I32) | Arg::Int(_) => "i32",
        Arg::Number(..) => "f32",
        _ => "i64",
    });
    let derivative = || a.score_mod_vjp().and_then(Result::ok).filter(|_| a.is_backward());
    Written {
        scalars: scalars.collect(),
        score_mod: a.score_mod.as_ref().map(|e| score_mod(e, slots)),
        score_mod_bwd: derivative().map(|vjp| score_mod_bwd(vjp.d_score.program(), slots)),
        mask_mod: (a.mask.mask_mod.is_some() || a.block_mask).then(|| mask_mod(a, slots)),
    }
}

/// The numbers of a launch that expressions read: scalars, then for each tensor its address, and for its dims the last
/// index where one beyond may come, and the step where it is not 1. So one kernel serves tensors of all extents.
pub(crate) fn arguments(a: &Valid) -> Vec<Arg> {
    let mut list: Vec<Arg> = a.scalars().map(|scalar| Arg::Number(scalar.role, scalar.dtype)).collect();
    for tensor in a.score_tensors() {
        list.push(Arg::Address(tensor.role));
        for (axis, extent, step) in dims(tensor.dims) {
            list.extend(ends(axis).then_some(Arg::Int(extent - 1)));
            list.extend((step != 1).then_some(Arg::Long(step)));
        }
    }
    list.extend(block_mask(a));
    list
}

/// The numbers by which a bit of the block mask is found: its address, steps of sequences, heads and rows of tiles in
/// bytes, and the last row of tiles and byte of a row.
fn block_mask(a: &Valid) -> Vec<Arg> {
    if !a.block_mask {
        return Vec::new();
    }
    let ([_, heads, s_q, _], (_, s_kv)) = (a.q.dims, a.seq());
    let tiles = |n: i64| (n - 1) / TILE as i64 + 1;
    let (rows, bytes) = (tiles(s_q), (tiles(s_kv) - 1) / 8 + 1);
    let steps = [heads * rows * bytes, rows * bytes, bytes].map(Arg::Long);
    let all = std::iter::once(Arg::Address(Role::BlockMask)).chain(steps);
    all.chain([rows - 1, bytes - 1].map(Arg::Int)).collect()
}

/// The dims along which a tensor is not broadcast, with extents and steps in elements.
fn dims(of: [i64; 4]) -> impl Iterator<Item = (Axis, i64, i64)> {
    let [_, h, q, k] = of;
    let all = Axis::ALL.into_iter().zip(of).zip([h * q * k, q * k, k, 1]);
    all.filter(|((_, extent), _)| *extent > 1).map(|((axis, extent), step)| (axis, extent, step))
}

/// Whether kernels compute scores beyond the last index, which nothing depends on.
fn ends(axis: Axis) -> bool {
    matches!(axis, Axis::Query | Axis::Key)
}

fn score_mod(e: &ScoreExpr, slots: Slots) -> String {
    let mut text = String::from("def score_mod(w, p):\n");
    let root = statements(e.program(), slots, &mut text);
    let _ = writeln!(text, "    return {root}");
    text
}

fn score_mod_bwd(factor: &Program, slots: Slots) -> String {
    let mut text = String::from("def score_mod_bwd(w, p):\n");
    let root = statements(factor, slots, &mut text);
    let product = format!("p.upstream * {root}");
    // Scores that a mask hides, and rows behind the last one, have the gradient 0 whatever the factor is there.
    let product = match finite(factor) {
        true => product,
        false => format!("w.select(p.upstream == w.real(0.0), p.upstream, {product})"),
    };
    let _ = writeln!(text, "    return {product}");
    text
}

fn mask_mod(a: &Valid, slots: Slots) -> String {
    let before = a.score_mod.as_ref().map(|e| e.program());
    let (scalars, tensors) = before.map_or((0, &[][..]), |program| (program.scalars().len(), program.tensors()));
    let behind = tensors.iter().map(numbers).sum::<usize>();
    let slots = Slots { scalar: slots.scalar + scalars, tensor: slots.tensor + behind };
    let mut text = String::from("def mask_mod(w, p):\n");
    let predicate = a.mask.mask_mod.as_ref().map(|e| statements(e.program(), slots, &mut text));
    let mut seen = vec![predicate.unwrap_or_else(|| "w.truth(True)".to_owned())];
    if a.block_mask {
        let first = arguments(a).len() - block_mask(a).len();
        let [address, batch, head, row, last, last_byte] = std::array::from_fn(|n| format!("p.numbers[{}]", first + n));
        let _ = writeln!(
            text,
            "    row, tile = w.floor_div(p.query, {TILE}), w.floor_div(p.key, {TILE})\n    byte = w.element({address}, \
             \"u8\", ((p.batch, None, {batch}), (p.head, None, {head}), (row, {last}, {row}), (w.floor_div(tile, 8), \
             {last_byte}, None)))"
        );
        seen.push("w.bit(byte, w.rem_whole(tile, w.whole(8)))".to_owned());
    }
    if let Some(Band { corner, left, right }) = a.mask.band {
        // The kernels know a band or a predicate.
        let ahead =
            if corner == Corner::BottomRight { "p.key - p.query - (p.keys - p.queries)" } else { "p.key - p.query" };
        let _ = writeln!(text, "    ahead = {ahead}");
        seen.extend(right.map(|right| format!("(ahead <= w.whole({right}))")));
        seen.extend(left.map(|left| format!("(ahead > w.whole({}))", -left)));
    }
    let _ = writeln!(text, "    return {}", seen.join(" & "));
    text
}

/// Whether a program is finite for finite scores, up to overflows.
fn finite(program: &Program) -> bool {
    let uniform = uniform(program);
    program.nodes().iter().all(|node| match node {
        Node::Unary(Unary::Reciprocal, divisor) | Node::Binary(Binary::Div, _, divisor) => uniform[divisor.at()],
        Node::Unary(op, _) => {
            !matches!(op, Unary::Exp | Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Tan | Unary::Elu)
        }
        Node::Binary(op, ..) => !matches!(op, Binary::Pow | Binary::Rem | Binary::FloorRem | Binary::Atan2),
        // It may hold anything.
        Node::Tensor(_) => false,
        _ => true,
    })
}

/// Which nodes are one number for all scores of a launch.
fn uniform(program: &Program) -> Vec<bool> {
    marked(program, |node, operands| match node {
        Node::Float(_) | Node::Scalar(_) => true,
        Node::Score | Node::Upstream | Node::Index(_) | Node::Length(_) | Node::Tensor(_) => false,
        _ => operands.iter().all(|mark| *mark),
    })
}

/// Writes statements that compute a program, and returns the name of its value.
fn statements(program: &Program, slots: Slots, text: &mut String) -> String {
    let uniform = uniform(program);
    let of_score = marked(program, |node, operands| node == Node::Score || operands.contains(&true));
    let name = |id: NodeId| format!("n{}", id.0);
    for (at, &node) in program.nodes().iter().enumerate() {
        let value = match node {
            Node::Scalar(id) => format!("p.numbers[{}]", slots.scalar + id.at()),
            Node::Tensor(id) => element(program.tensors(), id.at(), slots.tensor),
            // A quotient of positions keeps its division: it may be rounded to a whole number.
            Node::Binary(Binary::Div, a, b) if uniform[b.at()] && of_score[a.at()] => match program.node(b) {
                Node::Float(x) if x.value().recip().is_normal() => {
                    format!("{} * w.real({:?})", name(a), x.value().recip())
                }
                _ => format!("{} * w.reciprocal({})", name(a), name(b)),
            },
            node => value(program, node, &name),
        };
        let _ = writeln!(text, "    {} = {value}", name(NodeId(at as u32)));
    }
    name(program.root())
}

/// Marks nodes by themselves and the marks of their operands.
fn marked(program: &Program, mark: impl Fn(Node, &[bool]) -> bool) -> Vec<bool> {
    let mut marks: Vec<bool> = Vec::with_capacity(program.nodes().len());
    for &node in program.nodes() {
        let operands: Vec<bool> = node.operands().map(|id| marks[id.at()]).collect();
        marks.push(mark(node, &operands));
    }
    marks
}

/// How many numbers of a launch a tensor has.
fn numbers(spec: &TensorSpec) -> usize {
    1 + dims(spec.dims).map(|(axis, _, step)| usize::from(ends(axis)) + usize::from(step != 1)).sum::<usize>()
}

/// The element of a tensor at the point; `first` is the first number of the first tensor.
fn element(tensors: &[TensorSpec], number: usize, first: usize) -> String {
    let (spec, address) = (tensors[number], first + tensors[..number].iter().map(numbers).sum::<usize>());
    let (mut parts, mut slot) = (String::new(), address);
    let mut next = |there: bool, otherwise: &str| {
        slot += usize::from(there);
        if there { format!("p.numbers[{slot}]") } else { otherwise.to_owned() }
    };
    for (axis, _, step) in dims(spec.dims) {
        let (last, step) = (next(ends(axis), "None"), next(step != 1, "None"));
        let _ = write!(parts, "(p.{}, {last}, {step}),", axis.name());
    }
    let dtype = match spec.dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I32 => "i32",
        _ => "f32",
    };
    format!("w.element(p.numbers[{address}], \"{dtype}\", ({parts}))")
}

fn value(program: &Program, node: Node, name: &impl Fn(NodeId) -> String) -> String {
    match node {
        Node::Score => "p.score".to_owned(),
        Node::Upstream => "p.upstream".to_owned(),
        Node::Index(axis) => format!("p.{}", axis.name()),
        Node::Length(Side::Query) => "p.queries".to_owned(),
        Node::Length(Side::Key) => "p.keys".to_owned(),
        Node::Float(x) => format!("w.real({:?})", x.value()),
        Node::Int(n) => format!("w.whole({n})"),
        Node::Bool(truth) => format!("w.truth({})", if truth { "True" } else { "False" }),
        Node::Scalar(_) | Node::Tensor(_) => unreachable!("the caller writes these"),
        Node::ToFloat(a) => format!("w.to_real({})", name(a)),
        Node::Unary(op, a) => unary(op, program.ty(a), &name(a)),
        Node::Binary(op, a, b) => binary(program, op, a, b, name),
        Node::Compare(op, a, b) => compare(op, &name(a), &name(b)),
        Node::Not(a) => format!("w.negate({})", name(a)),
        Node::Logic(Logic::And, a, b) => format!("{} & {}", name(a), name(b)),
        Node::Logic(Logic::Or, a, b) => format!("{} | {}", name(a), name(b)),
        Node::Select { keep, yes, no } => format!("w.select({}, {}, {})", name(keep), name(yes), name(no)),
    }
}

fn compare(op: Compare, a: &str, b: &str) -> String {
    format!("{a} {} {b}", op.name())
}

fn unary(op: Unary, ty: Ty, a: &str) -> String {
    let word = match op {
        Unary::Neg if ty == Ty::Int => return format!("w.whole(0) - {a}"),
        Unary::Neg => return format!("-{a}"),
        Unary::Abs if ty == Ty::Int => "absolute_whole",
        Unary::Abs => "absolute",
        Unary::Reciprocal => "reciprocal",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Rsqrt => "rsqrt",
        Unary::Sin => "sin",
        Unary::Cos => "cos",
        Unary::Tan => "tan",
        Unary::Tanh => "tanh",
        Unary::Erf => "erf",
        Unary::Floor => "floor",
        Unary::Ceil => "ceil",
        Unary::Sigmoid => "sigmoid",
        Unary::Relu => "relu",
        Unary::Elu => "elu",
        Unary::Gelu => "gelu",
        Unary::GeluTanh => "gelu_tanh",
        Unary::Softplus => "softplus",
        Unary::Swish => "swish",
    };
    format!("w.{word}({a})")
}

fn binary(program: &Program, op: Binary, a: NodeId, b: NodeId, name: &impl Fn(NodeId) -> String) -> String {
    let (int, divisor) = (program.ty(a) == Ty::Int, program.node(b));
    let (a, b) = (name(a), name(b));
    let word = match op {
        Binary::Add => return format!("{a} + {b}"),
        Binary::Sub => return format!("{a} - {b}"),
        Binary::Mul => return format!("{a} * {b}"),
        Binary::Div => return format!("{a} / {b}"),
        // Its divisor is a constant, which the compiler divides by without a division.
        Binary::FloorDiv => match divisor {
            Node::Int(n) => return format!("w.floor_div({a}, {n})"),
            other => unreachable!("a whole quotient by {other:?}"),
        },
        Binary::Min => "minimum",
        Binary::Max => "maximum",
        Binary::Pow => "power",
        Binary::Rem if int => "rem_whole",
        Binary::Rem => "rem",
        Binary::FloorRem if int => "floor_rem_whole",
        Binary::FloorRem => "floor_rem",
        Binary::Atan2 => "atan2",
    };
    format!("w.{word}({a}, {b})")
}

#[cfg(test)]
mod tests;
