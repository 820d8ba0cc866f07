//! The unified operation: the features of each version, and the form as an option that enters plan keys.

use qkvault_graph::op::{GraphFault, Op, check};
use qkvault_graph::registry::codes;
use qkvault_graph::{
    Attention, CompileOptions, CudnnVersion, Form, LibrarySet, OpGraph, Profile, QuirkSet, Refusal, Role, Target,
    Valid, lower, plan_key, text, validate,
};

const UNIFIED: CompileOptions = CompileOptions {
    lab: qkvault_graph::LabOptions::form(Form::Unified),
    heuristics: qkvault_graph::Heuristics::AThenFallback,
    workspace_limit: None,
    allowed: QuirkSet::NONE,
    engine: qkvault_graph::EnginePolicy::Named(qkvault_graph::EngineName::new("cudnn")),
};

fn target(version: &str) -> Target {
    let version: CudnnVersion = version.parse().expect("a version");
    Profile::named("h200").expect("built in").target(version, LibrarySet::Slim)
}

fn attention(given: &str) -> Valid {
    validate(text::parse(given).expect("reads")).expect("sound")
}

/// With wrong results allowed: these tests are about the graph.
fn unified(given: &str, version: &str) -> Result<OpGraph, Refusal> {
    let allowed = QuirkSet::of(["form.unified-wrong"]).expect("a quirk");
    lower(&attention(given), &target(version), &CompileOptions { allowed, ..UNIFIED })
}

/// On an H200 with 9.27, 34 of 361 random forwards with an expression were wrong or read an illegal address.
#[test]
fn expressions_in_the_unified_operation_are_refused_until_they_are_allowed() {
    let given = attention("q: bf16 [2,8,512,64]\nscore_mod: score + score * score * 0.5");
    let refusal = lower(&given, &target("9.27"), &UNIFIED).expect_err("refused");
    assert_eq!(refusal.reasons().iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), ["form.unified-wrong"]);
    let allowed = CompileOptions { allowed: QuirkSet::of(["form.unified-wrong"]).expect("a quirk"), ..UNIFIED };
    assert_eq!(lower(&given, &target("9.27"), &allowed).expect("allowed").accepted_quirks, allowed.allowed);
    assert!(lower(&given, &target("9.27"), &CompileOptions::default()).is_ok(), "other forms have none of it");
}

/// A code, an attention that it affects, the last version without the feature and, if there is one, the first with it.
const BOUNDS: &[(&str, &str, &str, Option<&str>)] = &[
    ("form.unified", "q: bf16 [2,8,512,64]", "9.13", Some("9.13.1")),
    ("form.unified-lengths", "q: bf16 [2,8,512,64]\nlengths: per-sequence", "9.14", Some("9.15")),
    (
        "form.unified-paged",
        "q: bf16 [2,8,1,64]\nk: [2,8,512,64] paged 16 x 64\nlengths: per-sequence",
        "9.14",
        Some("9.15"),
    ),
    ("form.unified-outputs", "q: bf16 [2,8,512,64]\noutputs: max sum_exp", "9.20", Some("9.21")),
    ("form.unified-band", "q: bf16 [2,8,512,64]\nmask: causal", "9.20", Some("9.21")),
    ("form.unified-score-mod", "q: bf16 [2,8,512,64]\nscore_mod: tanh(score)", "9.20", Some("9.21")),
    ("form.unified-mask-mod", "q: bf16 [2,8,512,64]\nmask_mod: key % 2 == 0", "9.20", Some("9.21")),
    ("form.unified-sink", "q: bf16 [2,8,512,64]\nsink: yes", "9.20", Some("9.21")),
    ("form.unified-dropout", "q: bf16 [2,8,512,64]\ndropout: philox 0.1", "9.27", None),
    ("fp8.unified", "q: e4m3 [2,8,512,64]\nfp8: delayed", "9.27", None),
];

#[test]
fn each_feature_is_refused_before_the_version_that_supports_it() {
    for &(code, given, before, from) in BOUNDS {
        let refusal = unified(given, before).expect_err(code);
        let reason =
            refusal.reasons().iter().find(|r| r.code.as_str() == code).unwrap_or_else(|| panic!("{code}: {refusal}"));
        assert_eq!(reason.since, from.map(|v| v.parse().expect("a version")), "{code}");
        let Some(from) = from else { continue };
        let graph = unified(given, from).unwrap_or_else(|refusal| panic!("{code} under {from}: {refusal}"));
        assert_eq!(check(&graph), Ok(()));
        assert!(
            matches!(graph.ops.first(), Some(Op::SdpaScores { .. }))
                && matches!(graph.ops.last(), Some(Op::SdpaOutput { .. }))
        );
        // Attentions that this form refuses are not refused in the others.
        assert!(
            lower(&attention(given), &target("9.19"), &CompileOptions::default()).is_ok()
                || code == "form.unified-band",
            "{code}"
        );
    }
}

/// The operation has inputs for lengths; expressions that read lengths in it were not tested on a GPU.
#[test]
fn lengths_are_declared_once_in_the_unified_operation() {
    let graph =
        unified("q: bf16 [2,8,512,64]\nlengths: per-sequence\nmask_mod: key < key_len - 3", "9.27").expect("it lowers");
    let lengths =
        |role: &Role| matches!(role, Role::SeqLenQ | Role::SeqLenKv | Role::SeqLenQWhole | Role::SeqLenKvWhole);
    assert_eq!(graph.roles().into_iter().filter(lengths).collect::<Vec<_>>(), [Role::SeqLenQ, Role::SeqLenKv]);
}

#[test]
fn each_output_besides_stats_needs_the_version_with_subgraphs() {
    for outputs in ["max", "sum_exp", "max sum_exp"] {
        let given = format!("q: bf16 [2,8,512,64]\noutputs: {outputs}");
        assert!(unified(&given, "9.20.9").expect_err(outputs).has(&codes::FORM_UNIFIED_OUTPUTS));
        assert!(unified(&given, "9.21").is_ok(), "{outputs}");
    }
}

/// Outputs that need the softmax operation are refused for one reason: in the fused form for the outputs, and in the
/// unified one for that form.
#[test]
fn outputs_that_need_the_softmax_operation_are_refused_once() {
    let given = attention("q: bf16 [2,8,512,64]\noutputs: max");
    for (form, code) in [(Form::Fused, "outputs.combination"), (Form::Unified, "form.unified-outputs")] {
        let lab = qkvault_graph::LabOptions::form(form);
        let refusal = lower(&given, &target("9.19"), &CompileOptions { lab, ..UNIFIED }).expect_err("refused");
        assert_eq!(refusal.reasons().iter().map(|r| r.code.as_str()).collect::<Vec<_>>(), [code], "{form:?}");
    }
}

#[test]
fn an_expression_is_a_quirk_from_the_first_version_that_supports_it() {
    let given = attention("q: bf16 [2,8,512,64]\nscore_mod: tanh(score)");
    let codes = |version| {
        let refusal = lower(&given, &target(version), &UNIFIED).expect_err("refused");
        refusal.reasons().iter().map(|r| r.code.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(codes("9.20.9"), ["form.unified-score-mod"]);
    assert_eq!(codes("9.21.0"), ["form.unified-wrong"]);
}

#[test]
fn every_version_with_the_operation_outputs_stats() {
    for version in ["9.13.1", "9.27"] {
        let graph = unified("q: bf16 [2,8,512,64]\noutputs: stats", version).expect(version);
        assert!(graph.roles().contains(&Role::Stats));
    }
}

#[test]
fn the_form_is_an_option_and_part_of_the_key() {
    let given = attention("q: bf16 [2,8,512,64]\nk: [2,2,512,64]\nmask: causal\nlengths: per-sequence\noutputs: stats");
    let target = target("9.27");
    let made = |form| {
        let options = CompileOptions { lab: qkvault_graph::LabOptions::form(form), ..UNIFIED };
        let graph = lower(&given, &target, &options).expect("it lowers");
        (graph.roles(), plan_key(&graph, &target, &options))
    };
    let forms = [Form::Auto, Form::Expanded, Form::Fused, Form::Unified].map(made);
    // A launch binds the same operands in every form.
    assert!(forms.iter().all(|(roles, _)| *roles == forms[0].0));
    assert_eq!(forms[0].1, forms[1].1);
    assert!(forms[3].1 != forms[0].1 && forms[3].1 != forms[2].1 && forms[2].1 != forms[0].1);
}

#[test]
fn lengths_hide_the_padding_without_an_operation() {
    let given = "q: bf16 [2,8,512,64]\nlengths: per-sequence";
    let graph = unified(given, "9.27").expect("it lowers");
    assert_eq!(graph.ops.len(), 2, "{graph}");
    let banded = unified(&format!("{given}\nmask: causal bottom-right"), "9.27").expect("it lowers");
    assert!(matches!(banded.ops[1], Op::BandMask { seq_q: Some(_), seq_kv: Some(_), .. }), "{banded}");
}

#[test]
fn the_engine_for_one_query_is_excluded_if_keys_are_counted() {
    let given = "q: f16 [1,2,1,64]\nk: [1,2,300,64]\nmask_mod: key % 2 == 0";
    assert_eq!(unified(given, "9.27").expect("it lowers").excluded_engines, [8]);
    let without = qkvault_graph::VariantSet::NONE.with(qkvault_graph::Variant::AvoidEngines);
    let any_engine = CompileOptions { lab: qkvault_graph::LabOptions { without, ..UNIFIED.lab }, ..UNIFIED };
    assert_eq!(lower(&attention(given), &target("9.27"), &any_engine).expect("it lowers").excluded_engines, [0_i64; 0]);
    let allowed = CompileOptions { allowed: QuirkSet::of(["engine.wrong"]).expect("a quirk"), ..UNIFIED };
    assert!(lower(&attention(given), &target("9.27"), &allowed).expect("it lowers").excluded_engines.is_empty());
    assert!(unified("q: f16 [1,2,1,64]\nk: [1,2,300,64]", "9.27").expect("it lowers").excluded_engines.is_empty());
}

#[test]
fn a_backward_of_the_unified_form_is_the_expanded_one_with_its_key() {
    let a = Attention::bshd(2, (8, 2), (512, 512), 64, qkvault_graph::DType::BF16).with_stats();
    let a = validate(a.backward(qkvault_graph::BackwardOptions::default())).expect("sound");
    let target = target("9.27");
    let [auto, unified] = [CompileOptions::default(), UNIFIED].map(|options| {
        let graph = lower(&a, &target, &options).expect("it lowers");
        let key = plan_key(&graph, &target, &options);
        (graph, key)
    });
    assert_eq!(auto, unified);
}

#[test]
fn a_graph_has_both_halves_in_their_places_or_none() {
    let good = unified("q: bf16 [2,8,512,64]\nmask: causal", "9.27").expect("it lowers");
    assert_eq!(check(&good), Ok(()));
    let mut alone = good.clone();
    alone.ops.pop();
    assert_eq!(check(&alone), Err(GraphFault::Half { op: 0 }));
    let mut after = good.clone();
    let band = after.ops.remove(1);
    let Op::SdpaOutput { scores, .. } = &mut after.ops[1] else { panic!("the output") };
    let Op::BandMask { x, .. } = band else { panic!("the mask") };
    *scores = x;
    // Without the mask nothing reads its bounds.
    assert!(matches!(check(&after), Err(GraphFault::Unread { .. })));
    after.ops.push(band);
    assert_eq!(check(&after), Err(GraphFault::Half { op: 0 }));
}
