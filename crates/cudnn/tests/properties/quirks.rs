//! A quirk is refused until its code is allowed; a plan with an allowed quirk has a separate key, and nothing else
//! changes.

use std::collections::BTreeSet;

use qkvault_cudnn::registry::entries;
use qkvault_cudnn::{
    CompileOptions, Form, LabOptions, OpGraph, Profile, QUIRKS, QuirkSet, Target, lower, plan_key, refusals,
};
use qkvault_graph::registry::Applies;
use qkvault_graph::{CudnnVersion, LibrarySet, Refusal, Valid, text, validate};

fn target(version: &str) -> Target {
    let cudnn: CudnnVersion = version.parse().expect("a version");
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

fn attention(given: &str) -> Valid {
    validate(text::parse(given).expect("an attention")).expect("sound")
}

fn allowing(codes: &[&str]) -> CompileOptions {
    CompileOptions {
        allowed: QuirkSet::from_codes(codes.iter().copied()).expect("quirks"),
        ..CompileOptions::default()
    }
}

fn lowered(given: &str, version: &str, codes: &[&str]) -> Result<OpGraph, Refusal> {
    lower(&attention(given), &target(version), &allowing(codes))
}

/// Every quirk that lowering checks, with a description that it refuses, and a version.
const REFUSED: &[(&str, &str, &str)] = &[
    (
        "backward.length-tail",
        "pass: backward\nq: f16 [1,2,200,64]\nlengths: per-sequence\nscore_mod: score * score",
        "9.19",
    ),
    (
        "score-mod.one-query-narrow",
        "q: f16 [3,2,1,64]\nk: [3,2,64,64]\nscore_mod: tensor @t: f16[3, 1, 1, 1]; score + @t",
        "9.19",
    ),
    ("backward.single-row", "pass: backward\nq: f16 [1,1,1,64]\nk: [1,1,127,64]", "9.27"),
    (
        "backward.tensor-gradient",
        "pass: backward\nq: f16 [1,2,128,64]\nscore_mod: tensor @t: f16[1, 2, 1, 128] grad; score + @t",
        "9.19",
    ),
    (
        "backward.sink-philox",
        "pass: backward\nq: f16 [1,2,128,64]\nsink: yes\nd_sink: yes\ndropout: philox 0.1",
        "9.19",
    ),
    ("storage.paged-tile", "q: f16 [2,2,8,64]\nk: [2,2,192,64] paged 99 x 64\nlengths: per-sequence", "9.19"),
    (
        "storage.paged-one-query-sink",
        "q: f16 [2,2,1,64]\nk: [2,2,128,64] paged 99 x 64\nlengths: per-sequence\nsink: yes",
        "9.19",
    ),
    (
        "storage.paged-one-query-heads",
        "q: f16 [2,4,1,64]\nk: [2,2,128,64] paged 99 x 64\nlengths: per-sequence\n\
         score_mod: tensor @t: f32[1, 4, 1, 1]; score * @t",
        "9.19",
    ),
    (
        "storage.varlen-one-query-stats",
        "q: f16 [2,4,1,64] varlen tokens 2\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence\noutputs: stats",
        "9.27",
    ),
];

#[test]
fn every_quirk_of_lowering_is_allowed_by_its_own_code_only() {
    for &(code, given, version) in REFUSED {
        let (a, target) = (attention(given), target(version));
        let lowered = |codes: &[&str]| lower(&a, &target, &allowing(codes));
        let refusal = lowered(&[]).expect_err(code);
        // For keys and for values, if the quirk affects both.
        assert!(refusal.reasons().iter().all(|r| r.code.as_str() == code), "{refusal}");
        let others: Vec<&str> = QUIRKS.into_iter().map(|quirk| quirk.code).filter(|other| *other != code).collect();
        assert!(lowered(&others).expect_err(code).has(&code.into()));
        let graph = lowered(&[code]).expect(code);
        assert_eq!(graph.accepted_quirks.to_string(), code);
        assert_eq!(refusals(&a, &target, &allowing(&[code])), []);
    }
    let tested: BTreeSet<&str> = REFUSED.iter().map(|(code, ..)| *code).collect();
    let of_lowering = entries().filter(|e| e.quirk.is_some() && matches!(e.applies, Applies::Lowering(_)));
    assert_eq!(tested, of_lowering.map(|e| e.code).collect(), "a quirk without a row, or a row without a quirk");
}

#[test]
fn a_plan_with_an_allowed_quirk_has_a_separate_key() {
    for &(code, given, version) in REFUSED {
        let (a, target) = (attention(given), target(version));
        let lowered = |codes: &[&str]| lower(&a, &target, &allowing(codes)).expect(code);
        let graph = lowered(&[code]);
        let key = |graph: &OpGraph| plan_key(graph, &target, &allowing(&[code]));
        let unmarked = OpGraph { accepted_quirks: QuirkSet::NONE, ..graph.clone() };
        assert_ne!(key(&graph), key(&unmarked), "{code}");
        // Allowed quirks that do not apply change nothing.
        assert_eq!(key(&lowered(&QUIRKS.map(|quirk| quirk.code))), key(&graph), "{code}");
    }
}

#[test]
fn allowing_every_quirk_changes_no_other_key() {
    let plain = [
        "q: bf16 [1,8,512,64]",
        "pass: backward\nq: bf16 [2,4,500,64]\nmask: causal\nlengths: per-sequence",
        "q: f16 [1,2,8,64]\nk: [1,2,300,64]\nmask_mod: key % 2 == 0",
        "q: f16 [2,4,8,64] varlen tokens 9\nk: [2,2,64,64] varlen tokens 99\nlengths: per-sequence",
    ];
    for (given, form) in plain.into_iter().zip([Form::Auto, Form::Expanded, Form::Auto, Form::Fused]) {
        let key = |allowed| {
            let options = CompileOptions { allowed, lab: LabOptions::form(form), ..CompileOptions::default() };
            let graph = lower(&attention(given), &target("9.27"), &options).expect(given);
            assert!(graph.accepted_quirks.is_empty());
            plan_key(&graph, &target("9.27"), &options)
        };
        assert_eq!(
            key(QuirkSet::NONE),
            key(QuirkSet::from_codes(QUIRKS.map(|quirk| quirk.code)).expect("quirks")),
            "{given}"
        );
    }
}

#[test]
fn engines_that_compute_wrongly_are_used_if_allowed() {
    let given = "q: f16 [1,2,1,64]\nk: [1,2,300,64]\nmask_mod: key % 2 == 0";
    let (usual, taken) = (lowered(given, "9.19", &[]), lowered(given, "9.19", &["engine.wrong"]));
    let (usual, taken) = (usual.expect("it lowers"), taken.expect("it lowers"));
    assert_eq!((usual.excluded_engines.len(), usual.accepted_quirks), (1, QuirkSet::NONE));
    assert_eq!((taken.excluded_engines.len(), taken.accepted_quirks.to_string().as_str()), (0, "engine.wrong"));
    assert_ne!(
        plan_key(&usual, &target("9.19"), &CompileOptions::default()),
        plan_key(&taken, &target("9.19"), &CompileOptions::default())
    );
}

/// Cases 614 and 712 of the self-test's seed 64 on an H200: one query over 300 keys with an expression over the query
/// index.
#[test]
fn one_query_over_many_keys_excludes_the_engine_that_counts_wrongly() {
    let avoided = |keys: i64, version: &str| {
        let given = format!(
            "q: bf16 [1,4,1,96]\nk: [1,4,{keys},96]\nscore_mod: tensor @t: i32[1, 4, 1, 1]; score + float(@t - query) * 0.01"
        );
        lowered(&given, version, &[]).expect("it lowers").excluded_engines
    };
    assert_eq!(avoided(300, "9.14"), [1]);
    assert!(avoided(256, "9.14").is_empty() && avoided(300, "9.19").is_empty());
}
