//! The author's own backward of a score modification: validation, keys, and how it is written.

use qkvault_graph::expr::{Expr, ScoreExpr, constant, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, DType, GraphKey, ScoreModBprop, text, validate};

fn built(e: &Expr) -> ScoreExpr {
    e.build_score_mod().expect("a float")
}

/// A backward with softcap, and its author's derivative.
fn softcapped(own: Option<ScoreModBprop>) -> Attention {
    let cap = scalar("cap");
    let plain = Attention::bshd(1, (4, 2), (128, 128), 64, DType::BF16);
    let forward = plain.with_score_mod(built(&((score() / &cap).tanh() * &cap)));
    let forward = match own {
        Some(own) => forward.with_score_mod_bprop(own),
        None => forward,
    };
    forward.with_stats().backward(BackwardOptions::default())
}

fn own(e: &Expr) -> ScoreExpr {
    built(e)
}

fn right() -> ScoreExpr {
    let t = (score() / scalar("cap")).tanh();
    own(&(1.0 - &t * &t))
}

fn key(a: Attention) -> GraphKey {
    validate(a).expect("sound").key()
}

fn refused(a: Attention) -> Vec<String> {
    let refusal = validate(a).expect_err("not sound");
    refusal.reasons().iter().map(|r| r.code.to_string()).collect()
}

#[test]
fn a_right_derivative_is_accepted_and_a_wrong_one_only_if_trusted() {
    validate(softcapped(Some(ScoreModBprop::checked(right())))).expect("it agrees with differences");
    let wrong = own(&(score() * 0.0 + 1.0));
    assert_eq!(refused(softcapped(Some(ScoreModBprop::checked(wrong.clone())))), ["score-mod-bprop.disagrees"]);
    validate(softcapped(Some(ScoreModBprop::trusted(wrong)))).expect("a straight-through estimator");
}

#[test]
fn a_derivative_that_does_not_fit_the_modification_is_refused_with_its_code() {
    let foreign = own(&(score() * scalar("other")));
    for bprop in [ScoreModBprop::checked(foreign.clone()), ScoreModBprop::trusted(foreign)] {
        assert_eq!(refused(softcapped(Some(bprop))), ["score-mod-bprop.operand"]);
    }
    let truth = score().gt(0.0).build().expect("a truth value");
    for bprop in [ScoreModBprop::checked(truth.clone()), ScoreModBprop::trusted(truth)] {
        assert_eq!(refused(softcapped(Some(bprop))), ["score-mod-bprop.type"]);
    }
    let mut alone = softcapped(Some(ScoreModBprop::trusted(own(&constant(1.0)))));
    alone.score_mod = None;
    assert_eq!(refused(alone), ["score-mod-bprop.alone"]);
    let mut rough = softcapped(Some(ScoreModBprop::checked(own(&constant(0.0)))));
    rough.score_mod = Some(built(&(score() * 1e6).sin()));
    assert_eq!(refused(rough), ["score-mod-bprop.unchecked"]);
}

#[test]
fn an_author_can_give_a_derivative_that_cannot_be_derived() {
    let rounded = built(&score().floor());
    let plain = Attention::bshd(1, (4, 2), (128, 128), 64, DType::BF16).with_score_mod(rounded).with_stats();
    assert_eq!(refused(plain.backward(BackwardOptions::default())), ["score-mod.derivative"]);
    let through = plain.with_score_mod_bprop(ScoreModBprop::trusted(own(&constant(1.0))));
    validate(through.backward(BackwardOptions::default())).expect("straight through");
}

#[test]
fn the_key_contains_the_derivative_if_it_changes_the_plan() {
    let (derived, half) = (softcapped(None), own(&(score() * 0.0 + 0.5)));
    assert_ne!(key(derived.clone()), key(softcapped(Some(ScoreModBprop::trusted(half.clone())))));
    // Whether a derivative is trusted is not part of a plan.
    let of = |trust: bool| {
        let bprop = if trust { ScoreModBprop::trusted(right()) } else { ScoreModBprop::checked(right()) };
        key(softcapped(Some(bprop)))
    };
    assert_eq!(of(true), of(false));
    // A forward ignores it, and the derived derivative gives the same plan.
    let forward = |a: &Attention| key(a.as_forward());
    assert_eq!(forward(&derived), forward(&softcapped(Some(ScoreModBprop::trusted(half)))));
    let scaled = |bprop: Option<ScoreModBprop>| {
        let mut a = softcapped(bprop);
        a.score_mod = Some(built(&(score() * scalar("cap"))));
        key(a)
    };
    assert_eq!(scaled(None), scaled(Some(ScoreModBprop::checked(own(&scalar("cap"))))));
}

/// Two derivatives that differ only in the name of the scalar are two plans: names tell which operand is read.
#[test]
fn the_key_depends_on_the_operand_that_a_derivative_reads() {
    let of = |name: &str| {
        let mut a = softcapped(None);
        a.score_mod = Some(built(&(score() * scalar("a") + (score() * scalar("b")).tanh())));
        key(a.with_score_mod_bprop(ScoreModBprop::trusted(own(&(scalar(name) * 2.0)))))
    };
    assert_ne!(of("a"), of("b"));
}

/// For an unchanged score, an own derivative scales or cuts a gradient, so the modification stays.
#[test]
fn an_identity_with_an_own_derivative_is_kept() {
    let mut a = softcapped(None);
    a.score_mod = Some(built(&score()));
    let plain = key(a.clone());
    let halved = a.with_score_mod_bprop(ScoreModBprop::trusted(own(&constant(0.5))));
    let valid = validate(halved.clone()).expect("sound");
    assert!(valid.get().score_mod.is_some() && valid.get().score_mod_bprop.is_some());
    assert_eq!(validate(valid.get().clone()).expect("sound again"), valid);
    assert_ne!(key(halved), plain);
}

#[test]
fn text_and_json_contain_the_derivative() {
    for bprop in [ScoreModBprop::checked(right()), ScoreModBprop::trusted(right())] {
        let a = softcapped(Some(bprop));
        let printed = text::print(&a);
        assert!(printed.contains("\nscore_mod_bprop: "), "{printed}");
        assert_eq!(text::parse(&printed).expect("its own text"), a);
        let json = serde_json::to_string(&a).expect("writes");
        assert_eq!(serde_json::from_str::<Attention>(&json).expect("reads"), a);
    }
    let plain = softcapped(None);
    assert!(
        !text::print(&plain).contains("bprop") && !serde_json::to_string(&plain).expect("writes").contains("bprop")
    );
    let error = text::parse("q: f16 [1,2,64,64]\ntrust_score_mod_bprop: yes").expect_err("of nothing").to_string();
    assert!(error.contains("`trust_score_mod_bprop` without one"), "{error}");
}
