//! Expressions of score modifications and masks as straight-line functions ([`Function`]) in the words of `words.py`.
//!
//! Nothing in them branches, so the compiler sees one expression for each score. A quotient by a number of the launch
//! becomes a product with its reciprocal, which is one for all scores: a division for each score costs more than the
//! score.

mod names;

use qkvault_graph::expr::{
    Axis, Binary, Logic, Lowest, Node, NodeId, Power, Program, ScoreExpr, Side, TensorSpec, Ty, Unary, product,
};
use qkvault_graph::{Band, Corner, DType, Role, TILE, Valid};

use self::names::{binary, compare, unary};
use crate::args::Arg;
use crate::code::{CodeStep, Function, StepId};

/// What the expressions of an attention become, and what a launch gives them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WrittenExpressions {
    /// The score modification: the modified score.
    pub(crate) score_mod: Option<Function>,
    /// Its backward: the gradient of the score, from that of the modified one.
    pub(crate) score_mod_bwd: Option<Function>,
    /// The predicate of the mask with its band: whether a key is seen.
    pub(crate) mask_mod: Option<Function>,
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
pub(crate) fn written(a: &Valid) -> WrittenExpressions {
    let slots = Slots { scalar: 0, tensor: a.scalars().count() };
    let scalars = arguments(a).into_iter().map(|arg| match arg {
        Arg::Number(_, DType::I32) | Arg::Int(_) => "i32",
        Arg::Number(..) => "f32",
        _ => "i64",
    });
    let derivative = || a.score_mod_vjp().and_then(Result::ok).filter(|_| a.is_backward());
    WrittenExpressions {
        scalars: scalars.collect(),
        score_mod: a.score_mod.as_ref().map(|e| score_mod(e, slots, a.is_backward())),
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

/// The modification. What it gives near the lowest float is compressed in a forward ([`Lowest`]): the kernels multiply
/// scores by `log2(e)`, and a row of infinities was NaN (H100). A backward needs it not, because the scores of such a
/// row are far below its log-sum-exp, so that its probabilities are 0.
fn score_mod(e: &ScoreExpr, slots: Slots, backward: bool) -> Function {
    let mut code = Function::default();
    let root = statements(e.program(), slots, &mut code);
    if !backward && e.meets_lowest() {
        let factor = code.push(real(Lowest::FACTOR));
        let product = code.word("mul", [root, factor]);
        let shift = code.push(real(Lowest::SHIFT));
        let higher = code.word("add", [product, shift]);
        code.word("maximum", [root, higher]);
    }
    code
}

fn score_mod_bwd(factor: &Program, slots: Slots) -> Function {
    let mut code = Function::default();
    let root = statements(factor, slots, &mut code);
    let upstream = code.point("upstream");
    let product = code.word("mul", [upstream, root]);
    // Scores that a mask hides, and rows behind the last one, have the gradient 0 whatever the factor is there.
    if !finite(factor) {
        let zero = code.push(CodeStep::Real(0));
        let hidden = code.word("eq", [upstream, zero]);
        code.word("select", [hidden, upstream, product]);
    }
    code
}

fn mask_mod(a: &Valid, slots: Slots) -> Function {
    let before = a.score_mod.as_ref().map(|e| e.program());
    let (scalars, tensors) = before.map_or((0, &[][..]), |program| (program.scalars().len(), program.tensors()));
    let behind = tensors.iter().map(numbers).sum::<usize>();
    let slots = Slots { scalar: slots.scalar + scalars, tensor: slots.tensor + behind };
    let mut code = Function::default();
    let predicate = a.mask.mask_mod.as_ref().map(|e| statements(e.program(), slots, &mut code));
    let mut seen = vec![predicate.unwrap_or_else(|| code.push(CodeStep::Truth(true)))];
    if a.block_mask {
        seen.push(block_bit(arguments(a).len() - block_mask(a).len(), &mut code));
    }
    if let Some(Band { corner, left, right }) = a.mask.band {
        // The kernels know a band or a predicate.
        let (key, query) = (code.point("key"), code.point("query"));
        let mut ahead = code.word("sub", [key, query]);
        if corner == Corner::BottomRight {
            let (keys, queries) = (code.point("keys"), code.point("queries"));
            let corner = code.word("sub", [keys, queries]);
            ahead = code.word("sub", [ahead, corner]);
        }
        for (word, bound) in [("le", right), ("gt", left.map(|left| -left))] {
            if let Some(bound) = bound {
                let bound = code.push(CodeStep::Whole(bound));
                seen.push(code.word(word, [ahead, bound]));
            }
        }
    }
    // The last step is the value, also where nothing is joined: only a band adds steps behind the predicate.
    let mut all = seen[0];
    for also in &seen[1..] {
        all = code.word("and", [all, *also]);
    }
    code
}

/// The bit of the block mask for the tile of a score; `first` is the first of its numbers.
fn block_bit(first: usize, code: &mut Function) -> StepId {
    let (batch, head, query, key) = (code.point("batch"), code.point("head"), code.point("query"), code.point("key"));
    let (row, tile) =
        (code.push(CodeStep::Quotient(query, TILE as i64)), code.push(CodeStep::Quotient(key, TILE as i64)));
    let byte = code.push(CodeStep::Quotient(tile, 8));
    let [address, by_batch, by_head, by_row, last, last_byte] = std::array::from_fn(|n| first + n);
    let dims = vec![
        (batch, None, Some(by_batch)),
        (head, None, Some(by_head)),
        (row, Some(last), Some(by_row)),
        (byte, Some(last_byte), None),
    ];
    let byte = code.push(CodeStep::Element { address, dtype: "u8", dims });
    let eight = code.push(CodeStep::Whole(8));
    let bit = code.word("rem_whole", [tile, eight]);
    code.word("bit", [byte, bit])
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

/// Adds steps that compute a program; the place of its value.
fn statements(program: &Program, slots: Slots, code: &mut Function) -> StepId {
    let uniform = uniform(program);
    let of_score = marked(program, |node, operands| node == Node::Score || operands.contains(&true));
    let mut places: Vec<StepId> = Vec::with_capacity(program.nodes().len());
    for &node in program.nodes() {
        let at = |id: NodeId| places[id.at()];
        let place = match node {
            Node::Scalar(id) => code.push(CodeStep::Number(slots.scalar + id.at())),
            Node::Tensor(id) => element(program.tensors(), id.at(), slots.tensor, code),
            // A quotient of positions keeps its division: it may be rounded to a whole number.
            Node::Binary(Binary::Div, a, b) if uniform[b.at()] && of_score[a.at()] => {
                let inverse = match program.node(b) {
                    Node::Float(x) if x.value().recip().is_normal() => code.push(real(x.value().recip())),
                    _ => code.word("reciprocal", [at(b)]),
                };
                code.word("mul", [at(a), inverse])
            }
            node => value(program, node, &at, code),
        };
        places.push(place);
    }
    places[program.root().at()]
}

fn real(x: f32) -> CodeStep {
    CodeStep::Real(x.to_bits())
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
fn element(tensors: &[TensorSpec], number: usize, first: usize, code: &mut Function) -> StepId {
    let (spec, address) = (tensors[number], first + tensors[..number].iter().map(numbers).sum::<usize>());
    let mut slot = address;
    let mut next = |there: bool| {
        slot += usize::from(there);
        there.then_some(slot)
    };
    let dims = dims(spec.dims).map(|(axis, _, step)| {
        let (last, step) = (next(ends(axis)), next(step != 1));
        (code.point(axis.name()), last, step)
    });
    let dims = dims.collect();
    let dtype = match spec.dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::I32 => "i32",
        _ => "f32",
    };
    code.push(CodeStep::Element { address, dtype, dims })
}

fn value(program: &Program, node: Node, at: &impl Fn(NodeId) -> StepId, code: &mut Function) -> StepId {
    match node {
        Node::Score => code.point("score"),
        Node::Upstream => code.point("upstream"),
        Node::Index(axis) => code.point(axis.name()),
        Node::Length(Side::Query) => code.point("queries"),
        Node::Length(Side::Key) => code.point("keys"),
        Node::Float(x) => code.push(real(x.value())),
        Node::Int(n) => code.push(CodeStep::Whole(n.into())),
        Node::Bool(truth) => code.push(CodeStep::Truth(truth)),
        Node::Scalar(_) | Node::Tensor(_) => unreachable!("the caller writes these"),
        Node::ToFloat(a) => code.word("to_real", [at(a)]),
        Node::Unary(Unary::Neg, a) if program.ty(a) == Ty::Int => {
            let zero = code.push(CodeStep::Whole(0));
            code.word("sub", [zero, at(a)])
        }
        Node::Unary(op, a) => code.word(unary(op, program.ty(a)), [at(a)]),
        // Its divisor is a constant, which the compiler divides by without a division.
        Node::Binary(Binary::FloorDiv, a, b) => match program.node(b) {
            Node::Int(n) => code.push(CodeStep::Quotient(at(a), n.into())),
            other => unreachable!("a whole quotient by {other:?}"),
        },
        Node::Binary(Binary::Pow, a, b) => match program.power(a, b) {
            Power::One => code.push(real(1.0)),
            // The last step is the value.
            Power::Product { factors: 1, inverse: false } => {
                let one = code.push(real(1.0));
                code.word("mul", [at(a), one])
            }
            Power::Product { factors, inverse } => {
                let found = product(at(a), factors, |x, y| code.word("mul", [x, y]));
                if inverse { code.word("reciprocal", [found]) } else { found }
            }
            _ => code.word("power", [at(a), at(b)]),
        },
        Node::Binary(op, a, b) => code.word(binary(op, program.ty(a)), [at(a), at(b)]),
        Node::Compare(op, a, b) => code.word(compare(op), [at(a), at(b)]),
        Node::Not(a) => code.word("negate", [at(a)]),
        Node::Logic(Logic::And, a, b) => code.word("and", [at(a), at(b)]),
        Node::Logic(Logic::Or, a, b) => code.word("or", [at(a), at(b)]),
        Node::Select { keep, yes, no } => code.word("select", [at(keep), at(yes), at(no)]),
    }
}

#[cfg(test)]
mod tests;
