//! Building expressions: types, promotion, sharing, the canonical form, and every problem with its place.

mod expr_support;

use expr_support::{any_expr, call, join, point, relate};
use proptest::prelude::*;
use proptest::test_runner::TestRng;
use qkvault_graph::DType;
use qkvault_graph::expr::*;

fn built(e: &Expr) -> ScoreExpr {
    e.build().expect("well typed")
}

fn problems(e: &Expr) -> Vec<ExprError> {
    e.build().expect_err("ill formed").into_list()
}

#[test]
fn rust_numbers_work_on_either_side_of_an_operator() {
    let e = (2.0 * score() + 1).max(0.0) - query() + (1 - key()) * 2 % 3 / 4.0;
    assert_eq!(built(&e).root_ty(), Ty::Float);
    assert_eq!(built(&(true & query().lt(3) | false)).root_ty(), Ty::Bool);
    assert_eq!(built(&(3 - &key() % 2)).root_ty(), Ty::Int);
}

#[test]
fn integers_meeting_floats_become_floats() {
    assert_eq!(built(&(score() / 2)), built(&(score() / 2.0)));
    assert_eq!(built(&(score() + key())), built(&(score() + key().to_float())));
    assert_eq!(built(&score().lt(key())), built(&score().lt(key().to_float())));
    assert_eq!(built(&query().lt(3).select(score(), 1)), built(&query().lt(3).select(score(), 1.0)));
    assert_eq!(built(&score().to_float()), built(&score()));
    // 2^24 + 1 is not a float32, so the conversion stays and the device rounds.
    assert!(built(&(score() + 16_777_217)).contains(Node::Int(16_777_217)));
    assert!(!built(&(score() + 16_777_216)).contains(Node::Int(16_777_216)));
}

#[test]
fn selections_between_truth_values_are_logic() {
    let chosen = query().lt(3).select(key().lt(4), key().lt(5));
    let logic = (query().lt(3) & key().lt(4)) | (!query().lt(3) & key().lt(5));
    assert_eq!(built(&chosen), built(&logic));
}

#[test]
fn the_order_of_writing_does_not_matter() {
    let a = (query().ge(key()) & key().lt(key_len())) & query().lt(query_len());
    let b = query_len().gt(query()) & (key_len().gt(key()) & key().le(query()));
    assert_eq!(built(&a), built(&b));
    let x = scalar("x") * score() + scalar("y");
    let y = scalar("a") + score() * scalar("b");
    assert_eq!(built(&x), built(&y));
    assert_ne!(built(&x), built(&(score() + scalar("x") * scalar("y"))));
}

#[test]
fn names_are_for_display_only() {
    let named = |a: &str, t: &str| {
        built(&(score() * scalar(a) + tensor(t, TensorSpec::new(DType::F32, [1, 8, 1, 1])) * scalar("third")))
    };
    let (one, other) = (named("a", "t"), named("zz", "s"));
    assert_eq!(one, other);
    let hash = |e: &ScoreExpr| {
        let mut state = std::hash::DefaultHasher::new();
        std::hash::Hash::hash(e, &mut state);
        std::hash::Hasher::finish(&state)
    };
    assert_eq!(hash(&one), hash(&other));
    assert_eq!(other.scalar_named("zz"), Some(ScalarId(0)));
    assert_eq!(other.tensor_names(), ["s"]);
    // The same text with another meaning: only the meaning counts.
    let redefined = |e: Expr| built(&e.min(scalar("cap")));
    assert_ne!(redefined(score()), redefined(-score()));
}

#[test]
fn p2b_an_expression_does_not_change_after_it_was_built() {
    let mut width = 3.0;
    let window = |w: f32| built(&score().max(w));
    let before = window(width);
    width += 1.0;
    assert_ne!(window(width), before);
    assert_eq!(window(3.0), before);
}

#[test]
fn p2c_equal_expressions_have_equal_data_every_time() {
    let closure_like = |factor: f32| move |x: Expr| (x * factor).tanh();
    let builds: std::collections::HashSet<ScoreExpr> = (0..100).map(|_| built(&closure_like(0.5)(score()))).collect();
    assert_eq!(builds.len(), 1);
}

#[test]
fn threads_and_memory_do_not_matter() {
    let make = || built(&((score() / scalar("cap")).tanh() * scalar("cap") + key() % 3));
    let here = make();
    let elsewhere: Vec<ScoreExpr> =
        std::thread::scope(|s| (0..4).map(|_| s.spawn(make)).map(|t| t.join().expect("no panic")).collect());
    assert!(elsewhere.iter().all(|e| *e == here));
    drop(here.clone());
    assert_eq!(make(), here);
}

#[test]
fn a_host_scalar_and_a_device_tensor_are_never_the_same() {
    let host = built(&(score() * scalar("x")));
    let element = built(&(score() * tensor("x", TensorSpec::new(DType::F32, [1, 1, 1, 1]))));
    assert_ne!(host, element);
    assert_ne!(built(&scalar("x").eq(0.0)), built(&int_scalar("x").eq(0)));
    let both = score() * scalar("x") + tensor("x", TensorSpec::new(DType::F32, [1, 1, 1, 1]));
    let found = problems(&both);
    assert!(matches!(&found[..], [ExprError::NameConflict { name, .. }] if name == "x"), "{found:?}");
}

#[test]
fn values_of_scalars_are_not_in_the_expression() {
    let softcap = built(&((score() / scalar("cap")).tanh() * scalar("cap")));
    assert_eq!(softcap.scalars(), [ScalarSpec { ty: ScalarTy::Float }]);
    for cap in [30.0, 50.0] {
        let at = PointContext { score: 100.0, scalars: &[Value::Float(cap)], ..PointContext::default() };
        let value = softcap.eval(&at).expect("has its scalar").float().expect("a float");
        assert!((value - cap * (100.0 / cap).tanh()).abs() < 1e-12);
    }
    // A constant is part of the expression.
    assert_ne!(built(&score().min(30.0)), built(&score().min(50.0)));
}

#[test]
fn shared_parts_are_stored_once() {
    let t = || (score() / scalar("cap")).tanh();
    let e = built(&(t() * t() + t()));
    assert_eq!(e.nodes().iter().filter(|n| matches!(n, Node::Unary(Unary::Tanh, _))).count(), 1);
    for (at, node) in e.nodes().iter().enumerate() {
        assert!(node.operands().all(|id| id.at() < at));
    }
    let doubled = (0..60).fold(score(), |x, _| &x + &x);
    assert_eq!(built(&doubled).nodes().len(), 61);
}

#[test]
fn exchangeable_operands_do_not_depend_on_names() {
    let e = |a: &str, b: &str| built(&((scalar(a) + scalar(b)) * scalar(a) + score()));
    assert_eq!(e("a", "b"), e("z", "b"));
    assert_eq!(e("a", "b"), e("b", "a"));
    let many = |names: &[String]| built(&names.iter().fold(score(), |sum, n| sum.max(scalar(n))));
    let names: Vec<String> = (0..MAX_SLOTS).map(|i| format!("s{i}")).collect();
    let mut other = names.clone();
    other.rotate_left(7);
    assert_eq!(many(&names), many(&other));
    // Two pentagons and a ring of ten look alike from every node; only trying every order distinguishes them.
    let ring = |edges: &[(usize, usize)]| {
        let product = |&(a, b): &(usize, usize)| scalar(&format!("s{a}")) * scalar(&format!("s{b}"));
        // Truth values, because chains of floats are not rearranged.
        let edge = |e| product(e).gt(0.0);
        built(&edges.iter().map(edge).reduce(|a, b| a & b).expect("edges"))
    };
    let ten: Vec<(usize, usize)> = (0..10).map(|i| (i, (i + 1) % 10)).collect();
    let turned: Vec<(usize, usize)> = (0..10).rev().map(|i| ((3 * i + 3) % 10, 3 * i % 10)).collect();
    let fives: Vec<(usize, usize)> = (0..10).map(|i| (i, i / 5 * 5 + (i + 1) % 5)).collect();
    assert_eq!(ring(&ten), ring(&turned));
    assert_ne!(ring(&ten), ring(&fives));
}

#[test]
fn the_canonical_order_is_fixed_for_ever() {
    // Keys in vaults depend on these: if one changes, the key format must change.
    let text = |e: Expr| built(&e).to_string();
    let [a, b, c] = ["a", "b", "c"].map(scalar);
    assert_eq!(text((&b + &a) * &a - score()), "scalar $a: float; scalar $b: float; ($a + $b) * $a - score");
    assert_eq!(
        text((&a * &b).gt(&c) & (&b * &c).lt(&a) & c.lt(score())),
        "scalar $c: float; scalar $b: float; scalar $a: float; score > $c & $c * $b < $a & $b * $a > $c"
    );
    let t = |name: &str, dims| tensor(name, TensorSpec::new(DType::F32, dims));
    assert_eq!(
        text(2.0 * t("x", [1, 8, 1, 1]) * key() * t("y", [1, 1, 1, 1]) + (3.0 + score()) * (&a + query_len())),
        "scalar $a: float; tensor @x: f32[1, 8, 1, 1]; tensor @y: f32[1, 1, 1, 1]; (score + 3.0) * (float(query_len) + $a) + float(key) * (@x * 2.0) * @y"
    );
    assert_eq!(
        text(head().eq(3) | (batch().lt(int_scalar("n")) | (int_scalar("n") + 1).ge(key_len()) | query().ne(key()))),
        "scalar $n: int; head == 3 | query != key | batch < $n | $n + 1 >= key_len"
    );
}

#[test]
fn every_problem_is_reported_with_its_place() {
    let e = score().exp().select(key().exp(), query() / 2) + (true & key());
    let found = problems(&e);
    let text: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(
        text,
        [
            "at add.left > select.yes > exp: the only operand of 'exp' is int, but float is needed; convert it with to_float() (`float(x)` in text)",
            "at add.left > select.no > div: the left operand of 'div' is int, but float is needed; convert it with to_float() (`float(x)` in text), or divide integers with floor_div (`//` in text)",
            "at add.right > &: the right operand of '&' is int, but bool is needed; compare it with something to get a truth value",
        ]
    );
    let one = |e: Expr| {
        let found = problems(&e);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].to_string()
    };
    let needs = |e: Expr, part: &str| {
        let text = one(e);
        assert!(text.contains(part), "{text}");
    };
    needs(key().lt(3) + 1.0, "left operand of 'add' is bool, but float or int is needed");
    needs(score().select(1.0, 2.0), "keep operand of 'select' is float, but bool is needed");
    needs(key().lt(3).select(score(), key().lt(2)), "no operand of 'select' is bool");
    needs(!score(), "only operand of '!' is float");
    needs(key().lt(3).lt(key()), "left operand of '<' is bool");
    needs(key().lt(3).to_float(), "is bool, but int is needed");
    needs(score() + f32::NAN, "at add.right > constant: the constant NaN is not finite");
    needs(score() + f32::NEG_INFINITY, "use a large finite number such as -1e9");
    needs(key() % 0, "'rem' by the constant 0");
    needs(key().floor_div(0), "'floor_div' by the constant 0");
    needs(
        key().floor_div(int_scalar("n")),
        "'floor_div' by something that is not a constant; divide by an integer such as 128",
    );
    needs(key().floor_div(query()), "'floor_div' by something that is not a constant");
    needs(
        score().floor_div(2),
        "left operand of 'floor_div' is float, but int is needed; write floor(a / b) for floats",
    );
    needs(key().floor_div(2.0), "left operand of 'floor_div' is float, but int is needed");
    needs(key().lt(3).floor_div(2), "left operand of 'floor_div' is bool, but int is needed");
    needs(score() * scalar("not a name"), "the name 'not a name' is refused");
    needs(score() * scalar(""), "the name '' is refused");
    needs(score() * scalar(&"x".repeat(65)), "at most 64 characters");
    needs(scalar("x") + int_scalar("x"), "'x' is");
    let with = |spec: TensorSpec| score() + tensor("t", spec);
    needs(with(TensorSpec::new(DType::E4M3, [1, 1, 1, 1])), "the tensor 't' is e4m3; f32, f16, bf16");
    needs(with(TensorSpec::new(DType::F32, [1, 0, 1, 1])), "extent 0 over head");
    needs(with(TensorSpec::new(DType::F32, [1, 1, 1 << 31, 1])), "extent 2147483648 over query");
    needs(with(TensorSpec::new(DType::F32, [1 << 20, 1 << 20, 1 << 20, 8])), "fewer than 2^63 elements");
    needs(with(TensorSpec::new(DType::I32, [1, 1, 1, 1]).with_grad()), "only float tensors have one");
    let e = score().build_mask_mod().expect_err("a float").to_string();
    assert!(e.contains("the expression is float, but bool is needed here"), "{e}");
    let e = key().build_score_mod().expect_err("an int").to_string();
    assert!(e.contains("the expression is int, but float is needed here"), "{e}");
}

#[test]
fn limits_are_refusals_not_crashes() {
    let has = |e: Expr, counted: &str| {
        let found = problems(&e);
        assert!(matches!(&found[..], [ExprError::TooMany { what, .. }] if *what == counted), "{counted}: {found:?}");
    };
    has((0..1_000_000).fold(score(), |e, i| e + i as f32), "nodes");
    has((0..MAX_DEPTH as i32 + 1).fold(score(), |e, i| e + i), "operations in one chain");
    has((0..33).fold(score(), |e, i| e + scalar(&format!("s{i}"))), "scalars");
    let spec = TensorSpec::new(DType::F32, [1, 1, 1, 1]);
    has((0..33).fold(score(), |e, i| e + tensor(&format!("t{i}"), spec)), "tensors");
    // None of this overflows the stack, including drops.
    drop((0..1_000_000).fold(score(), |e, _| -e));
}

#[test]
fn broadcasting_is_checked_against_the_scores() {
    let spec = TensorSpec::new(DType::F32, [1, 8, 1, 5]);
    assert_eq!(spec.misfit([4, 8, 3, 5]), None);
    assert_eq!(spec.misfit([4, 8, 3, 6]), Some(Axis::Key));
    assert_eq!(spec.misfit([4, 9, 3, 6]), Some(Axis::Head));
}

/// Writes the same expression in another way: operands exchanged, comparisons reversed, chains regrouped, operands
/// renamed, shared parts repeated. With `change`, one operation is different.
struct Rewriter<'p> {
    program: &'p Program,
    random: TestRng,
    change: Option<usize>,
    memo: Vec<Option<Expr>>,
}

impl Rewriter<'_> {
    fn flip(&mut self) -> bool {
        self.random.random::<bool>()
    }

    fn write(&mut self, id: NodeId) -> Expr {
        if let Some(known) = self.memo[id.at()].clone()
            && self.flip()
        {
            return known;
        }
        let expr = self.node(id);
        // Writing everything anew would take exponential time for shared expressions.
        self.memo[id.at()] = Some(expr.clone());
        expr
    }

    fn two(
        &mut self,
        a: NodeId,
        b: NodeId,
        make: impl Fn(Expr, Expr) -> Expr,
        exchanged: impl Fn(Expr, Expr) -> Expr,
    ) -> Expr {
        let (a, b) = (self.write(a), self.write(b));
        if self.flip() { make(a, b) } else { exchanged(b, a) }
    }

    fn node(&mut self, id: NodeId) -> Expr {
        let changed = self.change == Some(id.at());
        match self.program.node(id) {
            Node::Score => score(),
            Node::Upstream => unreachable!("only in derivatives"),
            Node::Index(axis) => {
                let axes = [batch(), head(), query(), key()];
                axes[(axis.dim() + usize::from(changed)) % 4].clone()
            }
            Node::Length(side) => {
                if (side == Side::Query) != changed {
                    query_len()
                } else {
                    key_len()
                }
            }
            Node::Float(value) => constant(if changed { value.value() + 1.0 } else { value.value() }),
            Node::Int(value) => constant(if changed { value + 1 } else { value }),
            Node::Bool(value) => constant(value != changed),
            Node::Scalar(ScalarId(n)) => {
                let name = format!("renamed_{}", 9 - n);
                let int = self.program.scalars()[n as usize].ty == ScalarTy::Int;
                if int { int_scalar(&name) } else { scalar(&name) }
            }
            Node::Tensor(TensorId(n)) => tensor(&format!("t_{}", 9 - n), self.program.tensors()[n as usize]),
            Node::ToFloat(a) => self.write(a).to_float(),
            Node::Unary(op, a) => {
                let other = if op == Unary::Neg { Unary::Abs } else { Unary::Neg };
                call(if changed { other } else { op }, &self.write(a))
            }
            Node::Binary(op, a, b) => {
                let op = if changed { if op == Binary::Sub { Binary::Max } else { Binary::Sub } } else { op };
                if op.is_commutative() {
                    self.two(a, b, |a, b| join(op, &a, &b), |a, b| join(op, &a, &b))
                } else {
                    let (a, b) = (self.write(a), self.write(b));
                    join(op, &a, &b)
                }
            }
            Node::Compare(op, a, b) => {
                let op = if changed { op.negated() } else { op };
                self.two(a, b, |a, b| relate(op, &a, &b), |a, b| relate(op.flipped(), &a, &b))
            }
            Node::Not(a) => {
                let a = self.write(a);
                if changed { a } else { !a }
            }
            Node::Logic(op, a, b) => {
                let join = |op: Logic, a: Expr, b: Expr| if op == Logic::And { a & b } else { a | b };
                let op = if changed { if op == Logic::And { Logic::Or } else { Logic::And } } else { op };
                match self.program.node(a) {
                    // (x op y) op z equals x op (z op y).
                    Node::Logic(inner, x, y) if inner == op && self.change != Some(a.at()) && self.flip() => {
                        let (x, y, z) = (self.write(x), self.write(y), self.write(b));
                        join(op, x, join(op, z, y))
                    }
                    _ => self.two(a, b, |a, b| join(op, a, b), |a, b| join(op, a, b)),
                }
            }
            Node::Select { keep, yes, no } => {
                let (keep, yes, no) = (self.write(keep), self.write(yes), self.write(no));
                if changed { (!keep).select(yes, no) } else { keep.select(yes, no) }
            }
        }
    }
}

fn rewritten(program: &Program, random: TestRng, change: Option<usize>) -> Expr {
    let mut rewriter = Rewriter { program, random, change, memo: vec![None; program.nodes().len()] };
    rewriter.write(program.root())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equal_meaning_is_equal_data_in_every_form(expr in any_expr(5), random in any::<u64>()) {
        let expr = built(&expr.0);
        let other = built(&rewritten(&expr, rng(random), None));
        prop_assert!(other == expr, "{expr}\n  rewritten\n{other}");
    }

    #[test]
    fn a_different_operation_gives_different_data(expr in any_expr(4), random in any::<u64>(), at in any::<prop::sample::Index>()) {
        let expr = built(&expr.0);
        let at = at.index(expr.nodes().len());
        let fixed = match expr.nodes()[at] {
            Node::Score | Node::Scalar(_) | Node::Tensor(_) | Node::ToFloat(_) => true,
            // At 2^32, adjacent floats are further apart than 1.
            Node::Float(value) => value.value() + 1.0 == value.value(),
            Node::Int(value) => value == i32::MAX,
            _ => false,
        };
        if fixed {
            return Ok(());
        }
        let other = rewritten(&expr, rng(random), Some(at)).build();
        if let Ok(other) = other {
            prop_assert!(other != expr, "node {at} of\n{expr}\n  changed gives the same");
        }
    }

    #[test]
    fn the_canonical_form_is_idempotent_and_keeps_every_value(expr in any_expr(5), point in point()) {
        let expr = built(&expr.0);
        // Deserialising brings the nodes into canonical form again; they already are.
        let again: ScoreExpr = serde_json::from_str(&serde_json::to_string(&expr).expect("plain data")).expect("valid");
        prop_assert_eq!(again.nodes(), expr.nodes());
        let simpler = simplified(&expr);
        let (a, b) = (point.eval(&expr), point.eval(&simpler));
        let same = match (a, b) {
            (Value::Float(a), Value::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
            (a, b) => a == b,
        };
        prop_assert!(same, "{expr} = {a:?}\n  simplified\n{simpler} = {b:?} at {point:?}");
    }
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &bytes)
}

#[test]
fn similar_operands_take_bounded_time() {
    let scalars: Vec<Expr> = (0..MAX_SLOTS).map(|i| scalar(&format!("s{i}"))).collect();
    let pairs = (0..MAX_SLOTS).flat_map(|i| (0..i).map(move |j| (i, j)));
    let every_pair = pairs.map(|(i, j)| (&scalars[i] * &scalars[j]).gt(0.0)).reduce(|a, b| a & b).expect("some");
    let started = std::time::Instant::now();
    // 32 scalars that are all exchangeable, in 500 products: an order is found or refused within bounded time.
    match every_pair.build() {
        Ok(expr) => assert_eq!(expr.scalars().len(), MAX_SLOTS),
        Err(problems) => {
            assert!(matches!(problems.list(), [ExprError::TooSymmetric { operands: 32, .. }]), "{problems}")
        }
    }
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}
