//! Generated code against the definition: functions are compiled by the host's C++ compiler and compared with
//! [`Program::eval`] in float64, at random points.

use std::fmt::Write as _;

use half::{bf16, f16};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_graph::arbitrary::{Features, Space, attention, domain};
use qkvault_graph::expr::{PointContext, ScalarTy, Value, library};
use qkvault_graph::{Attention, Valid, validate};

use super::*;
use crate::score::{self, CAPPED};

const DIMS: [i32; 4] = [2, 4, 7, 9];

/// A number that every 16-bit type holds exactly.
fn number(seed: usize) -> f32 {
    ((seed * 7919 + seed / 3) % 65) as f32 / 8.0 - 4.0
}

fn whole(seed: usize) -> i32 {
    ((seed * 31 + seed / 7) % 17) as i32 - 8
}

/// A program in a namespace of its own, with its tensors and a function that prints its value at a point.
fn namespace(at: usize, program: &Program, [query, key]: [i32; 2]) -> String {
    let (mut fields, mut arrays, mut set) = (String::new(), String::new(), String::new());
    for (n, spec) in program.tensors().iter().enumerate() {
        let elements = spec.dims.iter().product::<i64>() as usize;
        let list: Vec<String> = (0..elements)
            .map(|i| match spec.dtype {
                DType::F16 => f16::from_f32(number(i + n)).to_bits().to_string(),
                DType::BF16 => bf16::from_f32(number(i + n)).to_bits().to_string(),
                DType::I32 => whole(i + n).to_string(),
                _ => format!("{:?}f", number(i + n)),
            })
            .collect();
        let ty = element_type(spec.dtype);
        let _ = writeln!(fields, "  {ty}* tensor{n};");
        let _ = writeln!(arrays, "static {ty} array{n}[] = {{{}}};", list.join(", "));
        let _ = write!(set, "p.tensor{n} = array{n}; ");
    }
    for (n, spec) in program.scalars().iter().enumerate() {
        let (ty, value) = match spec.ty {
            ScalarTy::Float => ("float", format!("{:?}f", number(n + 5))),
            ScalarTy::Int => ("int", whole(n + 5).to_string()),
        };
        let _ = writeln!(fields, "  {ty} scalar{n};");
        let _ = write!(set, "p.scalar{n} = {value}; ");
    }
    let origins = [query, key] != [0, 0];
    if origins {
        fields.push_str("  int query_origin, key_origin;\n");
        let _ = write!(set, "p.query_origin = {query}; p.key_origin = {key}; ");
    }
    let functions = score::functions(program, origins, false);
    // As a softmax takes them, one by one.
    format!(
        "namespace program{at} {{\nstruct Params {{\n{fields}  float scale;\n}};\n{arrays}{functions}\
         static double value(const Point& point, float score) {{\n  Params p; p.scale = 1.f; {set}\n\
         #if HAS_NEAR\n  float furthest = 0.f;\n  const float near = modified_near(p, point, score, furthest);\n  \
         if (!(furthest > near_limit(p))) return (double)near;\n#endif\n#undef HAS_NEAR\n  \
         return (double)modified(p, point, score);\n}}\n}}\n"
    )
}

/// The value in float64.
fn expected(program: &Program, mut at: [i32; 4], [query, key]: [i32; 2], lengths: [i32; 2], score: f64) -> f64 {
    let tensors: Vec<Value> = (program.tensors().iter().enumerate())
        .map(|(n, spec)| {
            let i = spec.dims.iter().zip(at).fold(0, |i, (&dim, at)| i * dim + if dim > 1 { i64::from(at) } else { 0 });
            match spec.dtype {
                DType::I32 => Value::Int(whole(i as usize + n)),
                _ => Value::Float(number(i as usize + n).into()),
            }
        })
        .collect();
    let scalars: Vec<Value> = (program.scalars().iter().enumerate())
        .map(|(n, spec)| match spec.ty {
            ScalarTy::Float => Value::Float(number(n + 5).into()),
            ScalarTy::Int => Value::Int(whole(n + 5)),
        })
        .collect();
    (at[2], at[3]) = (at[2] + query, at[3] + key);
    let context = PointContext { score, upstream: 0.0, at, lengths, scalars: &scalars, tensors: &tensors };
    match program.eval(&context).expect("everything is given") {
        Value::Float(x) => x,
        Value::Int(n) => n.into(),
        Value::Bool(truth) => f64::from(u8::from(truth)),
    }
}

/// The origins of a program: every other one has some.
fn origins(program: usize) -> [i32; 2] {
    if program % 2 == 1 { [37, 5] } else { [0, 0] }
}

/// Runs all programs at the same points: for each program, the values found and expected.
fn run(programs: &[&Program], points: usize) -> Vec<Vec<(f64, f64)>> {
    let places: Vec<ScoredPlace> = (0..points)
        .map(|i| {
            let at = [0, 1, 2, 3].map(|axis| ((i * [1, 3, 5, 7][axis] + i / 2) % DIMS[axis] as usize) as i32);
            (at, [at[2].max(6) + 1, at[3].max(8) + 1], number(i * 13 + 1) * 1.3)
        })
        .collect();
    run_at(programs, &places)
}

/// A place, its lengths and its score.
type ScoredPlace = ([i32; 4], [i32; 2], f32);

/// The same at these places.
fn run_at(programs: &[&Program], places: &[ScoredPlace]) -> Vec<Vec<(f64, f64)>> {
    let mut text = format!("struct Point {{ int batch, head, query, key, queries, keys; }};\n{FUNCTIONS}{CAPPED}");
    programs.iter().enumerate().for_each(|(at, program)| text.push_str(&namespace(at, program, origins(at))));
    text.push_str("int main() {\n");
    for at in 0..programs.len() {
        for ([b, h, q, k], [queries, keys], score) in places {
            let score = format!("__uint_as_float({}u)", score.to_bits());
            let point = format!("Point{{{b}, {h}, {q}, {k}, {queries}, {keys}}}");
            let _ = writeln!(text, "  printf(\"%.17g\\n\", program{at}::value({point}, {score}));");
        }
    }
    text.push_str("}\n");
    let printed = qkvault_emulate::printed(&text).unwrap_or_else(|error| panic!("{error}"));
    let mut found = printed.lines().map(|line| line.parse::<f64>().expect("a number"));
    programs
        .iter()
        .enumerate()
        .map(|(n, program)| {
            let one = |(at, lengths, score): &ScoredPlace| {
                (found.next().expect("a line each"), expected(program, *at, origins(n), *lengths, (*score).into()))
            };
            places.iter().map(one).collect()
        })
        .collect()
}

fn near(found: f64, expected: f64) -> bool {
    found == expected
        || (found.is_nan() && expected.is_nan())
        || (found - expected).abs() <= 2e-5 * (1.0 + expected.abs())
}

fn of_library(program: Attention) -> Valid {
    validate(program).expect("is valid")
}

#[test]
fn functions_of_the_library_compute_what_they_mean() {
    let [batch, heads, queries, keys] = DIMS.map(i64::from);
    let plain = || Attention::bshd(batch, (heads, heads), (queries, keys), 64, DType::F16);
    let score =
        |e: qkvault_graph::expr::Expr| of_library(plain().with_score_mod(e.build_score_mod().expect("a score")));
    let mask =
        |e: qkvault_graph::expr::Expr| of_library(plain().with_mask_mod(e.build_mask_mod().expect("a predicate")));
    use qkvault_graph::expr::{position, scalar, score as s};
    let list = [
        score(library::softcap(s(), scalar("cap"))),
        score(library::alibi(s(), heads)),
        score(s() * 2.0 - (position() - qkvault_graph::expr::key()).to_float().abs()),
        mask(library::dilated_window(4, 2)),
        mask(library::prefix_lm("prefix", 1)),
        mask(library::document_mask("of_query", "of_key", batch, queries, keys)),
    ];
    let programs: Vec<&Program> = list
        .iter()
        .map(|a| a.score_mod.as_ref().or(a.mask.mask_mod.as_ref()).expect("an expression").program())
        .collect();
    for (attention, values) in list.iter().zip(run(&programs, 40)) {
        for (found, expected) in values {
            assert!(near(found, expected), "{attention}: {found}, {expected} expected");
        }
    }
}

/// Caps of all sizes, a number of the launch among them, are as exact as a score in 32 bits: to 5e-7 of themselves.
#[test]
fn caps_of_scores_are_fast_and_as_exact_as_scores() {
    use qkvault_graph::expr::{scalar, score as s};
    let build = |e: qkvault_graph::expr::Expr| e.build_score_mod().expect("a score");
    let mut list = vec![build(library::softcap(s(), scalar("cap"))), build(s().tanh()), build(s() * s().tanh())];
    list.extend([1e-3, 1.0, 30.0, 50.0, 1000.0, 20_000.0, 1e7].map(|by: f32| build(library::softcap(s(), by))));
    list.extend([build((s() * 0.02).tanh() * 50.0), build(((s() + 1.0) / 30.0).tanh() * 30.0 + s())]);
    let programs: Vec<&Program> = list.iter().map(|e| e.program()).collect();
    let places: Vec<ScoredPlace> = (-900..900)
        .map(|n: i32| {
            let size = 10f32.powf((n.abs() % 300) as f32 / 30.0 - 3.0);
            ([0; 4], [7, 9], size * n.signum() as f32)
        })
        .chain([0.0, f32::INFINITY, f32::NEG_INFINITY, 3e38, -3e38, 0.625, 31.25, 18.75].map(|s| ([0; 4], [7, 9], s)))
        .collect();
    let found = run_at(&programs, &places);
    for (program, values) in programs.iter().zip(&found) {
        for (found, expected) in values {
            let bound = expected.abs() * 5e-7 + 1e-37;
            let sum = program.nodes().iter().any(|node| matches!(node, Node::Binary(Binary::Add, ..)));
            let bound = if sum { bound + 2e-6 } else { bound };
            assert!(
                found == expected || (found - expected).abs() <= bound,
                "{program:?}: {found}, {expected} expected"
            );
        }
    }
    let text =
        |e: qkvault_graph::expr::Expr| score::functions(e.build_score_mod().expect("a score").program(), false, false);
    assert!(text(library::softcap(s(), scalar("cap"))).contains("near_capped(cap_of_scores(p), product, furthest)"));
    for other in [s() * s().tanh(), library::softcap(s() + 1.0, 5.0), library::softcap(s(), 5.0) + (s() / 5.0).tanh()] {
        let text = text(other);
        assert!(!text.contains("capped(") && text.contains("any_tanh(") && text.contains("near_tanh("), "{text}");
    }
}

/// Where all arguments are near, both ways have the same bits, and what is far says so: the result of an invariant
/// attention must not depend on its neighbours.
#[test]
fn caps_of_near_scores_have_the_same_bits() {
    use qkvault_graph::expr::{scalar, score as s};
    let list = [
        library::softcap(s(), scalar("cap")),
        library::softcap(s(), 50.0),
        (s() * 0.02).tanh() * 50.0,
        (s() * 0.1).tanh() * s(),
        (library::softcap(s(), 30.0) * 0.125).tanh() * 8.0,
    ]
    .map(|e| e.build_score_mod().expect("a score"));
    let scores: Vec<u32> =
        (0..2000u32).map(|n| (10f32.powf(n as f32 / 500.0 - 2.0)).to_bits() | (n & 1) << 31).collect();
    let mut text = format!("struct Point {{ int batch, head, query, key, queries, keys; }};\n{FUNCTIONS}{CAPPED}");
    for (at, e) in list.iter().enumerate() {
        let functions = score::functions(e.program(), false, true);
        assert!(functions.contains("modified_near"), "{e:?}");
        let _ = writeln!(text, "namespace program{at} {{ struct Params {{ float scale, scalar0; }};\n{functions}}}");
        text.push_str("#undef HAS_NEAR\n");
    }
    text.push_str("int main() {\n  const Point at = {};\n");
    for (at, score) in (0..list.len()).flat_map(|at| scores.iter().map(move |score| (at, score))) {
        let _ = writeln!(
            text,
            "  {{ using namespace program{at}; Params p{{0.5f, 20.f}};\n\
             float far = 0.f, x = __uint_as_float({score}u);\n\
             const float b = modified_near(p, at, x, far), a = modified(p, at, x);\n\
             printf(\"%d %d\\n\", far > near_limit(p), __float_as_uint(a) == __float_as_uint(b)); }}"
        );
    }
    text.push_str("}\n");
    let printed = qkvault_emulate::printed(&text).unwrap_or_else(|error| panic!("{error}"));
    let (mut far, mut near) = (0, 0);
    for line in printed.lines() {
        match line {
            "0 1" => near += 1,
            "1 0" | "1 1" => far += 1,
            _ => panic!("near, and other bits"),
        }
    }
    assert!(near > 5000 && far > 1000, "{near} near, {far} far");
    let added = (library::softcap(s(), 50.0) + 1.0).build_score_mod().expect("a score");
    let near = |invariant| score::functions(added.program(), false, invariant).contains("near");
    assert!(near(false) && !near(true));
}

#[test]
fn random_expressions_compute_what_they_mean() {
    let features = Features { score_mod: true, mask_mod: true, ..Features::NONE };
    let space = Space { batch: 2, heads: 2, seq: 9, head_dim: 16, features };
    let mut runner = TestRunner::deterministic();
    let with = |a: &Attention| a.score_mod.is_some() || a.mask.mask_mod.is_some();
    let strategy = attention(space).prop_filter("an expression", with);
    let list: Vec<Valid> = std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current())
        .filter(|a| a.q.dims[..3].iter().zip(DIMS).all(|(&n, most)| n <= i64::from(most)))
        .map(|a| validate(a).expect("is valid"))
        .take(150)
        .collect();
    let programs: Vec<&Program> = list
        .iter()
        .flat_map(|a| [a.score_mod.as_ref(), a.mask.mask_mod.as_ref()])
        .flatten()
        .map(|e| e.program())
        // Points lie within DIMS, and so must the elements of tensors.
        .filter(|p| {
            p.tensors().iter().all(|t| t.dims.iter().zip(DIMS).all(|(&n, most)| n == 1 || n == i64::from(most)))
        })
        .collect();
    assert!(programs.len() > 80, "{} programs", programs.len());
    let (mut points, mut apart) = (0, Vec::new());
    for (program, values) in programs.iter().zip(run(&programs, 12)) {
        for (found, expected) in values {
            points += 1;
            if !near(found, expected) {
                apart.push(format!("{program:?}: {found}, {expected} expected"));
            }
        }
    }
    // Roundings of float32 decide a comparison or a whole part now and then, and grow in ill-conditioned expressions.
    assert!(
        apart.len() * 50 <= points,
        "{} of {points} points differ: {:#?}",
        apart.len(),
        &apart[..apart.len().min(5)]
    );
}

#[test]
fn every_operation_computes_what_it_means_over_its_whole_domain() {
    let texts = domain::of_every_operation();
    let read = |text: &String| qkvault_graph::expr::parse_expr(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    let list: Vec<_> = texts.iter().map(read).collect();
    let programs: Vec<&Program> = list.iter().map(|e| e.program()).collect();
    let places = domain::NUMBERS.map(|score| ([0; 4], [7, 9], score));
    let mut apart = Vec::new();
    for (text, values) in texts.iter().zip(run_at(&programs, &places)) {
        for (score, (found, expected)) in domain::NUMBERS.iter().zip(values) {
            // Beyond the largest float32 are infinities.
            if !near(found, f64::from(expected as f32)) {
                apart.push(format!("{text} at {score}: {found}, {expected} expected"));
            }
        }
    }
    assert!(apart.is_empty(), "{} differ: {:#?}", apart.len(), &apart[..apart.len().min(30)]);
}
