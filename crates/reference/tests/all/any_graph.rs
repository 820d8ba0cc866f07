//! The interpreter on valid, broken and random graphs: it returns a result or an error in good time, and never panics.

use crate::common;

use common::lowered::targets;
use common::valid;
use proptest::prelude::*;
use qkvault_cudnn::arbitrary::op_graph;
use qkvault_cudnn::lower;
use qkvault_cudnn::op::{Op, TensorId, TensorKind};
use qkvault_graph::arbitrary::{Features, Space, attention};
use qkvault_graph::{Attention, Band, DType, Role};
use qkvault_reference::{Buffer, Inputs, Precision, forward, interpret};

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
            // Batch and head dims may broadcast; rows and columns must match.
            let run = interpret(&bad, &inputs, Precision::Exact);
            assert!(run.is_err() || axis < 2, "{:?} axis {axis}\n{bad}", tensor.kind);
        }
    }
    for op in 0..good.ops.len() {
        let mut bad = good.clone();
        bad.ops.remove(op);
        let read = bad.ops.iter().flat_map(Op::inputs).any(|id| good.ops[op].outputs().contains(&id));
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
        println!("interpreter {:?} {:?}", policy.lab.form, start.elapsed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_graph_over_any_operands_gives_an_error_or_a_result(graph in op_graph(), seed in any::<u64>()) {
        let mut inputs = Inputs::new();
        let mut state = seed;
        for tensor in &graph.tensors {
            if let TensorKind::Operand(role) | TensorKind::Scalar(role) = tensor.kind {
                let span = tensor.dims.iter().zip(tensor.strides).try_fold(1_i64, |sum, (&n, s)| {
                    n.checked_sub(1)?.checked_mul(s)?.checked_add(sum)
                });
                let numbers = (0..span.unwrap_or(1).clamp(1, 4096)).map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    f64::from((state >> 60) as u32) - 2.0
                });
                inputs.insert(role, Buffer::from_values(tensor.dtype, numbers));
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
        a in attention(Space { batch: 2, heads: 1, seq: 4, head_dim: 8, features: Features { fp8: false, ..Features::ALL } }),
        which in 0..5_usize,
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
                4 if ops > 0 => graph.ops.swap(at % ops, (at >> 8) % ops),
                5 if ops > 0 => drop(graph.ops.remove(at % ops)),
                _ => {}
            }
        }
        let _ = interpret(&graph, &inputs, Precision::Exact);
    }
}
