//! What lowering emits means what the attention means: interpreted, it gives what the oracle gives.

mod common;

use common::{cases, near, valid};
use proptest::prelude::*;
use qkvault_graph::arbitrary::{Features, Space, attention, op_graph};
use qkvault_graph::expr::{Binary, Node};
use qkvault_graph::op::{TensorId, TensorKind};
use qkvault_graph::{
    Attention, BackwardOptions, Band, CudnnVersion, DType, Dropout, DropoutSource, Form, Lengths, LibrarySet, OpGraph,
    Pass, Policy, Profile, Role, ScoreExpr, Target, Valid, lower,
};
use qkvault_reference::{
    Buffer, Choice, Defined, Inputs, LengthChoice, Outputs, Precision, Unused, backward, forward, forward_rows,
    interpret,
};

fn targets() -> Vec<(Target, Policy)> {
    let target = |minor| Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
    [19, 27]
        .into_iter()
        .flat_map(|minor| {
            [Form::Expanded, Form::Fused].map(|form| (target(minor), Policy { form, ..Policy::default() }))
        })
        .collect()
}

/// Compares every defined row. Rows that see nothing are passed over where the softmax is written out: their scores are all
/// minus infinity, whose difference from their maximum is NaN by the meaning of the operations.
fn same(a: &Valid, graph: &OpGraph, inputs: &Inputs, exact: &Outputs, form: Form) -> Result<(), TestCaseError> {
    let failed = |e: &dyn std::fmt::Display| TestCaseError::fail(format!("{e}\n{graph}"));
    // In f32 are: the factor of what dropout keeps, the forward's results that a backward reads, constants of derivatives.
    let slack = if a.dropout.is_some() || a.is_backward() { 1e-5 } else { 0.0 };
    let results = interpret(graph, inputs, Precision::Exact).map_err(|e| failed(&e))?;
    for out in exact.iter() {
        let role = out.role();
        // The sum for a sink is written over every row: what padded rows add to it, nobody says.
        if role == Role::DSink && a.mask.lengths == Lengths::PerSequence {
            continue;
        }
        let grid = results.get(&role).ok_or_else(|| failed(&format!("{role} is not written")))?;
        let [batch, heads, seq, hidden] = out.operand().tensor.dims.map(|n| n as usize);
        for b in 0..batch {
            let rows = match role {
                Role::O | Role::Stats | Role::Max | Role::SumExp | Role::DQ => common::lens(a, inputs, b)[0],
                Role::DK | Role::DV => common::lens(a, inputs, b)[1],
                _ => seq,
            };
            for (h, s) in (0..heads).flat_map(|h| (0..rows).map(move |s| (h, s))) {
                let row =
                    || Ok::<_, TestCaseError>(forward_rows(a, inputs, &[(b, h, s)]).map_err(|e| failed(&e))?.remove(0));
                let written_out = form == Form::Expanded && !a.is_backward() && !a.sink;
                if written_out && row()?.sum_exp == 0.0 {
                    continue;
                }
                for d in 0..hidden {
                    let (x, y) = (out.at(b, h, s, d), grid.at([b, h, s, d]));
                    // What the largest of numbers and NaN is, nobody says.
                    let unsaid = role == Role::Max && x.is_nan();
                    prop_assert!(
                        unsaid || near(x, y) || (x - y).abs() <= slack * x.abs().max(1.0),
                        "{role} {:?}: {y} for {x}\n{graph}",
                        [b, h, s, d]
                    );
                }
            }
        }
    }
    Ok(())
}

/// How many of the targets lower it; what is lowered must mean what the attention means.
fn check(a: &Valid, seed: u64, choice: &Choice) -> Result<usize, TestCaseError> {
    let failed = |e: &dyn std::fmt::Display| TestCaseError::fail(e.to_string());
    let graphs: Vec<_> = targets()
        .into_iter()
        .filter_map(|(target, policy)| Some((lower(a, &target, &policy).ok()?, policy.form)))
        .collect();
    if graphs.is_empty() {
        return Ok(0);
    }
    let mut inputs = Inputs::random_with(a, seed, choice).map_err(|e| failed(&e))?;
    common::with_dropout_mask(a, &mut inputs, seed);
    let exact = if a.is_backward() { backward(a, &inputs) } else { forward(a, &inputs) }.map_err(|e| failed(&e))?;
    if a.is_backward() && a.fp8.is_none() {
        inputs = with_exact_forward(a, &inputs);
    }
    for (graph, form) in &graphs {
        same(a, graph, &inputs, &exact, *form)?;
    }
    Ok(graphs.len())
}

/// A lowered backward reads the forward's O, which in 16 bits is wrong in the third digit already: here it is given in f32.
///
/// Padded rows hold what a kernel might leave there: anything in Stats, any number in O. Not NaN: gradients of score tensors
/// are sums over padded rows too, where it would be multiplied by a probability of zero.
fn with_exact_forward(a: &Valid, inputs: &Inputs) -> Inputs {
    let plain = valid(Attention { pass: Pass::Forward, ..a.get().clone() });
    let outputs = forward(&plain, inputs).expect("computes");
    let mut wide = inputs.widened();
    for role in [Role::O, Role::Stats] {
        let out = outputs.get(role).expect("a backward has both");
        let left = if role == Role::O { 7.0 } else { f64::NAN };
        let number = |at| if out.defined()[at] == Defined::Value { out.values()[at] } else { left };
        wide.insert(role, Buffer::of(DType::F32, (0..out.values().len()).map(number)));
    }
    wide
}

/// Left out below: a floored remainder, which is lowered as `a - b floor(a / b)`, another number where `a` is much larger than
/// `b`; and a score expression that does not read the score, whose lowered scores lack the dims of scores.
fn is_delicate(a: &Attention) -> bool {
    let floor_rem = |e: &ScoreExpr| e.nodes().iter().any(|n| matches!(n, Node::Binary(Binary::FloorRem, ..)));
    a.score.iter().chain(&a.mask.keep).any(floor_rem) || a.score.as_ref().is_some_and(|e| !e.contains(Node::Score))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p7_p41_interpreting_the_lowering_of_dense_forwards_equals_the_oracle(
        a in cases::dense(), seed in any::<u64>(), poison in any::<bool>(),
    ) {
        let a = valid(a);
        let unused = if poison { Unused::Poison } else { Unused::Finite };
        let lowered = check(&a, seed, &Choice { lengths: LengthChoice::Any, unused, spread: false })?;
        prop_assert!(lowered >= 2, "dense forwards lower for both versions: {a}", a = a.get());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p7_p41_whatever_lowers_means_what_the_oracle_computes(a in attention(Space::SMALL), seed in any::<u64>(), any in any::<bool>()) {
        // Slopes of random expressions are wild; those of sensible ones are below.
        prop_assume!(!(a.is_backward() && a.score.is_some()));
        prop_assume!(!is_delicate(&a));
        let lengths = if any { LengthChoice::Any } else { LengthChoice::Varied };
        check(&valid(a), seed, &Choice { lengths, unused: Unused::Pages, spread: any })?;
    }

    #[test]
    fn p7_p41_score_expressions_lower_to_what_they_mean(
        a in attention(Space::SMALL.with(Features { score: true, keep: true, sink: true, ..Features::NONE })), seed in any::<u64>(),
    ) {
        prop_assume!(!is_delicate(&a));
        let lowered = check(&valid(a), seed, &Choice { lengths: LengthChoice::Any, ..Choice::default() })?;
        prop_assert!(lowered > 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p29_lowered_backwards_are_the_gradients(
        a in attention(Space::SMALL.with(Features { keep: true, sink: true, backward: true, ..Features::NONE })),
        dropout in prop::option::weighted(0.3, 0.1_f32..0.7),
        seed in any::<u64>(),
    ) {
        prop_assume!(a.is_backward() && !is_delicate(&a));
        let mut a = a;
        a.dropout = dropout.map(|probability| Dropout { source: DropoutSource::Philox, probability });
        check(&valid(a), seed, &Choice::default())?;
    }
}

#[test]
fn p29_p30_p31_score_expressions_lower_with_their_derivatives_and_tensor_gradients() {
    let mut lowered = 0;
    for (i, lengths) in [false, true].into_iter().enumerate() {
        let plain = Attention::bshd(2, (4, 2), (5, 6), 8, DType::F16).with_band(Band::CAUSAL_BOTTOM_RIGHT).with_stats();
        let plain = if lengths { plain.with_lengths() } else { plain };
        for (name, expression) in cases::smooth(&plain) {
            let a = valid(plain.clone().with_score(expression.build_score().expect(name)));
            let a = valid(a.backward(BackwardOptions::default()));
            lowered += check(&a, i as u64, &Choice::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        }
    }
    assert!(lowered > 0);
}

#[test]
fn rounded_results_stay_near_exact_ones_and_differ_from_them() {
    let a = valid(Attention::bshd(1, (2, 1), (8, 40), 16, DType::BF16).with_stats());
    let inputs = Inputs::random(&a, 3).expect("random");
    let (target, policy) = targets().remove(0);
    let graph = lower(&a, &target, &policy).expect("lowers");
    let run = |precision| interpret(&graph, &inputs, precision).expect("runs").remove(&Role::O).expect("O");
    let (exact, rounded) = (run(Precision::Exact), run(Precision::Rounded));
    let (mut off, mut norm) = (0.0, 0.0);
    for h in 0..2 {
        for s in 0..8 {
            for d in 0..16 {
                let (x, y) = (exact.at([0, h, s, d]), rounded.at([0, h, s, d]));
                assert_eq!(y, qkvault_reference::round(DType::BF16, y));
                off += (x - y) * (x - y);
                norm += x * x;
            }
        }
    }
    let relative = f64::sqrt(off / norm);
    assert!((1e-4..5e-3).contains(&relative), "{relative}");
}

#[test]
fn broken_graphs_and_operands_are_error_values() {
    let a = valid(Attention::bshd(1, (2, 1), (3, 4), 8, DType::F16).with_stats());
    let inputs = Inputs::random(&a, 3).expect("random");
    let (target, policy) = targets().remove(0);
    let good = lower(&a, &target, &policy).expect("lowers");
    interpret(&good, &inputs, Precision::Exact).expect("the good one runs");
    let mut short = inputs.clone();
    short.set_f32(Role::V, 1.0);
    assert!(interpret(&good, &short, Precision::Exact).is_err());
    assert!(interpret(&good, &Inputs::new(), Precision::Exact).is_err());
    for (i, tensor) in good.tensors.iter().enumerate() {
        for axis in 0..4 {
            let mut bad = good.clone();
            bad.tensors[i].dims[axis] += 1;
            // A batch or head dim may be broadcast over; rows and columns must fit.
            let run = interpret(&bad, &inputs, Precision::Exact);
            assert!(run.is_err() || axis < 2, "{:?} axis {axis}\n{bad}", tensor.kind);
        }
    }
    for op in 0..good.ops.len() {
        let mut bad = good.clone();
        bad.ops.remove(op);
        let read =
            bad.ops.iter().flat_map(qkvault_graph::op::Op::inputs).any(|id| good.ops[op].outputs().contains(&id));
        let operand = good.ops[op].outputs().iter().any(|&id| good.tensor(id).kind != TensorKind::Virtual);
        let run = interpret(&bad, &inputs, Precision::Exact);
        assert!(run.is_err() || operand || !read, "{op}");
    }
}

#[test]
fn a_prefill_of_a_model_can_be_interpreted() {
    let a = valid(Attention::bshd(1, (32, 8), (512, 512), 128, DType::BF16).with_band(Band::CAUSAL));
    let inputs = Inputs::random(&a, 3).expect("random");
    let start = std::time::Instant::now();
    forward(&a, &inputs).expect("computes");
    println!("oracle {:?}", start.elapsed());
    for (target, policy) in targets() {
        let Ok(graph) = lower(&a, &target, &policy) else { continue };
        let start = std::time::Instant::now();
        interpret(&graph, &inputs, Precision::Exact).expect("runs");
        println!("interpreter {:?} {:?}", policy.form, start.elapsed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_graph_over_any_operands_gives_an_error_or_a_result(graph in op_graph(), seed in any::<u64>()) {
        let mut inputs = Inputs::new();
        let mut state = seed;
        for tensor in &graph.tensors {
            if let TensorKind::Operand(role) | TensorKind::Slot(role) = tensor.kind {
                let span = tensor.dims.iter().zip(tensor.strides).try_fold(1_i64, |sum, (&n, s)| {
                    n.checked_sub(1)?.checked_mul(s)?.checked_add(sum)
                });
                let numbers = (0..span.unwrap_or(1).clamp(1, 4096)).map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    f64::from((state >> 60) as u32) - 2.0
                });
                inputs.insert(role, Buffer::of(tensor.dtype, numbers));
            }
        }
        for precision in [Precision::Exact, Precision::Rounded] {
            if let Ok(results) = interpret(&graph, &inputs, precision) {
                prop_assert!(results.len() <= graph.tensors.len());
            }
        }
    }

    #[test]
    fn a_good_graph_with_a_few_changes_gives_an_error_or_a_result(
        a in attention(Space { batch: 2, heads: 1, seq: 4, hidden: 8, features: Features { fp8: false, ..Features::ALL } }),
        which in 0..4_usize,
        changes in prop::collection::vec((any::<usize>(), 0..4_usize, 0..9_i64, any::<u8>()), 1..4),
    ) {
        let a = valid(a);
        let (target, policy) = targets().remove(which);
        let Ok(mut graph) = lower(&a, &target, &policy) else { return Ok(()) };
        let mut inputs = Inputs::random(&a, 1).expect("random");
        common::with_dropout_mask(&a, &mut inputs, 1);
        for (at, axis, to, kind) in changes {
            let (tensors, ops) = (graph.tensors.len(), graph.ops.len());
            let tensor = &mut graph.tensors[at % tensors];
            match kind % 6 {
                0 => tensor.dims[axis] = to,
                1 => tensor.strides[axis] = to,
                2 => tensor.dtype = DType::ALL[at % DType::ALL.len()],
                3 => tensor.offsets = Some(TensorId((at >> 8) as u32 % tensors as u32)),
                4 => graph.ops.swap(at % ops, (at >> 8) % ops),
                _ => {
                    graph.ops.remove(at % ops);
                }
            }
        }
        let _ = interpret(&graph, &inputs, Precision::Exact);
    }
}
