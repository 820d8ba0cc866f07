//! The variants of lowering: each changes an op graph, and without it the graph has the form that it replaces.

use proptest::prelude::*;
use qkvault_cudnn::op::{Constant, Op, OpTensor, Pointwise, TensorId, TensorKind};
use qkvault_cudnn::registry::codes;
use qkvault_cudnn::{CompileOptions, OpGraph, Profile, Target, VARIANTS, Variant, VariantSet, lower};
use qkvault_graph::arbitrary::{self, Features, Space};
use qkvault_graph::{Attention, CudnnVersion, LibrarySet, Role, text, validate};

fn target(gpu: &str) -> Target {
    Profile::named(gpu).expect("built in").target(CudnnVersion::v9(19, 0), LibrarySet::Slim)
}

fn without(text: &str, rules: VariantSet, gpu: &str) -> OpGraph {
    let a = text::parse(text).expect("an attention");
    let options = CompileOptions { lab: qkvault_cudnn::LabOptions::without(rules), ..CompileOptions::default() };
    lower(&validate(a).expect("sound"), &target(gpu), &options).expect("it is lowered")
}

fn lowered(text: &str) -> OpGraph {
    without(text, VariantSet::NONE, "h200")
}

/// Pointwise operations with a first operand from memory. Two are cuDNN's own: the product of dO and O, and a sink
/// minus its row's maximum or log-sum-exp.
fn reads_memory_first(graph: &OpGraph) -> Vec<String> {
    let role = |id: TensorId| match graph.tensor(id).kind {
        TensorKind::Virtual => None,
        TensorKind::Operand(role) | TensorKind::Scalar(role) => Some(Ok(role)),
        TensorKind::Constant(c) => Some(Err(c)),
    };
    graph
        .ops
        .iter()
        .filter_map(|op| match *op {
            Op::Pointwise { mode, x, .. } => role(x).map(|first| (mode, first)),
            _ => None,
        })
        .filter(|(_, first)| !matches!(first, Ok(Role::DO | Role::Sink | Role::Max | Role::SumExp | Role::DqAccum)))
        .map(|(mode, first)| format!("{mode:?} of {first:?}"))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// cuDNN answered in_ports[0].first.isVirtual != true, and sub_sink needs a pointwise exp.
    #[test]
    fn expressions_read_a_computed_tensor_first(a in arbitrary::attention(Space::SMALL.with(Features { fp8: false, ..Features::ALL }))) {
        let Ok(graph) = lower(&validate(a).expect("sound"), &target("h200"), &CompileOptions::default()) else { return Ok(()) };
        prop_assert_eq!(reads_memory_first(&graph), Vec::<String>::new(), "{}", graph);
    }
}

#[test]
fn without_its_variant_a_difference_from_a_scalar_reads_the_scalar_first() {
    let text = "q: f16 [1,2,128,64]\nscore_mod: scalar $a: float; $a - tanh(score)";
    assert_eq!(reads_memory_first(&lowered(text)), [""; 0]);
    let rules = VariantSet::NONE.with(Variant::ComputedFirst).with(Variant::LiftOperands);
    assert_eq!(reads_memory_first(&without(text, rules, "h200")).len(), 1);
}

/// With the caller's mask, the dropout factor was not applied to D, so dQ and dK were wrong.
#[test]
fn dropout_with_a_mask_scales_the_gradient_of_the_probabilities() {
    let constants = |graph: &OpGraph| -> Vec<f32> {
        let value = |t: &OpTensor| match t.kind {
            TensorKind::Constant(Constant::F32(bits)) => Some(f32::from_bits(bits)),
            _ => None,
        };
        graph.tensors.iter().filter_map(value).collect()
    };
    let text = |source| format!("pass: backward\nq: f16 [1,2,128,64]\ndropout: {source} 0.5");
    assert_eq!(constants(&lowered(&text("mask"))), [1.0, 2.0, 2.0]);
    assert_eq!(
        constants(&without(&text("mask"), VariantSet::NONE.with(Variant::ScaledDropout), "h200")),
        [0.5, 2.0, 2.0]
    );
    // Philox is right only in the form of NVIDIA's front end.
    assert_eq!(constants(&lowered(&text("philox"))), [0.5, 2.0, 2.0]);
}

fn selects(graph: &OpGraph) -> usize {
    graph.ops.iter().filter(|op| matches!(op, Op::Pointwise { mode: Pointwise::Select, .. })).count()
}

/// cuDNN answers consumer_nodes_of_producer.size() != 2 and kcfg.cta_tile.M != 64 if a bias's gradient is hidden
/// separately.
#[test]
fn a_bias_and_the_scores_share_their_hidden_gradient() {
    for score in ["score + @b", "tanh((score + @b) / 30.0) * 30.0"] {
        let text = format!(
            "pass: backward\noutputs: stats\nq: bf16 [1,2,200,64]\nscore_mod: tensor @b: bf16[1, 2, 200, 200] grad; {score}"
        );
        let graph = lowered(&text);
        let summed = graph.ops.iter().find_map(|op| match *op {
            Op::Reduction { x, y, .. } if graph.tensor(y).kind == TensorKind::Operand(Role::DScoreTensor(0)) => Some(x),
            _ => None,
        });
        let summed = summed.expect("the gradient of the bias");
        let readers: Vec<&Op> =
            graph.ops.iter().filter(|op| matches!(op, Op::Pointwise { x, .. } if *x == summed)).collect();
        let scale = |id: TensorId| graph.tensor(id).kind == TensorKind::Scalar(Role::Scale);
        assert!(
            matches!(readers[..], [Op::Pointwise { mode: Pointwise::Mul, b: Some(b), .. }] if scale(*b)),
            "{score}: {readers:?}\n{graph}"
        );
        // One selection of the probabilities, two of the gradient.
        assert_eq!(selects(&graph), 3, "{graph}");
    }
}

#[test]
fn tails_are_hidden_if_a_derivative_would_read_them() {
    let text = |s: i64, score: &str| format!("pass: backward\nq: f16 [1,2,{s},64]\nscore_mod: {score}");
    // Scores, then the gradient in two selections: cuDNN ignores a selection over both.
    assert_eq!(selects(&lowered(&text(200, "score * score"))), 3);
    assert_eq!(selects(&lowered(&text(256, "score * score"))), 0);
    assert_eq!(selects(&without(&text(256, "score * score"), VariantSet::NONE, "b200")), 0);
    assert_eq!(selects(&without(&text(384, "score * score"), VariantSet::NONE, "b200")), 3);
    // A softcap stays finite at minus infinity and at zero.
    let cap = "scalar $cap: float; tanh(score / $cap) * $cap";
    assert_eq!(selects(&lowered(&text(200, cap))), 0);
    assert_eq!(selects(&without(&text(200, "score * score"), VariantSet::NONE.with(Variant::HideTails), "h200")), 0);
    let a: Attention =
        text::parse(&format!("{}\nlengths: per-sequence", text(200, "score * score"))).expect("an attention");
    let refusal = lower(&validate(a).expect("sound"), &target("h200"), &CompileOptions::default())
        .expect_err("wrong in every form");
    assert_eq!(refusal.reasons()[0].code, codes::BACKWARD_LENGTH_TAIL);
}

/// A derivative that is not a number only if a condition over indices has one value, far from the first rows: dQ and dK
/// were NaN.
#[test]
fn a_derivative_that_is_not_finite_far_from_the_first_rows_is_refused_with_lengths() {
    let text = "pass: backward\nq: f16 [1,2,160,64]\nlengths: per-sequence\nscore_mod: score + tanh(score - select(query < 5, 1.0, score * 2.0))";
    let a: Attention = text::parse(text).expect("an attention");
    let refusal = lower(&validate(a).expect("sound"), &target("h200"), &CompileOptions::default())
        .expect_err("wrong in every form");
    assert_eq!(refusal.reasons()[0].code, codes::BACKWARD_LENGTH_TAIL);
}

#[test]
fn tensors_broadcast_over_queries_are_declared_whole() {
    let strides = |text: &str, rules| {
        let graph = without(text, rules, "h200");
        let kind = TensorKind::Operand(Role::ScoreTensor(0));
        let t = graph.tensors.iter().find(|t| t.kind == kind).expect("it is read");
        (t.dims, t.strides)
    };
    let text = |q: i64, dims: &str| {
        format!("q: f16 [2,4,{q},64]\nk: [2,4,256,64]\nscore_mod: tensor @t: f32[{dims}]; score + @t")
    };
    assert_eq!(strides(&text(128, "2, 1, 1, 256"), VariantSet::NONE), ([2, 1, 128, 256], [256, 256, 0, 1]));
    assert_eq!(strides(&text(128, "2, 4, 1, 1"), VariantSet::NONE), ([2, 4, 128, 1], [4, 1, 0, 1]));
    assert_eq!(strides(&text(1, "2, 4, 1, 1"), VariantSet::NONE), ([2, 4, 1, 256], [4, 1, 1, 0]));
    assert_eq!(strides(&text(128, "1, 4, 1, 1"), VariantSet::NONE).0, [1, 4, 1, 1]);
    assert_eq!(strides(&text(128, "2, 1, 1, 256"), VariantSet::NONE.with(Variant::WholeQueries)).0, [2, 1, 1, 256]);
}

/// On a GPU, `position` was wrong in every forward of several queries and sequences: the lengths that it reads were
/// declared only for masks.
#[test]
fn lengths_that_an_expression_of_a_forward_reads_are_declared_whole() {
    let declared = |text: &str, rules| {
        let graph = without(text, rules, "h200");
        let of = |role| graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(role)).map(|t| (t.dims, t.strides));
        [Role::SeqLenQ, Role::SeqLenKv, Role::SeqLenQWhole, Role::SeqLenKvWhole].map(of)
    };
    let text =
        |b: i64, q: i64, more: &str| format!("q: f16 [{b},4,{q},64]\nk: [{b},4,256,64]\nlengths: per-sequence\n{more}");
    let (mask, whole) = (Some(([3, 1, 1, 1], [1; 4])), Some(([3, 1, 128, 1], [1, 1, 0, 1])));
    let position = "score_mod: score + float(key - position)";
    assert_eq!(declared(&text(3, 128, position), VariantSet::NONE), [mask, mask, whole, whole]);
    assert_eq!(declared(&text(3, 128, "mask_mod: key < key_len - 3"), VariantSet::NONE), [mask, mask, None, whole]);
    let two = Some(([3, 1, 2, 1], [1, 1, 0, 1]));
    assert_eq!(declared(&text(3, 2, position), VariantSet::NONE), [mask, mask, two, two]);
    // Masks alone read them as they are; so do backwards, one query, and one sequence, which were right.
    let plain = [mask, mask, None, None];
    assert_eq!(declared(&text(3, 128, "mask: causal bottom-right"), VariantSet::NONE), plain);
    assert_eq!(declared(&text(3, 1, position), VariantSet::NONE), plain);
    assert_eq!(declared(&format!("pass: backward\n{}", text(3, 128, position)), VariantSet::NONE), plain);
    assert_eq!(declared(&text(1, 128, position), VariantSet::NONE)[2..], plain[2..]);
    assert_eq!(declared(&text(3, 128, position), VariantSet::NONE.with(Variant::WholeQueries)), plain);
}

#[test]
fn engines_that_miscount_keys_are_excluded() {
    let text = |q: i64, kv: i64| format!("q: f16 [1,2,{q},64]\nk: [1,2,{kv},64]\nmask_mod: key % 2 == 0");
    assert_eq!(lowered(&text(1, 300)).excluded_engines, [1]);
    assert_eq!(lowered(&text(1, 256)).excluded_engines, [0; 0]);
    assert_eq!(lowered(&text(2, 300)).excluded_engines, [0; 0]);
    assert_eq!(without(&text(1, 300), VariantSet::NONE.with(Variant::AvoidEngines), "h200").excluded_engines, [0; 0]);
    assert_eq!(lowered("q: f16 [1,2,1,64]\nk: [1,2,300,64]\ndropout: philox 0.1").excluded_engines, [1]);
    let paged = "q: f16 [1,2,1,64]\nk: [1,2,256,64] paged 8 x 64\nlengths: per-sequence\nmask_mod: key % 2 == 0";
    assert_eq!(lowered(paged).excluded_engines, [1]);
    let heads = |kv: i64| format!("q: f16 [1,4,1,64]\nk: [1,{kv},64,64]\nscore_mod: score + float(head) * 0.5");
    assert_eq!(lowered(&heads(2)).excluded_engines, [1]);
    assert_eq!(lowered(&heads(4)).excluded_engines, [0; 0]);
}

#[test]
fn masks_come_last_with_their_own_indices() {
    let text = "q: f16 [1,2,128,64]\nmask: causal\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap";
    let at = |graph: &OpGraph, wanted: Pointwise| {
        let is = |op: &Op| matches!(op, Op::Pointwise { mode, .. } if *mode == wanted);
        graph.ops.iter().position(is).expect("it is written")
    };
    let (last, first) = (lowered(text), without(text, VariantSet::NONE.with(Variant::MasksLast), "h200"));
    assert!(at(&last, Pointwise::Tanh) < at(&last, Pointwise::GenIndex));
    assert!(at(&first, Pointwise::Tanh) > at(&first, Pointwise::CmpGe));
    assert_eq!(last.ops.len(), first.ops.len());
}

#[test]
fn a_derivative_shares_its_steps_with_the_forward() {
    let text = "pass: backward\nq: f16 [1,2,128,64]\nscore_mod: scalar $cap: float; tanh(score / $cap) * $cap";
    let tanhs = |graph: &OpGraph| {
        graph.ops.iter().filter(|op| matches!(op, Op::Pointwise { mode: Pointwise::Tanh, .. })).count()
    };
    assert_eq!(tanhs(&lowered(text)), 1);
    assert_eq!(tanhs(&without(text, VariantSet::NONE.with(Variant::ShareSteps), "h200")), 2);
}

/// Every variant changes an op graph of these: a variant that changes none would be dead.
#[test]
fn every_variant_changes_some_op_graph() {
    let texts = [
        "pass: backward\nq: f16 [1,2,200,64]\nscore_mod: scalar $a: float; $a - tanh(score) * $a + score * score\ndropout: mask 0.5\nmask: causal",
        "q: f16 [2,2,1,64]\nk: [2,2,300,64]\nmask_mod: tensor @q: i32[2, 1, 1, 1]; tensor @k: i32[2, 1, 1, 300]; @q == @k | key < 3",
        "pass: backward\nq: f16 [2,2,128,64]\nscore_mod: tensor @t: f32[2, 1, 1, 128]; select(score > 0.0, score, @t)",
        "q: f16 [2,4,1,64]\nk: [2,4,256,64] paged 9 x 64\nlengths: per-sequence",
        "pass: backward\nq: f16 [1,2,128,64]\nscore_mod: tensor @t: f32[1, 1, 1, 1]; score - @t",
        "q: f16 [1,2,128,64]\nscore_mod: tensor @padding: f32[1, 1, 1, 128]; score + @padding",
    ];
    for row in &VARIANTS {
        let with = |text: &str, rules, minor| {
            let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
            let options =
                CompileOptions { lab: qkvault_cudnn::LabOptions::without(rules), ..CompileOptions::default() };
            let valid = validate(text::parse(text).expect("an attention")).expect("sound");
            lower(&valid, &target, &options).expect("it is lowered")
        };
        let changed = |text: &str, minor| {
            with(text, VariantSet::NONE.with(row.variant), minor) != with(text, VariantSet::NONE, minor)
        };
        assert!(texts.iter().any(|text| changed(text, 19) || changed(text, 27)), "{}", row.name);
    }
}

/// cuDNN 9.26 and 9.27: bias layout should be row major, stride[3] is wrong.
#[test]
fn a_number_per_sequence_of_one_query_is_not_added_if_an_addition_is_a_bias() {
    let added = |given: &str, minor: u16| {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
        let valid = validate(text::parse(given).expect("an attention")).expect("sound");
        let graph = lower(&valid, &target, &CompileOptions::default()).expect("it is lowered");
        let still = |id: TensorId| {
            let t = graph.tensor(id);
            t.kind != TensorKind::Virtual && t.strides[3] == 0
        };
        let adds = |op: &&Op| matches!(op, Op::Pointwise { mode: Pointwise::Add, b: Some(b), .. } if still(*b));
        graph.ops.iter().filter(adds).count()
    };
    for given in [
        "q: f16 [2,4,1,64]\nk: [2,4,256,64]\nscore_mod: tensor @t: f32[2, 1, 1, 1]; score + @t",
        "q: f16 [2,4,1,64]\nk: [2,4,256,64]\nmask_mod: tensor @q: i32[2, 1, 1, 1]; tensor @k: i32[2, 1, 1, 256]; @q == @k",
        "q: f16 [2,4,1,64]\nk: [2,4,1,64]\nmask_mod: tensor @q: i32[2, 1, 1, 1]; tensor @k: i32[2, 1, 1, 1]; @q == @k",
        "pass: backward\nq: f16 [2,4,1,64]\nk: [2,4,256,64]\nmask_mod: tensor @t: f32[2, 1, 1, 1]; key < 3 | @t > 0.0",
    ] {
        assert_eq!([25, 26, 27].map(|minor| added(given, minor)), [1, 0, 0], "{given}");
    }
    // With a number for each key, or one for all sequences, it is a bias that cuDNN reads.
    for extents in ["2, 1, 1, 256", "1, 4, 1, 1"] {
        let given = format!("q: f16 [2,4,1,64]\nk: [2,4,256,64]\nscore_mod: tensor @t: f32[{extents}]; score + @t");
        assert_eq!(added(&given, 27), 0);
        assert!(lowered(&given).ops.len() > 3);
    }
}

#[test]
fn masks_come_before_the_log_sum_exp_only_if_no_row_is_empty() {
    let before = |mask: &str| {
        let graph = lowered(&format!("pass: backward\nq: f16 [1,2,128,64]\nk: [1,2,64,64]\n{mask}"));
        let stats = TensorKind::Operand(Role::Stats);
        let subtracts = |op: &Op| matches!(op, Op::Pointwise { mode: Pointwise::Sub, b: Some(b), .. } if graph.tensor(*b).kind == stats);
        let select = |op: &Op| matches!(op, Op::Pointwise { mode: Pointwise::Select, .. });
        graph.ops.iter().position(select).expect("a mask")
            < graph.ops.iter().position(subtracts).expect("the log-sum-exp")
    };
    assert!(before("mask: causal"));
    assert!(before("mask: causal window 65"));
    // Row 127 sees keys 64 and on of 64; the first rows of a bottom right corner see none; lengths and predicates are
    // unknown.
    assert!(!before("mask: causal window 64"));
    assert!(!before("mask: causal bottom-right"));
    assert!(!before("mask: causal\nlengths: per-sequence"));
    assert!(!before("mask_mod: key % 2 == 0"));
}

/// get_fort_io_type_str(port.first.getKernelType()) != "int32_t": cuDNN 9.14, 9.19 and 9.27, for compute capabilities
/// 8.0 to 12.0.
#[test]
fn a_window_alone_masks_scores_that_nothing_else_reads() {
    let beside = |q: i64, rest: &str, rules| {
        let given = format!("pass: backward\nq: f16 [1,2,{q},64]\nk: [1,2,128,64]\n{rest}");
        let graph = without(&given, rules, "h200");
        let select = graph.ops.iter().find_map(|op| match *op {
            Op::Pointwise { mode: Pointwise::Select, x, .. } => Some(x),
            _ => None,
        });
        let masked = select.expect("a mask");
        graph.ops.iter().filter(|op| op.inputs().contains(&masked)).count() - 3
    };
    let sets = [VariantSet::NONE, VariantSet::NONE.with(Variant::MasksBeforeStats)];
    for q in [1, 64, 128] {
        for score in ["tanh(score)", "exp(score)", "sigmoid(score)", "sqrt(score)", "scalar $c: float; exp(score * $c)"]
        {
            for rules in sets {
                assert_eq!(
                    beside(q, &format!("mask: band left 100 bottom-right\nscore_mod: {score}"), rules),
                    0,
                    "{score}"
                );
            }
        }
    }
    // With a right bound, cuDNN accepts it, and these backwards stayed unchanged.
    assert_eq!(beside(128, "mask: causal window 100\nscore_mod: tanh(score)", VariantSet::NONE), 1);
    assert_eq!(beside(128, "mask: causal\nscore_mod: tanh(score)", VariantSet::NONE), 1);
}

/// If nothing else reads the scores, a window alone keeps its place, which is faster.
#[test]
fn a_window_alone_comes_late_only_if_the_derivative_reads_its_scores() {
    let changes = |score: &str| {
        let given = format!("pass: backward\nq: f16 [1,2,128,64]\nmask: band left 100\nscore_mod: {score}");
        lowered(&given) != without(&given, VariantSet::NONE.with(Variant::MasksBeforeStats), "h200")
    };
    assert!(!changes("tanh(score)") && !changes("exp(score)"));
    assert!(changes("scalar $c: float; tanh(score / $c) * $c") && changes("score * score") && changes("relu(score)"));
}

/// SIGSEGV while 9.26.0 and 9.27.0 searched for engines.
#[test]
fn one_float_is_never_subtracted_directly_from_scores_of_a_backward() {
    let subtracted = |given: &str, minor: u16| {
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
        let valid = validate(text::parse(given).expect("an attention")).expect("sound");
        let graph = lower(&valid, &target, &CompileOptions::default()).expect("it is lowered");
        let one = |id: TensorId| {
            let t = graph.tensor(id);
            matches!(t.kind, TensorKind::Operand(Role::ScoreTensor(_))) && t.dims == [1; 4]
        };
        let subtracts = |op: &&Op| matches!(op, Op::Pointwise { mode: Pointwise::Sub, b: Some(b), .. } if one(*b));
        graph.ops.iter().filter(subtracts).count()
    };
    let text = |pass: &str, dtype: &str, score: &str| {
        format!("{pass}q: bf16 [1,2,64,64]\nscore_mod: tensor @t: {dtype}[1, 1, 1, 1]; {score}")
    };
    for score in ["score - @t", "score + (0.0 - @t)", "tanh(score - @t)", "score * 2.0 - @t"] {
        let given = text("pass: backward\n", "f32", score);
        assert_eq!([25, 26, 27].map(|minor| subtracted(&given, minor)), [1, 0, 0], "{given}");
    }
    // Forwards, numbers of other types, and predicates are accepted as they are.
    assert_eq!(subtracted(&text("", "f32", "score - @t"), 27), 1);
    assert_eq!(subtracted(&text("pass: backward\n", "bf16", "score - @t"), 27), 1);
    let keep = "pass: backward\nq: bf16 [1,2,64,64]\nmask_mod: tensor @t: f32[1, 1, 1, 1]; float(key) - @t > 3.0";
    assert_eq!(subtracted(keep, 27), 1);
}

/// 16-bit numbers per sequence over one query: CUDA_ERROR_MISALIGNED_ADDRESS, which ends all work on the device.
#[test]
fn one_query_with_narrow_numbers_per_sequence_is_refused() {
    let lower = |dtype: &str, q: i64| {
        let text =
            format!("q: f16 [3,2,{q},64]\nk: [3,2,64,64]\nscore_mod: tensor @t: {dtype}[3, 1, 1, 1]; score + @t");
        let a: Attention = text::parse(&text).expect("an attention");
        lower(&validate(a).expect("sound"), &target("h200"), &CompileOptions::default())
    };
    assert_eq!(lower("f16", 1).expect_err("it faults").reasons()[0].code, codes::SCORE_MOD_ONE_QUERY_NARROW);
    assert!(lower("f32", 1).is_ok() && lower("f16", 2).is_ok());
}

/// One sequence, one head, one query: cuDNN 9.26 and 9.27 ended the process while they compiled the backward; 9.25 did
/// not.
#[test]
fn a_backward_of_one_row_is_refused_for_versions_that_crash() {
    let lower = |minor: u16, q: i64| {
        let a: Attention =
            text::parse(&format!("pass: backward\nq: f16 [1,1,{q},64]\nk: [1,1,127,64]")).expect("an attention");
        let target = Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
        lower(&validate(a).expect("sound"), &target, &CompileOptions::default())
    };
    assert_eq!(lower(27, 1).expect_err("it ends the process").reasons()[0].code, codes::BACKWARD_SINGLE_ROW);
    assert!(lower(27, 2).is_ok() && lower(26, 1).is_err() && lower(25, 1).is_ok());
}

#[test]
fn pools_of_similar_sizes_have_the_same_graph() {
    let text = |pages: i64| format!("q: f16 [2,4,1,64]\nk: [2,4,256,64] paged {pages} x 64\nlengths: per-sequence");
    let pool = |text: &str, rules| {
        let graph = without(text, rules, "h200");
        let is = |t: &&OpTensor| t.kind == TensorKind::Operand(Role::K);
        graph.tensors.iter().find(is).expect("it is read").dims[0]
    };
    assert_eq!([8, 9, 1000, 1024].map(|pages| pool(&text(pages), VariantSet::NONE)), [8, 16, 1024, 1024]);
    assert_eq!(pool(&text(1000), VariantSet::NONE.with(Variant::RoundPool)), 1000);
    assert_eq!(lowered(&text(700)), lowered(&text(1000)));
    assert_ne!(lowered(&text(500)), lowered(&text(1000)));
    // Heads outside pages: additional pages would reach into the next head.
    let outside = "q: f16 [2,4,1,64]\nk: [2,4,256,64] paged 9 x 64 strides [4096,36864,64,1]\nlengths: per-sequence";
    assert_eq!(pool(outside, VariantSet::NONE), 9);
}

/// A given mask applies whatever the probability, as in the oracle; it was left out for a probability of zero.
#[test]
fn a_dropout_mask_is_read_even_if_the_probability_is_zero() {
    for pass in ["", "pass: backward\n"] {
        let with = |dropout: &str| lowered(&format!("{pass}q: f16 [1,2,128,64]\ndropout: {dropout}"));
        assert!(with("mask 0").roles().contains(&Role::DropoutMask), "{pass}");
        assert!(!with("philox 0").roles().contains(&Role::DropoutSeed), "{pass}");
    }
}

/// cuDNN multiplies scores by the base-2 logarithm of e, and of rows of the lowest float it made rows of infinities: O
/// was 0 instead of the mean of V (pytorch issue 109517).
#[test]
fn scores_as_low_as_the_lowest_float_are_compressed_in_a_forward() {
    let maxima = |text: &str, rules| {
        let is = |op: &&Op| matches!(op, Op::Pointwise { mode: Pointwise::Max, .. });
        without(text, rules, "h200").ops.iter().filter(is).count()
    };
    let text = |score: &str| format!("q: bf16 [1,2,64,64]\nscore_mod: {score}");
    let bias = |dtype: &str| text(&format!("tensor @bias: {dtype}[1, 1, 64, 64]; score + @bias"));
    let constant = text("select(query >= 16, score, -3.0e38)");
    for compressed in [&constant, &bias("f32"), &bias("bf16")] {
        assert_eq!(maxima(compressed, VariantSet::NONE), 1, "{compressed}");
        assert_eq!(maxima(compressed, VariantSet::NONE.with(Variant::CompressLowest)), 0, "{compressed}");
        assert_eq!(maxima(&format!("pass: backward\n{compressed}"), VariantSet::NONE), 0, "{compressed}");
    }
    for plain in [bias("f16"), text("score - 1.0e9"), text("scalar $cap: float; tanh(score / $cap) * $cap")] {
        assert_eq!(maxima(&plain, VariantSet::NONE), 0, "{plain}");
    }
}
