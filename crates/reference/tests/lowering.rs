//! What lowering emits means what the attention means: interpreted, it gives what the oracle gives.

mod common;

use common::{cases, valid};
use proptest::prelude::*;
use qkvault_graph::op::TensorKind;
use qkvault_graph::{CudnnVersion, Form, LibrarySet, OpGraph, Policy, Profile, Role, Target, Valid, lower};
use qkvault_reference::{Choice, Grid, Inputs, LengthChoice, Outputs, Precision, Unused, forward, interpret};

fn targets() -> Vec<(Target, Policy)> {
    let target = |minor| Profile::named("h200").expect("built in").target(CudnnVersion::v9(minor, 0), LibrarySet::Slim);
    [19, 27]
        .into_iter()
        .flat_map(|minor| {
            [Form::Expanded, Form::Fused].map(|form| (target(minor), Policy { form, ..Policy::default() }))
        })
        .collect()
}

/// A dim that the graph declares transposed reads back as the operand's own.
fn at(grid: &Grid, [b, h, s, d]: [usize; 4]) -> f64 {
    grid.at([b, h, s, d])
}

/// Compares every defined row. Rows that see nothing are passed over where the softmax is written out: their scores are all
/// minus infinity, whose difference from their maximum is NaN by the meaning of the operations.
fn same(a: &Valid, graph: &OpGraph, inputs: &Inputs, exact: &Outputs, empty: bool) -> Result<usize, TestCaseError> {
    let results = interpret(graph, inputs, Precision::Exact).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let mut compared = 0;
    for out in exact.iter() {
        let role = out.role();
        let grid = results.get(&role).ok_or_else(|| TestCaseError::fail(format!("{role} is not written")))?;
        let [batch, heads, seq, hidden] = out.operand().tensor.dims.map(|n| n as usize);
        for b in 0..batch {
            for h in 0..heads {
                for s in 0..seq.min(common::lens(a, inputs, b)[0]) {
                    if !empty && common::naive_row(a, inputs, [b, h, s]).p.iter().all(|&p| p == 0.0) {
                        continue;
                    }
                    for d in 0..hidden {
                        let (x, y) = (out.at(b, h, s, d), at(grid, [b, h, s, d]));
                        prop_assert!(
                            x == y || (x - y).abs() <= 1e-9 * (1.0 + x.abs()),
                            "{role} {:?}: {y} for {x}",
                            [b, h, s, d]
                        );
                        compared += 1;
                    }
                }
            }
        }
    }
    Ok(compared)
}

fn check(a: &Valid, seed: u64, choice: &Choice) -> Result<usize, TestCaseError> {
    let inputs = Inputs::random_with(a, seed, choice).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let exact = forward(a, &inputs).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let mut lowered = 0;
    for (target, policy) in targets() {
        let Ok(graph) = lower(a, &target, &policy) else { continue };
        same(a, &graph, &inputs, &exact, policy.form == Form::Fused)?;
        lowered += 1;
    }
    Ok(lowered)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn p7_p41_interpreting_the_lowering_of_dense_forwards_equals_the_oracle(a in cases::dense(), seed in any::<u64>(), poison in any::<bool>()) {
        let a = valid(a);
        let unused = if poison { Unused::Poison } else { Unused::Finite };
        let lowered = check(&a, seed, &Choice { lengths: LengthChoice::Any, unused, spread: false })?;
        prop_assert!(lowered >= 2, "dense forwards lower for both versions: {a}", a = a.get());
    }
}

#[test]
fn rounded_results_stay_near_exact_ones_and_differ_from_them() {
    let a = valid(qkvault_graph::Attention::bshd(1, (2, 1), (8, 40), 16, qkvault_graph::DType::BF16).with_stats());
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
                assert_eq!(y, qkvault_reference::round(qkvault_graph::DType::BF16, y));
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
    let a = valid(qkvault_graph::Attention::bshd(1, (2, 1), (3, 4), 8, qkvault_graph::DType::F16).with_stats());
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
