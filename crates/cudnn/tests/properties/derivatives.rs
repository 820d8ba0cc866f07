//! The caller's own derivative of a score expression is what the op graph computes.

use qkvault_cudnn::{CompileOptions, Profile, lower};
use qkvault_graph::expr::{Expr, scalar, score};
use qkvault_graph::{Attention, BackwardOptions, CudnnVersion, DType, LibrarySet, ScoreModBprop, validate};

#[test]
fn the_graph_computes_the_given_derivative() {
    let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Full);
    let cap = scalar("cap");
    let built = |e: &Expr| e.build().expect("an expression");
    let graph = |own: Option<ScoreModBprop>| {
        let forward = Attention::bshd(1, (4, 2), (128, 128), 64, DType::BF16)
            .with_score_mod(built(&((score() / &cap).tanh() * &cap)));
        let forward = own.into_iter().fold(forward, Attention::with_score_mod_bprop);
        let backward = forward.with_stats().backward(BackwardOptions::default());
        lower(&validate(backward).expect("sound"), &target, &CompileOptions::default()).expect("lowers")
    };
    let given = graph(Some(ScoreModBprop::trusted(built(&(score() * 0.125)))));
    let derived = graph(None);
    assert_ne!(given, derived);
    assert!(given.to_string().contains("0.125") && !derived.to_string().contains("0.125"), "{given}");
}
