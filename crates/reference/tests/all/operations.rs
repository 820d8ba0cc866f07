//! Every operation of expressions on every class of arguments: what lowering writes, interpreted, has the value that
//! the language defines, and so has the oracle.
//!
//! The arguments come from tensors, with one pair in each row. Scores are 0, so Stats of a row is the value plus log 2,
//! and what is not finite is told apart by the expression itself.

use crate::common;

use common::valid;
use qkvault_cudnn::op::{Constant, Op, TensorId, TensorKind};
use qkvault_cudnn::{CompileOptions, Profile, Target, lower};
use qkvault_graph::arbitrary::domain::NUMBERS;
use qkvault_graph::expr::{Binary, Compare, PointContext, ScoreExpr, Unary, Value, parse_expr};
use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, DType, LibrarySet, Role};
use qkvault_reference::{Buffer, Inputs, Precision, forward, interpret};

/// The expression of a number `v` over `@a` and `@b`, each with one element in each row, with a finite value for each
/// of its own.
fn told(value: &str, ty: &str, rows: usize) -> ScoreExpr {
    let of = |name| format!("tensor @{name}: {ty}[1, 1, {rows}, 1]; ");
    let read: String = ["a", "b"].into_iter().filter(|name| value.contains(&format!("@{name}"))).map(of).collect();
    let text = format!("{read}let v = {value}; score + select(v == v, min(max(v, -1e38), 1e38), 1234.5)");
    parse_expr(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn under(minor: u16) -> Target {
    Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim)
}

/// The value of the language, that of the oracle, and those of lowerings under two versions, row by row.
fn values(e: ScoreExpr, dtype: DType, pairs: &[(f64, f64)]) -> Vec<[f64; 4]> {
    let plain = Attention::bshd(1, (1, 1), (pairs.len() as i64, 2), 8, DType::F16).with_stats();
    let a = valid(plain.with_score_mod(e));
    let e = a.score_mod.as_ref().expect("it has one");
    let mut inputs = Inputs::random(&a, 1).expect("random");
    let zeros = a.q.dims.iter().product::<i64>() as usize;
    inputs.insert(Role::Q, Buffer::from_values(DType::F16, vec![0.0; zeros]));
    let of = |name: &str, pair: &(f64, f64)| if name == "a" { pair.0 } else { pair.1 };
    for (n, name) in e.tensor_names().iter().enumerate() {
        let column = Buffer::from_values(dtype, pairs.iter().map(|pair| of(name, pair)));
        inputs.insert(Role::ScoreTensor(n as u16), column);
    }
    let exact = forward(&a, &inputs).expect("computes");
    let graphs = [19, 27].map(|minor| {
        let graph = lower(&a, &under(minor), &CompileOptions::default()).expect("a dense forward");
        interpret(&graph, &inputs, Precision::Exact).expect("runs").remove(&Role::Stats).expect("requested")
    });
    let row = |(row, pair): (usize, &(f64, f64))| {
        let number = |name: &String| match (of(name, pair), dtype) {
            (x, DType::I32) => Value::Int(x as i32),
            (x, _) => Value::Float(f64::from(x as f32)),
        };
        let tensors: Vec<Value> = e.tensor_names().iter().map(number).collect();
        let at = [0, 0, row as i32, 0];
        let point = PointContext { at, lengths: [pairs.len() as i32, 2], tensors: &tensors, ..PointContext::default() };
        let defined = e.eval(&point).expect("all is given").float().expect("a score");
        let [old, new] = [0, 1].map(|g: usize| graphs[g].at([0, 0, row, 0]));
        let log_2 = std::f64::consts::LN_2;
        [defined + log_2, exact.get(Role::Stats).expect("requested").at(0, 0, row, 0), old, new]
    };
    pairs.iter().enumerate().map(row).collect()
}

/// What differs, of all values.
fn apart(value: &str, ty: &str, pairs: &[(f64, f64)]) -> Vec<String> {
    let near = |x: f64, y: f64| x == y || (x - y).abs() <= 1e-6 * (1.0 + x.abs());
    let dtype = if ty == "i32" { DType::I32 } else { DType::F32 };
    let rows = pairs.iter().zip(values(told(value, ty, pairs.len()), dtype, pairs));
    let apart = rows.filter(|(_, [defined, all @ ..])| !all.iter().all(|&other| near(*defined, other)));
    apart.map(|(pair, values)| format!("{value} at {pair:?}: {values:?}")).collect()
}

fn pairs(of: &[f64]) -> Vec<(f64, f64)> {
    of.iter().flat_map(|&a| of.iter().map(move |&b| (a, b))).collect()
}

#[test]
fn operations_of_one_number_are_lowered_to_what_they_mean_everywhere() {
    let pairs = NUMBERS.map(|a| (f64::from(a), 0.0));
    let one = |op: &Unary| apart(&format!("{op}(@a)"), "f32", &pairs);
    let apart: Vec<String> = Unary::ALL.iter().flat_map(one).collect();
    assert!(apart.is_empty(), "{apart:#?}");
}

/// Where a lowering is documented to differ: 1 with an exponent that is not finite, minus infinity with a fractional
/// one, and a floored remainder of or by numbers of other sizes.
fn is_documented(op: Binary, (a, b): (f64, f64)) -> bool {
    match op {
        Binary::Pow => a.abs() == 1.0 && !b.is_finite() || a == f64::NEG_INFINITY && b.fract() != 0.0,
        Binary::FloorRem => !(1e-3..1e3).contains(&a.abs()) && a != 0.0 || !(1e-3..1e3).contains(&b.abs()),
        _ => false,
    }
}

#[test]
fn operations_of_two_numbers_are_lowered_to_what_they_mean_everywhere() {
    let floats = Binary::ALL.iter().filter(|op| op.takes_float());
    let two = |op: &Binary| {
        let of: Vec<_> = pairs(&NUMBERS.map(f64::from)).into_iter().filter(|&pair| !is_documented(*op, pair)).collect();
        apart(&format!("{op}(@a, @b)"), "f32", &of)
    };
    let apart: Vec<String> = floats.flat_map(two).collect();
    assert!(apart.is_empty(), "{} differ: {:#?}", apart.len(), &apart[..apart.len().min(30)]);
}

/// Through JAX, `s + 0.1 * s**3 + 0.1 * s**2.0` was NaN in every number on a card.
#[test]
fn a_power_of_a_negative_base_by_a_constant_is_what_it_means() {
    let pairs = NUMBERS.map(|a| (f64::from(a), 0.0));
    let exponents = ["0.0", "1.0", "2.0", "3.0", "-1.0", "-2.0", "-3.0", "0.5", "-0.5", "2.5", "64.0", "65.0", "66.0"];
    let by = |b: &str| {
        let fractional = b.ends_with(".5");
        let of = pairs.iter().copied().filter(|pair| !(pair.0 == f64::NEG_INFINITY && fractional));
        apart(&format!("pow(@a, {b})"), "f32", &of.collect::<Vec<_>>())
    };
    let apart: Vec<String> = exponents.into_iter().flat_map(by).collect();
    assert!(apart.is_empty(), "{apart:#?}");
}

#[test]
fn comparisons_with_nan_and_infinities_are_lowered_to_what_they_mean() {
    let both = |op: &Compare| {
        let plain = format!("select(@a {op} @b, 1.0, 0.0)");
        let not = format!("select(!(@a {op} @b), 1.0, 0.0)");
        [plain, not]
            .into_iter()
            .flat_map(|text| apart(&text, "f32", &pairs(&NUMBERS.map(f64::from))))
            .collect::<Vec<_>>()
    };
    let apart: Vec<String> = Compare::ALL.iter().flat_map(both).collect();
    assert!(apart.is_empty(), "{apart:#?}");
}

#[test]
fn operations_of_integers_are_lowered_to_what_they_mean_everywhere() {
    let numbers =
        [0.0, 1.0, -1.0, 3.0, -3.0, 4.0, 127.0, -128.0, 65_536.0, -65_537.0, 2_147_483_647.0, -2_147_483_648.0];
    let far = |op: Binary, (a, b): &(f64, f64)| op == Binary::FloorRem && a.abs() + b.abs() > 16_777_216.0;
    let whole = Binary::ALL.iter().filter(|op| op.takes_int() && **op != Binary::FloorDiv);
    let two = |op: &Binary| {
        let of: Vec<_> = pairs(&numbers).into_iter().filter(|pair| !far(*op, pair)).collect();
        apart(&format!("float({op}(@a, @b))"), "i32", &of)
    };
    let one = ["neg", "abs"].into_iter().flat_map(|op| apart(&format!("float({op}(@a))"), "i32", &pairs(&numbers)));
    let apart: Vec<String> = whole.flat_map(two).chain(one).collect();
    assert!(apart.is_empty(), "{} differ: {:#?}", apart.len(), &apart[..apart.len().min(30)]);
}

/// `floor_rem(query - key, -3)` was off by thousands on a card: cuDNN reads an i32 constant without its sign where it
/// computes in f32.
#[test]
fn no_computation_in_f32_reads_an_i32_constant_below_zero() {
    let texts = ["floor_rem(query - key, -3)", "(query - key) // -3", "(query - key) % -3 * -2", "max(query, -5) - -7"];
    for text in texts {
        let e = parse_expr(&format!("score + float({text})")).expect("reads");
        let plain = Attention::bshd(1, (1, 1), (9, 9), 8, DType::F16).with_stats().with_score_mod(e);
        for a in [plain.clone(), plain.backward(BackwardOptions::default())] {
            let graph = lower(&valid(a), &under(19), &CompileOptions::default()).expect("is lowered");
            let below = |id: TensorId| matches!(graph.tensor(id).kind, TensorKind::Constant(Constant::I32(n)) if n < 0);
            for op in &graph.ops {
                let real = matches!(op, Op::Pointwise { compute: DType::F32, .. });
                assert!(!real || !op.inputs().into_iter().any(below), "{text}: {op:?}\n{graph}");
            }
        }
    }
}
