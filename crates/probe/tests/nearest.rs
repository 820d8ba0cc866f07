//! Each proposed change: its effect on every field of a description, and that it is not proposed if it changes nothing.

mod bounds;

use std::collections::HashSet;

use bounds::{attention, target};
use proptest::prelude::*;
use qkvault_graph::arbitrary::{self, Space};
use qkvault_graph::validate;
use qkvault_probe::{Request, changes, check, nearest};

/// A change, a description, and the changed description; `None` if the change is not proposed.
type Row = (&'static str, &'static str, Option<&'static str>);

const EIGHTS: &str = "head dims padded with zeros to multiples of 8";
const SIXTEENS: &str = "head dims padded with zeros to multiples of 16";
const LARGER: &str = "head dims padded with zeros to the larger of the two";
const BSHD: &str = "contiguous operands in the order BSHD";
const ANY_ORDER: &str = "sums of gradients in any order (deterministic: no)";
const ONE_ORDER: &str = "sums of gradients in one order (deterministic: yes)";
const RETYPED: &str = "tensors whose gradient is computed in the element type of Q";
const GRADIENTS: &str = "dO and gradients that lie as O, Q, K and V do";
const CAUSAL: &str = "a causal mask without a window";
const DENSE: &str = "dense operands with lengths instead of varlen ones";
const GATHERED: &str = "gathered keys and values instead of paged ones";
const NO_GRADIENT: &str = "no gradient of the sink";

const ROWS: &[Row] = &[
    (EIGHTS, "q: bf16 [1,8,64,100]\nv: [1,8,64,104]", Some("q: bf16 [1,8,64,104]\nv: [1,8,64,104]")),
    (EIGHTS, "q: bf16 [1,8,64,104]", None),
    (EIGHTS, "q: bf16 [2,8,64,100] varlen tokens 99\nlengths: per-sequence", None),
    (
        EIGHTS,
        "q: bf16 [2,8,64,100] bhsd\nk: [2,8,64,100]\nv: [2,8,64,104] bhsd\no: [2,8,64,104]",
        Some("q: bf16 [2,8,64,104]\nk: [2,8,64,104]\nv: [2,8,64,104] bhsd\no: [2,8,64,104]"),
    ),
    (
        EIGHTS,
        "pass: backward\ndeterministic: yes\nsink: yes\nq: bf16 [1,8,128,100]",
        Some("pass: backward\ndeterministic: yes\nsink: yes\nq: bf16 [1,8,128,104]"),
    ),
    (
        EIGHTS,
        "pass: backward\nd_sink: yes\nsink: yes\nq: bf16 [1,8,128,100]",
        Some("pass: backward\nd_sink: yes\nsink: yes\nq: bf16 [1,8,128,104]"),
    ),
    (SIXTEENS, "q: bf16 [1,8,64,100]\nv: [1,8,64,96]", Some("q: bf16 [1,8,64,112]\nv: [1,8,64,96]")),
    (LARGER, "q: bf16 [1,8,64,64]\nv: [1,8,64,128]", Some("q: bf16 [1,8,64,128]")),
    (LARGER, "q: bf16 [1,8,64,128]\nv: [1,8,64,64]", Some("q: bf16 [1,8,64,128]")),
    (LARGER, "q: bf16 [1,8,64,128]", None),
    (BSHD, "q: bf16 [2,8,64,64] bhsd", Some("q: bf16 [2,8,64,64]")),
    (BSHD, "q: bf16 [2,8,64,64] varlen tokens 99\nlengths: per-sequence", None),
    (
        "Stats as the only output besides O",
        "q: bf16 [1,8,64,64]\noutputs: max sum_exp",
        Some("q: bf16 [1,8,64,64]\noutputs: stats"),
    ),
    (
        "padded rows left undefined",
        "q: bf16 [1,8,64,64]\nlengths: per-sequence\npadded_rows: zero",
        Some("q: bf16 [1,8,64,64]\nlengths: per-sequence"),
    ),
    (
        ANY_ORDER,
        "pass: backward\nq: bf16 [1,8,128,64]\ndeterministic: yes",
        Some("pass: backward\nq: bf16 [1,8,128,64]"),
    ),
    (ANY_ORDER, "pass: backward\nq: bf16 [1,8,128,64]", None),
    (
        ONE_ORDER,
        "pass: backward\nq: bf16 [1,8,128,64]",
        Some("pass: backward\nq: bf16 [1,8,128,64]\ndeterministic: yes"),
    ),
    (
        RETYPED,
        "pass: backward\nq: f16 [1,8,128,64]\nscore_mod: tensor @bias: f32[1, 8, 128, 128] grad; score + @bias",
        Some("pass: backward\nq: f16 [1,8,128,64]\nscore_mod: tensor @bias: f16[1, 8, 128, 128] grad; score + @bias"),
    ),
    (
        RETYPED,
        "pass: backward\nq: bf16 [1,8,128,64]\nscore_mod: tensor @bias: f32[1, 8, 128, 128]; score + @bias",
        None,
    ),
    (
        GRADIENTS,
        "pass: backward\nq: bf16 [1,8,128,64]\nd_o: bf16 [1,8,128,64] bhsd",
        Some("pass: backward\nq: bf16 [1,8,128,64]"),
    ),
    ("per-sequence lengths given at launch", "q: bf16 [1,8,64,64]", Some("q: bf16 [1,8,64,64]\nlengths: per-sequence")),
    (
        "a diagonal that starts top left",
        "q: bf16 [1,8,64,64]\nk: [1,8,128,64]\nmask: causal bottom-right",
        Some("q: bf16 [1,8,64,64]\nk: [1,8,128,64]\nmask: causal"),
    ),
    (
        "a diagonal that ends bottom right",
        "q: bf16 [1,8,64,64]\nk: [1,8,128,64]\nmask: causal",
        Some("q: bf16 [1,8,64,64]\nk: [1,8,128,64]\nmask: causal bottom-right"),
    ),
    (CAUSAL, "q: bf16 [1,8,64,64]\nmask: band left 9 right 5", Some("q: bf16 [1,8,64,64]\nmask: causal")),
    (CAUSAL, "q: bf16 [1,8,64,64]\nmask: causal", None),
    (
        DENSE,
        "q: bf16 [2,8,64,64] varlen tokens 99\nk: [2,8,64,64] bhsd\nv: [2,8,64,64]\nlengths: per-sequence",
        Some("q: bf16 [2,8,64,64]\nk: [2,8,64,64] bhsd\nv: [2,8,64,64]\nlengths: per-sequence"),
    ),
    (
        GATHERED,
        "q: bf16 [2,8,64,64] bhsd\nk: [2,8,128,64] paged 9 x 64\nlengths: per-sequence",
        Some("q: bf16 [2,8,64,64] bhsd\nk: [2,8,128,64]\nlengths: per-sequence"),
    ),
    (
        NO_GRADIENT,
        "pass: backward\nq: bf16 [1,8,128,64]\nsink: yes\nd_sink: yes",
        Some("pass: backward\nq: bf16 [1,8,128,64]\nsink: yes"),
    ),
    ("no block mask", "q: bf16 [1,8,64,64]\nblock_mask: yes", Some("q: bf16 [1,8,64,64]")),
    ("no dropout", "q: bf16 [1,8,64,64]\ndropout: philox 0.5", Some("q: bf16 [1,8,64,64]")),
    ("no sink", "q: bf16 [1,8,64,64]\nsink: yes", Some("q: bf16 [1,8,64,64]")),
    (
        "no sink",
        "pass: backward\nq: bf16 [1,8,128,64]\nsink: yes\nd_sink: yes",
        Some("pass: backward\nq: bf16 [1,8,128,64]"),
    ),
    ("no keep predicate", "q: bf16 [1,8,64,64]\nmask_mod: key % 2 == 0", Some("q: bf16 [1,8,64,64]")),
    ("no score expression", "q: bf16 [1,8,64,64]\nscore_mod: tanh(score)", Some("q: bf16 [1,8,64,64]")),
    ("no diagonal band", "q: bf16 [1,8,64,64]\nmask: causal", Some("q: bf16 [1,8,64,64]")),
    ("16-bit operands", "fp8: current\nq: e4m3 [1,8,64,64]\no: f16 [1,8,64,64]", Some("q: bf16 [1,8,64,64]")),
    ("the forward alone", "pass: backward\nq: bf16 [1,8,128,64]", Some("q: bf16 [1,8,128,64]\noutputs: stats")),
];

#[test]
fn every_change_does_what_its_name_says() {
    let target = target("h200", "9.27");
    for (change, given, after) in ROWS {
        let near = changes(&Request::new(&attention(given), &target), &[]);
        let found = near.iter().find(|near| near.change == *change);
        let known = near.iter().map(|near| near.change.as_str()).collect::<Vec<_>>();
        assert_eq!(found.map(|near| near.attention.clone()), after.map(attention), "{change}: {given}\n{known:?}");
    }
    let plain = changes(&Request::new(&attention("q: bf16 [1,8,64,64]"), &target), &[]);
    let plain: Vec<&str> = plain.iter().map(|near| near.change.as_str()).collect();
    assert_eq!(plain, ["Stats as the only output besides O", "per-sequence lengths given at launch"]);
}

/// jax #32242: a gradient of a float32 bias. Another element type is nearer than no bias.
#[test]
fn another_element_type_of_a_bias_is_nearer_than_no_bias() {
    let given =
        "pass: backward\nq: bf16 [8,4,128,32]\nscore_mod: tensor @bias: f32[1, 4, 128, 128] grad; score + @bias";
    for (gpu, version) in [("h100", "9.19"), ("h100", "9.27"), ("b200", "9.27")] {
        let near = nearest(&Request::new(&attention(given), &target(gpu, version)), &[]);
        assert_eq!(near[0].change, RETYPED, "{gpu} {version}");
    }
}

/// Head dims of 256 on a B200: what is needed named `deterministic`, the fix and the nearest change did not.
#[test]
fn the_fix_and_the_nearest_change_name_what_is_needed() {
    let given = attention("pass: backward\nq: bf16 [1,16,512,256]\nmask: causal");
    let target = target("b200", "9.27");
    let request = Request::new(&given, &target);
    let reasons = check(&request).reasons;
    assert!(reasons[0].fix.contains("`deterministic: yes`"), "{}", reasons[0]);
    assert_eq!(nearest(&request, &[])[0].change, ONE_ORDER);
}

/// A head dim of 96 was to be padded to a multiple of 8: what helped was another dO.
#[test]
fn a_change_is_proposed_by_what_it_changes() {
    let given = "pass: backward\nq: bf16 [4,16,131072,96] varlen tokens 410923\nlengths: per-sequence\n\
                 d_o: bf16 [4,16,131072,96] varlen tokens 410923 strides [9728,96,9728,1]";
    let near = nearest(&Request::new(&attention(given), &target("h100", "9.19")), &[]);
    assert_eq!(near[0].change, GRADIENTS);
}

fn targets() -> impl Strategy<Value = qkvault_cudnn::Target> {
    let gpus = prop::sample::select(vec!["h100", "b200", "l40s", "a100"]);
    let versions = prop::sample::select(vec!["9.10.2", "9.14", "9.19", "9.27"]);
    (gpus, versions).prop_map(|(gpu, version)| target(gpu, version))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// What is proposed is supported, is something else each time, and gives up no more than what is proposed later.
    #[test]
    fn what_is_proposed_for_a_random_refusal_is_supported_and_changes_what_it_names(
        a in arbitrary::attention(Space::WIDE), target in targets()
    ) {
        let Ok(valid) = validate(a) else { return Ok(()) };
        let request = Request::new(&valid, &target);
        let reasons = check(&request).reasons;
        let distinct: HashSet<String> = reasons.iter().map(ToString::to_string).collect();
        prop_assert_eq!(distinct.len(), reasons.len(), "a reason twice: {:#?}", reasons);
        let near = nearest(&request, &[]);
        for (at, one) in near.iter().enumerate() {
            prop_assert!(check(&Request::new(&one.attention, &one.target)).supported(), "{}", one.change);
            prop_assert!(one.attention != valid, "{} changes nothing", one.change);
            let dims = |v: &qkvault_graph::Valid| v.head_dims();
            prop_assert_eq!(one.change.contains("padded with zeros"), dims(&one.attention) != dims(&valid));
            let before = near[..at].iter().map(|other| other.change.as_str());
            let gave_up = before.filter(|change| change.starts_with("no ") || *change == "the forward alone");
            let keeps = one.change == RETYPED || one.change == GRADIENTS || one.change.contains("padded with zeros");
            prop_assert!(!keeps || gave_up.count() == 0, "{} comes late", one.change);
        }
    }
}
