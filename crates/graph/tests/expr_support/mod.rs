//! Random well-typed expressions, random points to evaluate them at, and central differences in float64.
#![allow(dead_code, reason = "each test file uses its own part")]

use proptest::prelude::*;
use qkvault_graph::DType;
use qkvault_graph::expr::*;

/// Extents of the scores, which random tensors fit.
pub(crate) const SCORES: [i64; 4] = [2, 3, 5, 7];

/// Failing cases print the display text: the handle shows only its root.
#[derive(Clone)]
pub(crate) struct Written(pub(crate) Expr);

impl std::fmt::Debug for Written {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.build() {
            Ok(expr) => write!(f, "{expr}"),
            Err(problems) => write!(f, "{problems}"),
        }
    }
}

/// A random float expression of at most this depth.
pub(crate) fn float_expr(depth: usize) -> BoxedStrategy<Written> {
    levels(depth).0.prop_map(Written).boxed()
}

/// A random expression of any type.
pub(crate) fn any_expr(depth: usize) -> BoxedStrategy<Written> {
    let (float, int, bool) = levels(depth);
    prop_oneof![3 => float, 1 => int, 1 => bool].prop_map(Written).boxed()
}

type Level = (BoxedStrategy<Expr>, BoxedStrategy<Expr>, BoxedStrategy<Expr>);

fn levels(depth: usize) -> Level {
    let mut level = leaves();
    for _ in 0..depth {
        level = deeper(&level);
    }
    level
}

fn leaves() -> Level {
    let tensor_of = |name: &'static str, dtype, dims| Just(tensor(name, TensorSpec::new(dtype, dims)));
    let float = prop_oneof![
        6 => Just(score()),
        2 => prop::sample::select(vec!["a", "b", "c"]).prop_map(scalar),
        1 => tensor_of("bias", DType::F32, [1, 3, 5, 7]),
        1 => tensor_of("slopes", DType::F32, [1, 3, 1, 1]),
        1 => tensor_of("other", DType::F32, [1, 3, 1, 1]),
        2 => (-4.0_f32..4.0).prop_map(Expr::from),
        1 => prop::sample::select(vec![0.0_f32, 1.0, -1.0, 2.0, 0.5]).prop_map(Expr::from),
    ];
    let int = prop_oneof![
        Just(batch()),
        Just(head()),
        Just(query()),
        Just(key()),
        Just(query_len()),
        Just(key_len()),
        Just(int_scalar("n")),
        tensor_of("ids", DType::I32, [2, 1, 5, 1]),
        (-3..9_i32).prop_map(Expr::from),
    ];
    (float.boxed(), int.boxed(), prop::bool::weighted(0.5).prop_map(Expr::from).boxed())
}

fn deeper((float, int, bool): &Level) -> Level {
    let (f, i, b) = (float.clone(), int.clone(), bool.clone());
    let unary = prop::sample::select(Unary::ALL.to_vec());
    let floats: Vec<Binary> = Binary::ALL.iter().copied().filter(|op| op.takes_float()).collect();
    let binary = prop::sample::select(floats);
    let ints: Vec<Binary> = Binary::ALL.iter().copied().filter(|op| op.takes_int()).collect();
    let divisor = prop::sample::select(vec![1, 2, 3, 5, 8, -1, -3, -4, i32::MIN, i32::MAX]);
    let next_float = prop_oneof![
        1 => f.clone(),
        5 => (unary, f.clone()).prop_map(|(op, a)| call(op, &a)),
        6 => (binary, f.clone(), f.clone()).prop_map(|(op, a, b)| join(op, &a, &b)),
        2 => (b.clone(), f.clone(), f.clone()).prop_map(|(k, x, y)| k.select(x, y)),
        1 => i.clone().prop_map(|n| n.to_float()),
    ];
    let next_int = prop_oneof![
        3 => i.clone(),
        1 => i.clone().prop_map(|a| -a),
        1 => i.clone().prop_map(|a| a.abs()),
        // A remainder by the constant 0 is refused, so 1 is added to a divisor that could be 0.
        3 => (prop::sample::select(ints), i.clone(), i.clone(), divisor).prop_map(|(op, a, b, divisor)| match op {
            Binary::FloorDiv => a.floor_div(divisor),
            Binary::Rem | Binary::FloorRem => join(op, &a, &(b.abs() + 1)),
            _ => join(op, &a, &b),
        }),
        1 => (b.clone(), i.clone(), i.clone()).prop_map(|(k, x, y)| k.select(x, y)),
    ];
    let compare = prop::sample::select(Compare::ALL.to_vec());
    let next_bool = prop_oneof![
        2 => (compare.clone(), i.clone(), i.clone()).prop_map(|(op, a, b)| relate(op, &a, &b)),
        2 => (compare, f.clone(), f.clone()).prop_map(|(op, a, b)| relate(op, &a, &b)),
        1 => (b.clone(), b.clone()).prop_map(|(a, b)| a & b),
        1 => (b.clone(), b.clone()).prop_map(|(a, b)| a | b),
        1 => b.clone().prop_map(|a| !a),
    ];
    (next_float.boxed(), next_int.boxed(), next_bool.boxed())
}

/// Calls the operation with this name on a handle.
pub(crate) fn call(op: Unary, a: &Expr) -> Expr {
    match op {
        Unary::Neg => -a,
        Unary::Abs => a.abs(),
        Unary::Exp => a.exp(),
        Unary::Log => a.log(),
        Unary::Sqrt => a.sqrt(),
        Unary::Rsqrt => a.rsqrt(),
        Unary::Reciprocal => a.reciprocal(),
        Unary::Sin => a.sin(),
        Unary::Cos => a.cos(),
        Unary::Tan => a.tan(),
        Unary::Tanh => a.tanh(),
        Unary::Sigmoid => a.sigmoid(),
        Unary::Erf => a.erf(),
        Unary::Floor => a.floor(),
        Unary::Ceil => a.ceil(),
        Unary::Relu => a.relu(),
        Unary::Elu => a.elu(),
        Unary::Gelu => a.gelu(),
        Unary::GeluTanh => a.gelu_tanh(),
        Unary::Softplus => a.softplus(),
        Unary::Swish => a.swish(),
    }
}

/// Calls the operation with this name on two handles.
pub(crate) fn join(op: Binary, a: &Expr, b: &Expr) -> Expr {
    match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min => a.min(b),
        Binary::Max => a.max(b),
        Binary::Pow => a.pow(b),
        Binary::Rem => a % b,
        Binary::FloorRem => a.floor_rem(b),
        Binary::Atan2 => a.atan2(b),
        Binary::FloorDiv => a.floor_div(b),
    }
}

/// Calls the comparison with this name on two handles.
pub(crate) fn relate(op: Compare, a: &Expr, b: &Expr) -> Expr {
    match op {
        Compare::Eq => a.eq(b),
        Compare::Ne => a.ne(b),
        Compare::Lt => a.lt(b),
        Compare::Le => a.le(b),
        Compare::Gt => a.gt(b),
        Compare::Ge => a.ge(b),
    }
}

/// A point with random values for everything that random expressions read.
#[derive(Clone, Debug)]
pub(crate) struct Point {
    pub(crate) score: f64,
    pub(crate) at: [i32; 4],
    pub(crate) lengths: [i32; 2],
    pub(crate) scalars: [f64; 3],
    pub(crate) n: i32,
    pub(crate) tensors: [f64; 3],
    pub(crate) id: i32,
}

pub(crate) fn point() -> impl Strategy<Value = Point> {
    let coordinates = (0..2_i32, 0..3_i32, 0..5_i32, 0..7_i32);
    let reals = prop::array::uniform3(-3.0..3.0_f64);
    (-4.0..4.0_f64, coordinates, (1..6_i32, 1..8_i32), reals.clone(), -5..9_i32, reals, 0..3_i32).prop_map(
        |(score, (b, h, q, k), (ql, kl), scalars, n, tensors, id)| Point {
            score,
            at: [b, h, q, k],
            lengths: [ql, kl],
            scalars,
            n,
            tensors,
            id,
        },
    )
}

impl Point {
    /// Scalar and tensor values in the order of the tables of `program`.
    pub(crate) fn values(&self, program: &Program) -> (Vec<Value>, Vec<Value>) {
        let named = |name: &String| match name.as_str() {
            "a" => Value::Float(self.scalars[0]),
            "b" => Value::Float(self.scalars[1]),
            "c" => Value::Float(self.scalars[2]),
            "n" => Value::Int(self.n),
            "bias" => Value::Float(self.tensors[0]),
            "slopes" => Value::Float(self.tensors[1]),
            "other" => Value::Float(self.tensors[2]),
            "ids" => Value::Int(self.id),
            other => panic!("no value for {other}"),
        };
        (program.scalar_names().iter().map(named).collect(), program.tensor_names().iter().map(named).collect())
    }

    pub(crate) fn context<'v>(&self, (scalars, tensors): &'v (Vec<Value>, Vec<Value>)) -> PointContext<'v> {
        PointContext { score: self.score, upstream: 1.0, at: self.at, lengths: self.lengths, scalars, tensors }
    }

    pub(crate) fn eval(&self, program: &Program) -> Value {
        program.eval(&self.context(&self.values(program))).expect("every operand has a value")
    }
}

/// The value at a point, unless a number on the way is too large, too small or NaN for a meaningful difference, or an
/// operation is at its pole. Only numbers with an influence count, not those in arms that are not selected.
///
/// With the value comes the smooth piece of the point: the selected arms, sides and steps.
fn tame(program: &Program, context: &PointContext<'_>) -> Option<(f64, Vec<i64>)> {
    let mut values = Vec::new();
    let result = program.eval_into(context, &mut values).expect("every operand has a value");
    let float = |id: NodeId| values[id.at()].float();
    let wild = |x: f64| !x.is_finite() || x.abs() > 1e6 || (x != 0.0 && x.abs() < 1e-6);
    // Near a pole, the float32 constants of a derivative are not exact enough for a comparison in float64.
    let near_zero = |id: NodeId| float(id).is_some_and(|x| x.abs() < 0.02);
    let pole = |node: Node| match node {
        Node::Unary(Unary::Log | Unary::Sqrt | Unary::Rsqrt | Unary::Reciprocal, a) => near_zero(a),
        Node::Unary(Unary::Tan, a) => float(a).is_some_and(|x| x.cos().abs() < 0.02),
        Node::Binary(Binary::Div | Binary::Rem | Binary::FloorRem, _, b) => near_zero(b),
        // A power of a negative base exists only for whole exponents, so it has no derivative with respect to the
        // exponent.
        Node::Binary(Binary::Pow, a, b) => {
            near_zero(a) || float(a).is_some_and(|a| a < 0.0 && !matches!(program.node(b), Node::Float(_)))
        }
        Node::Binary(Binary::Atan2, a, b) => near_zero(a) && float(b).is_some_and(|b| b < 0.02),
        _ => false,
    };
    let step = |node: Node, value: Value| match node {
        Node::Unary(Unary::Floor | Unary::Ceil, _) => value.float().map(|x| x as i64),
        Node::Unary(Unary::Abs | Unary::Relu | Unary::Elu, a) => float(a).map(|x| i64::from(x > 0.0)),
        Node::Binary(Binary::Min | Binary::Max, a, b) => float(a).zip(float(b)).map(|(a, b)| i64::from(a < b)),
        Node::Binary(Binary::Rem, a, b) => float(a).zip(float(b)).map(|(a, b)| (a / b).trunc() as i64),
        Node::Binary(Binary::FloorRem, a, b) => float(a).zip(float(b)).map(|(a, b)| (a / b).floor() as i64),
        Node::Select { keep, .. } => Some(i64::from(values[keep.at()] == Value::Bool(true))),
        _ => None,
    };
    let mut steps = Vec::new();
    let mut live = vec![false; values.len()];
    live[program.root().at()] = true;
    for (at, &node) in program.nodes().iter().enumerate().rev() {
        if !live[at] {
            continue;
        }
        if pole(node) || values[at].float().is_some_and(wild) {
            return None;
        }
        steps.extend(step(node, values[at]));
        match node {
            Node::Select { keep, yes, no } => {
                live[keep.at()] = true;
                live[if values[keep.at()] == Value::Bool(true) { yes } else { no }.at()] = true;
            }
            other => other.operands().for_each(|id| live[id.at()] = true),
        }
    }
    Some((result.float()?, steps))
}

/// Central difference with respect to the score (or a tensor), unless the point is at or near a kink, a jump or a pole.
pub(crate) fn central(program: &Program, context: &PointContext<'_>, wrt: Wrt) -> Option<f64> {
    let mut tensors = context.tensors.to_vec();
    let here = match wrt {
        Wrt::Score => context.score,
        Wrt::Tensor(id) => tensors[id.at()].float()?,
    };
    let mut shifted = |x: f64| match wrt {
        Wrt::Score => tame(program, &PointContext { score: x, ..*context }),
        Wrt::Tensor(id) => {
            tensors[id.at()] = Value::Float(x);
            tame(program, &PointContext { tensors: &tensors, ..*context })
        }
    };
    let (_, piece) = shifted(here)?;
    let mut on_piece = |x: f64| shifted(x).filter(|(_, steps)| *steps == piece).map(|(value, _)| value);
    let mut slope = |h: f64| Some((on_piece(here + h)? - on_piece(here - h)?) / (2.0 * h));
    let (wide, near, close) = (slope(2e-4)?, slope(1e-4)?, slope(1e-5)?);
    // The error of a central difference decreases with the square of the step; otherwise the point is too close to a
    // pole.
    let richardson = near + (near - wide) / 3.0;
    let scale = 1.0 + richardson.abs();
    ((richardson - close).abs() < 1e-6 * scale && (near - wide).abs() < 1e-3 * scale).then_some(richardson)
}
