//! The form for each version, and the places of masks in it: both sides of every bound.

use proptest::prelude::*;
use qkvault_cudnn::op::{Op, OpTensor, Pointwise, TensorKind};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, FUSED_OPS, Form, OpGraph, Profile, Target, Variant, VariantSet, lower};
use qkvault_graph::{
    Attention, Band, Corner, CudnnVersion, DType, LibrarySet, Origin, Outputs, Refusal, Role, text, validate,
};

fn target(gpu: &str, cudnn: CudnnVersion) -> Target {
    Profile::named(gpu).expect("built in").target(cudnn, LibrarySet::Slim)
}

fn put(a: Attention, cudnn: CudnnVersion, options: &CompileOptions) -> Result<OpGraph, Refusal> {
    lower(&validate(a).expect("sound"), &target("h200", cudnn), options)
}

fn read(given: &str) -> Attention {
    text::parse(given).expect("an attention")
}

fn lowered(given: &str, minor: u16) -> OpGraph {
    put(read(given), CudnnVersion::v9(minor, 0), &CompileOptions::default()).expect("it is lowered")
}

/// Of other sets of outputs than these, the expanded softmax leaves some unwritten: Stats alone, Max with Sum_exp,
/// none.
#[test]
fn outputs_that_only_the_softmax_operation_writes_are_written_by_it_or_refused() {
    let before = CudnnVersion::v9(20, 9);
    for (at, [stats, max, sum_exp]) in (0..8).map(|n| (n, [n & 1 != 0, n & 2 != 0, n & 4 != 0])) {
        let with = |cudnn, form| {
            let mut a = Attention::bshd(1, (2, 2), (64, 64), 64, DType::F16);
            a.outputs = Outputs::new(stats, max, sum_exp);
            let graph = put(
                a,
                cudnn,
                &CompileOptions { lab: qkvault_cudnn::LabOptions::form(form), ..CompileOptions::default() },
            );
            graph.map(|g| g.ops.iter().any(|op| matches!(op, Op::Softmax { .. })))
        };
        let expanded_writes = [0, 1, 6].contains(&at);
        let refused = |refusal: Result<bool, Refusal>| refusal.is_err_and(|r| r.has(&codes::OUTPUTS_COMBINATION));
        if expanded_writes {
            assert_eq!(with(before, Form::Auto), Ok(false), "{at}");
            assert_eq!(with(FUSED_OPS, Form::Auto), Ok(false), "{at}");
            assert_eq!(with(FUSED_OPS, Form::Expanded), Ok(false), "{at}");
        } else {
            assert!(refused(with(before, Form::Auto)), "{at}");
            assert_eq!(with(FUSED_OPS, Form::Auto), Ok(true), "{at}");
            assert!(refused(with(FUSED_OPS, Form::Expanded)), "{at}");
        }
        assert_eq!(with(FUSED_OPS, Form::Fused), Ok(true), "{at}");
        assert!(with(before, Form::Fused).is_err_and(|r| r.reasons()[0].since == Some(FUSED_OPS)), "{at}");
    }
}

/// A backward reads only Stats, whatever other outputs its forward has.
#[test]
fn outputs_of_the_forward_do_not_choose_the_form_of_its_backward() {
    let with = |max| {
        let mut a = Attention::bshd(1, (2, 2), (64, 64), 64, DType::F16).with_stats();
        a.outputs.max = max;
        put(a.backward(qkvault_graph::BackwardOptions::default()), CudnnVersion::v9(19, 0), &CompileOptions::default())
    };
    assert_eq!(with(true), with(false));
}

/// Checks every row of these attentions, to show that bounds from the first and the last row are enough.
fn sees_a_key(band: Band, s_q: i64, s_kv: i64) -> bool {
    (0..s_q).all(|row| (0..s_kv).any(|col| band.keeps(row, col, s_q, s_kv)))
}

fn masks_before_stats(graph: &OpGraph) -> Option<bool> {
    let select = graph.ops.iter().position(|op| matches!(op, Op::Pointwise { mode: Pointwise::Select, .. }))?;
    let stats = TensorKind::Operand(Role::Stats);
    let subtracts = |op: &Op| matches!(op, Op::Pointwise { mode: Pointwise::Sub, b: Some(b), .. } if graph.tensor(*b).kind == stats);
    Some(select < graph.ops.iter().position(subtracts).expect("the log-sum-exp is subtracted"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A row that sees no key has a log-sum-exp of minus infinity, and minus infinity minus itself is not a number.
    #[test]
    fn masks_come_before_the_log_sum_exp_exactly_if_every_row_sees_a_key(
        s_q in 1..10_i64, s_kv in 1..10_i64, left in prop::option::of(1..10_i64), right in prop::option::of(0..10_i64),
        bottom in any::<bool>(),
    ) {
        let corner = if bottom { Corner::BottomRight } else { Corner::TopLeft };
        let mut forward = Attention::bshd(1, (2, 2), (s_q, s_kv), 64, DType::F16).with_stats();
        forward.mask.band = (left.is_some() || right.is_some()).then_some(Band { corner, left, right });
        let Ok(valid) = validate(forward.backward(qkvault_graph::BackwardOptions::default())) else { return Ok(()) };
        let graph = lower(&valid, &target("h200", CudnnVersion::v9(19, 0)), &CompileOptions::default()).expect("it is lowered");
        let band = valid.get().mask.band;
        // Without a band, what lies beyond a single query is hidden behind the log-sum-exp (`tails.rs`).
        let tail = (s_q == 1).then_some(false);
        let expected = band.map_or(tail, |band| Some(sees_a_key(band, s_q, s_kv)));
        prop_assert_eq!(masks_before_stats(&graph), expected, "{:?} over {} and {}\n{}", band, s_q, s_kv, graph);
    }
}

/// The band-mask operation reads the scores once; the rule for a window alone is for the expanded one.
#[test]
fn masks_of_the_fused_form_stay_where_they_are() {
    let given =
        "pass: backward\nq: f16 [1,2,128,64]\nmask: band left 100\nscore_mod: score * score + exp(score) * sin(score)";
    for rule in [Variant::MasksLast, Variant::MasksBeforeStats] {
        let with = |without| {
            let options = CompileOptions {
                lab: qkvault_cudnn::LabOptions { form: Form::Fused, without, ..Default::default() },
                ..CompileOptions::default()
            };
            put(read(given), CudnnVersion::v9(27, 0), &options).expect("it is lowered")
        };
        let same = with(VariantSet::NONE) == with(VariantSet::NONE.with(rule));
        assert_eq!(same, rule == Variant::MasksLast, "{rule:?}");
    }
}

/// `score * 2.0`: a factor of two was close enough to one.
#[test]
fn a_constant_derivative_is_multiplied_in_unless_it_is_one() {
    let ops = |score: &str, rules| {
        let given = format!("pass: backward\nq: f16 [1,2,128,64]\nscore_mod: {score}");
        let options = CompileOptions { lab: qkvault_cudnn::LabOptions::without(rules), ..CompileOptions::default() };
        put(read(&given), CudnnVersion::v9(19, 0), &options).expect("it is lowered").ops.len()
    };
    for rules in [VariantSet::NONE, VariantSet::NONE.with(Variant::AppliedDerivative)] {
        // One product in the forward part and one of the gradient; the derivative of an addition is one.
        let none = ops("score + 2.0", rules);
        assert_eq!([2, 3].map(|n| ops(&format!("score * {n}.0"), rules)), [none + 1; 2], "{rules}");
    }
}

/// A number in the expression is not an operand, and cuDNN accepts it.
#[test]
fn constants_are_subtracted_from_scores_of_a_backward_as_they_are() {
    let given = "pass: backward\nq: bf16 [1,2,64,64]\nscore_mod: tanh(score - 2.0)";
    assert_eq!(lowered(given, 27), lowered(given, 25));
}

#[test]
fn a_backward_of_one_row_is_refused_up_to_a_head_dim_of_128() {
    let lower = |head_dim: i64| {
        let given = format!("pass: backward\nq: f16 [1,1,1,{head_dim}]\nk: [1,1,64,{head_dim}]");
        put(read(&given), CudnnVersion::v9(27, 0), &CompileOptions::default())
    };
    assert!(lower(128).is_err_and(|r| r.has(&codes::BACKWARD_SINGLE_ROW)));
    assert!(lower(129).is_ok() && lower(136).is_ok());
}

/// Misaligned reads were observed only for a 16-bit number per sequence over one query, not for tensors with more
/// numbers.
#[test]
fn narrow_numbers_over_one_query_are_refused_only_with_one_per_sequence() {
    let refused = |batch: i64, dims: &str| {
        let given =
            format!("q: f16 [{batch},2,1,64]\nk: [{batch},2,64,64]\nscore_mod: tensor @t: f16[{dims}]; score + @t");
        put(read(&given), CudnnVersion::v9(19, 0), &CompileOptions::default())
            .is_err_and(|r| r.has(&codes::SCORE_MOD_ONE_QUERY_NARROW))
    };
    assert!(refused(2, "2, 1, 1, 1") && refused(2, "2, 2, 1, 1") && refused(3, "3, 1, 1, 1"));
    assert!(!refused(2, "2, 1, 1, 64") && !refused(2, "1, 2, 1, 1") && !refused(1, "1, 1, 1, 1"));
}

/// NVIDIA names an engine on 10.0 to 10.3 since 9.18, and has a row for 256. If none is named, a newer version helps
/// only if the version is the problem.
#[test]
fn without_a_named_engine_the_reason_has_the_version_that_names_one() {
    let lower = |sm: i64, head_dim: i64, cudnn| {
        let given = format!("pass: backward\nq: f16 [1,2,128,{head_dim}]\ndeterministic: yes");
        let mut target = target("b200", cudnn);
        target.device.device_ver = sm * 10;
        lower(&validate(read(&given)).expect("sound"), &target, &CompileOptions::default())
    };
    let (first, tiles) = (CudnnVersion::v9(18, 0), CudnnVersion::v9(23, 0));
    for (sm, head_dim, cudnn) in [(100, 64, first), (103, 64, first), (100, 256, tiles), (103, 256, tiles)] {
        assert!(lower(sm, head_dim, cudnn).is_ok_and(|g| g.engine.is_some()), "{sm} {head_dim} {cudnn}");
    }
    for (sm, cudnn, since) in [(100, CudnnVersion::v9(17, 9), Some(first)), (104, first, None), (104, tiles, None)] {
        for head_dim in [64, 256] {
            let refusal = lower(sm, head_dim, cudnn).expect_err("none is named");
            let reason = &refusal.reasons()[0];
            assert_eq!((reason.code.as_str(), reason.origin), ("backward.deterministic-engine", Origin::Rule));
            assert_eq!(reason.since, since, "{sm} {cudnn}");
        }
    }
}

/// Pages one after another, whatever the order of heads and rows in a page: a pool may be declared larger. Otherwise
/// more pages would reach into the memory between them.
#[test]
fn a_pool_is_declared_larger_only_if_pages_lie_one_after_another() {
    let declared = |page: i64, head: i64, row: i64| {
        let given = format!(
            "q: f16 [2,4,1,64]\nk: [2,4,256,64] paged 9 x 32 strides [{page},{head},{row},1]\nlengths: per-sequence"
        );
        let graph = lowered(&given, 19);
        let is = |t: &&OpTensor| t.kind == TensorKind::Operand(Role::K);
        graph.tensors.iter().find(is).expect("it is read").dims[0]
    };
    // The last element of a page of 4 heads and 32 rows of 64: heads outside rows, rows outside heads, and padded both
    // ways.
    for (head, row) in [(32 * 64, 64), (64, 4 * 64), (40 * 72, 72), (72, 5 * 72)] {
        let last = 3 * head + 31 * row + 63;
        assert_eq!([last - 1, last, last + 1].map(|page| declared(page, head, row)), [9, 16, 16], "{head} {row}");
    }
}

#[test]
fn a_pool_is_declared_larger_up_to_the_largest_power_of_two_for_an_extent() {
    let declared = |pages: i64| {
        let given = format!("q: f16 [2,1,1,64]\nk: [2,1,256,64] paged {pages} x 1\nlengths: per-sequence");
        let graph = lowered(&given, 19);
        let is = |t: &&OpTensor| t.kind == TensorKind::Operand(Role::K);
        graph.tensors.iter().find(is).expect("it is read").dims[0]
    };
    let most = 1 << 30;
    assert_eq!(
        [most / 2 + 1, most - 1, most, most + 1, i64::from(i32::MAX)].map(declared),
        [most, most, most, most + 1, i64::from(i32::MAX)]
    );
}

#[test]
fn variants_in_options_survive_json() {
    let options = CompileOptions {
        lab: qkvault_cudnn::LabOptions::without(VariantSet::NONE.with(Variant::MasksLast).with(Variant::RoundPool)),
        ..CompileOptions::default()
    };
    let json = serde_json::to_string(&options).expect("serialises");
    assert!(json.contains(r#"["masks-last","round-pool"]"#), "{json}");
    assert_eq!(serde_json::from_str::<CompileOptions>(&json).expect("parses"), options);
}
