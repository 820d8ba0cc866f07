//! The text form: how it looks, that it parses, and errors for invalid texts.

mod expr_support;

use expr_support::any_expr;
use proptest::prelude::*;
use qkvault_graph::DType;
use qkvault_graph::expr::library::{alibi, causal, padding, softcap, top_left_causal};
use qkvault_graph::expr::*;

#[test]
fn expressions_print_as_people_write_them() {
    let text = |e: Expr| e.build().expect("well typed").to_string();
    assert_eq!(text(softcap(score(), scalar("cap"))), "scalar $cap: float; tanh(score / $cap) * $cap");
    assert_eq!(
        text(alibi(score(), 8)),
        "tensor @alibi_slopes: f32[1, 8, 1, 1] alibi 8; score + float(key - position) * @alibi_slopes"
    );
    assert_eq!(text(top_left_causal() & padding()), "query < query_len & key < key_len & query >= key");
    assert_eq!(text(causal()), "key <= position");
    let ahead = key_len() - query_len();
    assert_eq!(text((position() + &ahead).gt(ahead)), "let t0 = key_len - query_len; position + t0 > t0");
    assert_eq!(text((score() - 1.0) - (score() - (2.0 - score()))), "score - 1.0 - (score - (2.0 - score))");
    assert_eq!(text(-(score() * -2.0) * -(-score())), "--score * -(score * -2.0)");
    assert_eq!(text(-constant(2.0) + score()), "score + -(2.0)");
    assert_eq!(text(query().floor_div(128).eq(key().floor_div(128))), "query // 128 == key // 128");
    assert_eq!(text((query() - key()).floor_div(-8) * 3), "(query - key) // -8 * 3");
    assert_eq!(text(key().floor_div(4).floor_div(3) + key() % 4), "key % 4 + key // 4 // 3");
    let shared = (score() * scalar("a")).exp();
    assert_eq!(text(&shared + 1.0 / &shared), "scalar $a: float; let t0 = exp(score * $a); t0 + 1.0 / t0");
    let bias = TensorSpec::new(DType::BF16, [1, 2, 3, 4]).with_grad();
    let bias = (score() + tensor("bias", bias)).build().expect("well typed");
    assert_eq!(format!("{bias:#}"), "tensor @bias: bf16[1, 2, 3, 4] grad;\nscore + @bias");
}

#[test]
fn derivatives_are_printed_with_the_operands_they_use() {
    let expr = softcap(score(), scalar("cap")).build().expect("well typed");
    let factor = vjp(&expr).expect("a derivative").d_score;
    assert_eq!(factor.to_string(), "scalar $cap: float; let t0 = tanh(score / $cap); -(t0 * t0) + 1.0");
    assert_eq!(
        factor.applied().to_string(),
        "scalar $cap: float; let t0 = tanh(score / $cap); upstream - upstream * (t0 * t0)"
    );
}

#[test]
fn what_other_languages_write_is_told_in_the_words_of_this_one() {
    for (text, column, expected) in [
        ("key < 4 and query > 2", 9, "`&`"),
        ("key < 4 && query > 2", 10, "one `&`"),
        ("key < 4 || query > 2", 10, "one `|`"),
        ("score ** 2.0", 8, "`pow(a, b)`"),
        ("score ^ 2.0", 7, "`pow(a, b)`"),
        ("key < 4 ? score : 0.0", 9, "`select(condition, a, b)`"),
        ("score if key < 4 else 0.0", 7, "`select(condition, a, b)`"),
        ("score + + 1.0", 9, "an expression"),
    ] {
        let problem = parse_expr(text).expect_err(text);
        let ParseError::Syntax { column: at, expected: told, .. } = &problem else { panic!("{text}: {problem}") };
        assert_eq!((*at, told.as_str()), (column, expected), "{text}");
    }
}

/// The page once said that integers and floats do not mix.
#[test]
fn an_integer_that_meets_a_float_becomes_one_as_the_page_says() {
    for text in ["score * 2", "score - (query - key)", "score + exp(float(key))"] {
        assert!(parse_expr(text).is_ok_and(|parsed| parsed.root_ty() == Ty::Float), "{text}");
    }
    assert!(parse_expr("score + exp(key)").is_err());
}

#[test]
fn errors_have_the_place_and_what_was_expected() {
    for (text, line, column, expected, found) in [
        ("", 1, 1, "an expression", "the end"),
        ("score +", 1, 8, "an expression", "the end"),
        ("score\n  + ;", 2, 5, "an expression", "';'"),
        ("score score", 1, 7, "an operator or the end", "'score'"),
        (
            "unknown + 1",
            1,
            1,
            "score, batch, head, query, key, position, query_len, key_len, an operation, or a name that `let unknown = \
             ..;` defines before",
            "'unknown'",
        ),
        ("$cap + score", 1, 1, "its declaration before: begin with `scalar $cap: float;` (or int)", "'$cap'"),
        ("scalar $cap float; $cap", 1, 13, "':'", "'float'"),
        ("scalar $cap: bool; $cap", 1, 14, "'float' or 'int'", "'bool'"),
        ("scalar $a: float; scalar $a: float; $a", 1, 35, "a new name before this: 'a' is defined twice", "';'"),
        ("scalar $a: float; score", 1, 24, "a use of '$a'", "the end"),
        ("let x = score; score", 1, 21, "a use of 'x'", "the end"),
        ("let score = 1; score", 1, 5, "a new name: this one is in use", "'score'"),
        ("tensor @t: f17[1, 1, 1, 1]; @t", 1, 12, "an element type such as f32", "'f17'"),
        ("tensor @t: f32[1, 1, 1]; @t", 1, 23, "','", "']'"),
        ("max(score)", 1, 10, "','", "')'"),
        ("exp(score, score)", 1, 10, "')'", "','"),
        ("1 < 2 < 3", 1, 7, "parentheses around one of two comparisons", "'<'"),
        ("score + 99999999999", 1, 9, "an integer of 32 bits", "99999999999"),
        ("score + 2147483648", 1, 9, "an integer of 32 bits", "2147483648"),
        ("score + 1e99", 1, 9, "a finite float32 number", "1e99"),
        ("score + 1x", 1, 9, "a finite float32 number", "1x"),
        ("é", 1, 1, "an expression", "'é'"),
        ("true & é", 1, 8, "an expression", "'é'"),
    ] {
        let problem = parse_expr(text).expect_err(text);
        let (expected, found) = (expected.to_owned(), found.to_owned());
        assert_eq!(problem, ParseError::Syntax { line, column, expected, found }, "{text}");
    }
    assert_eq!(parse_expr("-2147483648 < key").expect("the smallest integer").nodes().len(), 3);
    let problem = parse_expr("exp(key) + log(true)").expect_err("two problems");
    let ParseError::Meaning { problems } = problem else { panic!("{problem}") };
    assert_eq!(problems.list().len(), 2);
}

#[test]
fn deep_and_long_texts_do_not_overflow_the_stack() {
    for text in ["(".repeat(60_000), "-".repeat(60_000), "exp(".repeat(60_000), "!".repeat(60_000)] {
        let problem = parse_expr(&text).expect_err("too deep");
        assert!(problem.to_string().contains("nesting"), "{problem}");
    }
    let sum = |terms| format!("score{}", " + score".repeat(terms));
    assert!(matches!(parse_expr(&sum(60_000)), Err(ParseError::Meaning { .. })));
    let problem = parse_expr(&sum(100_000)).expect_err("too long").to_string();
    assert!(problem.contains("at most 131072 words"), "{problem}");
    let doubled: String = (1..200).map(|i| format!("let x{i} = x{} + x{};", i - 1, i - 1)).collect();
    let shared = parse_expr(&format!("let x0 = score; {doubled} x199")).expect("every step is shared");
    assert_eq!(shared.nodes().len(), 200);
    let nested = (0..200).fold(score(), |e, _| e.exp());
    let nested = nested.build().expect("within the limits");
    assert_eq!(nested.to_string().parse(), Ok(nested));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 800, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_expression_parses_from_its_text(expr in any_expr(5)) {
        let expr = expr.0.build().expect("well typed");
        for text in [format!("{expr}"), format!("{expr:#}")] {
            let read: ScoreExpr = text.parse().map_err(|e| TestCaseError::fail(format!("{text}: {e}")))?;
            prop_assert!(read == expr, "{text}\n  is read as\n{read}");
            prop_assert_eq!(read.scalar_names(), expr.scalar_names());
            prop_assert_eq!(read.tensor_names(), expr.tensor_names());
            prop_assert_eq!(format!("{read}"), format!("{expr}"));
        }
    }

    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,64}") {
        let _ = parse_expr(&text);
    }

    #[test]
    fn text_made_of_tokens_never_panics(tokens in prop::collection::vec(token(), 0..40)) {
        let _ = parse_expr(&tokens.join(" "));
    }

    #[test]
    fn damaged_text_never_panics(expr in any_expr(3), at in any::<prop::sample::Index>(), token in token()) {
        let text = expr.0.build().expect("well typed").to_string();
        let at = at.index(text.len() + 1);
        let _ = parse_expr(&text[..at]);
        let _ = parse_expr(&format!("{}{token}{}", &text[..at], &text[at..]));
    }
}

fn token() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "score",
        "key",
        "query",
        "batch",
        "true",
        "exp",
        "max",
        "select",
        "float",
        "let",
        "scalar",
        "tensor",
        "grad",
        "$a",
        "@t",
        "x",
        "f32",
        "int",
        "1",
        "2.5",
        "1e9",
        "99999999999",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        ":",
        "=",
        "==",
        "!=",
        "<",
        "<=",
        "+",
        "-",
        "*",
        "/",
        "%",
        "&",
        "|",
        "!",
        "$",
        "@",
        "#",
        "é",
    ])
}
