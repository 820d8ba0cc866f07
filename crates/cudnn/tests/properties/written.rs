//! Op graphs, line by line, for differences that an interpreter does not see and cuDNN does: types of results and of
//! computations, selections beyond the last row and key, numbers per sequence.

use qkvault_cudnn::{CompileOptions, OpGraph, Profile, VariantSet, lower};
use qkvault_graph::{CudnnVersion, LibrarySet, text, validate};

fn graph(given: &str, minor: u16, without: VariantSet) -> OpGraph {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    lower(
        &valid,
        &target,
        &CompileOptions { lab: qkvault_cudnn::LabOptions::without(without), ..CompileOptions::default() },
    )
    .expect("it is lowered")
}

/// The lines of an op graph, without the numbers of results.
fn lines(given: &str, minor: u16) -> Vec<String> {
    let text = graph(given, minor, VariantSet::NONE).to_string();
    let bare = |line: &str| {
        let mut parts = line.split('%');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |text, part| text + "%" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
    };
    text.lines().map(bare).collect()
}

/// Whether a graph contains lines in this order, with or without others in between.
fn holds(graph: &[String], wanted: &[&str]) -> bool {
    let mut rest = graph.iter();
    wanted.iter().all(|line| rest.any(|l| l == line))
}

/// If a tile extends beyond the last row and key, a gradient there is zero: first by the key, then by the query.
#[test]
fn a_gradient_is_hidden_beyond_its_own_numbers_of_keys_and_queries() {
    let given = "pass: backward\nq: f16 [1,2,200,64]\nk: [1,2,136,64]\nscore_mod: score * score";
    let found = lines(given, 19);
    let scores = [
        "%:i32[1,2,200,136] = gen-index % axis=2 in i32",
        "%:i32[1,2,200,136] = gen-index % axis=3 in i32",
        "%:bool[1,2,200,136] = cmp-lt % 200i in bool",
        "%:bool[1,2,200,136] = cmp-lt % 136i in bool",
        "%:bool[1,2,200,136] = and % % in bool",
        "%:f32[1,2,200,136] = select % -inf when=%",
        "%:f32[1,2,200,136] = exp %",
    ];
    let gradient = [
        "%:i32[1,2,200,136] = gen-index % axis=3 in i32",
        "%:bool[1,2,200,136] = cmp-lt % 136i in bool",
        "%:f32[1,2,200,136] = select % 0.0 when=%",
        "%:i32[1,2,200,136] = gen-index % axis=2 in i32",
        "%:bool[1,2,200,136] = cmp-lt % 200i in bool",
        "%:f32[1,2,200,136] = select % 0.0 when=%",
        "%:f32[1,2,200,136] = mul % <Scale>",
    ];
    assert!(holds(&found, &[&scores[..], &gradient].concat()), "{}", found.join("\n"));
}

/// Whole tiles need no hiding; one side that is not whole does.
#[test]
fn tails_are_hidden_if_queries_or_keys_do_not_fill_tiles() {
    let selects = |q: i64, k: i64, score: &str| {
        let given = format!("pass: backward\nq: f16 [1,2,{q},64]\nk: [1,2,{k},64]\nscore_mod: {score}");
        lines(&given, 19).iter().filter(|l| l.contains(" = select ")).count()
    };
    let seen = [(256, 384), (256, 200), (200, 256), (200, 200)].map(|(q, k)| selects(q, k, "score * score"));
    assert_eq!(seen, [0, 3, 3, 3]);
    // Expressions that stay finite at minus infinity and at zero are not hidden; positions and tensors may be anything
    // beyond the last key.
    for score in ["tanh(score)", "score + 1.0", "score * 2.0", "scalar $a: float; score + $a * tanh(score)"] {
        assert_eq!(selects(200, 200, score), 0, "{score}");
    }
    for score in [
        "exp(score * score)",
        "score * float(key)",
        "score * float(query + 1)",
        "score + float(key)",
        "tensor @t: f32[1, 1, 200, 200]; score + @t",
        "tanh(score) + score * float(head)",
        "tensor @t: f32[1, 1, 200, 200]; score * @t",
        "0.0 - score",
        "tanh(score * score)",
        "log(score)",
        "1.0 / score",
        "scalar $a: float; score * $a",
    ] {
        assert_eq!(selects(200, 200, score), 3, "{score}");
    }
}

/// The remainder with the sign of the divisor is written with a quotient, which is a fraction also for two integers.
#[test]
fn a_floored_remainder_is_computed_in_f32_and_has_the_type_of_its_operands() {
    let given = |e: &str| format!("q: f16 [2,2,8,64]\nk: [2,2,300,64]\n{e}");
    let of_integers = [
        "%:f32[2,2,8,300] = div % 7i",
        "%:f32[2,2,8,300] = floor %",
        "%:i32[2,2,8,300] = mul % 7i",
        "%:i32[2,2,8,300] = sub % % in i32",
        "%:i32[2,2,8,300] = cmp-lt % 3i in bool",
    ];
    let of_scores = [
        "%:f32[2,2,8,300] = div % 7.0",
        "%:f32[2,2,8,300] = floor %",
        "%:f32[2,2,8,300] = mul % 7.0",
        "%:f32[2,2,8,300] = sub % %",
    ];
    let found = lines(&given("mask_mod: floor_rem(key, 7) < 3"), 19);
    assert!(holds(&found, &of_integers), "{}", found.join("\n"));
    let found = lines(&given("score_mod: score + floor_rem(score, 7.0)"), 19);
    assert!(holds(&found, &of_scores), "{}", found.join("\n"));
}

/// A floor division is a product with the reciprocal, after 0.5 is added if the product is not exact.
#[test]
fn a_whole_quotient_is_a_product_in_f32_and_an_integer() {
    let given = |by: i32| format!("q: f16 [2,2,8,64]\nk: [2,2,300,64]\nmask_mod: key // {by} < 3");
    let by_two = [
        "%:f32[2,2,8,300] = identity %",
        "%:f32[2,2,8,300] = mul % 0.0078125",
        "%:f32[2,2,8,300] = floor %",
        "%:i32[2,2,8,300] = mul % 1i",
        "%:i32[2,2,8,300] = cmp-lt % 3i in bool",
    ];
    let by_others = ["%:f32[2,2,8,300] = identity %", "%:f32[2,2,8,300] = add % 0.5", "%:f32[2,2,8,300] = mul % 0.01"];
    let below = ["%:f32[2,2,8,300] = add % -0.5", "%:f32[2,2,8,300] = mul % -0.01", "%:f32[2,2,8,300] = floor %"];
    for (by, lines_of) in [(128, &by_two[..]), (100, &by_others), (-100, &below)] {
        let found = lines(&given(by), 19);
        assert!(holds(&found, lines_of), "{by}\n{}", found.join("\n"));
    }
}

/// Truth values of integers are compared as integers, those of floats in f32; there are no boolean constants.
#[test]
fn comparisons_are_computed_in_the_type_of_their_operands() {
    let given = "q: f16 [2,2,8,64]\nk: [2,2,300,64]\nscore_mod: select(key < 5, select(score > 1.0, score, 2.0), 3.0)";
    let found = lines(given, 19);
    for line in ["%:i32[2,2,8,300] = cmp-lt % 5i in bool", "%:i32[2,2,8,300] = cmp-gt % 1.0"] {
        assert!(holds(&found, &[line]), "{line}\n{}", found.join("\n"));
    }
    let found = lines("q: f16 [2,2,8,64]\nmask_mod: (key % 7 < 3) & true", 19);
    let truth = ["%:i32[2,2,8,8] = gen-index % axis=3 in i32", "%:i32[2,2,8,8] = cmp-ge % 0i in bool"];
    assert!(holds(&found, &truth), "{}", found.join("\n"));
}

/// `c op x` is written as `x op' c`: cuDNN needs a computed tensor first.
#[test]
fn every_operation_that_can_exchange_operands_does() {
    for (score, line) in [
        ("$a + score", "add % <scalar 0>"),
        ("$a * score", "mul % <scalar 0>"),
        ("min($a, score)", "min % <scalar 0>"),
        ("max($a, score)", "max % <scalar 0>"),
        ("score + select($a < score, 1.0, score)", "cmp-gt % <scalar 0>"),
        ("score + select($a <= score, 1.0, score)", "cmp-ge % <scalar 0>"),
        ("score + select($a > score, 1.0, score)", "cmp-lt % <scalar 0>"),
        ("score + select($a >= score, 1.0, score)", "cmp-le % <scalar 0>"),
        ("score + select($a == score, 1.0, score)", "cmp-eq % <scalar 0>"),
        ("score + select($a != score, 1.0, score)", "cmp-neq % <scalar 0>"),
    ] {
        let found = lines(&format!("q: f16 [1,2,64,64]\nscore_mod: scalar $a: float; {score}"), 19);
        assert!(found.iter().any(|l| l.ends_with(line)), "{score}\n{}", found.join("\n"));
        assert!(!found.iter().any(|l| l.contains(" <scalar 0> %")), "{score}\n{}", found.join("\n"));
    }
}

/// In canonical order a tensor comes before results of scalars only, and in an operation after them.
#[test]
fn results_of_scalars_are_read_before_a_tensor() {
    for (inner, line) in [
        ("@t + $a * $b", "add"),
        ("@t * ($a + $b)", "mul"),
        ("min(@t, $a * $b)", "min"),
        ("max(@t, $a * $b)", "max"),
        ("select(@t < $a * $b, 1.0, score)", "cmp-gt"),
        ("select(@t <= $a * $b, 1.0, score)", "cmp-ge"),
        ("select($a * $b < @t, 1.0, score)", "cmp-lt"),
        ("select($a * $b <= @t, 1.0, score)", "cmp-le"),
        ("select(@t == $a * $b, 1.0, score)", "cmp-eq"),
        ("select(@t != $a * $b, 1.0, score)", "cmp-neq"),
    ] {
        let head = "scalar $a: float; scalar $b: float; tensor @t: f32[1, 2, 64, 64]";
        let found = lines(&format!("q: f16 [1,2,64,64]\nscore_mod: {head}; score + ({inner})"), 19);
        let wanted = format!("{line} % <score tensor 0>");
        assert!(found.iter().any(|l| l.ends_with(&wanted)), "{inner}\n{}", found.join("\n"));
        assert!(!found.iter().any(|l| l.contains("add % <score tensor 0>")) || line == "add", "{inner}");
    }
}

/// A zero in an integer divisor is replaced by one, so that no remainder is undefined.
#[test]
fn a_divisor_that_may_be_zero_is_chosen_in_its_own_type() {
    let found = lines("q: f16 [1,2,64,64]\nmask_mod: scalar $n: int; key % $n < 3", 19);
    let wanted = ["%:i32[1,2,64,64] = cmp-eq % 0i in bool", "%:i32[1,2,64,64] = select % <scalar 0> when=% in i32"];
    assert!(holds(&found, &wanted), "{}", found.join("\n"));
}

/// A selection between two computed tensors is unchanged; of two from memory, the first one gets a computed zero added.
#[test]
fn a_selection_is_inverted_only_if_its_first_choice_is_not_computed() {
    let selects = |score: &str| {
        let given = format!("q: f16 [1,2,64,64]\nscore_mod: scalar $a: float; scalar $b: float; {score}");
        let found = lines(&given, 19);
        let (select, not) =
            (found.iter().find(|l| l.contains(" = select ")), found.iter().any(|l| l.contains(" = not ")));
        let select = select.and_then(|l| l.split(" = ").nth(1)).unwrap_or_default().to_owned();
        (select, not)
    };
    let seen = |text: &str, not| (text.to_owned(), not);
    // Nothing is added to a first choice that is computed.
    let plain = "q: f16 [1,2,64,64]\nscore_mod: select(key < 5, score, score * 2.0)";
    assert!(!lines(plain, 19).iter().any(|l| l.contains(" = identity ")));
    assert_eq!(selects("select(key < 5, score, $a * score * $b)"), seen("select % % when=%", false));
    assert_eq!(selects("select(key < 5, score, $a * $b)"), seen("select % % when=%", false));
    assert_eq!(selects("select(key < 5, score * $a, $b)"), seen("select % <scalar 1> when=%", false));
    assert_eq!(selects("select(key < 5, $a, score * $b)"), seen("select % <scalar 0> when=%", true));
    assert_eq!(selects("score + select(key < 5, $a, $b)"), seen("select % <scalar 1> when=%", false));
}

/// With one query, 9.26 and newer treat an addition of a number per sequence as a bias; in a backward they crash if one
/// f32 is subtracted.
#[test]
fn a_number_per_sequence_is_added_by_subtracting_its_negative_in_f32() {
    let one_query = "q: f16 [2,4,1,64]\nk: [2,4,256,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score + @t";
    let zero = ["%:i32[2,4,1,256] = sub % % in i32", "%:f32[2,4,1,256] = identity %"];
    let negated = ["%:f32[2,4,1,256] = sub % <score tensor 0>", "%:f32[2,4,1,256] = sub % %"];
    let found = lines(one_query, 27);
    assert!(holds(&found, &[zero, negated].concat()), "{}", found.join("\n"));
    assert!(!found.contains(&"%:f32[2,4,1,256] = add % %".to_owned()), "{}", found.join("\n"));
    let backward = "pass: backward\nq: bf16 [1,2,64,64]\nscore_mod: tensor @t: f32[1, 1, 1, 1]; tanh(score - @t)";
    let lifted =
        ["%:f32[1,2,64,64] = add % <score tensor 0>", "%:f32[1,2,64,64] = sub % %", "%:f32[1,2,64,64] = tanh %"];
    let found = lines(backward, 27);
    assert!(holds(&found, &lifted), "{}", found.join("\n"));
}

/// Tensors that are broadcast over the queries are declared with all queries, and those of one query with all keys.
/// Tensors with a number for each, a single number, and one number per head are declared as they are.
#[test]
fn tensors_are_declared_whole_only_along_broadcast_axes() {
    let declared = |q: i64, dims: &str| {
        let given = format!("q: f16 [2,4,{q},64]\nk: [2,4,64,64]\nscore_mod: tensor @t: f32[{dims}]; score + @t");
        let found = lines(&given, 19);
        let line = found.iter().find(|l| l.starts_with("operand <score tensor 0>")).cloned().unwrap_or_default();
        line.trim_start_matches("operand <score tensor 0> f32 ").to_owned()
    };
    assert_eq!(declared(2, "2, 1, 1, 1"), "[2,1,2,1] strides [1,1,0,1]");
    assert_eq!(declared(2, "1, 1, 1, 64"), "[1,1,2,64] strides [64,64,0,1]");
    assert_eq!(declared(1, "2, 1, 1, 1"), "[2,1,1,64] strides [1,1,1,0]");
    let two = lines("q: f16 [1,4,2,64]\nk: [1,4,2,64]\nscore_mod: tensor @t: f32[1, 1, 1, 2]; score + @t", 19);
    assert!(two.contains(&"operand <score tensor 0> f32 [1,1,2,2] strides [2,2,0,1]".to_owned()), "{}", two.join("\n"));
    for (q, dims) in [
        (2, "[1,1,1,1] strides [1,1,1,1]"),
        (2, "[1,4,1,1] strides [4,1,1,1]"),
        (2, "[2,1,2,1] strides [2,2,1,1]"),
        (2, "[2,1,2,64] strides [128,128,64,1]"),
        (1, "[1,1,1,64] strides [64,64,64,1]"),
        (1, "[2,1,1,64] strides [64,64,64,1]"),
    ] {
        let extents = dims.split(']').next().unwrap_or_default().trim_start_matches('[');
        assert_eq!(declared(q, extents), dims);
    }
}
