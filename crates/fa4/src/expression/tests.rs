//! The steps of expressions against their definition: they are evaluated by Python with numbers of float32, at random
//! points, and compared with the value and the derivative in float64.

use std::io::Write as _;
use std::process::{Command, Stdio};

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::expr::{self, Expr, PointContext, ScalarTy, Value, library, position, scalar, score, vjp};
use qkvault_graph::{Attention, DType, validate};
use serde_json::{Value as Json, json};

mod domain;

use super::*;
use crate::compiler::FILES;

const DIMS: [i32; 4] = [2, 4, 7, 9];

/// A number that every 16-bit type holds exactly.
fn number(seed: usize) -> f64 {
    ((seed * 7919 + seed / 3) % 65) as f64 / 8.0 - 4.0
}

fn whole(seed: usize) -> i32 {
    ((seed * 31 + seed / 7) % 17) as i32 - 8
}

/// A function of Python, and the program whose value it has: that of a score modification, or the factor of its
/// backward.
struct PythonCase {
    program: Program,
    name: &'static str,
    code: Function,
    /// How many query heads the kernel takes for one.
    group: i32,
}

impl PythonCase {
    fn modification(e: &ScoreExpr, group: i32) -> PythonCase {
        let code = score_mod(e, slots(e.program()), false);
        PythonCase { program: e.program().clone(), name: "score_mod", code, group }
    }

    fn gradient(e: &ScoreExpr, group: i32) -> Option<PythonCase> {
        let program = vjp(e).ok()?.d_score.program().clone();
        let code = score_mod_bwd(&program, slots(e.program()));
        Some(PythonCase { program, name: "score_mod_bwd", code, group })
    }
}

fn slots(program: &Program) -> Slots {
    Slots { scalar: 0, tensor: program.scalars().len() }
}

/// A place with lengths, score and upstream gradient.
type GradedPlace = ([i32; 4], [i32; 2], f64, f64);

fn places(points: usize) -> Vec<GradedPlace> {
    let place = |i: usize| {
        let at = [0, 1, 2, 3].map(|axis| ((i * [1, 3, 5, 7][axis] + i / 2) % DIMS[axis] as usize) as i32);
        (at, [at[2].max(6) + 1, at[3].max(8) + 1], f64::from((number(i * 13 + 1) * 1.3) as f32), number(i * 5 + 2))
    };
    (0..points).map(place).collect()
}

/// A tensor in the order of a launch's numbers: its elements in place of the address, then the numbers of its dims.
fn tensor(spec: &TensorSpec, n: usize) -> Vec<Json> {
    let count = spec.dims.iter().product::<i64>() as usize;
    let one = |i: usize| if spec.dtype == DType::I32 { json!(whole(i + n)) } else { json!(number(i + n)) };
    let mut list = vec![Json::from_iter((0..count).map(one))];
    for (axis, extent, step) in dims(spec.dims) {
        list.extend(ends(axis).then(|| json!(extent - 1)));
        list.extend((step != 1).then(|| json!(step)));
    }
    list
}

/// What a case is given, in the words of `host.py`.
fn given(PythonCase { program, name, code, group }: &PythonCase, places: &[GradedPlace]) -> Json {
    let scalar = |(n, spec): (usize, &expr::ScalarSpec)| match spec.ty {
        ScalarTy::Float => json!(number(n + 5)),
        ScalarTy::Int => json!(whole(n + 5)),
    };
    let numbers = program.scalars().iter().enumerate().map(scalar);
    let tensors = program.tensors().iter().enumerate().flat_map(|(n, spec)| tensor(spec, n));
    // JSON has no infinities.
    let point = |&([b, h, q, k], [queries, keys], score, upstream): &GradedPlace| {
        json!([b, h, q, k, queries, keys, score.to_string(), upstream])
    };
    let points: Vec<Json> = places.iter().map(point).collect();
    let numbers: Vec<Json> = numbers.chain(tensors).collect();
    // As many scores at a time as the kernels take in each direction.
    let lanes = match *name {
        "mask_mod" => 1,
        "score_mod" => 2,
        _ => 4,
    };
    json!({"code": code, "group": group, "numbers": numbers, "points": points, "lanes": lanes})
}

/// The value in float64.
fn expected(PythonCase { program, name, .. }: &PythonCase, (at, lengths, score, upstream): GradedPlace) -> f64 {
    let element = |(n, spec): (usize, &TensorSpec)| {
        let i = spec.dims.iter().zip(at).fold(0, |i, (&dim, at)| i * dim + if dim > 1 { i64::from(at) } else { 0 });
        match spec.dtype {
            DType::I32 => Value::Int(whole(i as usize + n)),
            _ => Value::Float(number(i as usize + n)),
        }
    };
    let tensors: Vec<Value> = program.tensors().iter().enumerate().map(element).collect();
    let scalar = |(n, spec): (usize, &expr::ScalarSpec)| match spec.ty {
        ScalarTy::Float => Value::Float(number(n + 5)),
        ScalarTy::Int => Value::Int(whole(n + 5)),
    };
    let scalars: Vec<Value> = program.scalars().iter().enumerate().map(scalar).collect();
    let context = PointContext { score, upstream, at, lengths, scalars: &scalars, tensors: &tensors };
    let value = program.eval(&context).expect("everything is given");
    match (*name, value) {
        ("score_mod_bwd", _) if upstream == 0.0 => 0.0,
        ("score_mod_bwd", value) => upstream * value.float().expect("a float"),
        (_, Value::Float(x)) => x,
        (_, Value::Int(n)) => n.into(),
        (_, Value::Bool(truth)) => f64::from(u8::from(truth)),
    }
}

/// Runs all cases at the same points: for each case, the values found and expected.
fn run(cases: &[PythonCase], points: usize) -> Vec<Vec<(f64, f64)>> {
    let places = places(points);
    run_with(cases, points, |case| given(case, &places))
}

/// The same with what each case is given.
fn run_with(cases: &[PythonCase], points: usize, given: impl Fn(&PythonCase) -> Json) -> Vec<Vec<(f64, f64)>> {
    run_at(cases, &places(points), given)
}

/// The same at these places.
fn run_at(cases: &[PythonCase], places: &[GradedPlace], given: impl Fn(&PythonCase) -> Json) -> Vec<Vec<(f64, f64)>> {
    let mut found = values(cases.iter().map(given).collect()).into_iter();
    let mut of =
        |case| places.iter().map(|&place| (found.next().expect("a line each"), expected(case, place))).collect();
    cases.iter().map(&mut of).collect()
}

/// What the functions of all programs give at their points.
fn values(programs: Vec<Json>) -> Vec<f64> {
    let (status, printed) = evaluated(programs);
    assert!(status.success(), "{printed}");
    printed.lines().map(|line| line.parse::<f64>().expect("a number")).collect()
}

/// Evaluates programs in a process of Python: how it ends, and what it prints (its errors, if it fails).
fn evaluated(programs: Vec<Json>) -> (std::process::ExitStatus, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let [program, words, ..] = FILES;
    let files = [("host.py", include_str!("host.py")), program, words];
    let files = files.map(|(name, text)| (folder.path().join(name), text));
    files.iter().for_each(|(path, text)| std::fs::write(path, text).expect("writes"));
    let mut child = Command::new("python3")
        .args(files.iter().map(|(path, _)| path))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a Python, which fetching needs too");
    let mut input = child.stdin.take().expect("a pipe");
    let text = Json::from(programs).to_string();
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let done = child.wait_with_output().expect("ends");
    writer.join().expect("ends").expect("is read");
    let printed = if done.status.success() { done.stdout } else { done.stderr };
    (done.status, String::from_utf8_lossy(&printed).into_owned())
}

fn near(found: f64, expected: f64) -> bool {
    found == expected
        || (found.is_nan() && expected.is_nan())
        || (found - expected).abs() <= 2e-5 * (1.0 + expected.abs())
}

fn built(e: Expr) -> ScoreExpr {
    e.build_score_mod().expect("a score")
}

#[test]
fn functions_of_the_library_compute_what_they_mean_and_their_derivatives() {
    let heads = i64::from(DIMS[1]);
    let distance = || (position() - expr::key()).to_float();
    let list = [
        built(library::softcap(score(), scalar("cap"))),
        built(library::alibi(score(), heads)),
        built(library::softcap(library::alibi(score(), heads), 30.0)),
        built(score() * 2.0 - distance().abs()),
        built(score() * (distance() / 3.0).floor().sqrt()),
    ];
    let cases: Vec<PythonCase> = [1, 3]
        .into_iter()
        .flat_map(|group| {
            list.iter().flat_map(move |e| [Some(PythonCase::modification(e, group)), PythonCase::gradient(e, group)])
        })
        .flatten()
        .collect();
    assert_eq!(cases.len(), 4 * list.len());
    for (case, values) in cases.iter().zip(run(&cases, 40)) {
        for (found, expected) in values {
            assert!(near(found, expected), "{:?}: {found}, {expected} expected", case.code);
        }
    }
}

/// Whether a function has a word.
fn has(code: &Function, word: &str) -> bool {
    code.steps().iter().any(|step| matches!(step, CodeStep::Word(has, _) if *has == word))
}

#[test]
fn a_quotient_by_a_number_of_the_launch_is_a_product() {
    let cap = score_mod(&built(library::softcap(score(), scalar("cap"))), Slots { scalar: 0, tensor: 1 }, false);
    assert!(has(&cap, "reciprocal") && !has(&cap, "div"), "{cap:?}");
    let constant = score_mod(&built(library::softcap(score(), 50.0)), Slots { scalar: 0, tensor: 0 }, false);
    assert!(constant.steps().contains(&real(0.02)) && !has(&constant, "div"), "{constant:?}");
    // Positions are whole numbers, whose quotients may be rounded to such.
    let blocks = (expr::key().to_float() / 3.0).floor();
    let positions = score_mod(&built(score() + blocks), Slots { scalar: 0, tensor: 0 }, false);
    assert!(has(&positions, "div"), "{positions:?}");
}

#[test]
fn gradients_are_guarded_where_a_factor_may_be_infinite() {
    let softcap = PythonCase::gradient(&built(library::softcap(score(), scalar("cap"))), 1).expect("a derivative");
    assert!(!has(&softcap.code, "select"), "{:?}", softcap.code);
    let root = PythonCase::gradient(&built(score().sqrt()), 1).expect("a derivative");
    assert!(matches!(root.code.steps().last(), Some(CodeStep::Word("select", _))), "{:?}", root.code);
}

/// Rows of the lowest float, as padding masks give them, were NaN: kernels multiply scores by the base-2 logarithm of
/// e.
#[test]
fn rows_of_the_lowest_float_stay_numbers_in_base_two() {
    let padded = built(expr::select(&expr::query().ge(3), score(), f32::MIN));
    let code = score_mod(&padded, slots(padded.program()), false);
    let case = PythonCase { program: padded.program().clone(), name: "score_mod", code, group: 1 };
    let mut rows = 0;
    for ((found, expected), (at, ..)) in run(&[case], 40)[0].iter().zip(places(40)) {
        let lowest = at[2] < 3;
        assert!((found * f64::from(std::f32::consts::LOG2_E)).abs() < f64::from(f32::MAX), "{found}");
        assert!(if lowest { *found < -2.2e38 } else { near(*found, *expected) }, "{at:?}: {found}, not {expected}");
        rows += usize::from(lowest);
    }
    assert!(rows > 5, "{rows}");
    // A backward's own scores are far below the log-sum-exp of such rows, and tensors of f16 cannot hold such biases.
    let backward = score_mod(&padded, slots(padded.program()), true);
    let narrow = built(score() + expr::tensor("bias", TensorSpec::new(DType::F16, bias().dims)));
    assert!(!has(&backward, "maximum") && !has(&score_mod(&narrow, slots(narrow.program()), false), "maximum"));
}

/// The audit's first fault: text of a request ran as a program. Now a request has no text that could.
#[test]
fn audit_1_a_request_holds_no_code_and_the_child_runs_none() {
    let marker = tempfile::tempdir().expect("a folder");
    let file = marker.path().join("ran");
    let program = format!("open({:?}, 'w').write('ran')", file.display().to_string());
    let evil = [
        json!([{"word": [program, []]}]),
        json!([{"word": ["__import__", []]}]),
        json!([{"word": ["functools", []]}]),
        json!([{"point": "__class__"}]),
        json!([{"text": program}]),
        json!(program),
    ];
    for code in evil {
        let point = json!([0, 0, 0, 0, 1, 1, 0.0, 0.0]);
        let given = json!({"code": code, "group": 1, "numbers": [], "points": [point], "lanes": 1});
        let (status, words) = evaluated(vec![given]);
        assert!(!status.success() && words.contains("Error"), "{code}: {words}");
    }
    assert!(!file.exists());
}

#[test]
fn predicates_compute_what_they_mean_with_their_bands() {
    let [batch, heads, queries, keys] = DIMS.map(i64::from);
    let softcap = built(library::softcap(score(), scalar("cap")) + expr::tensor("bias", bias()));
    let masks = [library::dilated_window(4, 2), library::document_mask("of_query", "of_key", batch, queries, keys)];
    let prefix = library::prefix_lm("prefix", 1);
    let band = Band { corner: Corner::BottomRight, left: Some(3), right: Some(1) };
    let top = Band { corner: Corner::TopLeft, ..band };
    let mut cases = Vec::new();
    for mask in masks.into_iter().chain([prefix]) {
        let mask = mask.build_mask_mod().expect("a predicate");
        for band in [None, Some(band), Some(top)] {
            let mut a = Attention::bshd(batch, (heads, heads), (queries, keys), 64, DType::F16);
            a = a.with_score_mod(softcap.clone()).with_mask_mod(mask.clone());
            a.mask.band = band;
            let a = validate(a).expect("is valid");
            let e = a.mask.mask_mod.clone().expect("a predicate");
            let code = written(&a).mask_mod.expect("is written");
            cases.push((PythonCase { program: e.program().clone(), name: "mask_mod", code, group: 1 }, a.mask.band));
        }
    }
    let before = given(&PythonCase::modification(&softcap, 1), &[])["numbers"].as_array().expect("numbers").clone();
    // Numbers of the mask follow those of the modification: scalars of both, then tensors of both.
    let (all, bands): (Vec<PythonCase>, Vec<Option<Band>>) = cases.into_iter().unzip();
    let at = places(60);
    let found = run_with(&all, 60, |case| {
        let mut own = given(case, &at);
        let scalars = case.program.scalars().len();
        let mine = own["numbers"].as_array().expect("numbers").clone();
        let (cap, bias) = before.split_at(1);
        let whole = [cap, &mine[..scalars], bias, &mine[scalars..]].concat();
        own["numbers"] = Json::from(whole);
        own
    });
    for ((case, band), values) in all.iter().zip(bands).zip(found) {
        for ((found, expected), (at, lengths, ..)) in values.into_iter().zip(&at) {
            let ahead = |shift: i32| i64::from(at[3] - at[2] - shift);
            let inside = band.is_none_or(|Band { corner, left, right }| {
                let ahead = ahead(if corner == Corner::BottomRight { lengths[1] - lengths[0] } else { 0 });
                left.is_none_or(|left| ahead > -left) && right.is_none_or(|right| ahead <= right)
            });
            assert_eq!(found != 0.0, expected != 0.0 && inside, "{:?}: {at:?}", case.code);
        }
    }
}

#[test]
fn a_block_mask_is_read_bit_by_bit() {
    let (heads, rows, bytes) = (3_i64, 3, 2);
    let mut a = Attention::bshd(2, (heads, heads), (300, 1200), 64, DType::F16);
    a.block_mask = true;
    let a = validate(a).expect("is valid");
    let byte = |i: i64| (i * 37 + 11) % 251;
    let elements: Vec<i64> = (0..2 * heads * rows * bytes).map(byte).collect();
    let numbers: Vec<Json> = arguments(&a)
        .iter()
        .map(|arg| match arg {
            Arg::Address(_) => json!(elements),
            Arg::Long(n) | Arg::Int(n) => json!(n),
            other => panic!("{other:?}"),
        })
        .collect();
    // The last query and key lie behind the sequence: the last row of tiles, and the last byte, stand for theirs.
    let axes = ([0, 1], [0, 2], [0, 127, 128, 299, 400], [0, 127, 128, 1023, 1024, 1199, 1300]);
    let points: Vec<[i64; 4]> = points_of(axes);
    let given: Vec<Json> = points.iter().map(|[b, h, q, k]| json!([b, h, q, k, 300, 1200, 0.0, 0.0])).collect();
    let code = written(&a).mask_mod.expect("is written");
    let program = json!({"code": code, "group": 1, "numbers": numbers, "points": given, "lanes": 1});
    for ([b, h, q, k], found) in points.into_iter().zip(values(vec![program])) {
        let at = ((b * heads + h) * rows + (q / 128).min(rows - 1)) * bytes + (k / 1024).min(bytes - 1);
        assert_eq!(found != 0.0, byte(at) >> (k / 128 % 8) & 1 == 1, "{b} {h} {q} {k}: {code:?}");
    }
}

/// All points of four axes.
fn points_of((b, h, q, k): ([i64; 2], [i64; 2], [i64; 5], [i64; 7])) -> Vec<[i64; 4]> {
    let heads = b.into_iter().flat_map(|b| h.map(|h| [b, h]));
    let queries = heads.flat_map(|[b, h]| q.map(|q| [b, h, q]));
    queries.flat_map(|[b, h, q]| k.map(|k| [b, h, q, k])).collect()
}

fn bias() -> TensorSpec {
    TensorSpec::new(DType::F32, [1, DIMS[1].into(), 1, DIMS[3].into()])
}

#[test]
fn random_expressions_compute_what_they_mean_and_their_derivatives() {
    let features = Features { score_mod: true, ..Features::NONE };
    let space = Space { batch: 2, heads: 2, seq: 9, head_dim: 16, features };
    let mut runner = TestRunner::deterministic();
    let strategy = attention(space).prop_filter("an expression", |a: &Attention| a.score_mod.is_some());
    let drawn = std::iter::repeat_with(|| strategy.new_tree(&mut runner).expect("a value").current());
    let expressions = drawn.take(220).filter_map(|a| validate(a).ok()?.score_mod.clone());
    // Points lie within DIMS, and so must the elements of tensors.
    let inside = |spec: &TensorSpec| spec.dims.iter().zip(DIMS).all(|(&n, most)| n == 1 || n == i64::from(most));
    let cases: Vec<PythonCase> = expressions
        .filter(|e| e.tensors().iter().all(inside))
        .enumerate()
        .flat_map(|(n, e)| {
            let group = 1 + 2 * (n % 2) as i32;
            [Some(PythonCase::modification(&e, group)), PythonCase::gradient(&e, group)]
        })
        .flatten()
        .collect();
    assert!(cases.len() > 100, "{} cases", cases.len());
    let (mut points, mut apart) = (0, Vec::new());
    for (case, values) in cases.iter().zip(run(&cases, 12)) {
        for (found, expected) in values {
            points += 1;
            if !near(found, expected) {
                apart.push(format!("{:?}: {found}, {expected} expected", case.code));
            }
        }
    }
    // Roundings of float32 decide a comparison or a whole part now and then, and grow in ill-conditioned expressions.
    let first = &apart[..apart.len().min(3)];
    assert!(apart.len() * 50 <= points, "{} of {points} points differ: {first:#?}", apart.len());
}
