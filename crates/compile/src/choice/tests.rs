//! Who is asked first, who next, and what is told about those that have no plan.

use std::cell::RefCell;

use crate::codes;
use qkvault_fa4::unproven;
use qkvault_graph::{Attention, Code, DType, EnginePolicy, Refusal, Tensor, Valid, validate};

use super::*;
use crate::cudnn::CUDNN;
use crate::fa4::FA4;
use crate::kernels::KERNELS;

const SM: u32 = 90;

fn valid(a: Attention) -> Valid {
    validate(a).expect("valid")
}

fn prompt(seq: i64, d: i64) -> Attention {
    Attention::bshd(4, (16, 16), (seq, seq), d, DType::BF16).causal()
}

fn backward(a: Attention) -> Valid {
    valid(a.with_stats().backward(Default::default()))
}

fn asks(a: &Valid, sm: u32, policy: EnginePolicy) -> Candidates {
    Engines::built_in().candidates(a, sm, policy)
}

fn chosen(a: &Valid, sm: u32, policy: EnginePolicy) -> EngineChoice {
    let candidates = asks(a, sm, policy);
    candidates.choice(candidates.engines[0], &[])
}

fn engines(a: &Valid) -> Vec<EngineId> {
    asks(a, SM, EnginePolicy::Auto).engines
}

#[test]
fn the_fastest_measured_engine_is_asked_first_and_the_others_after_it() {
    let candidates = asks(&valid(prompt(4096, 128)), SM, EnginePolicy::Auto);
    assert_eq!(candidates.engines, [FA4, CUDNN, KERNELS]);
    assert!(matches!(candidates.why, Why::Measured { ratio, beside: CUDNN } if ratio < 0.91));
    assert_eq!(engines(&backward(prompt(4096, 128))), [FA4, CUDNN], "kernels have no backward");
    // cuDNN keeps d64 at 1k forward, and not backward.
    let short = || Attention::bshd(8, (16, 16), (1024, 1024), 64, DType::BF16).causal();
    assert_eq!(engines(&valid(short())), [CUDNN, FA4, KERNELS]);
    assert_eq!(engines(&backward(short())), [FA4, CUDNN]);
    let mut decode = Attention::bshd(1, (32, 8), (4, 32_768), 128, DType::BF16).with_lengths();
    decode.k = Tensor::paged_nhd(1, 8, 32_768, 128, 512, 64, DType::BF16);
    decode.v = decode.k;
    assert_eq!(engines(&valid(decode)), [KERNELS, FA4, CUDNN]);
}

#[test]
fn without_a_measured_time_engines_are_predicted_and_who_cannot_take_it_is_named() {
    let wide = valid(prompt(200, 256));
    let candidates = asks(&wide, SM, EnginePolicy::Auto);
    assert!(matches!(candidates.why, Why::Predicted { .. }), "{:?}", candidates.why);
    assert!(candidates.choice(candidates.engines[0], &[]).to_string().contains("predicted from times on NVIDIA H200"));
    let blackwell = chosen(&wide, 100, EnginePolicy::Auto);
    assert_eq!((blackwell.engine, &blackwell.why), (CUDNN, &Why::Alone));
    let never: Vec<EngineId> = blackwell.passed.iter().map(|passed| passed.engine).collect();
    assert_eq!(never, [FA4, KERNELS]);
    let told = blackwell.to_string();
    assert!(told.contains("not FlashAttention-4, refused: [not built / fa4.gpu]"), "{told}");
    for engine in [CUDNN, KERNELS, FA4] {
        let named = asks(&wide, SM, engine.policy());
        assert_eq!((named.engines, named.why), (vec![engine], Why::Named));
    }
}

/// Sequences of a packed batch, over which FlashAttention-4 waited for a GPU until it had judged 2,028 random cases.
#[test]
fn packed_sequences_go_to_who_is_faster() {
    let q = Tensor::thd(4, 16, 4096, 128, 9000, DType::BF16);
    let packed = Attention::forward(q, q, q, q).with_lengths();
    assert_eq!(unproven(&valid(packed.clone())), None);
    assert_eq!(engines(&valid(packed.clone())), [FA4, CUDNN, KERNELS]);
    assert_eq!(engines(&backward(packed)), [FA4, CUDNN]);
}

/// A prompt over pages, which nobody measured: all three are compared by what was measured near it.
#[test]
fn forwards_over_pages_go_to_who_is_predicted_to_be_faster() {
    let mut prompt = Attention::bshd(2, (32, 8), (2048, 8192), 128, DType::BF16).with_lengths();
    prompt.k = Tensor::paged_nhd(2, 8, 8192, 128, 256, 64, DType::BF16);
    prompt.v = prompt.k;
    let prompt = valid(prompt.with_band(qkvault_graph::Band::CAUSAL_BOTTOM_RIGHT));
    assert_eq!(asks(&prompt, SM, EnginePolicy::Auto).engines, [FA4, KERNELS, CUDNN]);
    let told = chosen(&prompt, SM, EnginePolicy::Auto).to_string();
    assert!(told.starts_with("FlashAttention-4: 7 % faster than kernels, predicted"), "{told}");
}

/// What FlashAttention-4 has no kernel for goes to cuDNN, and the choice says why.
#[test]
fn expressions_that_flash_attention_4_does_not_differentiate_go_to_cudnn_with_the_reason() {
    use qkvault_graph::expr::{TensorSpec, key, query, score, tensor};
    let ordered = qkvault_graph::BackwardOptions { deterministic: true, ..Default::default() };
    let seen = query().ge(key() * 2).build_mask_mod().expect("a predicate");
    let bias = tensor("bias", TensorSpec::new(DType::F32, [1, 16, 1, 4096]).with_grad());
    let biased = (score() + bias).build_score_mod().expect("a score");
    let plain = || Attention::bshd(4, (16, 16), (4096, 4096), 128, DType::BF16);
    let predicate = valid(plain().with_mask_mod(seen).with_stats().backward(ordered));
    for a in [predicate, backward(plain().with_score_mod(biased))] {
        assert_eq!(engines(&a), [CUDNN], "{a}");
        let choice = chosen(&a, SM, EnginePolicy::Auto);
        let why = choice.passed.iter().find(|passed| passed.engine == FA4).expect("passed over");
        assert!(matches!(&why.because, Because::Refuses(of) if of.has(&codes::FA4_EXPRESSION)), "{a}: {why}");
    }
}

fn refusal() -> Refusal {
    codes::KERNELS_BACKWARD.reason("a backward").into()
}

/// What is answered if each engine says this, and the choices that were asked.
fn asked(
    a: &Valid,
    says: impl Fn(EngineId) -> Answer<(EngineId, &'static str)>,
) -> ((EngineId, &'static str), Vec<EngineChoice>) {
    let choices = RefCell::new(Vec::new());
    let (answer, _) = ask_engines(&asks(a, SM, EnginePolicy::Auto), |choice| {
        choices.borrow_mut().push(choice.clone());
        says(choice.engine)
    });
    (answer, choices.into_inner())
}

#[test]
fn where_the_first_choice_has_no_plan_the_next_is_asked_and_tells_why() {
    let missing = |engine| Answer::Missing((engine, "missing"), format!("no plan of {}", EngineId::name(&engine)));
    let plan = |engine| Answer::Plan((engine, "plan"));
    let a = valid(prompt(4096, 128));
    let (answer, choices) = asked(&a, |engine| if engine == FA4 { missing(engine) } else { plan(engine) });
    assert_eq!(answer, (CUDNN, "plan"));
    assert_eq!((choices[0].engine, choices[0].passed.len()), (FA4, 0));
    let EngineChoice { engine, why, passed } = &choices[1];
    assert_eq!((engine, why), (&CUDNN, &Why::OthersHaveNone));
    let because = Because::Missing("no plan of fa4".to_owned());
    assert_eq!(passed, &[Passed { engine: FA4, because }]);
    assert!(choices[1].to_string().starts_with("cuDNN instead\n  not FlashAttention-4, no plan: "), "{}", choices[1]);
    assert_eq!(choices[1].refusal_of(CUDNN), None);

    // cuDNN refuses: the third one, with both reasons.
    let (answer, choices) = asked(&a, |engine| match engine {
        FA4 => missing(engine),
        CUDNN => Answer::Refused((engine, "refused"), refusal()),
        _ => plan(engine),
    });
    assert_eq!((answer, choices.len()), ((KERNELS, "plan"), 3));
    assert_eq!(choices[2].refusal_of(CUDNN), Some(&refusal()));
    assert_eq!(choices[2].passed.len(), 2);
}

#[test]
fn where_nobody_has_a_plan_the_first_that_could_have_it_answers() {
    let says = |of: [&'static str; 3]| {
        move |engine: EngineId| {
            let at = [CUDNN, KERNELS, FA4].iter().position(|other| *other == engine).expect("one of them");
            match of[at] {
                "missing" => Answer::Missing((engine, "missing"), String::new()),
                "refused" => Answer::Refused((engine, "refused"), refusal()),
                "not installed" => Answer::Unavailable((engine, "not installed"), String::new()),
                "failed" => Answer::Failed((engine, "failed")),
                _ => Answer::Plan((engine, "plan")),
            }
        }
    };
    // cuDNN, kernels, FlashAttention-4, which is asked first.
    let a = valid(prompt(4096, 128));
    for (given, wanted, count) in [
        (["missing", "missing", "missing"], (FA4, "missing"), 3),
        (["refused", "missing", "refused"], (KERNELS, "missing"), 3),
        (["refused", "refused", "refused"], (FA4, "refused"), 3),
        (["failed", "plan", "refused"], (CUDNN, "failed"), 2),
        (["failed", "plan", "missing"], (FA4, "missing"), 2),
        (["plan", "plan", "failed"], (FA4, "failed"), 1),
        (["refused", "refused", "not installed"], (CUDNN, "refused"), 3),
        (["missing", "refused", "not installed"], (CUDNN, "missing"), 3),
        (["plan", "refused", "not installed"], (CUDNN, "plan"), 2),
    ] {
        let (answer, choices) = asked(&a, says(given));
        assert_eq!((answer, choices.len()), (wanted, count), "{given:?}");
    }
}

#[test]
fn if_cudnn_refuses_the_first_other_candidate_is_the_choice() {
    let short = valid(Attention::bshd(8, (16, 16), (1024, 1024), 64, DType::BF16).causal());
    let by_rules =
        |a: &Valid, sm, policy, reasons: &[Reason]| Engines::built_in().by_rules(a, sm, policy, (CUDNN, reasons));
    let (auto, no) = (EnginePolicy::Auto, refusal());
    let choice = by_rules(&short, SM, auto, no.reasons()).expect("others take it");
    assert_eq!((choice.engine, choice.refusal_of(CUDNN)), (FA4, Some(&refusal())));
    assert_eq!(by_rules(&short, SM, auto, &[]), Some(chosen(&short, SM, auto)));
    // What was chosen anyway needs no refusal.
    let long = valid(prompt(4096, 128));
    let choice = by_rules(&long, SM, auto, no.reasons()).expect("others take it");
    assert!(matches!(choice.why, Why::Measured { .. }) && choice.passed.is_empty());
    assert_eq!(by_rules(&long, 100, auto, no.reasons()), None);
    assert_eq!(by_rules(&long, SM, CUDNN.policy(), no.reasons()), None);
    // No engine makes room for operands.
    assert_eq!(by_rules(&long, SM, auto, &[codes::MEMORY_BUDGET.reason("too much")]), None);
}

/// "leave it to cuDNN" stood below cuDNN's own refusal.
#[test]
fn no_advice_below_a_refusal_of_cudnn_names_cudnn() {
    let entries = qkvault_kernels::codes::ENTRIES.iter().chain(qkvault_fa4::codes::ENTRIES);
    assert!(entries.clone().count() > 10, "the codes of kernels and FlashAttention-4");
    for entry in entries {
        let refusal: Refusal = Code::known(entry).reason("given").into();
        let told = beside(&refusal, CUDNN).to_string();
        assert!(!told.contains("fix: leave") && !told.contains("to cuDNN"), "{told}");
    }
    let cudnn = codes::SIZE_GRID.reason("70000 sequences");
    let large = backward(Attention::bshd(70_000, (8, 8), (16, 16), 64, DType::BF16));
    let choice = Engines::built_in().by_rules(&large, SM, EnginePolicy::Auto, (CUDNN, &[cudnn]));
    let told = choice.map(|choice| choice.to_string()).unwrap_or_default();
    assert!(!told.contains("leave it to cuDNN"), "{told}");
}

#[test]
fn that_no_other_engine_takes_it_is_said_where_it_is_true() {
    let never = vec![Passed { engine: KERNELS, because: Because::Unproven("no GPU has judged them") }];
    let mut candidates = Candidates { engines: vec![CUDNN], near: 1, why: Why::Alone, never };
    let told = candidates.choice(CUDNN, &[]).to_string();
    assert!(told.starts_with("cuDNN: no other engine takes it unless it is named\n"), "{told}");
    candidates.never = vec![Passed { engine: KERNELS, because: Because::Refuses(refusal()) }];
    assert!(candidates.choice(CUDNN, &[]).to_string().starts_with("cuDNN: no other engine takes it\n"));
    let refused = Passed { engine: CUDNN, because: Because::Refuses(refusal()) };
    assert!(!candidates.choice(KERNELS, &[refused]).to_string().contains("no other engine"));
}

#[test]
fn a_share_of_time_is_told_as_people_say_it() {
    let told = |ratio| faster(ratio, CUDNN);
    let words = [0.86, 0.25, 0.998, 1.05].map(told);
    let expected =
        ["16 % faster than cuDNN", "4.0 times as fast as cuDNN", "as fast as cuDNN", "5 % slower than cuDNN"];
    assert_eq!(words, expected);
}
