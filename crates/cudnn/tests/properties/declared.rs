//! An op graph declares what a launch binds: every operand has the element type and the layout in the description's
//! list of operands.

use proptest::prelude::*;
use qkvault_cudnn::op::{Op, OpTensor, TensorKind};
use qkvault_cudnn::{CompileOptions, Form, OpGraph, Profile, Target, WIDE_OFFSETS, lower};
use qkvault_graph::arbitrary::{self, Features, Space};
use qkvault_graph::{Attention, CudnnVersion, DType, LibrarySet, Role, operands, text, validate};

fn target(cudnn: CudnnVersion) -> Target {
    Profile::named("h200").expect("built in").target(cudnn, LibrarySet::Slim)
}

fn lowered(given: &str, cudnn: CudnnVersion) -> OpGraph {
    let valid = validate(text::parse(given).expect("an attention")).expect("sound");
    lower(&valid, &target(cudnn), &CompileOptions::default()).expect("it is lowered")
}

/// Extents and strides that are used; a stride of zero repeats memory.
fn steps(dims: [i64; 4], strides: [i64; 4]) -> Vec<(i64, i64)> {
    let mut steps: Vec<(i64, i64)> = dims.into_iter().zip(strides).filter(|&(n, s)| n > 1 && s > 0).collect();
    steps.sort_unstable();
    steps
}

fn each_is_as_bound(a: &Attention, graph: &OpGraph) -> Result<(), TestCaseError> {
    let bound = operands(a);
    for OpTensor { dims, strides, dtype, kind, offsets: _ } in &graph.tensors {
        let (TensorKind::Operand(role) | TensorKind::Scalar(role)) = *kind else { continue };
        if role.is_internal() {
            prop_assert_eq!(*dtype, DType::F32, "{}", role);
            continue;
        }
        let Some(own) = bound.iter().find(|o| o.role == role.memory()) else {
            return Err(TestCaseError::fail(format!("{role} is not an operand of {a}")));
        };
        prop_assert_eq!(*dtype, own.tensor.dtype, "{}\n{}", role, graph);
        // Offsets are a list, and the graph declares more pages of a pool than exist.
        let list = matches!(role, Role::Offsets(_));
        let pool = own.tensor.is_paged();
        if !list && !pool {
            let own = steps(own.tensor.dims, own.tensor.strides);
            prop_assert_eq!(steps(*dims, *strides), own, "{}\n{}", role, graph);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// A dropout mask with different layouts in forward and backward, or with another type than the bound one, is read
    /// wrongly.
    #[test]
    fn every_operand_is_declared_as_it_is_bound(
        a in arbitrary::attention(Space::SMALL.with(Features { fp8: false, ..Features::ALL })),
        form in prop::sample::select(vec![Form::Expanded, Form::Fused]),
    ) {
        let valid = validate(a).expect("sound");
        for minor in [19, 27] {
            let options = CompileOptions { lab: qkvault_cudnn::LabOptions::form(form), ..CompileOptions::default() };
            if let Ok(graph) = lower(&valid, &target(CudnnVersion::v9(minor, 0)), &options) {
                each_is_as_bound(valid.get(), &graph)?;
            }
        }
    }
}

#[test]
fn a_dropout_mask_has_the_same_layout_in_both_passes() {
    for pass in ["", "pass: backward\n"] {
        let given = format!("{pass}q: f16 [2,4,64,64]\nk: [2,4,96,64]\ndropout: mask 0.25");
        let graph = lowered(&given, CudnnVersion::v9(19, 0));
        let mask = graph.tensors.iter().find(|t| t.kind == TensorKind::Operand(Role::DropoutMask)).expect("it is read");
        assert_eq!((mask.dims, mask.strides), ([2, 4, 64, 96], [4 * 64 * 96, 64 * 96, 96, 1]), "{pass}");
    }
}

/// cuDNN gets the probability to keep, and the description has the probability to drop.
#[test]
fn philox_dropout_keeps_one_minus_the_probability_in_both_passes() {
    for pass in ["", "pass: backward\n"] {
        let graph = lowered(&format!("{pass}q: f16 [1,2,128,64]\ndropout: philox 0.25"), CudnnVersion::v9(19, 0));
        let keeps: Vec<f64> = graph
            .ops
            .iter()
            .filter_map(|op| match op {
                Op::Rng { keep, .. } => Some(f64::from_bits(*keep)),
                _ => None,
            })
            .collect();
        assert_eq!(keeps, [0.75], "{pass}");
    }
}

#[test]
fn offsets_are_64_bits_wide_from_the_version_that_supports_it() {
    let width = |cudnn: CudnnVersion| {
        let options = CompileOptions::default();
        let given = "q: f16 [2,4,64,64] varlen tokens 99\nk: [2,4,64,64] varlen tokens 99\nlengths: per-sequence";
        let valid = validate(text::parse(given).expect("an attention")).expect("sound");
        let graph = lower(&valid, &target(cudnn), &options).expect("it is lowered");
        let offsets = graph.tensors.iter().filter(|t| matches!(t.kind, TensorKind::Operand(Role::Offsets(_))));
        let widths: std::collections::BTreeSet<DType> = offsets.map(|t| t.dtype).collect();
        widths.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(WIDE_OFFSETS, CudnnVersion::v9(6, 0));
    assert_eq!(width(CudnnVersion::v9(5, 9)), [DType::I32]);
    assert_eq!(width(WIDE_OFFSETS), [DType::I64]);
}

/// dQ is a product with the keys in memory: the offsets of K apply to varlen keys.
#[test]
fn varlen_keys_of_the_product_for_dq_have_the_offsets_of_k() {
    let given =
        "pass: backward\nq: f16 [2,4,64,64] varlen tokens 99\nk: [2,4,64,64] varlen tokens 99\nlengths: per-sequence";
    let graph = lowered(given, CudnnVersion::v9(19, 0));
    let keys = TensorKind::Operand(Role::K);
    let turned = graph.ops.iter().find_map(|op| match *op {
        Op::Reshape { x, y } if graph.tensor(x).kind == keys => Some((x, y)),
        _ => None,
    });
    let (from, keys) = turned.expect("K as it lies");
    assert!(graph.tensor(from).offsets.is_some());
    assert_eq!(graph.tensor(keys).offsets, graph.tensor(from).offsets);
}
